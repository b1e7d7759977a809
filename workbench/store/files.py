"""The few file operations that a run is written with, in one class that tests can record, cut short or make fail."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from typing import TYPE_CHECKING, Any, TypeVar

from workbench.errors import StoreError, StoreFull

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

T = TypeVar("T")
NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
_NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
_ZEROS = bytes(1 << 20)


def _again(call: Callable[[], T]) -> T:
    while True:
        try:
            return call()
        except InterruptedError:  # EINTR from a call that Python does not repeat by itself
            continue


def explain(error: OSError, path: Path, what: str) -> StoreError:
    """Turn an error of the operating system into one that says what to do.

    Parameters
    ----------
    error : OSError
        What a system call gave.
    path : Path
        File or folder that it was about.
    what : str
        What had to be done, as a clause.
    """
    reason = f"{error.strerror or error} (errno {error.errno}) at {path}"
    if error.errno in NO_ROOM:
        return StoreFull(what, reason, "Free space or raise the quota, then go on with resume=True.")
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return StoreError(what, reason, "Choose a folder that you may write to.")
    if error.errno == errno.EFBIG:
        return StoreError(what, reason, "Raise the limit of file sizes (`ulimit -f`), then go on with resume=True.")
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return StoreError(what, reason, "Raise the limit of open files (`ulimit -n`).")
    return StoreError(what, reason, "Check the disk; the batches acknowledged so far stay readable.")


class Disk:
    """File operations as the write path needs them; every method raises OSError, none is silent.

    Tests replace single methods to record, stop or fail; nothing else in the store changes a file.
    """

    data_sync = "F_FULLFSYNC" if sys.platform == "darwin" else "fdatasync" if hasattr(os, "fdatasync") else "fsync"
    allocation = "posix_fallocate" if hasattr(os, "posix_fallocate") else "zeros"
    folder_sync = os.name == "posix"

    def create(self, path: Path, size_bytes: int = 0) -> int:
        """Create a file that must not exist, reserve its bytes and return its descriptor."""
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | _NO_FOLLOW
        fd = _again(lambda: os.open(path, flags, 0o644))
        if size_bytes:
            try:
                self.allocate(fd, 0, size_bytes)
            except BaseException:
                os.close(fd)
                os.unlink(path)  # noqa: PTH108 - plain calls, so that a trace shows what was asked
                raise
        return fd

    def open(self, path: Path) -> int:
        """Open a file of the run for reading and writing, never through a link."""
        return _again(lambda: os.open(path, os.O_RDWR | _NO_FOLLOW))

    def allocate(self, fd: int, offset: int, length: int) -> None:
        """Reserve bytes, so that a later write cannot meet a full disk."""
        if hasattr(os, "posix_fallocate"):
            _again(lambda: os.posix_fallocate(fd, offset, length))
            return
        for start in range(offset, offset + length, len(_ZEROS)):
            self.write(fd, _ZEROS[: offset + length - start], start)

    def write(self, fd: int, data: Any, offset: int) -> None:
        """Write all of `data` at `offset`; a short write is continued, never counted as whole."""
        view = memoryview(data).cast("B")
        while len(view):
            done = self.pwrite(fd, view, offset)
            if done <= 0:
                raise OSError(errno.EIO, "a write made no progress")
            view, offset = view[done:], offset + done

    def pwrite(self, fd: int, view: memoryview, offset: int) -> int:
        """Write some of `view`; the one call that can be short."""
        return _again(lambda: os.pwrite(fd, view, offset))

    def sync_data(self, fd: int) -> None:
        """Bring the bytes of a file to the disk."""
        if sys.platform == "darwin":
            import fcntl

            fcntl.fcntl(fd, fcntl.F_FULLFSYNC)  # fsync does not flush the drive there
        elif hasattr(os, "fdatasync"):
            _again(lambda: os.fdatasync(fd))
        else:
            _again(lambda: os.fsync(fd))

    def sync(self, fd: int) -> None:
        """Bring bytes, size and times of a file to the disk."""
        if sys.platform == "darwin":
            self.sync_data(fd)
        else:
            _again(lambda: os.fsync(fd))

    def sync_folder(self, path: Path) -> None:
        """Bring the entries of a folder to the disk."""
        if not self.folder_sync:
            return
        fd = _again(lambda: os.open(path, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0)))
        try:
            _again(lambda: os.fsync(fd))
        finally:
            os.close(fd)

    def forget(self, fd: int) -> None:
        """Drop the pages of a file that are kept in memory, so that it is read from the disk again.

        After a failed sync those pages count as clean and may differ from the disk. A hint: where the system does not
        take it, nothing is lost but that check.
        """
        if hasattr(os, "posix_fadvise"):
            with contextlib.suppress(OSError):
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)

    def rename(self, old: Path, new: Path) -> None:
        """Give a file another name, replacing what has it."""
        _again(lambda: os.rename(old, new))  # noqa: PTH104 - plain calls, so that a trace shows what was asked

    def unlink(self, path: Path) -> None:
        """Remove a name; maps of the file stay valid."""
        _again(lambda: os.unlink(path))  # noqa: PTH108

    def mkdir(self, path: Path) -> None:
        """Make one folder that must not exist."""
        _again(lambda: os.mkdir(path, 0o755))  # noqa: PTH102

    def close(self, fd: int) -> None:
        """Close a descriptor."""
        os.close(fd)

    def replace_file(self, path: Path, data: bytes) -> None:
        """Write a small file under another name, sync it and rename it over `path`; the caller syncs the folder."""
        tmp = path.with_name(f".{path.name}.tmp")
        with contextlib.suppress(FileNotFoundError):
            self.unlink(tmp)  # left by a writer that was killed
        fd = self.create(tmp)
        try:
            self.write(fd, data, 0)
            self.sync(fd)
        finally:
            self.close(fd)
        self.rename(tmp, path)


class ProcessCrashDisk(Disk):
    """As `Disk` but without any sync: rows survive the death of the process, not that of the machine."""

    data_sync = "none"
    folder_sync = False

    def sync_data(self, fd: int) -> None:
        """Do nothing."""

    def sync(self, fd: int) -> None:
        """Do nothing."""


DISKS: dict[str, type[Disk]] = {"full": Disk, "process-crash-only": ProcessCrashDisk}
