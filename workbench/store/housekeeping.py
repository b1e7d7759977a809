"""Keeping runs: list and remove."""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass
from pathlib import Path

from workbench.errors import StoreError, WorkbenchError
from workbench.store.files import explain
from workbench.store.filesystem import StoreWarning, is_folder
from workbench.store.layout import MANIFEST, PREVIOUS, TAPS, is_own_file
from workbench.store.lock import WriterLock
from workbench.store.reader import open_run


@dataclass(frozen=True, kw_only=True, slots=True)
class RunSummary:
    """One line of a list of runs; `status` says `damaged` where the run does not open."""

    path: Path
    status: str
    prompts: int
    rows: int
    size_bytes: int
    engine_id: str | None
    durability: str
    taps: tuple[str, ...]
    created: str
    problem: str = ""


def list_runs(root: str | Path) -> list[RunSummary]:
    """List the runs in a folder, or the run that the folder is.

    Raises
    ------
    StoreError
        If there is no such folder.
    """
    root = Path(root)
    if not is_folder(root):
        raise StoreError(f"{str(root)!r} must be a folder", "none", "Give the folder that holds runs.")
    try:
        inside = sorted(path for path in root.iterdir() if path.is_dir() and not path.is_symlink())
    except OSError as error:
        raise explain(error, root, f"{str(root)!r} must be a folder that you may list") from error
    return [_summary(path) for path in (root, *inside) if _may_be_run(path)]


def _may_be_run(path: Path) -> bool:
    """Say whether a folder looks like a run; one that cannot be entered is listed with that problem."""
    known = os.path.lexists(path / MANIFEST) or os.path.lexists(path / PREVIOUS)
    return known or not os.access(path, os.X_OK)


def _summary(path: Path) -> RunSummary:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", StoreWarning)
        try:
            run = open_run(path)
        except WorkbenchError as error:
            return RunSummary(
                path=path, status="damaged", prompts=0, rows=0, size_bytes=_size(path), engine_id=None,
                durability="unknown", taps=(), created="", problem=str(error),
            )  # fmt: skip
    return RunSummary(
        path=path, status=run.status, prompts=run.n_prompts, rows=run.n_rows, size_bytes=_size(path),
        engine_id=run.engine_id, durability=run.durability, taps=run.taps, created=run.manifest.created,
        problem="; ".join(str(one.message) for one in told),
    )  # fmt: skip


def _size(path: Path) -> int:
    return sum(file.lstat().st_size for file in path.rglob("*") if file.is_file())


def remove_run(path: str | Path) -> int:
    """Remove a run by unlinking its files; readers that have it open keep their rows.

    Parameters
    ----------
    path : str or Path
        Run folder.

    Returns
    -------
    int
        Bytes of the removed files.

    Raises
    ------
    StoreError
        If it is no run, or holds files that are not ours; nothing is removed then.
    StoreLocked
        If a writer holds it.
    """
    folder = Path(path)
    try:
        names = [entry.name for entry in folder.iterdir()] if is_folder(folder) else []
    except OSError as error:
        raise explain(error, folder, "the run must be removed") from error
    if folder.is_symlink() or not {MANIFEST, PREVIOUS} & set(names):
        raise StoreError(f"{str(folder)!r} must be a run folder", f"no {MANIFEST}", "Only runs are removed.")
    strange = [name for name in names if name != TAPS and not is_own_file(name.removeprefix(".").removesuffix(".tmp"))]
    taps = list((folder / TAPS).iterdir()) if (folder / TAPS).is_dir() and not (folder / TAPS).is_symlink() else []
    strange += [file.name for file in taps if not file.name.endswith((".safetensors", ".safetensors.part"))]
    if strange:
        raise StoreError(f"{str(folder)!r} must hold only a run", f"{strange[:3]}", "Move those files away first.")
    lock = WriterLock(folder, "")
    try:
        removed = _size(folder)
        for name in (MANIFEST, PREVIOUS):  # first: what is left of an interrupted removal is no run
            (folder / name).unlink(missing_ok=True)
        for file in taps:
            file.unlink()
        if (folder / TAPS).is_dir() and not (folder / TAPS).is_symlink():
            (folder / TAPS).rmdir()
        for file in list(folder.iterdir()):
            file.unlink()
        folder.rmdir()
    except OSError as error:
        raise explain(error, folder, "the run must be removed") from error
    finally:
        lock.release()
    return removed
