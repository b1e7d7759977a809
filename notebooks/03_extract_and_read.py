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
# # 3. Extract, and read a store
#
# **What you will see.** Every token of 24 prompts goes through an engine into a run folder. Rows are mapped from
# disk and lead back to prompt and token; a repeated pass gives the same numbers; the first token of every prompt turns
# out to be a giant; and a single changed byte is found.
#
# **How long it takes.** A quarter of a minute on two cores, once the shared engine exists.

# %%
import shutil
import tempfile
from pathlib import Path

import numpy as np
import shared

import workbench as wb
from workbench.store import export_run, verify_run

scratch = tempfile.TemporaryDirectory(dir=shared.DATA if shared.DATA.is_dir() else None)
folder = Path(scratch.name)

# %% [markdown]
# ## Extract
#
# The engine decides taps and positions; this one keeps all tokens. Prompts are a list of texts, a file, or a table:
# columns beside the text travel with the run.

# %%
prompts = shared.wording_prompts()
engine = shared.engine(positions="all")
run = wb.extract(prompts, engine, out=folder / "run", progress=False)
assert run.status == "complete"
assert run.n_rows == len(run.tokens) == int(np.diff(run.offsets).sum())  # a row for every token, none for padding
print(prompts.texts[0], prompts.column("capital")[0], sep=" | ")
print(run.n_prompts, "prompts,", run.n_rows, "rows,", len(run.taps), "taps,", f"{run.size_bytes / 1e6:.1f} MB")

# %% [markdown]
# ## Read
#
# A tap looks like an array and is never loaded whole. Row ids, prompts and tokens lead to one another.

# %%
states = run.tap("final_norm")
row = int(run.rows_of([prompts.ids[13]])[-1])
prompt, place = int(run.prompt_of_rows()[row]), int(run.token_index()[row])
token = int(run.tokens[run.offsets[prompt] + place])
assert prompt == 13
assert states[row].shape == (576,)
assert states[[3, 1]].shape == (2, 576)
assert sum(len(block) for _, block in states.blocks(100_000)) == run.n_rows
print(f"row {row} is token {place}, {engine.tokenizer.token_text(token)!r}, of {prompts.texts[prompt]!r}")

# %% [markdown]
# The same prompt alone in a pass gives the same row, up to the rounding of other kernels: what shares a pass with a
# prompt does not matter, and padding is never seen.

# %%
ids = run.tokens[run.offsets[prompt] : run.offsets[prompt + 1]]
again = engine.run([ids])["final_norm"][-1]
apart = float(np.linalg.norm(again - states[row]) / np.linalg.norm(again))
assert apart < 1e-4
print(f"relative distance {apart:.1g}")

# %% [markdown]
# ## A giant in every prompt
#
# **Finding.** From block 11 on, the state of the first token is 40 to 150 times as long as those of the others, and
# nearly all of it lies in one single dimension, the same at every depth; the final norm takes it away. Means over
# tokens and distances between raw rows are ruled by such a row, so the workbench names these dimensions in its
# statistics.

# %%
first = np.asarray(run.token_index()) == 0
print("tap                   first token   others   largest dimension of the first token, its share")
largest = {}
for tap in run.taps:
    rows = run.tap(tap)[:]
    length = np.linalg.norm(rows, axis=1)
    power = (rows[first].astype(np.float64) ** 2).mean(axis=0)
    giant, share = int(power.argmax()), float(power.max() / power.sum())
    largest[tap] = (giant, share, length[first].mean() / length[~first].mean())
    print(f"{tap:22}{length[first].mean():10.1f} {length[~first].mean():8.1f}   {giant:3}  {share:.2f}")
deep = [tap for tap in run.taps if tap.startswith("blocks.") and int(tap.split(".")[1]) >= 11]
giants = {largest[tap][0] for tap in deep}
assert len(giants) == 1
assert all(largest[tap][1] > 0.9 and largest[tap][2] > 30 for tap in deep)
assert largest["final_norm"][2] < 2
assert all(set(run.statistics(tap).massive_dims().tolist()) == giants for tap in deep)

# %% [markdown]
# ## Trust
#
# Every batch has its checksum. One bit of one row changes in a copy; the check names the batch.

# %%
sound = verify_run(run.path)
assert sound
damaged = Path(shutil.copytree(run.path, folder / "damaged"))
file = damaged / "taps" / "final_norm.safetensors"
data = bytearray(file.read_bytes())
data[4096 + 7 * 576 * 4] ^= 1  # row 7, after one page of header
file.write_bytes(data)
found = verify_run(damaged)
assert not found
assert found.bad[0].tap == "final_norm"
assert found.bad[0].first_row <= 7 < found.bad[0].stop_row
print(sound, found, sep="\n")

# %% [markdown]
# ## Leave
#
# A run is a folder of safetensors files and leaves as NumPy, Parquet, safetensors or zip.

# %%
export_run(run, folder / "final_norm.npy", format="npy", taps=("final_norm",))
assert np.array_equal(np.load(folder / "final_norm.npy"), states[:])
print(*sorted(str(path.relative_to(run.path)) for path in run.path.rglob("*") if path.is_file()), sep="\n")
scratch.cleanup()
