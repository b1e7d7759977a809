"""What the disk under a run can do, asked before any computing."""

from __future__ import annotations

import ctypes
import os
import shutil
import stat
import sys
import warnings
from typing import TYPE_CHECKING

from workbench.errors import StoreError, StoreFull
from workbench.store.files import explain

if TYPE_CHECKING:
    from pathlib import Path

NETWORK_TYPES = {
    0x6969: "nfs", 0xFF534D42: "cifs", 0xFE534D42: "smb2", 0x0BD00BD0: "lustre", 0x47504653: "gpfs",
    0x00C36400: "ceph", 0x01021997: "9p", 0x65735546: "fuse",
}  # fmt: skip
LOCAL_TYPES = {0xEF53: "ext", 0x58465342: "xfs", 0x9123683E: "btrfs", 0x01021994: "tmpfs", 0x794C7630: "overlay"}


class StoreWarning(UserWarning):
    """Something weaker than promised, said once and recorded."""


def type_number(path: Path) -> int | None:
    """Ask statfs(2) for the type of a file system; `os.statvfs` does not tell it. None where unknown."""
    if not sys.platform.startswith("linux"):
        return None
    buffer = (ctypes.c_char * 256)()
    library = ctypes.CDLL(None, use_errno=True)
    if library.statfs(os.fsencode(path), buffer) != 0:
        return None
    return int(ctypes.cast(buffer, ctypes.POINTER(ctypes.c_long))[0]) & 0xFFFFFFFF


def type_name(path: Path) -> str:
    """Name the type of a file system."""
    number = type_number(path)
    if number is None:
        return "unknown"
    return NETWORK_TYPES.get(number) or LOCAL_TYPES.get(number) or hex(number)


def is_network(path: Path) -> bool:
    """Say whether a path lies on a network file system; FUSE counts as one."""
    return type_number(path) in NETWORK_TYPES


def is_folder(path: Path) -> bool:
    """Say whether there is a folder of that name.

    Raises
    ------
    StoreError
        If it cannot be looked at, as below a folder of another user.
    """
    try:
        return stat.S_ISDIR(path.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise explain(error, path, f"{str(path)!r} must be a folder that you may enter") from error


def check_place(folder: Path) -> None:
    """Refuse a place where a run cannot be written, before anything is computed for it.

    Parameters
    ----------
    folder : Path
        The run folder. If it is there, as for a run that goes on, everything in it must be writable; if not, the
        nearest folder above it that is there.

    Raises
    ------
    StoreError
        If it lies below a file, on a read-only disk, or in a folder of another user.
    """
    if is_folder(folder):
        _need_writable(folder)
        for path in (*folder.glob("*"), *folder.glob("*/*")):
            _need_writable(path)
        return
    above = folder.absolute().parent
    while not is_folder(above):
        if os.path.lexists(above):
            raise StoreError(f"{str(above)!r} must be a folder", "something else", "Choose another place.")
        above = above.parent
    _need_writable(above)


def _need_writable(path: Path) -> None:
    """Ask for write access; links inside a run are refused elsewhere."""
    if path.is_symlink() or os.access(path, os.W_OK | (os.X_OK if path.is_dir() else 0)):
        return
    try:
        locked = hasattr(os, "ST_RDONLY") and os.statvfs(path).f_flag & os.ST_RDONLY
    except FileNotFoundError:  # renamed at this moment by the writer of the run
        return
    reason = "a read-only file system" if locked else "no permission"
    raise StoreError(f"{str(path)!r} must be writable", reason, "Choose a folder that you may write to.")


def check_room(parent: Path, need_bytes: int) -> None:
    """Refuse a run that cannot fit.

    Raises
    ------
    StoreFull
        If fewer than `need_bytes` are free; the message says both.
    """
    try:
        free = shutil.disk_usage(parent).free
    except OSError as error:
        raise explain(error, parent, "the free space must be known") from error
    if need_bytes > free:
        raise StoreFull(
            f"the run needs {need_bytes:,} bytes", f"{free:,} free at {parent}", "Free space, or choose fewer taps."
        )


def check_descriptors(n_files: int) -> None:
    """Make sure that so many files can be open at once, raising the soft limit if that helps.

    Raises
    ------
    StoreError
        If the hard limit is too low.
    """
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    need = n_files + 64  # what Python, engines and notebooks hold besides
    if soft == resource.RLIM_INFINITY or soft >= need:
        return
    if hard != resource.RLIM_INFINITY and hard < need:
        raise StoreError(
            f"{need} files must be open at once", f"a limit of {hard}", "Raise `ulimit -n`, or use fewer taps."
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (need, hard))


def warn_if_network(path: Path) -> bool:
    """Warn where locks and syncs depend on a server; return whether they do."""
    if not is_network(path):
        return False
    warnings.warn(
        f"{path} is on a network file system ({type_name(path)}): readers use pread, durability depends on the server",
        StoreWarning,
        stacklevel=4,
    )
    return True
