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
# # 7. Share a report
#
# **What you will see.** Runs and results become one HTML file that opens from a disk, with no network, no kernel and no
# Python. A second one without any text of the prompts. Several views on one page, and a page of a single result. And a
# selection that a reader makes in the file, read back here.
#
# **How long it takes.** Half a minute on two cores, once the shared runs exist.

# %%
import base64
import re
from pathlib import Path

import numpy as np
import shared
from IPython.display import display as show

import workbench as wb
from workbench.analysis import sweep_probe, transfer_sweep
from workbench.errors import ViewError
from workbench.view import Selection, frame, read_selection

run, other = shared.cities("fp32"), shared.cities("int8")
out = shared.DATA / "reports"
out.mkdir(exist_ok=True)

# %% [markdown]
# ## What goes in
#
# Two runs become two linked maps; results become colours and sections.

# %%
projection = wb.project([run, other], "final_norm", method="pca", seed=0, progress=False)
clusters = wb.cluster(run, "final_norm", k=8, seed=0, progress=False)
probe = wb.fit_probe(run, "final_norm", ["latitude", "longitude"], progress=False)
comparison = wb.compare(run, other, floor=shared.floor(), progress=False)
parts = (run, other, projection, clusters, probe, comparison)
page = wb.report(*parts, color="continent", date="2026-01-01", out=out / "cities.html")
print(clusters)

# %% [markdown]
# **Finding.** The file is small, fetches nothing, and says by its policy that it never will; the same input gives the
# same bytes.

# %%
text = page.read_text(encoding="utf-8")
assert len(text) < 800_000
assert "default-src 'none'" in text
assert not re.search(r"(src|href)=.?https?:", text)
again = wb.report(*parts, color="continent", date="2026-01-01", out=out / "again.html", quiet=True)
assert again.read_bytes() == page.read_bytes()
show(frame(page, height=700))
print(f"{len(text) / 1e6:.2f} MB for {run.n_rows} prompts, two maps")

# %% [markdown]
# ## Without the text
#
# `redact="all"` leaves out prompts, tokens, names of clusters, columns and ids made of text, wherever the page would
# show them. Columns named in `keep_columns` stay. (`compress=False` here, so that the search below sees all that is in
# the file.)

# %%
told = wb.report(*parts, date="2026-01-01", out=out / "told.html", compress=False, quiet=True)
kept_back = wb.report(
    *parts,
    redact="all",
    keep_columns=["continent"],
    date="2026-01-01",
    out=out / "redacted.html",
    compress=False,
    quiet=True,
)


def contents(file: Path) -> bytes:
    """Give a page with the blocks of data in it unpacked."""
    text = file.read_text(encoding="utf-8")
    return text.encode() + b"".join(map(base64.b64decode, re.findall(r"[A-Za-z0-9+/]{100,}={0,2}", text)))


names = [name for name in run.prompts.column("city") if len(name) > 6]
in_full, in_redacted = ({name for name in names if name.encode() in contents(file)} for file in (told, kept_back))
assert len(in_full) > 0.9 * len(set(names))
assert in_redacted == set()
print(f"{len(in_full)} names of cities in the full page, {len(in_redacted)} in the redacted one")

# %% [markdown]
# ## Several views on one page
#
# Each list is a view of its own, and a result can stand alone. The probe is fitted at three taps and read on the int8
# build too: the page lists the prompts whose reading flips.

# %%
taps = ("blocks.2.resid_post", "blocks.20.resid_post", "final_norm")
sweep = sweep_probe(run, "latitude", taps=taps, progress=False)
moves = transfer_sweep(sweep, run, other, other_engine=True)
views = wb.report(
    [run, other, comparison, sweep, *moves], [run, clusters], [probe], title="fp32 and int8", out=out / "views.html"
)
alone = sweep.to_html(out / "sweep.html", quiet=True)
print(*moves, sep="\n")

# %% [markdown]
# **Finding.** Two maps of one run cost little more than one, because a page stores its texts, and its script, once. The
# probe scores on the int8 build about what it scores at home, and most readings stay within a tenth of the spread.

# %%
text = views.read_text(encoding="utf-8")
assert text.count('<script type="module">') == 1
assert views.stat().st_size < 1.6 * page.stat().st_size
assert "default-src 'none'" in alone.read_text(encoding="utf-8")
assert abs(moves[-1].score_away - moves[-1].score_home) < 0.1
assert moves[-1].agreement > 0.5
show(frame(alone, height=500))

# %% [markdown]
# ## A selection comes back
#
# The page shows what is selected as a short text. Pasted here, it is rows of the run again, and of no other run.

# %%
pasted = Selection(
    rows=np.array([0, 28, 191]), run=run.manifest.run_id
).to_json()  # as a reader copies it from the page
print(pasted)
selection = read_selection(pasted, run=run.manifest.run_id)
prompts = np.asarray(run.prompt_of_rows())[selection.rows]
assert prompts.tolist() == [0, 28, 191]
print([run.prompts.column("city")[i] for i in prompts])
try:
    read_selection(pasted, run=shared.wordings().manifest.run_id)
except ViewError as error:
    print(error)
else:
    raise AssertionError("a selection of another run must be refused")
