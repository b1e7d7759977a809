"""Registry: a folder of engines named by their content, with names as aliases, and ways in and out of it."""

from __future__ import annotations

import os
import shutil
import stat
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from workbench.engine.contract import CONTRACT_FILE, MAX_CONTRACT_BYTES, Contract, parse_contract
from workbench.engine.names import check_name, drop_names, folder_of, read_names, write_name
from workbench.engine.opening import check_files, read_contract
from workbench.errors import EngineError, EngineRefused, shown

if TYPE_CHECKING:
    from collections.abc import Iterator

_LEAST_PREFIX = 6
_MAX_FILES = 64
_HEX = frozenset("0123456789abcdef")


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """One folder of a registry.

    Attributes
    ----------
    folder : Path
        Where it lies.
    names : tuple of str
        Aliases.
    contract : Contract or None
        None where it cannot be read.
    fault : str
        Why not; empty where it can.
    """

    folder: Path
    names: tuple[str, ...]
    contract: Contract | None
    fault: str = ""


class Registry:
    """A folder of engines.

    Parameters
    ----------
    root : str or Path
        Where `build` puts engines.
    """

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root)

    def entries(self) -> tuple[Entry, ...]:
        """Read the contract of every engine, not the engines."""
        if not self.root.is_dir():
            return ()
        names: dict[str, list[str]] = {}
        for name, engine_id in read_names(self.root).items():
            names.setdefault(engine_id, []).append(name)
        found = []
        for folder in self._folders():
            try:
                contract = read_contract(folder)
            except EngineRefused as error:
                found.append(Entry(folder=folder, names=(), contract=None, fault=str(error)))
                continue
            aliases = tuple(names.get(contract.engine_id, ()))
            found.append(Entry(folder=folder, names=aliases, contract=contract))
        return tuple(found)

    def resolve(self, word: str) -> Path:
        """Find an engine by name, by the start of its id, or by the path of its folder.

        Raises
        ------
        EngineError
            If there is none, or more than one.
        """
        named = read_names(self.root).get(word) if self.root.is_dir() else None
        if named is not None:
            return folder_of(self.root, named)
        if len(word) >= _LEAST_PREFIX and set(word) <= _HEX:
            fits = [e.folder for e in self.entries() if e.contract and e.contract.engine_id.startswith(word)]
            if len(fits) == 1:
                return fits[0]
            if fits:
                raise EngineError("an engine id must be unambiguous", f"{len(fits)} begin so", "Give more of it.")
        path = Path(word)
        if (path / CONTRACT_FILE).is_file():
            return path
        known = ", ".join([*read_names(self.root), *(f.name for f in self._folders())][:20]) or "none"
        raise EngineError(
            "an engine must be given by name, id of six digits or more, or folder", shown(word), f"There are: {known}."
        )

    def name(self, name: str, word: str) -> None:
        """Let a name stand for an engine of this registry."""
        check_name(name)
        folder = self.resolve(word)
        contract = read_contract(folder)
        if folder.resolve() != folder_of(self.root, contract.engine_id).resolve():
            raise EngineError("a name must stand for an engine of this folder", shown(word), "Import it first.")
        write_name(self.root, name, contract.engine_id)

    def verify(self, word: str) -> Contract:
        """Hash every file of an engine against its contract; nothing is loaded.

        Raises
        ------
        EngineRefused
            With the file, what was expected and what is there.
        """
        folder = self.resolve(word)
        contract = read_contract(folder)
        check_files(folder, contract)
        return contract

    def remove(self, word: str) -> tuple[Path, tuple[str, ...]]:
        """Remove an engine of this registry and its names; give both."""
        folder = self.resolve(word)
        if folder.parent.resolve() != self.root.resolve() or folder.is_symlink():
            raise EngineError("an engine to be removed must lie in this folder", shown(word), "Remove it by hand.")
        try:
            names = drop_names(self.root, read_contract(folder).engine_id)
        except EngineRefused:
            names = ()
        doomed = self.root / f".removing-{folder.name}-{os.getpid()}"
        folder.rename(doomed)  # gone at once; a crash leaves only what no listing shows
        shutil.rmtree(doomed)
        return folder, names

    def export(self, word: str, out: str | Path) -> Path:
        """Write a verified engine as one tar file, plain and the same bytes each time.

        Raises
        ------
        EngineError
            If the file is already there.
        EngineRefused
            If the engine is not what its contract says.
        """
        contract = self.verify(word)
        folder, path = self.resolve(word), Path(out)
        if os.path.lexists(path):
            raise EngineError("the file of an export must be new", shown(path.name), "Choose another name.")
        scratch = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            with scratch.open("xb") as file, tarfile.open(fileobj=file, mode="w:", format=tarfile.PAX_FORMAT) as tar:
                for name in (CONTRACT_FILE, *sorted(contract.files)):
                    _add(tar, folder / name, name)
            scratch.rename(path)
        finally:
            scratch.unlink(missing_ok=True)
        return path

    def import_(self, path: str | Path, *, expect: str | None = None) -> Path:
        """Take in an exported engine or a copied folder, checked against its contract before it is seen here.

        Parameters
        ----------
        path : str or Path
            File of `export`, or an engine folder.
        expect : str, optional
            Engine id that it must have; a contract alone proves nothing about who made it.

        Returns
        -------
        Path
            Folder of the engine.

        Raises
        ------
        EngineRefused
            If anything is not as the contract says; nothing is left behind.
        """
        self.root.mkdir(parents=True, exist_ok=True)
        scratch = self.root / f".importing-{os.getpid()}"
        scratch.mkdir()
        try:
            source = Path(path)
            take = _copy_folder if source.is_dir() else _unpack
            take(source, scratch)
            contract = read_contract(scratch)
            if expect is not None and contract.engine_id != expect:
                raise EngineRefused("the engine id must be the expected one", contract.engine_id, f"Expected {expect}.")
            check_files(scratch, contract)
            home = folder_of(self.root, contract.engine_id)
            if not home.exists():
                scratch.rename(home)
            return home
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    def _folders(self) -> Iterator[Path]:
        if not self.root.is_dir():
            return
        for folder in sorted(self.root.iterdir()):
            hidden = folder.name.startswith(".")
            if not hidden and not folder.is_symlink() and (folder / CONTRACT_FILE).is_file():
                yield folder


def _add(tar: tarfile.TarFile, path: Path, name: str) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mode = path.stat().st_size, 0o644
    with path.open("rb") as file:
        tar.addfile(info, file)


def _unpack(source: Path, into: Path) -> None:
    """Write the members that the contract lists; the contract comes first, and nothing else is opened before it."""
    do = "Use a file that `workbench engines export` wrote."
    try:
        with tarfile.open(source, mode="r:") as tar:
            first = tar.next()
            if first is None or first.name != CONTRACT_FILE or not first.isreg() or first.size > MAX_CONTRACT_BYTES:
                raise EngineRefused(f"an exported engine must begin with {CONTRACT_FILE}", "something else", do)
            data = _member(tar, first)
            contract = parse_contract(data, where=CONTRACT_FILE)
            _check_listed(contract)
            (into / CONTRACT_FILE).write_bytes(data)
            waiting = set(contract.files)
            while (info := tar.next()) is not None:
                if info.name not in waiting or not info.isreg():
                    raise EngineRefused("an export must hold the listed files, once each", shown(info.name), do)
                waiting.remove(info.name)
                _write_member(tar, info, into / info.name)
            if waiting:
                raise EngineRefused("an export must hold every listed file", f"none of {sorted(waiting)}", do)
    except (tarfile.TarError, OSError, EOFError) as error:
        raise EngineRefused("an exported engine must be a whole tar file", type(error).__name__, do) from error


def _check_listed(contract: Contract) -> None:
    for name in contract.files:
        check_name(name)
    if len(contract.files) > _MAX_FILES:
        raise EngineRefused(f"an engine may have {_MAX_FILES} files", str(len(contract.files)), "Build it again.")


def _member(tar: tarfile.TarFile, info: tarfile.TarInfo) -> bytes:
    file = tar.extractfile(info)
    assert file is not None
    return file.read()


def _write_member(tar: tarfile.TarFile, info: tarfile.TarInfo, path: Path) -> None:
    file = tar.extractfile(info)
    assert file is not None
    with path.open("xb") as out:
        shutil.copyfileobj(file, out, 1 << 20)


def _copy_folder(source: Path, into: Path) -> None:
    contract = read_contract(source)
    _check_listed(contract)
    for name in (CONTRACT_FILE, *contract.files):
        if not stat.S_ISREG((source / name).lstat().st_mode):
            raise EngineRefused(f"{name} must be a regular file", "a link or device", "Copy the files themselves.")
        shutil.copyfile(source / name, into / name, follow_symlinks=False)
