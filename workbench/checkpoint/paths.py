"""Opening files of a folder without leaving it.

A name is opened below the descriptor of its folder: by `openat2` with RESOLVE_BENEATH and RESOLVE_NO_SYMLINKS where the
kernel has it, elsewhere part by part with O_NOFOLLOW. What was opened must be a regular file, and is read through that
one descriptor. A link is admitted only for weights and JSON, and only as Hugging Face caches use them.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import stat
import sys
import weakref
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from workbench.errors import CheckpointError, shown

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

# O_NONBLOCK: a FIFO must not make the open wait for its writer; it means nothing for regular files.
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
_SYS_OPENAT2 = 437  # the same on every Linux architecture
_RESOLVE = 0x08 | 0x04 | 0x02  # RESOLVE_BENEATH, RESOLVE_NO_SYMLINKS, RESOLVE_NO_MAGICLINKS
_MAX_LISTED = 10_000
_KINDS = {
    stat.S_IFLNK: "a link",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFDIR: "a folder",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class MappedFile:
    """A file that was checked and mapped read-only.

    `data` is uint8 [size_bytes], a view of `map`; both stay valid after the file is unlinked.
    """

    name: str
    map: mmap.mmap
    data: NDArray[np.uint8]


class Folder:
    """A folder that the user named, held open; files are reached below it only.

    Parameters
    ----------
    path : Path
        The folder; the user's own path may lead through links.

    Raises
    ------
    CheckpointError
        If it cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self.path = Path(os.path.realpath(path))
        try:
            self._fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY)
        except (OSError, ValueError) as error:
            raise CheckpointError(
                f"{shown(path)} must be a folder that can be read", _reason(error), "Check the path."
            ) from None
        weakref.finalize(self, os.close, self._fd)

    def names(self) -> list[str]:
        """Names in the folder, sorted; at most 10,000 are looked at."""
        with os.scandir(self._fd) as entries:
            return sorted(entry.name for entry, _ in zip(entries, range(_MAX_LISTED), strict=False))

    def has(self, name: str) -> bool:
        """Whether there is something of this name, be it a link without an end."""
        try:
            os.stat(name, dir_fd=self._fd, follow_symlinks=False)
        except (OSError, ValueError):
            return False
        return True

    @contextmanager
    def open(self, name: str) -> Iterator[tuple[int, int]]:
        """Open a file of this folder for reading, and give its descriptor and its size in bytes.

        Raises
        ------
        CheckpointError
            If the name is no bare name, there is no such file, it is not a regular file, or it is a link that leads
            elsewhere than to this folder or the `blobs` folder of its model.
        """
        _check_bare(name)
        descriptor = self._descriptor(name)
        try:
            yield descriptor, os.fstat(descriptor).st_size
        finally:
            os.close(descriptor)

    def _descriptor(self, name: str) -> int:
        try:
            if stat.S_ISLNK(os.stat(name, dir_fd=self._fd, follow_symlinks=False).st_mode):
                return self._linked(name)
            return open_beneath(self._fd, name)
        except OSError as error:
            what = f"{shown(name)} must be a regular file in {shown(self.path)} that can be read"
            raise CheckpointError(what, _reason(error), "Get the whole checkpoint as published.") from None

    def _linked(self, name: str) -> int:
        target = os.readlink(name, dir_fd=self._fd)
        place, end = os.path.split(os.path.normpath(self.path / target))
        if place == str(self.path):
            return open_beneath(self._fd, end)
        if Path(place) in _blob_folders(self.path):
            folder = os.open(place, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                return open_beneath(folder, end)
            finally:
                os.close(folder)
        raise CheckpointError(
            f"the link {shown(name)} must end in its own folder, or in `blobs` of the same Hugging Face model",
            f"a link to {shown(target)}",
            f"Copy the files: cp -rL {shown(self.path)} NEW_FOLDER, and open that; or name the folder of the target.",
        )

    def read(self, name: str, *, max_bytes: int) -> bytes:
        """Read a whole small file.

        Raises
        ------
        CheckpointError
            As `open` does, or if the file is longer than `max_bytes`.
        """
        with self.open(name) as (descriptor, size):
            if size > max_bytes:
                raise CheckpointError(
                    f"{shown(name)} must hold at most {max_bytes} bytes", f"{size}", "Check that it is the right file."
                )
            return read_whole(descriptor, size, name)

    def map(self, name: str) -> MappedFile:
        """Map a file read-only.

        Raises
        ------
        CheckpointError
            As `open` does, or if the file is empty.
        """
        with self.open(name) as (descriptor, size):
            if size == 0:
                raise CheckpointError(f"{shown(name)} must hold bytes", "an empty file", "Get it again.")
            mapped = mmap.mmap(descriptor, size, access=mmap.ACCESS_READ)
        return MappedFile(name=name, map=mapped, data=np.frombuffer(mapped, dtype=np.uint8))


def open_beneath(folder: int, relative: str) -> int:
    """Open a file below a folder descriptor for reading; no link is followed, at no part of the path.

    Parameters
    ----------
    folder : int
        Descriptor of the folder.
    relative : str
        Path below it, parts separated by "/".

    Returns
    -------
    int
        Descriptor of a regular file; the caller closes it.

    Raises
    ------
    OSError
        If the path leads out of the folder, passes a link, or does not end at a regular file.
    """
    parts = relative.split("/")
    if "\0" in relative or any(part in {"", ".", ".."} for part in parts):
        raise OSError(errno.EXDEV, "the path leads out of its folder")
    _require_regular(os.stat(relative, dir_fd=folder, follow_symlinks=False))  # to open a device can have effects
    descriptor = _openat2(folder, relative)
    if descriptor is None:
        descriptor = _open_by_parts(folder, parts)
    try:
        _require_regular(os.fstat(descriptor))
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _require_regular(found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, f"{_KINDS.get(stat.S_IFMT(found.st_mode), 'something else')}, no regular file")


class _OpenHow(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


def _openat2(folder: int, relative: str) -> int | None:
    """Descriptor from openat2, or None where the system does not have it (or a sandbox forbids it)."""
    if not sys.platform.startswith("linux"):
        return None
    libc = ctypes.CDLL(None, use_errno=True)
    how = _OpenHow(_FLAGS, 0, _RESOLVE)
    descriptor = libc.syscall(
        _SYS_OPENAT2, folder, os.fsencode(relative), ctypes.byref(how), ctypes.c_size_t(ctypes.sizeof(how))
    )
    if descriptor >= 0:
        return int(descriptor)
    code = ctypes.get_errno()
    if code in {errno.ENOSYS, errno.EPERM, errno.EINVAL, errno.EAGAIN}:
        return None
    raise OSError(code, os.strerror(code))


def _open_by_parts(folder: int, parts: list[str]) -> int:
    here = os.dup(folder)
    try:
        for part in parts[:-1]:
            below = os.open(part, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_DIRECTORY, dir_fd=here)
            os.close(here)
            here = below
        return os.open(parts[-1], _FLAGS, dir_fd=here)
    finally:
        os.close(here)


def read_whole(descriptor: int, size: int, name: str) -> bytes:
    """Read `size` bytes from the start of a file.

    Raises
    ------
    CheckpointError
        If the file became shorter meanwhile.
    """
    parts: list[bytes] = []
    at = 0
    while at < size and (part := os.pread(descriptor, min(size - at, 1 << 24), at)):
        parts.append(part)
        at += len(part)
    if at != size:
        raise CheckpointError(
            f"{shown(name)} must keep its {size} bytes", f"{at} bytes", "Do not write while it is read."
        )
    return b"".join(parts)


def _check_bare(name: str) -> None:
    bare = 0 < len(name) <= 255 and name not in {".", ".."} and name.isprintable() and not set(name) & set("/\\\0:")
    if not bare:
        raise CheckpointError(
            "a file of a checkpoint must be named by a bare name",
            shown(name),
            "Use a checkpoint whose files lie in one folder.",
        )


def _blob_folders(folder: Path) -> list[Path]:
    """Where the files of a Hugging Face snapshot may lie: `<model>/blobs` for `<model>/snapshots/<revision>`."""
    return [above.parent / "blobs" for above in folder.parents if above.name == "snapshots"][:1]


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or type(error).__name__
