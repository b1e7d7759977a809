"""Analysis: project, cluster, compare and probe stored hidden states, each with its doubt beside the number.

Names are resolved on first use, so that importing the package stays cheap.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

_HOME = {
    "Clusters": "clustering",
    "Comparison": "comparison",
    "Fit": "worker",
    "Floor": "floors",
    "Probe": "probing",
    "Projection": "projection",
    "cluster": "clustering",
    "compare": "comparison",
    "fit_probe": "probing",
    "load_projection": "projection",
    "project": "projection",
    "start_project": "projection",
}

__all__ = list(_HOME)


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"workbench.analysis has no {name!r}; it offers {', '.join(_HOME)}")
    return getattr(import_module(f"workbench.analysis.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)


if TYPE_CHECKING:
    from workbench.analysis.clustering import Clusters as Clusters
    from workbench.analysis.clustering import cluster as cluster
    from workbench.analysis.comparison import Comparison as Comparison
    from workbench.analysis.comparison import compare as compare
    from workbench.analysis.floors import Floor as Floor
    from workbench.analysis.probing import Probe as Probe
    from workbench.analysis.probing import fit_probe as fit_probe
    from workbench.analysis.projection import Projection as Projection
    from workbench.analysis.projection import load_projection as load_projection
    from workbench.analysis.projection import project as project
    from workbench.analysis.projection import start_project as start_project
    from workbench.analysis.worker import Fit as Fit
