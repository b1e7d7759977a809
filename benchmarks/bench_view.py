"""Views: size of the report, and time to open, draw, lasso and hover in a browser; the same points in other tools.

    python benchmarks/bench_view.py [--quick] [--rivals PYTHON]

Needs Chromium; `--rivals` names an interpreter with the other tools, see README.md. Figures are medians of `REPEATS`.
Texts are words of Python's docstrings. `open` is from navigation to the first drawn map. `lasso` is the test and redraw
after the pointer is up; `hover` from the pointer's move to the text on screen.
"""

from __future__ import annotations

import argparse
import functools
import inspect
import json
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from common import save

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
    from view_browser import HOVER

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


def points_of(run, other) -> dict[str, np.ndarray]:
    """Places of the rows in both maps, float32 [row, 2], and the class of each."""
    from workbench.analysis import project

    joint = project([run, other], "final_norm", progress=False)
    kind = np.array([int(text.split()[1]) for text in run.prompts.column("kind")])
    return {"left": joint.of_run(0), "right": joint.of_run(1), "kind": kind}


def rivals(python: str, run, other, page: Path, folder: Path, *, timed: bool) -> dict[str, object]:
    """The same points in other tools, by an interpreter that has them; see view_rivals.py. Untimed: sizes alone."""
    raw = {"texts": json.dumps(list(run.prompts.texts)), "page": str(page.resolve())}
    blobs = {name: np.frombuffer(text.encode(), np.uint8) for name, text in raw.items()}
    np.savez(folder / "points.npz", **points_of(run, other), **blobs)
    out = folder / "rivals.json"
    script = str(ROOT / "benchmarks/view_rivals.py")
    subprocess.run([python, script, str(folder / "points.npz"), str(out), *([] if timed else ["--sizes"])], check=True)
    return json.loads(out.read_text())


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
        "on_screen_s": on_screen(folder),
        "cold_s": round(seconds[0], 2),
        "warm_s": median(seconds[1:]),
        "stored_s": round(stored, 2),
    }


def on_screen(folder: Path) -> float:
    """Seconds from the start of a cell to the first map drawn, in JupyterLab with a warm kernel."""
    from lab_session import lab_page

    setup = "from workbench.store import open_run\nfrom workbench.view import explore\nrun = open_run('../../wide')\n"
    first = "explore(run, umap=False).wait()"
    again = "__import__('shutil').rmtree('../../wide.maps')\nview = explore(run, umap=False)\nview"
    (folder / "lab").mkdir()
    seconds = []
    with lab_page(folder / "lab") as lab:
        lab.open("wide.ipynb", [setup + first, *[again] * REPEATS])
        lab.run_cell(0)
        lab.ask("run.n_rows")
        for number in range(REPEATS):
            seconds.append(lab.first_map_ms(1 + number) / 1000)
            lab.do("view.wait()")
    return median(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="10,000 points and short texts only; writes no file")
    parser.add_argument("--rivals", metavar="PYTHON", help="interpreter with the tools of view_rivals.py")
    options = parser.parse_args()
    if options.rivals:
        sys.argv = [sys.argv[0], "--rivals", "PYTHON"]  # the result names the command, and no path of this machine
    packages = ("numpy", "playwright", "anywidget")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        figures = reports(folder, options)
        if options.quick:
            print(json.dumps(figures, indent=1))
            return
        save("view", figures, *packages)  # before the long part, too
        save("view", figures | {"first_map": first_map(folder)}, *packages)


def reports(folder: Path, options: argparse.Namespace) -> dict[str, object]:
    """Sizes and times of reports, and of the same points in other tools."""
    from view_browser import chromium

    from workbench.view import report

    rows, beside = [], []
    with chromium() as browser:
        version = browser.version
        for n, words in ((10_000, 4),) if options.quick else ((10_000, 4), (10_000, 40), (50_000, 4)):
            run, other = make_pair(folder, n, words)
            began = time.perf_counter()
            target, fixed = folder / f"{n}-{words}.html", {"date": "2026-01-01", "color": "kind", "quiet": True}
            page = report(run, other, out=target, max_bytes=None, **fixed)
            row = {"points": n, "words": words, "write_s": round(time.perf_counter() - began, 2)}
            row |= {"bytes": page.stat().st_size} | in_browser(browser, page)
            rows.append(row)
            print(json.dumps(row), flush=True)
            if options.rivals:
                found = rivals(options.rivals, run, other, page, folder, timed=words == 4)
                beside.append({"points": n, "words": words, **found})
    return {"chromium": version, "reports": rows, "beside": beside}


if __name__ == "__main__":
    main()
