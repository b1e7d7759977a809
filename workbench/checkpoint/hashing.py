"""Names for the content of a checkpoint: sha256 of its files, several at a time."""

from __future__ import annotations

import hashlib
import mmap
import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from workbench.canonical import digest_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from workbench.checkpoint.paths import MappedFile

_CHUNK = 16 << 20


def sha256_of_map(file: MappedFile) -> str:
    """Sha256 of a mapped file in hexadecimal, as `sha256sum` prints it; its pages leave memory again on the way."""
    digest = hashlib.sha256()
    whole = memoryview(file.map)
    for start in range(0, len(whole), _CHUNK):
        part = whole[start : start + _CHUNK]
        digest.update(part)  # without the interpreter lock, so that files are hashed side by side
        if hasattr(mmap, "MADV_DONTNEED"):
            file.map.madvise(mmap.MADV_DONTNEED, start, len(part))
    return digest.hexdigest()


def content_digest(weights: Mapping[str, MappedFile], others: Mapping[str, bytes]) -> str:
    """Name the content of a checkpoint.

    Parameters
    ----------
    weights : mapping of str to MappedFile
        Weight files by name.
    others : mapping of str to bytes
        Config, index and tokenizer files by name.

    Returns
    -------
    str
        Of a single file its sha256; of several, the sha256 of canonical JSON of name to sha256. Hexadecimal.
    """
    with ThreadPoolExecutor(min(len(weights), os.cpu_count() or 1) or 1) as pool:
        hashes = dict(zip(weights, pool.map(sha256_of_map, weights.values()), strict=True))
    hashes |= {name: hashlib.sha256(data).hexdigest() for name, data in others.items()}
    return next(iter(hashes.values())) if len(hashes) == 1 else digest_of(hashes)
