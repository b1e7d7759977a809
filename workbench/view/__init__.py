"""Views of runs and results: one offline report, and widgets for a notebook. Nothing here needs an engine.

Names are resolved on first use, so that importing the package stays cheap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from workbench.lazily import resolve_late

_HOME = {
    "explore": "exploring",
    "Selection": "selections",
    "frame": "page",
    "read_selection": "selections",
    "report": "reporting",
}

__all__ = list(_HOME)


__getattr__, __dir__ = resolve_late("workbench.view", _HOME)

if TYPE_CHECKING:
    from workbench.view.exploring import explore as explore
    from workbench.view.page import frame as frame
    from workbench.view.reporting import report as report
    from workbench.view.selections import Selection as Selection
    from workbench.view.selections import read_selection as read_selection
