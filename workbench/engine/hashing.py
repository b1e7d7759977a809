"""The sha256 of files, as the contract names them."""

from __future__ import annotations

import hashlib
import mmap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_BLOCK = 16 << 20


def sha256_of(path: Path) -> str:
    """Compute the sha256 of a file, in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        if not file.seek(0, 2):
            return digest.hexdigest()
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:  # a copy of each block would cost a tenth
            if hasattr(mmap, "MADV_SEQUENTIAL"):
                data.madvise(mmap.MADV_SEQUENTIAL)
            with memoryview(data) as whole:
                for start in range(0, len(whole), _BLOCK):
                    with whole[start : start + _BLOCK] as block:
                        digest.update(block)  # without the interpreter lock: files are hashed side by side
    return digest.hexdigest()
