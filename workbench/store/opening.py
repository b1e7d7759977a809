"""Opening the files of a run that may come from anywhere: regular files below the run folder, never through a link."""

from __future__ import annotations

import mmap
import os
import stat
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.errors import ChecksumMismatch, StoreError
from workbench.store.checksums import digest_hex
from workbench.store.dtypes import storage_type
from workbench.store.files import explain
from workbench.store.layout import Header, read_header

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray


def open_inside(path: Path) -> tuple[int, int]:
    """Open a file for reading.

    Parameters
    ----------
    path : Path
        A name that this package chose or checked, below a folder that the user named.

    Returns
    -------
    fd, size_bytes : int
        Descriptor and size of a regular file.

    Raises
    ------
    FileNotFoundError
        If there is none.
    StoreError
        If it is a link, no regular file, or not readable.
    """
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0)
    try:
        fd = os.open(path, flags)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise explain(error, path, f"{path.name} must be a readable file, and no link") from error
    info = os.fstat(fd)
    if not stat.S_ISREG(info.st_mode):
        os.close(fd)
        raise StoreError(f"{path.name} must be a regular file", "something else", "Do not open runs with such files.")
    return fd, info.st_size


class TensorFile:
    """A small safetensors file of a run, mapped and checked against the manifest on opening.

    Parameters
    ----------
    path : Path
        The file.
    checksum : str or None
        Its xxh3_128 in hexadecimal, from the manifest; None leaves the bytes unchecked.
    """

    def __init__(self, path: Path, checksum: str | None) -> None:
        try:
            fd, size = open_inside(path)
        except FileNotFoundError:
            raise StoreError(f"{path.name} must be in the run", "no such file", "Restore it from a copy.") from None
        try:
            self.header: Header = read_header(fd, path.name)
            self._map = mmap.mmap(fd, size, access=mmap.ACCESS_READ)
        finally:
            os.close(fd)
        if checksum is not None and (found := digest_hex(self._map)) != checksum:
            raise ChecksumMismatch(f"{path.name} must have checksum {checksum}", found, "Restore it from a copy.")
        self._name = path.name

    def array(self, name: str, dtype: str, rank: int = 1) -> NDArray[Any]:
        """Give a tensor as a read-only array over the map.

        Raises
        ------
        StoreError
            If there is none of that name, dtype and rank.
        """
        place = self.header.tensors.get(name)
        if place is None or place.dtype != dtype or len(place.shape) != rank:
            got = "none" if place is None else f"{place.dtype} {list(place.shape)}"
            raise StoreError(f"{self._name} must hold {name!r} as {dtype} of rank {rank}", got, "It is damaged.")
        plain = {"I32": "<i4", "I64": "<i8", "F64": "<f8", "U8": "u1", "BOOL": "?"}
        kind = np.dtype(plain[dtype]) if dtype in plain else storage_type(dtype).array
        count = (place.stop - place.start) // kind.itemsize
        return np.frombuffer(self._map, dtype=kind, count=count, offset=place.start).reshape(place.shape)


def file_digest(path: Path) -> str:
    """Compute the xxh3_128 of a whole file, in hexadecimal."""
    import xxhash

    try:
        fd, _ = open_inside(path)
    except FileNotFoundError:
        raise StoreError(f"{path.name} must be in the run", "no such file", "Restore it from a copy.") from None
    hasher = xxhash.xxh3_128()
    with open(fd, "rb") as file:  # noqa: PTH123 - from a descriptor
        while block := file.read(1 << 22):
            hasher.update(block)
    return hasher.hexdigest()
