"""The same points in other tools and the same browser: time to draw, to lasso, and the size of the file.

Called by bench_view.py with an interpreter that has these tools:

    python benchmarks/view_rivals.py POINTS.npz OUT.json [--sizes]

Each contender is opened `REPEATS` times, once beyond `MANY` points; figures are medians. `draw_s` is from opening the
file (in JupyterLab: from running the cell) until a screenshot shows the points, so it ends at most one screenshot late,
for all alike. `lasso_s` is from the release of the mouse until the tool says what is selected and has had two frames to
draw it; `drag_s` counts from the press of the mouse, over `MOVES` moves. A contender that fails has its error.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
from playwright.sync_api import Error

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
REPEATS = 3
LIMIT_S = 30
MOVES = 40
MANY = 20_000  # points beyond which a tool that repaints at each move is run once
LEAST_PIXELS = 1500  # coloured ones, in a screenshot: far fewer than any tool draws, more than any toolbar

READ = """
import json, numpy as np
data = np.load({points!r})
xy, kind, texts = data["left"], data["kind"], json.loads(data["texts"].tobytes())
"""
JSCATTER = """
import pandas as pd, jscatter
frame = pd.DataFrame({"x": xy[:, 0], "y": xy[:, 1], "kind": pd.Categorical(kind.astype(str)), "text": texts})
told = {"tooltip": True, "tooltip_properties": ["text"]}
made = jscatter.Scatter(data=frame, x="x", y="y", color_by="kind", height=480, **told)
made.mouse(mode="lasso")
made.show()
"""
ATLAS = """
import pandas as pd
from embedding_atlas.widget import EmbeddingAtlasWidget
frame = pd.DataFrame({"x": xy[:, 0], "y": xy[:, 1], "kind": kind.astype(str), "text": texts})
made = EmbeddingAtlasWidget(frame, x="x", y="y", text="text", labels="disabled")
made
"""
# a lasso that the page itself times: from the release of the mouse until the tool says what is selected, and two frames
WATCH = """([event, selected]) => {
  window.done = null;
  addEventListener(event, () => {
    const began = performance.now();
    const frame = requestAnimationFrame;
    const end = () => { window.done = performance.now() - began; };
    const look = () => (selected() ? frame(() => frame(end)) : frame(look));
    look();
  }, { capture: true, once: true });
}"""
SELECTED = {
    "workbench": '() => /^[\\d,]+ selected/.test(document.querySelector(".wb-count").textContent)',
    "bokeh": """() => Bokeh.documents[0].is_idle && [...Bokeh.documents[0]._all_models.values()]
      .some((model) => model.type === "ColumnDataSource" && model.selected.indices.length)""",
    "plotly": "() => window.chosen",
}
STAGE = {"workbench": ".wb-over", "bokeh": ".bk-Figure", "plotly": ".nsewdrag"}


def coloured(png: bytes) -> int:
    """Count the pixels of a screenshot that are clearly coloured."""
    from io import BytesIO

    from PIL import Image

    pixels = np.asarray(Image.open(BytesIO(png)).convert("RGB")).astype(np.int16)
    return int((pixels.max(axis=2) - pixels.min(axis=2) > 60).sum())


def wait_drawn(page, box, began: float) -> float:
    """Seconds since `began` until a screenshot of a box shows the points."""
    while time.perf_counter() - began < LIMIT_S:
        with suppress(Error):  # a page that has not painted yet cannot be captured
            if coloured(page.screenshot(clip=box)) >= LEAST_PIXELS:
                return time.perf_counter() - began
    raise TimeoutError(f"no points on screen after {LIMIT_S} s")


def drag(page, box) -> None:
    """Press, go round a circle in the middle of a box, release."""
    angle = np.linspace(0, 2 * np.pi, MOVES)
    x = box["x"] + box["width"] * (0.5 + 0.25 * np.cos(angle))
    y = box["y"] + box["height"] * (0.5 + 0.25 * np.sin(angle))
    page.mouse.move(x[0], y[0])
    page.mouse.down()
    for place in zip(x[1:], y[1:], strict=True):
        page.mouse.move(*place)
    page.mouse.up()


def file_page(browser, name: str, path: Path) -> dict[str, float]:
    """Time one page that opens from a disk, with no network."""
    where = browser.new_context(viewport={"width": 1280, "height": 900}, offline=True)
    page = where.new_page()
    whole = {"x": 0, "y": 0, "width": 1280, "height": 900}
    began = time.perf_counter()
    page.goto(path.as_uri(), wait_until="commit")
    drawn = wait_drawn(page, whole, began)
    stage = page.locator(STAGE[name]).first
    stage.scroll_into_view_if_needed()
    page.wait_for_timeout(500)
    if name == "plotly":
        page.evaluate(
            "document.querySelector('.js-plotly-plot').on('plotly_selected', () => { window.chosen = true; })"
        )
    page.evaluate(f"({WATCH})(['{'mouseup' if name == 'plotly' else 'pointerup'}', {SELECTED[name]}])")
    began = time.perf_counter()
    drag(page, stage.bounding_box())
    released = time.perf_counter()
    while page.evaluate("window.done") is None:
        if time.perf_counter() - released > LIMIT_S:
            raise TimeoutError(f"nothing selected {LIMIT_S} s after the lasso")
        page.wait_for_timeout(20)
    dragged = time.perf_counter() - began
    lasso = float(page.evaluate("window.done")) / 1000
    where.close()
    return {"draw_s": drawn, "lasso_s": lasso, "drag_s": dragged}


def bokeh_page(points: dict[str, np.ndarray], texts: list[str], path: Path) -> None:
    """Two linked maps in one Bokeh page that holds its script."""
    from bokeh.embed import file_html
    from bokeh.layouts import row
    from bokeh.models import ColumnDataSource
    from bokeh.palettes import Category10
    from bokeh.plotting import figure
    from bokeh.resources import INLINE

    colour = [Category10[10][k] for k in points["kind"]]
    left, right = points["left"], points["right"]
    columns = {"x": left[:, 0], "y": left[:, 1], "u": right[:, 0], "v": right[:, 1], "text": texts, "colour": colour}
    source = ColumnDataSource(columns)
    plots = []
    for x, y in (("x", "y"), ("u", "v")):
        tools, tips = "lasso_select,pan,wheel_zoom,hover", [("", "@text")]
        plot = figure(width=600, height=500, tools=tools, active_drag="lasso_select", tooltips=tips)
        plot.scatter(x, y, source=source, size=4, color="colour")
        plots.append(plot)
    path.write_text(file_html(row(*plots), INLINE, "twin"))


def plotly_page(points: dict[str, np.ndarray], texts: list[str], path: Path) -> None:
    """Two maps, not linked, in one plotly page that holds its script."""
    import plotly.graph_objects as go
    from plotly.subplots import make_subplots

    shown = make_subplots(1, 2)
    for column, side in enumerate(("left", "right"), start=1):
        x, y = points[side].T
        marks = {"color": points["kind"], "colorscale": "Turbo", "size": 4}
        shown.add_trace(go.Scattergl(x=x, y=y, mode="markers", text=texts, marker=marks), 1, column)
    shown.update_layout(dragmode="lasso", height=600, showlegend=False)
    shown.write_html(str(path), include_plotlyjs=True)


def in_lab(lab, name: str, source: str, points: Path, selector: str, selected: str) -> dict[str, float]:
    """Time a widget in a real JupyterLab; `selected` is Python for how many rows the widget says are selected."""
    page = lab.page
    lab.client = None
    lab.open(f"{name}-{time.monotonic_ns()}.ipynb", [READ.format(points=str(points)), source])
    lab.ask("1")
    lab.do(READ.format(points=str(points)))
    began = time.perf_counter()
    lab.run_all()
    stage = page.locator(selector).first
    stage.wait_for(timeout=LIMIT_S * 1000)
    stage.scroll_into_view_if_needed()
    drawn = wait_drawn(page, stage.bounding_box(), began)
    page.wait_for_timeout(1000)
    began = time.perf_counter()
    drag(page, stage.bounding_box())
    released = time.perf_counter()
    while not lab.ask(selected):
        if time.perf_counter() - released > LIMIT_S:
            raise TimeoutError(f"nothing selected {LIMIT_S} s after the lasso")
    done = time.perf_counter()
    return {"draw_s": drawn, "lasso_s": done - released, "drag_s": done - began}


def attempt(call, repeats: int) -> dict[str, object]:
    """Medians of several runs, or the error that ended them."""
    try:
        runs = [call() for _ in range(repeats)]
    except Exception as error:  # noqa: BLE001 - whatever another tool throws is its result here
        return {"error": f"{type(error).__name__}: {str(error).splitlines()[0][:300]}"}
    return {name: round(statistics.median(run[name] for run in runs), 2) for name in runs[0]}


def labs(browser, folder: Path, points: Path, repeats: int) -> dict[str, object]:
    """jupyter-scatter and Embedding Atlas, each as a widget."""
    from lab_session import Lab, lab_server

    found: dict[str, object] = {}
    with lab_server(folder) as address:
        where = browser.new_context(viewport={"width": 1280, "height": 900})
        where.set_default_timeout(LIMIT_S * 1000)
        lab = Lab(where.new_page(), folder, address)
        area = ".jp-OutputArea canvas"
        chosen = "len(made.selection())"
        found["jupyter-scatter"] = attempt(lambda: in_lab(lab, "jscatter", JSCATTER, points, area, chosen), repeats)
        found["jupyter-scatter"] |= {"file": "none: it writes no page that works without a kernel"}
        shown = attempt(lambda: in_lab(lab, "atlas", ATLAS, points, area, "made._predicate is not None"), 1)
        if "error" in shown:
            outputs = lab.page.locator(".jp-OutputArea-output")
            shown["on_screen"] = " ".join(outputs.all_inner_texts())[:300]
            shown["console"] = lab.problems[-3:]
        found["embedding-atlas"] = shown
        where.close()
    return found


def main(points_path: Path, out: Path, *, timed: bool) -> None:
    from importlib import metadata

    from view_browser import chromium

    points = dict(np.load(points_path))
    texts = json.loads(points.pop("texts").tobytes())
    page = Path(points.pop("page").tobytes().decode())
    repeats = 1 if len(texts) > MANY else REPEATS
    found: dict[str, object] = {"repeats": repeats}
    with tempfile.TemporaryDirectory() as name, chromium() as browser:
        folder = Path(name)
        bokeh_page(points, texts, folder / "bokeh.html")
        plotly_page(points, texts, folder / "plotly.html")
        pages = {"workbench": page, "bokeh": folder / "bokeh.html", "plotly": folder / "plotly.html"}
        for tool, path in pages.items():
            found[tool] = {"bytes": path.stat().st_size}
            if timed:
                found[tool] |= attempt(lambda tool=tool, path=path: file_page(browser, tool, path), repeats)
            print(tool, found[tool], flush=True)
        if timed:
            (folder / "lab").mkdir()
            found |= labs(browser, folder / "lab", points_path, repeats)
    names = ("bokeh", "plotly", "jupyter-scatter", "embedding-atlas", "jupyterlab", "playwright")
    found["versions"] = {name: metadata.version(name) for name in names}
    out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), timed="--sizes" not in sys.argv)
