"""The renderer: parts of one ES module and one style sheet, the same bytes in a report and in a notebook widget."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

# One scope, in this order; `app.js` comes last because it starts the page.
PARTS = (
    "text.js",
    "blocks.js",
    "colour.js",
    "model.js",
    "plane.js",
    "scatter.js",
    "pointing.js",
    "search.js",
    "table.js",
    "legend.js",
    "filters.js",
    "reading.js",
    "exchange.js",
    "explorer.js",
    "charts.js",
    "figures.js",
    "sections.js",
    "live.js",
    "app.js",
)


@cache
def script() -> str:
    """Give the renderer as one ES module."""
    folder = files("workbench.view") / "static"
    return "\n".join((folder / part).read_text(encoding="utf-8") for part in PARTS)


@cache
def style() -> str:
    """Give the style sheet; every rule is below the class `wb`."""
    return (files("workbench.view") / "static" / "page.css").read_text(encoding="utf-8")
