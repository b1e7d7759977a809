"""Maps that views keep beside a run, and read again instead of fitting twice."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from workbench.errors import WorkbenchError
from workbench.view.provenance import run_id

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from workbench.analysis import Projection
    from workbench.store import Run


def load_map(runs: Sequence[Run], tap: str, method: str, seed: int) -> Projection | None:
    """Read the map of these runs; None where there is none that fits."""
    from workbench.analysis import load_projection

    path = _path(runs, tap, method, seed)
    if not path.with_name(path.name + ".json").is_file():
        return None
    try:
        found = load_projection(path)
    except (WorkbenchError, OSError, ValueError, KeyError, TypeError):
        return None  # it is only a copy: fit again
    return found if found.provenance.runs == tuple(run_id(run) for run in runs) else None


def keep_map(runs: Sequence[Run], projection: Projection, seed: int) -> None:
    """Write a map beside the first run; a run on a read-only disk is viewed all the same."""
    path = _path(runs, projection.tap, projection.method, seed)
    try:
        path.parent.mkdir(exist_ok=True)
        projection.save(path)
    except (WorkbenchError, OSError):
        return


def _path(runs: Sequence[Run], tap: str, method: str, seed: int) -> Path:
    ids = hashlib.sha256(" ".join(run_id(run) for run in runs).encode()).hexdigest()[:12]
    folder = runs[0].path.with_name(runs[0].path.name + ".maps")
    return folder / f"{method}-{tap}-{seed}-{ids}"
