# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 6. Prompts against prompts
#
# **What you will see.** Two wordings of one question about twelve countries, every token kept. Token by token, what one
# changed word changes; then, layer by layer, whether the last token is nearer to the same *wording* or to the same
# *country*.
#
# **How long it takes.** A few seconds, once the shared runs exist.

# %%
import numpy as np
import shared

from workbench.analysis import pair_prompts

run = shared.wordings()
n = len(shared.COUNTRIES)
print(run.prompts.texts[0], run.prompts.texts[n], sep="\n")

# %% [markdown]
# ## One word changed
#
# Tokens are aligned by their difference. Distances are shares of the length of the state.

# %%
pair = pair_prompts(run, 0, 1)
pair.plot().show("plotly_mimetype")
print(run.prompts.texts[0], "/", run.prompts.texts[1])
print(f"{'tap':22}", *(f"token {i}" for i in pair.aligned[:, 0]))
for tap, row in zip(pair.taps, pair.distances, strict=True):
    print(f"{tap:22}", *(f"{value:7.3f}" for value in row))

# %% [markdown]
# **Finding.** What stands before the changed word is equal at every depth: a decoder sees only what came before.
# After it, the last token starts equal, as it is the same word, and ends about as far apart as the changed word began.

# %%
changed = int(np.flatnonzero(~pair.same)[0])
assert pair.distances[:, :changed].max() < 1e-4
assert pair.distances[0, -1] == 0
assert pair.distances[-1, -1] > 0.5
last = pair.distances[1:, -1]
print("last token, block 2 to final norm:", last.round(3))

# %% [markdown]
# ## Wording or country?
#
# For the last token of each prompt: which of the twelve prompts in the *other* wording is nearest, by cosine? By chance
# it is that of the same country in one case of twelve.


# %%
def found(states: np.ndarray) -> float:
    """Share of prompts whose nearest prompt in the other wording asks about the same country."""
    rows = states / np.maximum(np.linalg.norm(states, axis=1, keepdims=True), 1e-12)
    cosine = rows[:n] @ rows[n:].T
    hits = np.r_[cosine.argmax(axis=0) == np.arange(n), cosine.argmax(axis=1) == np.arange(n)]
    return float(hits.mean())


def centred(states: np.ndarray) -> np.ndarray:
    """Take the mean of each wording away."""
    parts = states.reshape(2, n, -1)
    return (parts - parts.mean(axis=1, keepdims=True)).reshape(2 * n, -1)


ends = np.asarray(run.row_offsets)[1:] - 1
raw, without = {}, {}
print("tap                       raw   wording taken away")
for tap in run.taps[1:]:  # at the embedding the last token is the same word everywhere
    states = run.tap(tap)[ends].astype(np.float64)
    raw[tap], without[tap] = found(states), found(centred(states))
    print(f"{tap:22}  {raw[tap]:5.0%}   {without[tap]:5.0%}")

# %% [markdown]
# **Finding.** Up to block 20 the wording rules: the same country is found in few cases. From block 23 on it is found in
# nearly all. That is the step at which latitude becomes readable in notebook 5. Yet the country was there long before:
# take the mean of each wording away, and at blocks 5 and 8 it is found in every case. What changes between 20 and 23 is
# not that the country is known, but that it outweighs the wording.

# %%
early = [tap for tap in raw if tap.startswith("blocks.") and int(tap.split(".")[1]) <= 20]
late = [tap for tap in raw if tap not in early]
assert max(raw[tap] for tap in early) < 0.5
assert min(raw[tap] for tap in late) > 0.9
assert min(without["blocks.5.resid_post"], without["blocks.8.resid_post"]) > 0.9
print("early at most", max(raw[tap] for tap in early), "- late at least", min(raw[tap] for tap in late))

# %% [markdown]
# The same as two paths, of one country in both wordings, in one frame. They run side by side: the way that
# both go together is longer than what keeps them apart anywhere.

# %%
same = pair_prompts(run, 0, n)
same.plot().show("plotly_mimetype")
both = dict(zip(same.taps, same.paths, strict=True))
apart = {tap: float(np.linalg.norm(a - b)) for tap, (a, b) in both.items()}
start, end = both["blocks.2.resid_post"], both["blocks.26.resid_post"]
travelled = float(np.linalg.norm(end.mean(axis=0) - start.mean(axis=0)))
assert max(apart.values()) < 0.5 * travelled
print(f"travelled {travelled:.0f};", ", ".join(f"{tap} {value:.0f} apart" for tap, value in apart.items()))
