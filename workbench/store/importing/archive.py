"""A run that was sent as a zip file."""

from __future__ import annotations

import os
import shutil
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

from workbench.errors import RunExists, StoreError
from workbench.store.files import explain
from workbench.store.importing.foreign import open_source
from workbench.store.layout import LOCK, MANIFEST, RESERVE, TAPS, is_own_file, is_segment_file
from workbench.store.reader import Run, open_run
from workbench.store.verifying import verify_run

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_ZIP_FILES = 200_000


def import_zip(path: str | Path, *, out: str | Path) -> Run:
    """Unpack a run that was sent as a zip file, and check every byte of it.

    Raises
    ------
    StoreError
        If the archive holds anything but the files of one run, or the run is damaged.
    RunExists
        If `out` is there.
    """
    path, out = Path(path), Path(out)
    fd, _ = open_source(path)
    if os.path.lexists(out):
        os.close(fd)
        raise RunExists(f"{str(out)!r} must not exist", "a file or folder", "Choose another folder.")
    with os.fdopen(fd, "rb") as file:
        try:
            with zipfile.ZipFile(file) as archive:
                members = _members(archive, path)
                _unpack(archive, members, out)
        except (zipfile.BadZipFile, zipfile.LargeZipFile, NotImplementedError, EOFError) as error:
            raise StoreError(f"{path.name!r} must be a zip file", str(error)[:120], "It is damaged.") from None
        except OSError as error:
            raise explain(error, out, "the run must be unpacked") from error
    if not (verification := verify_run(out)):
        shutil.rmtree(out)
        raise StoreError("the run that was sent must be sound", str(verification)[:400], "Ask for it again.")
    return open_run(out)


def _members(archive: zipfile.ZipFile, path: Path) -> dict[str, zipfile.ZipInfo]:
    infos = [info for info in archive.infolist() if not info.is_dir()]
    if len(infos) > MAX_ZIP_FILES:
        raise StoreError(f"{path.name!r} must hold at most {MAX_ZIP_FILES} files", str(len(infos)), "It is no run.")
    members: dict[str, zipfile.ZipInfo] = {}
    top = infos[0].filename.partition("/")[0] if infos else ""
    for info in infos:
        first, _, name = info.filename.partition("/")
        folder, _, last = name.rpartition("/")
        fine = (folder == "" and is_own_file(last)) or (folder == TAPS and is_segment_file(last.removesuffix(".part")))
        fine = fine and first == top not in ("", ".", "..")
        if not fine or name in members or last in (LOCK, RESERVE) or info.compress_type != zipfile.ZIP_STORED:
            raise StoreError(
                f"{path.name!r} must hold only the files of one run", ascii(info.filename)[:120], "It is not used."
            )
        members[name] = info
    if MANIFEST not in members:
        raise StoreError(f"{path.name!r} must hold a {MANIFEST}", "none", "It is no run.")
    return members


def _unpack(archive: zipfile.ZipFile, members: Mapping[str, zipfile.ZipInfo], out: Path) -> None:
    (out / TAPS).mkdir(parents=True)
    try:
        for name, info in members.items():
            with archive.open(info) as source, (out / name).open("xb") as target:
                shutil.copyfileobj(source, target, 1 << 20)
                target.flush()
                os.fsync(target.fileno())
    except BaseException:
        shutil.rmtree(out)
        raise
