"""Whole files: written beside their place, brought to the disk, and renamed once they are complete.

What a run is written with has a place of its own, `workbench.store.files`, where tests can make each step fail; folders
are moved by `workbench.engine.scratch`.
"""

from __future__ import annotations

import os
import secrets
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_NAME = 40  # characters of the name that the unfinished file keeps: with four bytes each there is room for more


@contextmanager
def whole_file(path: Path, *, mode: int | None = None, beside: Path | None = None) -> Iterator[BinaryIO]:
    """Open a file that takes a path's place once it is whole and on the disk; otherwise nothing changes.

    Parameters
    ----------
    path : Path
        What it becomes; what is there is replaced, a link itself and not what it names.
    mode : int, optional
        Permissions; by default those of any new file.
    beside : Path, optional
        Existing folder on the same disk, where the unfinished file lies; by default that of the path.

    Yields
    ------
    binary file
        To be written. It is kept only if the block ends without an error.

    Raises
    ------
    OSError
        If it cannot be written.
    """
    unfinished = (beside or path.parent) / f".{path.name[:_NAME]}.{secrets.token_hex(8)}"
    try:
        with unfinished.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if mode is not None:
            unfinished.chmod(mode)
        unfinished.replace(path)
    except BaseException:
        with suppress(OSError):  # on a read-only disk even a missing file cannot be removed
            unfinished.unlink()
        raise
    with suppress(OSError):  # there are file systems that cannot; the file is whole on all
        sync(path.parent)


def write_whole(path: Path, data: bytes) -> None:
    """Write a file whole or not at all, as `whole_file` does."""
    with whole_file(path) as file:
        file.write(data)


def sync(path: Path) -> None:
    """Bring a file, or the names in a folder, to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
