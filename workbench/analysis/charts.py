"""Plotly figures of results; plotly is imported here alone, and only when a figure is asked for.

Figures are `FigureWidget`s: in a notebook their arrays travel as binary float32. Text that comes from prompts or files
is escaped, because plotly reads a part of HTML in labels.
"""

from __future__ import annotations

import html
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from workbench.escaping import visible

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

MAX_POINTS = 50_000  # above it plotly's hover takes seconds
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#000000")  # Okabe-Ito


def escape(text: object, limit: int = 200) -> str:
    """Make text safe in a plotly label, cut at `limit` characters; control and bidi characters become visible."""
    return html.escape(visible(str(text)[:limit]), quote=False).replace("$", "&#36;")


def floats(values: npt.ArrayLike) -> npt.NDArray[np.float32]:
    """Numbers of a chart, float32: plotly sends float64 as twice the bytes and lists as text."""
    return np.asarray(values, np.float32)


def figure(title: str, x: str = "", y: str = "") -> Any:
    """Start an empty figure."""
    import plotly.graph_objects as go

    made = go.FigureWidget()
    made.update_layout(
        title={"text": escape(title, 300), "font": {"size": 14}},
        xaxis_title=escape(x),
        yaxis_title=escape(y),
        template="plotly_white",
        colorway=list(COLOURS),
    )
    return made


def shown_rows(n: int, seed: int = 0) -> npt.NDArray[np.int64]:
    """Pick which of n points are drawn: all, or a seeded sample of `MAX_POINTS`."""
    if n <= MAX_POINTS:
        return np.arange(n)
    return np.sort(np.random.default_rng(seed).choice(n, MAX_POINTS, replace=False))


def scatter(
    x: npt.NDArray[Any],
    y: npt.NDArray[Any],
    title: str,
    x_name: str,
    y_name: str,
    *,
    codes: npt.NDArray[np.int32] | None = None,
    names: Mapping[int, str] | None = None,
    text: Sequence[str] | None = None,
) -> Any:
    """Draw points, coloured by code where codes are given."""
    import plotly.graph_objects as go

    keep = shown_rows(len(x))
    if len(keep) < len(x):
        title += f" ({len(keep):,} of {len(x):,} rows drawn)"
    made = figure(title, x_name, y_name)
    groups = [(None, keep)] if codes is None else [(int(c), keep[codes[keep] == c]) for c in np.unique(codes[keep])]
    for code, rows in groups:
        made.add_trace(
            go.Scattergl(
                x=floats(x[rows]),
                y=floats(y[rows]),
                mode="markers",
                marker={"size": 4, "opacity": 0.7},
                name="" if code is None else escape((names or {}).get(code, str(code))),
                text=None if text is None else [escape(text[row]) for row in rows],
                hoverinfo="text" if text is not None else "x+y",
            )
        )
    made.update_layout(showlegend=codes is not None)
    return made


def lines(
    x: Sequence[str],
    series: Mapping[str, npt.ArrayLike],
    title: str,
    x_name: str,
    y_name: str,
    *,
    log: bool = False,
    band: tuple[str, npt.ArrayLike, npt.ArrayLike] | None = None,
) -> Any:
    """Draw one line a series over named places, such as layers; `band` (name, low, high) is shaded behind them.

    On a logarithmic axis an exact zero has no place: the line breaks there, and a mark at its foot says so.
    """
    import plotly.graph_objects as go

    made = figure(title, x_name, y_name)
    drawn = {name: floats(values) for name, values in series.items()}
    positive = np.concatenate([values[values > 0] for values in drawn.values()]) if drawn else floats([])
    log = log and len(positive) > 0
    places = [escape(name) for name in x]
    if band is not None:
        name, low, high = band
        edge: dict[str, Any] = {"x": places, "mode": "lines", "line": {"width": 0}, "hoverinfo": "skip"}
        made.add_trace(go.Scatter(**edge, y=floats(low), showlegend=False))
        made.add_trace(
            go.Scatter(**edge, y=floats(high), fill="tonexty", fillcolor="rgba(0,114,178,0.18)", name=escape(name))
        )
    for number, (name, values) in enumerate(drawn.items()):
        line = {"mode": "lines+markers", "name": escape(name), "marker": {"color": COLOURS[number % len(COLOURS)]}}
        made.add_trace(go.Scatter(x=places, y=np.where(values == 0, floats(np.nan), values) if log else values, **line))
    if log:
        made.update_yaxes(type="log")
        _mark_zeros(made, places, drawn, float(positive.min()) / 3)
    return made


def _mark_zeros(made: Any, places: Sequence[str], drawn: Mapping[str, npt.NDArray[np.float32]], foot: float) -> None:
    """Mark exact zeros at the foot of a logarithmic axis, beside one another where series share them."""
    import plotly.graph_objects as go

    for number, (name, values) in enumerate(drawn.items()):
        zero = np.flatnonzero(values == 0)
        if not len(zero):
            continue
        marker = {"symbol": "triangle-down-open", "size": 9 + 4 * number, "color": COLOURS[number % len(COLOURS)]}
        made.add_trace(
            go.Scatter(
                x=[places[int(at)] for at in zero],
                y=floats(np.full(len(zero), foot)),
                mode="markers",
                marker=marker,
                name=escape(f"{name}: exactly 0"),
                hovertemplate="%{x}: exactly 0<extra></extra>",
            )
        )


def bars(names: Sequence[str], values: npt.ArrayLike, title: str, x_name: str) -> Any:
    """Draw one horizontal bar a name, the first on top."""
    import plotly.graph_objects as go

    made = figure(title, x_name)
    places = [f"{at + 1}. {escape(name, 60)}" for at, name in enumerate(names)]  # equal names must not share a bar
    made.add_trace(go.Bar(x=floats(values), y=places, orientation="h"))
    made.update_yaxes(autorange="reversed")
    return made


def paths(series: Mapping[str, npt.NDArray[Any]], steps: Sequence[str], title: str) -> Any:
    """Draw paths [step, 2] in one frame."""
    import plotly.graph_objects as go

    made = figure(title, "PC 1", "PC 2")
    for name, places in series.items():
        x, y = floats(places).T
        texts = [escape(step) for step in steps]
        made.add_trace(go.Scatter(x=x, y=y, mode="lines+markers", name=escape(name), text=texts, hoverinfo="text+name"))
    return made


def counts(table: npt.ArrayLike, rows: Sequence[str], columns: Sequence[str], title: str, x: str, y: str) -> Any:
    """Draw a table of counts as shades."""
    import plotly.graph_objects as go

    made = figure(title, x, y)
    names = [[escape(name) for name in side] for side in (rows, columns)]
    made.add_trace(go.Heatmap(z=floats(table), x=names[1], y=names[0], colorscale="Blues"))
    return made


def confusion(truth: npt.ArrayLike, guess: npt.ArrayLike, classes: Sequence[str], title: str) -> Any:
    """Draw how often each class was taken for each other one."""
    table = np.zeros((len(classes), len(classes)), np.int64)
    np.add.at(table, (np.asarray(truth, np.int64), np.asarray(guess, np.int64)), 1)
    return counts(table, classes, classes, title, "predicted", "truth")


def with_controls(figures: Mapping[str, Callable[[], Any]]) -> Any:
    """Show one of several figures, with a menu of them; an ipywidgets box."""
    import ipywidgets

    # the names are ours or escaped; a menu shows its options as plain text
    menu = ipywidgets.Dropdown(options=list(figures), description="Show")
    shown = ipywidgets.Box([figures[menu.value]()], layout={"width": "100%"})

    def change(event: Any) -> None:
        shown.children = (figures[event["new"]](),)

    menu.observe(change, names="value")
    return ipywidgets.VBox([menu, shown])
