"""Runs that lie beside a run and hold the same prompts: what its view can be compared with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workbench.errors import ViewError, WorkbenchError
from workbench.view.provenance import engine_name, run_id

if TYPE_CHECKING:
    from workbench.store import Run

MOST = 200  # folders looked at


def sibling_runs(run: Run) -> dict[str, Run]:
    """Find the finished runs in the same folder that share prompts and a tap with this one, by folder name."""
    from workbench.store import open_run

    found = {}
    folders = sorted(
        path for path in run.path.resolve().parent.iterdir() if path.is_dir() and path != run.path.resolve()
    )
    for path in folders[:MOST]:
        try:
            other = open_run(path)
        except (WorkbenchError, OSError, ValueError):
            continue
        same = other.manifest.prompts_hash == run.manifest.prompts_hash
        if same and other.status == "complete" and set(other.taps) & set(run.taps) and run_id(other) != run_id(run):
            found[path.name] = other
    return found


def sibling_run(run: Run, name: str) -> Run:
    """Open one of them.

    Raises
    ------
    ViewError
        If there is none of that name.
    """
    found = sibling_runs(run)
    if name not in found:
        known = ", ".join(found)[:160] or "none"
        raise ViewError(f"a run beside this one is one of: {known}", repr(name)[:60], "Choose one of them.")
    return found[name]


def sibling_choices(run: Run) -> list[dict[str, str]]:
    """Name them for a menu: folder and engine."""
    return [{"name": name, "title": engine_name(other)} for name, other in sibling_runs(run).items()]
