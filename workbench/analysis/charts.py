"""Plotly figures of results; plotly is imported here alone, and only when a figure is asked for.

Text that comes from prompts or files is escaped: plotly reads a part of HTML in labels.
"""

from __future__ import annotations

import html
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MAX_POINTS = 50_000  # above it plotly's hover takes seconds
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#000000")  # Okabe-Ito


def escape(text: object, limit: int = 200) -> str:
    """Make text safe in a plotly label, cut at `limit` characters; control and bidi characters become visible."""
    shown = "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in str(text)[:limit])
    return html.escape(shown, quote=False).replace("$", "&#36;")


def _figure(title: str, x: str = "", y: str = "") -> Any:
    import plotly.graph_objects as go

    figure = go.Figure()
    figure.update_layout(
        title={"text": escape(title, 300), "font": {"size": 14}},
        xaxis_title=escape(x),
        yaxis_title=escape(y),
        template="plotly_white",
        colorway=list(COLOURS),
    )
    return figure


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
    figure = _figure(title, x_name, y_name)
    groups = [(None, keep)] if codes is None else [(int(c), keep[codes[keep] == c]) for c in np.unique(codes[keep])]
    for code, rows in groups:
        figure.add_trace(
            go.Scattergl(
                x=np.asarray(x[rows], np.float32),
                y=np.asarray(y[rows], np.float32),
                mode="markers",
                marker={"size": 4, "opacity": 0.7},
                name="" if code is None else escape((names or {}).get(code, str(code))),
                text=None if text is None else [escape(text[row]) for row in rows],
                hoverinfo="text" if text is not None else "x+y",
            )
        )
    figure.update_layout(showlegend=codes is not None)
    return figure


def lines(
    x: Sequence[str], series: Mapping[str, npt.ArrayLike], title: str, x_name: str, y_name: str, *, log: bool = False
) -> Any:
    """Draw one line a series over named places, such as layers."""
    import plotly.graph_objects as go

    figure = _figure(title, x_name, y_name)
    for name, values in series.items():
        shown = np.asarray(values, np.float64)
        figure.add_trace(go.Scatter(x=[escape(t) for t in x], y=shown, mode="lines+markers", name=escape(name)))
    if log:
        figure.update_yaxes(type="log")
    return figure


def confusion(truth: npt.ArrayLike, guess: npt.ArrayLike, classes: Sequence[str], title: str) -> Any:
    """Draw how often each class was taken for each other one."""
    import plotly.graph_objects as go

    table = np.zeros((len(classes), len(classes)), np.int64)
    np.add.at(table, (np.asarray(truth, np.int64), np.asarray(guess, np.int64)), 1)
    names = [escape(name) for name in classes]
    figure = _figure(title, "predicted", "truth")
    figure.add_trace(go.Heatmap(z=table.astype(np.float32), x=names, y=names, colorscale="Blues"))
    return figure
