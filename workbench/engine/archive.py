"""An engine as one file: a plain tar of its contract and the files that this lists, the same bytes each time.

Only headers of plain files are read, by hand: what a tar file may hold besides (links, devices, sparse files, headers
of any length) could write elsewhere, or far more than the file is long.
"""

from __future__ import annotations

import os
import shutil
import tarfile
from typing import TYPE_CHECKING, BinaryIO

from workbench.engine.contract import CONTRACT_FILE, MAX_CONTRACT_BYTES, parse_contract
from workbench.engine.scratch import check_room
from workbench.errors import EngineError, EngineRefused, shown
from workbench.writing import whole_file

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from workbench.engine.contract import Contract

MAX_FILES = 64
_BLOCK = tarfile.BLOCKSIZE
_DO = "Use a file that `workbench engines export` wrote."


def pack(folder: Path, contract: Contract, path: Path) -> None:
    """Write an engine whose files were checked before.

    Raises
    ------
    EngineError
        If the file is already there, or its folder is not.
    """
    if os.path.lexists(path):
        raise EngineError("the file of an export must be new", shown(path.name), "Choose another name.")
    if not path.parent.is_dir():
        raise EngineError("the folder of an export must exist", shown(path.parent), "Make it first.")
    try:
        with whole_file(path) as file:
            data = (folder / CONTRACT_FILE).read_bytes()  # as it stands: its digest is over these very bytes
            file.write(header(CONTRACT_FILE, len(data)) + data + _padding(len(data)))
            for name in sorted(contract.files):
                _pack_file(file, folder / name, name)
            file.write(bytes(2 * _BLOCK))
    except OSError as error:
        raise EngineError("the file of an export must be writable", error.strerror or "", "Choose another.") from error


def unpack(source: Path, into: Path) -> None:
    """Write the files that the contract of an archive lists; the contract comes first, and says what may follow.

    Raises
    ------
    EngineRefused
        If the archive is anything else than `pack` writes.
    StoreFull
        If the disk has no room for it.
    """
    try:
        file = source.open("rb")
    except OSError as error:
        raise EngineRefused("the file to import must be readable", error.strerror or "", "Check its path.") from error
    with file:
        check_room(into, os.fstat(file.fileno()).st_size)
        members = _members(file)
        name, size = next(members, ("", 0))
        if name != CONTRACT_FILE or size > MAX_CONTRACT_BYTES:
            raise EngineRefused(f"an exported engine must begin with {CONTRACT_FILE}", shown(name), _DO)
        data = file.read(size)
        waiting = listed_files(parse_contract(data, where=CONTRACT_FILE))
        (into / CONTRACT_FILE).write_bytes(data)
        for name, size in members:
            if name not in waiting:
                raise EngineRefused("an export must hold the listed files, once each", shown(name), _DO)
            waiting.remove(name)
            _unpack_file(file, into / name, size)
        if waiting:
            raise EngineRefused("an export must hold every listed file", f"none of {sorted(waiting)}", _DO)


def listed_files(contract: Contract) -> set[str]:
    """Give the files that a contract lists, or refuse it if they are too many."""
    if len(contract.files) > MAX_FILES:
        raise EngineRefused(f"an engine may have {MAX_FILES} files", str(len(contract.files)), "Build it again.")
    return set(contract.files)


def header(name: str, size: int) -> bytes:
    """Give the tar header of a plain file; sizes of 8 GiB and more are written in binary, as GNU tar does."""
    info = tarfile.TarInfo(name)
    info.size, info.mode = size, 0o644
    return info.tobuf(tarfile.GNU_FORMAT)


def _pack_file(file: BinaryIO, path: Path, name: str) -> None:
    with path.open("rb") as source:
        size = os.fstat(source.fileno()).st_size
        file.write(header(name, size))
        start = file.tell()
        shutil.copyfileobj(source, file, 1 << 20)
        if file.tell() - start != size:
            raise EngineError(f"{name} must stay as it is while it is exported", "another size", "Export it again.")
        file.write(_padding(size))


def _unpack_file(file: BinaryIO, path: Path, size: int) -> None:
    with path.open("xb") as out:
        left = size
        while left:
            piece = file.read(min(left, 1 << 20))
            if not piece:
                raise EngineRefused("an exported engine must be a whole tar file", "one that was cut", _DO)
            out.write(piece)
            left -= len(piece)


def _members(file: BinaryIO) -> Iterator[tuple[str, int]]:
    """Give name and size of each member, with the file at the first byte of its data."""
    while True:
        block = file.read(_BLOCK)
        if block == bytes(_BLOCK):
            return
        try:
            info = tarfile.TarInfo.frombuf(block, "ascii", "strict")
        except (tarfile.TarError, ValueError) as error:
            raise EngineRefused("an exported engine must be a whole tar file", type(error).__name__, _DO) from error
        if info.type not in (tarfile.REGTYPE, tarfile.AREGTYPE) or info.size < 0:
            raise EngineRefused("an export must hold plain files only", f"{shown(info.name)}, which is none", _DO)
        start = file.tell()
        yield info.name, info.size
        file.seek(start + info.size + len(_padding(info.size)))


def _padding(size: int) -> bytes:
    return bytes(-size % _BLOCK)
