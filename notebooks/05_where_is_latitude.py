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
# # 5. Probes: where does a model keep latitude?
#
# **What you will see.** The same linear probe at eleven depths of a small model. Latitude and longitude can be read
# poorly from block 2 on, and suddenly nearly twice as well after block 20. Then the doubts: shuffled labels, the token
# alone, and countries that the probe never saw.
#
# **How long it takes.** Half a minute on two cores, once the shared runs exist.
#
# After Gurnee and Tegmark, *Language Models Represent Space and Time*, arXiv:2310.02207.

# %%
from itertools import pairwise

import numpy as np
import shared

import workbench as wb
from workbench.analysis import sweep_probe

run = shared.cities("fp32")
PLACE = ["latitude", "longitude"]

# %% [markdown]
# ## Layer by layer
#
# Ridge regression, standardised states, five folds in which equal names stay together, the penalty chosen in inner
# folds. The folds are the same at every tap.

# %%
sweep = sweep_probe(run, PLACE, progress=False)
sweep.plot().show("plotly_mimetype")
print(sweep)

# %% [markdown]
# **Finding.** At the embedding there is nothing to read: the last token is the word "in" in every prompt, so all rows
# are equal. Attention then carries the city to it. The score stays between 0.1 and 0.3 up to block 20 and
# jumps to 0.4 by block 23; what follows adds little. Shuffled labels score nothing at any depth.

# %%
score = {probe.tap: probe.score for probe in sweep.probes}
taps = list(score)
steps = {after: score[after] - score[before] for before, after in pairwise(taps[1:])}
assert np.ptp(run.tap("embed")[:], axis=0).max() == 0
assert score["embed"] < 0.01
assert all(0.1 < score[tap] < 0.3 for tap in taps[1:8])
assert score["final_norm"] - score["blocks.23.resid_post"] < 0.05
assert max(steps, key=steps.get) == "blocks.23.resid_post"
assert score["blocks.23.resid_post"] > 1.5 * score["blocks.20.resid_post"]
assert all(probe.control_range[1] < 0.03 for probe in sweep.probes)
print({after: round(step, 3) for after, step in steps.items()})

# %% [markdown]
# ## What the score may rest on
#
# A probe can do well by knowing the country alone. Grouped folds keep all cities of a country on one side, then all
# of a continent.

# %%
fits = {
    group or "equal names": wb.fit_probe(run, "final_norm", PLACE, groups=group, progress=False)
    for group in (None, "country", "continent")
}
for group, probe in fits.items():
    low, high = probe.interval
    print(f"{group:12} {probe.score:7.3f} ({low:.3f} to {high:.3f}), shuffled {probe.control:.3f}")

# %% [markdown]
# **Finding.** For countries that it never saw, the probe still finds something, clearly less; for a continent that it
# never saw it finds nothing: it is worse than saying the mean. Much of what is read is "which country", some of it is a
# place within reach of known ones, and none of it is a globe that extrapolates.

# %%
assert fits["equal names"].score > fits["country"].score + 0.1
assert fits["country"].score > fits["country"].control + 0.2
assert fits["continent"].score < 0
print("control of the country probe:", round(fits["country"].control, 3))

# %% [markdown]
# ## Both ends
#
# Held-out predictions: the cities read as farthest north and south, and those read most wrongly.
#
# **Finding.** Both ends are right by and large. The six that are most wrong lie all in the south, in countries where
# English is a main language, and are read as northern.

# %%
probe = fits["equal names"]
table = probe.columns()
prompt = np.asarray(run.prompt_of_rows())[table["row"]]
city, country = ([run.prompts.column(name)[i] for i in prompt] for name in ("city", "country"))
order = np.argsort(table["latitude predicted"])
miss = np.argsort(-np.abs(table["latitude predicted"] - table["latitude"]))
for title, rows in (("north", order[::-1][:6]), ("south", order[:6]), ("most wrong", miss[:6])):
    told = [f"{city[i]} {table['latitude predicted'][i]:.0f} (is {table['latitude'][i]:.0f})" for i in rows]
    print(f"{title:11}", ", ".join(told))
assert (table["latitude"][miss[:6]] < 0).all()
assert (table["latitude predicted"][miss[:6]] > 0).all()
assert {country[i] for i in miss[:6]} <= {"South Africa", "Australia"}
north, south = (table["latitude"][rows].mean() for rows in (order[-30:], order[:30]))
assert north > south + 15
probe.plot().show("plotly_mimetype")
print(f"true latitude of the 30 read as northernmost {north:.0f}, of the 30 read as southernmost {south:.0f}")
