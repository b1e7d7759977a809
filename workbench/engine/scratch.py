"""Scratch folders beside engines: gone when the work ends, and swept away where the process that made one died."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING

from workbench.errors import EngineError, StoreFull
from workbench.writing import sync

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

KINDS = ("building", "importing", "removing")
_TRIES = 4
ROOM = 64 << 20  # bytes that stay free beside what is written


@contextmanager
def scratch_folder(root: Path, kind: str) -> Iterator[Path]:
    """Give a new hidden folder that vanishes unless it was renamed.

    A kernel lock on it says that its process lives; every other folder of `KINDS` is left over from one that was
    killed, and is removed first.

    Parameters
    ----------
    root : Path
        Existing folder of engines.
    kind : str
        One of `KINDS`.
    """
    sweep(root)
    path, handle = _make(root, kind)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        _close(handle)


def sweep(root: Path) -> None:
    """Remove scratch folders whose process died."""
    prefixes = tuple(f".{kind}-" for kind in KINDS)
    for path in [entry for entry in root.iterdir() if entry.name.startswith(prefixes)]:
        handle = _lock(path)
        if handle is not None:
            shutil.rmtree(path, ignore_errors=True)
            os.close(handle)


def put_away(folder: Path) -> None:
    """Remove a folder at once for every listing, then its files."""
    handle = _lock(folder)
    doomed = folder.with_name(f".removing-{secrets.token_hex(8)}")
    try:
        folder.rename(doomed)
        shutil.rmtree(doomed)
    finally:
        _close(handle)


def settle(scratch: Path, home: Path) -> bool:
    """Rename a finished folder to its place; False where another process was there first."""
    if home.is_symlink():
        raise EngineError("the place of an engine must be a folder", f"a link at {home.name}", "Remove it by hand.")
    try:
        scratch.rename(home)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        return False
    sync(home.parent)
    return True


def check_room(root: Path, size_bytes: int) -> None:
    """Refuse to begin what the disk cannot hold.

    Raises
    ------
    StoreFull
        With the bytes that are needed and those that are free.
    """
    need, free = size_bytes + ROOM, shutil.disk_usage(root).free
    if free < need:
        raise StoreFull(f"the folder of engines must have {need} bytes free", str(free), "Free some space.")


def _make(root: Path, kind: str) -> tuple[Path, int | None]:
    """Make a folder and lock it; unlocked where the file system has no locks: nothing is swept there either."""
    for _ in range(_TRIES):
        path = root / f".{kind}-{secrets.token_hex(8)}"
        path.mkdir()
        handle = _lock(path)
        if handle is not None and path.is_dir():
            return path, handle
        _close(handle)
        shutil.rmtree(path, ignore_errors=True)  # a sweeper came between the two, or there are no locks
    path = root / f".{kind}-{secrets.token_hex(8)}"
    path.mkdir()
    return path, None


def _close(handle: int | None) -> None:
    if handle is not None:
        os.close(handle)


def _lock(path: Path) -> int | None:
    """Lock a folder, or give None where another process holds it, or where it is a link or gone."""
    import fcntl

    try:
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        return None
    return handle
