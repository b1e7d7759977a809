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
# # 4. Compare two builds, with a floor
#
# **What you will see.** Two engines of one model read the same 600 prompts: float32 weights, and 8-bit weights.
# Which layer moved first, which prompt moved most, is it more than repeating the same thing already gives, and does it
# matter?
#
# **How long it takes.** Half a minute on two cores, once the shared runs exist.

# %%
import shared

import workbench as wb
from workbench.analysis import transfer

run, other, floor = shared.cities("fp32"), shared.cities("int8"), shared.floor()

# %% [markdown]
# ## The floor
#
# The first engine read a sample of the prompts again: with the same passes, in another slot of the same batches, in
# another order, in smaller batches. The largest difference, for each tap and measure, is the floor.

# %%
print("repeated:", *floor.kinds, sep="  ")
for tap in run.taps:
    print(f"{tap:22} {floor.value(tap, 'error_mean'):.1e} mean  {floor.value(tap, 'error_worst'):.1e} worst row")
assert all(floor.value(tap, "error_worst") < 1e-4 for tap in floor.taps)

# %% [markdown]
# A repeat against its reference shows nothing but the floor, and no claim is made:

# %%
reference, repeat = (wb.open_run(shared.DATA / "runs" / "floor" / name) for name in ("reference", "order"))
nothing = wb.compare(reference, repeat, floor=floor, progress=False)
assert nothing.above == ()
print(nothing)

# %% [markdown]
# Nor is one made of two builds where no floor was measured, however large the difference:

# %%
unmeasured = wb.compare(run, other, taps=["final_norm"], progress=False)
assert unmeasured.above == ()
assert "floor not measured" in str(unmeasured)
print(unmeasured)

# %% [markdown]
# ## The comparison

# %%
comparison = wb.compare(run, other, floor=floor, progress=False)
comparison.plot().show("plotly_mimetype")
print(comparison)

# %% [markdown]
# **Finding.** The embedding is equal bit by bit: its table is not among the weights that this precision rounds. Block 2
# is already moved, far above the floor, and the error grows slowly with depth to about 2 %. The neighbourhoods stay: of
# the ten nearest prompts of a prompt, about nineteen in twenty are the same in both builds.

# %%
drift = {one.tap: one for one in comparison.taps}
blocks = [tap for tap in run.taps if tap.startswith("blocks.")]
assert drift["embed"].equal_rows == drift["embed"].n_rows
assert set(comparison.above) == {*blocks, "final_norm"}
assert all(drift[tap].error_mean > 100 * floor.value(tap, "error_worst") for tap in blocks)
assert drift[blocks[0]].error_mean < drift[blocks[-1]].error_mean < drift["final_norm"].error_mean < 0.05
assert all(drift[tap].overlap > 0.9 for tap in blocks)
assert all(drift[tap].overlap_chance < 0.05 for tap in blocks)
worst = max(comparison.worst, key=lambda one: one.error)
print(f"most moved: {worst.text!r}, token {worst.token_index} at {worst.tap}, error {worst.error:.3f}")

# %% [markdown]
# ## Does it matter?
#
# A number that depends on the task: a probe for latitude and longitude is fitted on the first build and read on the
# second, without being fitted again.
#
# **Finding.** Every row moved, and hardly any answer did: the score is the same to two digits.

# %%
probe = wb.fit_probe(run, "final_norm", ["latitude", "longitude"], progress=False)
moved = transfer(probe, run, other, other_engine=True)
assert drift["final_norm"].equal_rows == 0
assert abs(moved.score_away - moved.score_home) < 0.01
assert len(moved.flips) < 0.02 * run.n_rows
print(moved)
