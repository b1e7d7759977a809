"""Views of runs and results: one offline report, and widgets for a notebook. Nothing here needs an engine.

Names are resolved on first use, so that importing the package stays cheap.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

_HOME = {
    "explore": "exploring",
    "Selection": "selections",
    "frame": "page",
    "read_selection": "selections",
    "report": "reporting",
}

__all__ = list(_HOME)


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"workbench.view has no {name!r}; it offers {', '.join(_HOME)}")
    return getattr(import_module(f"workbench.view.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)


if TYPE_CHECKING:
    from workbench.view.exploring import explore as explore
    from workbench.view.page import frame as frame
    from workbench.view.reporting import report as report
    from workbench.view.selections import Selection as Selection
    from workbench.view.selections import read_selection as read_selection
