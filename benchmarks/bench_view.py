"""Views: size of the report, and time to open, draw, lasso and hover in a browser; Bokeh's twin and plotly's beside it.

    python benchmarks/bench_view.py [--quick] [--out benchmarks/results/view.json]

Needs Chromium. Bokeh is measured where it is installed (`pip install bokeh`). Every figure is the median of `REPEATS`.
Texts are words of Python's docstrings. `open` is from navigation to the first drawn map. `lasso` is the test and redraw
after the pointer is up; `hover` from the pointer's move to the text on screen.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import inspect
import json
import platform
import re
import shutil
import statistics
import sys
import tempfile
import time
from importlib import metadata
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
REPEATS = 3

OPEN = """() => new Promise((resolve) => {
  const look = () => {
    const panes = [...document.querySelectorAll(".wb-pane")];
    if (panes.length && panes.every((p) => Number(p.dataset.draws) > 0)) resolve(performance.now());
    else requestAnimationFrame(look);
  };
  look();
})"""
LASSO = """() => new Promise((resolve) => {
  const over = document.querySelector(".wb-over"), box = over.getBoundingClientRect();
  const at = (name, x, y) => {
    const where = { clientX: x, clientY: y, button: 0, pointerId: 1, bubbles: true };
    over.dispatchEvent(new PointerEvent(name, where));
  };
  over.setPointerCapture = () => {};
  const part = (side, share) => side * (0.5 + 0.3 * share);
  const place = (a) => [box.left + part(box.width, Math.cos(a)), box.top + part(box.height, Math.sin(a))];
  at("pointerdown", ...place(0));
  for (let i = 1; i <= 120; i += 1) at("pointermove", ...place((i / 120) * 2 * Math.PI));
  const began = performance.now();
  at("pointerup", ...place(0));
  requestAnimationFrame(() => requestAnimationFrame(() => resolve(performance.now() - began)));
})"""
HOVER = """() => new Promise((resolve) => {
  const over = document.querySelector(".wb-over"), box = over.getBoundingClientRect();
  const tip = document.querySelector(".wb-tip");
  const [mx, my] = JSON.parse(document.querySelector(".wb-pane").dataset.frame);
  const times = [];
  for (let i = 0; i < 40; i += 1) {
    const began = performance.now();
    const where = { clientX: box.left + mx + 3 * i - 60, clientY: box.top + my + i - 20, bubbles: true };
    over.dispatchEvent(new PointerEvent("pointermove", where));
    void tip.offsetWidth;
    times.push(performance.now() - began);
  }
  times.sort((a, b) => a - b);
  resolve({ median: times[20], worst: times[39], shown: !tip.hidden });
})"""


def docstring_words() -> list[str]:
    """Words of the standard library's docstrings, the same on every machine of one Python version."""
    modules = (argparse, functools, inspect, json, re, statistics, shutil)
    texts = [inspect.getdoc(value) or "" for module in modules for value in vars(module).values()]
    return re.findall(r"[A-Za-z]+", " ".join(texts))


def make_pair(folder: Path, n: int, words_per_point: int):
    """Two runs of n prompts, 16 wide."""
    from view_runs import int8_contract, make_run

    rng = np.random.default_rng(0)
    words = np.array(docstring_words())
    texts = [" ".join(words[rng.integers(0, len(words), words_per_point)]) + f" {i}" for i in range(n)]
    kind = rng.integers(0, 8, n)
    states = rng.normal(size=(8, 16))[kind] * 2 + rng.normal(size=(n, 16))
    columns = {"kind": [f"kind {k}" for k in kind], "value": states[:, 0].tolist()}
    run = make_run(folder / f"a{n}-{words_per_point}", texts, columns, states=states)
    noisy = states + 0.05 * rng.normal(size=states.shape)
    return run, make_run(folder / f"b{n}-{words_per_point}", texts, states=noisy, contract=int8_contract())


def median(values):
    return round(statistics.median(values), 2)


def in_browser(browser, path: Path) -> dict[str, float]:
    """Open, draw, lasso and hover times of a report, in milliseconds."""
    opened, draws, lassos, hovers, worst = [], [], [], [], []
    for _ in range(REPEATS):
        where = browser.new_context(viewport={"width": 1280, "height": 1000}, offline=True)
        page = where.new_page()
        page.goto(path.as_uri(), wait_until="commit")
        opened.append(page.evaluate(OPEN))
        draws.append(float(page.locator(".wb-pane").first.get_attribute("data-draw-ms")))
        lassos.append(page.evaluate(LASSO))
        hover = page.evaluate(HOVER)
        hovers.append(hover["median"])
        worst.append(hover["worst"])
        where.close()
    return {
        "open_ms": median(opened),
        "draw_one_map_ms": median(draws),
        "lasso_ms": median(lassos),
        "hover_ms": median(hovers),
        "hover_worst_ms": median(worst),
    }


def bokeh_twin(run, other, path: Path) -> int | None:
    """Size of the same content as a Bokeh page, two linked maps; None where it is not installed."""
    if importlib.util.find_spec("bokeh") is None:
        return None
    from bokeh.embed import file_html
    from bokeh.layouts import row
    from bokeh.models import ColumnDataSource
    from bokeh.plotting import figure
    from bokeh.resources import INLINE

    from workbench.analysis import project

    joint = project([run, other], "final_norm", progress=False)
    a, b = joint.of_run(0), joint.of_run(1)
    source = ColumnDataSource({"x": a[:, 0], "y": a[:, 1], "u": b[:, 0], "v": b[:, 1], "text": list(run.prompts.texts)})
    plots = []
    for x, y in (("x", "y"), ("u", "v")):
        tools = "pan,wheel_zoom,lasso_select,hover"
        plot = figure(width=600, height=500, tools=tools, tooltips=[("", "@text")])
        plot.scatter(x, y, source=source, size=4)
        plots.append(plot)
    path.write_text(file_html(row(*plots), INLINE, "twin"))
    return path.stat().st_size


def plotly_twin(run, other, path: Path) -> int:
    """Size of the same content as a plotly page with its script inside; its maps are not linked."""
    import plotly.graph_objects as go
    from plotly.subplots import make_subplots

    from workbench.analysis import project

    joint = project([run, other], "final_norm", progress=False)
    shown = make_subplots(1, 2)
    for number in (0, 1):
        x, y = joint.of_run(number).T
        shown.add_trace(go.Scattergl(x=x, y=y, mode="markers", text=list(run.prompts.texts)), 1, number + 1)
    shown.write_html(str(path), include_plotlyjs=True)
    return path.stat().st_size


def first_map(folder: Path, n: int = 20_000, width: int = 4096) -> dict[str, float]:
    """Seconds until `explore` returns with its first map, cold and warm, and again from the stored map."""
    from view_runs import make_run

    from workbench.view import explore

    states = np.random.default_rng(0).normal(size=(n, width)).astype(np.float32)
    run = make_run(folder / "wide", [f"p{i}" for i in range(n)], states=states, width=width)
    del states
    seconds = []
    for _ in range(REPEATS):
        shutil.rmtree(folder / "wide.maps", ignore_errors=True)
        began = time.perf_counter()
        view = explore(run, umap=False)
        seconds.append(time.perf_counter() - began)
        view.wait()  # the measured map takes the place of the quick one
    began = time.perf_counter()
    explore(run, background=False)
    stored = time.perf_counter() - began
    return {
        "rows": n,
        "width": width,
        "cold_s": round(seconds[0], 2),
        "warm_s": median(seconds[1:]),
        "stored_s": round(stored, 2),
    }


def machine() -> dict[str, object]:
    import os

    names = ("numpy", "plotly", "playwright", "bokeh", "anywidget")
    versions = {name: metadata.version(name) for name in names if importlib.util.find_spec(name)}
    return {"cores": os.cpu_count(), "machine": platform.machine(), "python": platform.python_version(), **versions}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="10,000 points only")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "view.json")
    options = parser.parse_args()
    from view_browser import chromium

    from workbench.view import report

    found: dict[str, object] = {"command": "python benchmarks/bench_view.py", "machine": machine()}
    rows = []
    with tempfile.TemporaryDirectory() as name, chromium() as browser:
        folder = Path(name)
        found["chromium"] = browser.version
        for n, words in ((10_000, 4), (10_000, 40), *(() if options.quick else ((50_000, 4),))):
            run, other = make_pair(folder, n, words)
            began = time.perf_counter()
            page = report(
                run,
                other,
                out=folder / f"{n}-{words}.html",
                date="2026-01-01",
                color="kind",
                max_bytes=None,
                quiet=True,
            )
            row = {
                "points": n,
                "words": words,
                "write_s": round(time.perf_counter() - began, 2),
                "bytes": page.stat().st_size,
            }
            row |= in_browser(browser, page)
            if n == 10_000:
                row["bokeh_bytes"] = bokeh_twin(run, other, folder / "bokeh.html")
                row["plotly_bytes"] = plotly_twin(run, other, folder / "plotly.html")
            rows.append(row)
            print(json.dumps(row), flush=True)
        if not options.quick:
            found["first_map"] = first_map(folder)
            print(json.dumps(found["first_map"]), flush=True)
    found["reports"] = rows
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
