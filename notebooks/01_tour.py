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
# # 1. Tour
#
# **What you will see.** A small language model reads "Paris is a city located in" for 600 cities. Its states become a
# map, a probe finds longitude and latitude in them, a second engine with 8-bit weights is compared with the first, and
# all of it leaves as one file that opens anywhere.
#
# **How long it takes.** Half a minute on two cores, once the shared runs exist. The first notebook that you run makes
# them: five minutes or so, 1.5 GB in `data/` beside the notebooks, or where `WORKBENCH_NOTEBOOK_DATA` says.

# %%
import numpy as np
import shared
from IPython.display import display as show

import workbench as wb
from workbench.view import frame

# %% [markdown]
# ## From prompts to states
#
# A *run* is what one extraction leaves on disk: one row a prompt here, the state of its last token at several *taps*
# between the embedding and the final norm. Notebook 2 shows how the engines were built, notebook 3 how a run is made.

# %%
run, other = shared.cities("fp32"), shared.cities("int8")
states = run.tap("final_norm")
assert run.n_rows == run.n_prompts == shared.N_CITIES
assert states.shape == (shared.N_CITIES, 576)
print(run.prompts.texts[0], "->", states.shape, states.dtype)
print("taps:", *run.taps)

# %% [markdown]
# ## A map
#
# Both engines on one map, side by side: hover and selection are linked. Draw a lasso with the mouse, or select from
# Python as in the next cell. What is on screen is also kept as a picture, for readers without a kernel. Below the maps
# stands the comparison of the two engines, which the last but one section of this notebook reads.

# %%
layers = ["blocks.5.resid_post", "blocks.23.resid_post", "final_norm"]
comparison = wb.compare(run, other, floor=shared.floor(), progress=False)
view = wb.explore(run, other, comparison, taps=layers, color="continent", umap=False)
show(view)

# %%
view.wait(120)
country = np.array(run.prompts.column("country"))
view.select(country == "Japan")
chosen = view.table()
assert len(chosen["city"]) == len(view.selected) == (country == "Japan").sum()
print(len(view.selected), "cities of Japan selected in both maps:", ", ".join(chosen["city"][:8]), "...")

# %% [markdown]
# **Finding.** The state of the last token, which is the word "in" in every prompt, knows the country: the nearest
# other city, in all 576 dimensions and not on the map, lies in the same country far more often than chance has it.

# %%
centred = states[:] - states[:].mean(axis=0)
centred /= np.linalg.norm(centred, axis=1, keepdims=True)
cosine = centred @ centred.T
np.fill_diagonal(cosine, -1)
same_country = float((country[cosine.argmax(axis=1)] == country).mean())
chance = float(np.mean([(country == one).sum() - 1 for one in country]) / (len(country) - 1))
assert same_country > 2.5 * chance
print(f"nearest city in the same country: {same_country:.0%}; by chance {chance:.0%}")

# %% [markdown]
# ## A probe
#
# A linear readout of latitude and longitude, scored on cities that it was not fitted on, beside what it scores when
# the labels are shuffled. Notebook 5 asks at which depth this appears.

# %%
probe = wb.fit_probe(run, "final_norm", ["latitude", "longitude"], progress=False)
assert probe.interval[0] > 0.3
assert probe.control_range[1] < 0.05
print(probe)

# %% [markdown]
# ## Two engines
#
# The second engine keeps its weights in 8 bits. Rows are joined by prompt and token, and every difference stands beside
# the *floor*: what repeating the same extraction already changes. Notebook 4 is about this table.

# %%
assert comparison.tap("embed").error_mean == 0
assert "final_norm" in comparison.above
assert "embed" not in comparison.above
assert 0.01 < comparison.tap("final_norm").error_mean < 0.05
print(comparison)

# %% [markdown]
# ## One file to share
#
# Maps, probe and comparison in one page: no network, no kernel. Notebook 7 shows what may be left out of it.

# %%
projection = wb.project([run, other], "final_norm", method="pca", seed=0, progress=False)
page = wb.report(run, other, projection, probe, comparison, color="continent", out=shared.DATA / "tour.html")
assert page.stat().st_size < 800_000
show(frame(page, height=700))
print(f"{page.name}: {page.stat().st_size / 1e6:.2f} MB")
