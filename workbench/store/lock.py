"""One writer a run: a kernel lock on a small file that names its holder."""

from __future__ import annotations

import json
import os
import socket
from typing import TYPE_CHECKING

from workbench.errors import StoreError, StoreLocked
from workbench.store.files import explain
from workbench.store.layout import LOCK

if TYPE_CHECKING:
    from pathlib import Path

MAX_LOCK_BYTES = 4096


class WriterLock:
    """The lock of a run's writer, held until `release` or the death of the process.

    `flock` belongs to the open file, not to the process: closing another descriptor of the same file does not drop
    it. A forked child would keep it alive, so children are started by spawn.
    """

    def __init__(self, folder: Path, run_id: str) -> None:
        """Take the lock or fail at once.

        Parameters
        ----------
        folder : Path
            Run folder.
        run_id : str
            Written into the lock file.

        Raises
        ------
        StoreLocked
            If another writer holds it; the message names its process and host.
        """
        import fcntl

        path = folder / LOCK
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise explain(error, path, "the writer lock must be opened") from error
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = _holder(self._fd)
            os.close(self._fd)
            raise StoreLocked(
                f"run {folder} must have one writer", holder, "Wait for it, or stop that process."
            ) from None
        except OSError as error:
            os.close(self._fd)
            raise StoreError("the file system must support flock", str(error), "Write to a local disk.") from error
        text = json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "run": run_id}).encode()
        try:
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, text, 0)
        except OSError:  # a full disk: the lock must not outlive the attempt
            os.close(self._fd)
            raise

    def release(self) -> None:
        """Give the lock back; twice is fine."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _holder(fd: int) -> str:
    try:
        fields = json.loads(os.pread(fd, MAX_LOCK_BYTES, 0))
        return f"process {int(fields['pid'])} on {str(fields['host'])[:80]!r}"
    except (ValueError, KeyError, TypeError):
        return "another process"
