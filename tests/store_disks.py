"""Disks that record, kill, fail or cut short what a writer asks of them, and deliberately broken writers."""

from __future__ import annotations

import errno
import os
import signal
import threading
from typing import TYPE_CHECKING, Any

from workbench.store.files import Disk

if TYPE_CHECKING:
    from pathlib import Path


class HookedDisk(Disk):
    """Calls `before(kind)` for every change, numbered over all threads."""

    def __init__(self) -> None:
        self.count = 0
        self.kinds: dict[str, int] = {}
        self._lock = threading.RLock()

    def before(self, kind: str) -> None:
        """Look at a change that is about to happen."""

    def create(self, path: Path, size_bytes: int = 0) -> int:
        self._seen("create")
        return super().create(path, size_bytes)

    def allocate(self, fd: int, offset: int, length: int) -> None:
        self._seen("allocate")
        super().allocate(fd, offset, length)

    def pwrite(self, fd: int, view: memoryview, offset: int) -> int:
        self._seen("pwrite")
        return super().pwrite(fd, view, offset)

    def sync_data(self, fd: int) -> None:
        self._seen("sync_data")
        super().sync_data(fd)

    def sync(self, fd: int) -> None:
        self._seen("sync")
        super().sync(fd)

    def sync_folder(self, path: Path) -> None:
        self._seen("sync_folder")
        super().sync_folder(path)

    def rename(self, old: Path, new: Path) -> None:
        self._seen("rename")
        super().rename(old, new)

    def unlink(self, path: Path) -> None:
        self._seen("unlink")
        super().unlink(path)

    def mkdir(self, path: Path) -> None:
        self._seen("mkdir")
        super().mkdir(path)

    def _seen(self, kind: str) -> None:
        with self._lock:
            self.count += 1
            self.kinds[kind] = self.kinds.get(kind, 0) + 1
            self.before(kind)


class KillingDisk(HookedDisk):
    """Ends the process by SIGKILL before change number `at`; a write is first done by half."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self._at = at

    def pwrite(self, fd: int, view: memoryview, offset: int) -> int:
        with self._lock:
            if self.count + 1 == self._at:
                os.pwrite(fd, view[: len(view) // 2], offset)
        return super().pwrite(fd, view, offset)

    def before(self, kind: str) -> None:
        if self.count == self._at:
            os.kill(os.getpid(), signal.SIGKILL)


class FailingDisk(HookedDisk):
    """Fails the N-th change of a kind once (or for good), and notes any sync after a failed one on the same file."""

    def __init__(self, kind: str, at: int, number: int, *, for_good: bool = False) -> None:
        super().__init__()
        self._kind, self._at, self._errno, self._for_good = kind, at, number, for_good
        self._failed: set[int] = set()
        self.synced_again: list[int] = []
        self.fired = 0

    def before(self, kind: str) -> None:
        number = self.kinds[kind]
        if kind == self._kind and (number == self._at or (self._for_good and number > self._at)):
            self.fired += 1
            raise OSError(self._errno, os.strerror(self._errno))

    def sync_data(self, fd: int) -> None:
        self._sync(fd, super().sync_data)

    def sync(self, fd: int) -> None:
        self._sync(fd, super().sync)

    def _sync(self, fd: int, call: Any) -> None:
        if fd in self._failed:
            self.synced_again.append(fd)
        try:
            call(fd)
        except OSError:
            self._failed.add(fd)
            raise

    def close(self, fd: int) -> None:
        self._failed.discard(fd)
        super().close(fd)


class ShortDisk(HookedDisk):
    """Writes at most a few bytes at a time, in uneven pieces, with interruptions."""

    def pwrite(self, fd: int, view: memoryview, offset: int) -> int:
        self._seen("pwrite")
        if self.kinds["pwrite"] % 5 == 4:
            return super(HookedDisk, self).pwrite(fd, view[: 1 + self.kinds["pwrite"] * 37 % 900], offset)
        return super(HookedDisk, self).pwrite(fd, view[:3001], offset)


class HonestShortWriter(ShortDisk):
    """Broken on purpose: counts a short write as whole."""

    def write(self, fd: int, data: Any, offset: int) -> None:
        self.pwrite(fd, memoryview(data).cast("B"), offset)


NO_SPACE, INPUT_OUTPUT, QUOTA = errno.ENOSPC, errno.EIO, errno.EDQUOT
