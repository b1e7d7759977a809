"""Hidden-state workbench: read, store, compare and probe the hidden states of decoder language models.

Every name below is resolved on first use, so that `import workbench` costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from workbench.lazily import resolve_late

__version__ = "0.1.0"

_HOME = {
    "load_prompts": "prompts",
    "open_checkpoint": "checkpoint",
    "Recipe": "engine",
    "build": "engine",
    "open_engine": "engine",
    "extract": "extraction",
    "measure_floor": "extraction",
    "open_run": "store",
    "project": "analysis",
    "cluster": "analysis",
    "compare": "analysis",
    "fit_probe": "analysis",
    "logit_lens": "analysis",
    "neighbours": "asking",
    "explore": "view",
    "report": "view",
}

__all__ = ["__version__", *_HOME]  # noqa: PLE0604 - every key is a string


__getattr__, __dir__ = resolve_late("workbench", _HOME, more=("__version__",))

if TYPE_CHECKING:
    from workbench.analysis import cluster as cluster
    from workbench.analysis import compare as compare
    from workbench.analysis import fit_probe as fit_probe
    from workbench.analysis import logit_lens as logit_lens
    from workbench.analysis import project as project
    from workbench.asking import neighbours as neighbours
    from workbench.checkpoint import open_checkpoint as open_checkpoint
    from workbench.engine import Recipe as Recipe
    from workbench.engine import build as build
    from workbench.engine import open_engine as open_engine
    from workbench.extraction import extract as extract
    from workbench.extraction import measure_floor as measure_floor
    from workbench.prompts import load_prompts as load_prompts
    from workbench.store import open_run as open_run
    from workbench.view import explore as explore
    from workbench.view import report as report
