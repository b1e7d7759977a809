"""Files by the id that git gives their content, and a way to replace a file that never leaves half of it."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from workbench.errors import PatchRefused
from workbench.writing import whole_file

if TYPE_CHECKING:
    from pathlib import Path


def blob_id(content: bytes) -> str:
    """Compute the id that git gives this content: sha1 over `blob <size>`, a zero byte and the content.

    Parameters
    ----------
    content : bytes
        The whole file.

    Returns
    -------
    str
        Forty hexadecimal digits, as `git hash-object FILE` prints them.
    """
    header = b"blob %d\0" % len(content)
    return hashlib.sha1(header + content, usedforsecurity=False).hexdigest()


def replace_file(path: Path, *, old: bytes, new: bytes) -> None:
    """Replace a file whole: write beside it, flush to disk, rename.

    The new file takes over the permissions. Another hard link to the old content, such as a package cache, keeps it.

    Parameters
    ----------
    path : Path
        A regular file.
    old : bytes
        What the file must still hold.
    new : bytes
        What it shall hold.

    Raises
    ------
    PatchRefused
        If the file is a symbolic link or changed meanwhile; it is left as it is.
    """
    if path.is_symlink():
        raise PatchRefused("the file must not be a symbolic link", str(path), f"Name the tree of {path.resolve()}.")
    with whole_file(path, mode=path.stat().st_mode & 0o7777) as file:
        file.write(new)
        now = path.read_bytes()
        if now != old:
            raise PatchRefused(
                f"{path.name} must not change while it is patched", f"blob {blob_id(now)}", "Run the command again."
            )
