"""Registry: a folder of engines named by their content, with names as aliases, and ways in and out of it."""

from __future__ import annotations

import shutil
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from workbench.engine.archive import listed_files, pack, unpack
from workbench.engine.contract import CONTRACT_FILE, Contract
from workbench.engine.names import (
    FOLDER_LENGTH,
    LEAST_PREFIX,
    check_alias,
    drop_names,
    folder_of,
    read_names,
    resolve_folder,
    write_name,
)
from workbench.engine.opening import check_files, is_whole, read_contract
from workbench.engine.scratch import check_room, put_away, scratch_folder, settle, sweep
from workbench.errors import EngineError, EngineRefused, shown
from workbench.writing import sync

if TYPE_CHECKING:
    from collections.abc import Iterator

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
        named = read_names(self.root).get(word)
        if named is not None:
            return self._named(word, named)
        if len(word) >= LEAST_PREFIX and set(word) <= _HEX:
            fits = [folder for folder, engine_id in self._ids() if engine_id.startswith(word)]
            if len(fits) == 1:
                return fits[0]
            if fits:
                raise EngineError("an engine id must be unambiguous", f"{len(fits)} begin so", "Give more of it.")
        path = resolve_folder(Path(word))
        if (path / CONTRACT_FILE).is_file():
            return path
        known = ", ".join([*read_names(self.root), *(f.name for f in self._folders())][:20]) or "none"
        raise EngineError(
            "an engine must be given by name, id of six digits or more, or folder",
            shown(word),
            f"There are: {known}.",
        )

    def name(self, name: str, word: str) -> None:
        """Let a name stand for an engine of this registry."""
        check_alias(name)
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
        """Remove an engine of this registry and its names, or a name whose engine is gone; give both.

        Raises
        ------
        EngineError
            If it does not lie in this folder, or is a link.
        """
        named = read_names(self.root).get(word)
        if named is not None and not folder_of(self.root, named).is_dir():
            return folder_of(self.root, named), drop_names(self.root, named)
        folder = self.resolve(word)
        if folder.parent.resolve() != self.root.resolve() or folder.is_symlink():
            raise EngineError("an engine to be removed must lie in this folder", shown(word), "Remove it by hand.")
        put_away(folder)
        sweep(self.root)
        return folder, self._drop_names(folder)

    def children(self, word: str) -> tuple[Entry, ...]:
        """Find the engines whose contracts name this one as their parent."""
        try:
            engine_id = read_contract(self.resolve(word)).engine_id
        except EngineRefused:
            return ()
        return tuple(entry for entry in self.entries() if entry.contract and entry.contract.parent == engine_id)

    def export(self, word: str, out: str | Path) -> Path:
        """Write a verified engine as one tar file, plain and the same bytes each time.

        Raises
        ------
        EngineError
            If the file is already there, or cannot be written.
        EngineRefused
            If the engine is not what its contract says.
        """
        contract = self.verify(word)
        pack(self.resolve(word), contract, Path(out))
        return Path(out)

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
        StoreFull
            If the disk has no room for it; nothing is left behind.
        """
        self.root.mkdir(parents=True, exist_ok=True)
        source = resolve_folder(Path(path))
        with scratch_folder(self.root, "importing") as scratch:
            take = _copy_folder if source.is_dir() else unpack
            take(source, scratch)
            contract = read_contract(scratch)
            if expect is not None and contract.engine_id != expect:
                raise EngineRefused("the engine id must be the expected one", contract.engine_id, f"Expected {expect}.")
            check_files(scratch, contract)
            for file in (*scratch.iterdir(), scratch):
                sync(file)
            home = folder_of(self.root, contract.engine_id)
            make_way(home)
            settle(scratch, home)
            return home

    def _named(self, name: str, engine_id: str) -> Path:
        folder = folder_of(self.root, engine_id)
        if not (folder / CONTRACT_FILE).is_file():
            do = f"Import or build it again, or drop the name: workbench engines rm {name} --yes"
            raise EngineError(f"the engine that {name} stands for must be there", f"no {folder.name}", do)
        return folder

    def _ids(self) -> Iterator[tuple[Path, str]]:
        """Give each folder with its engine id; a damaged one with its name, which is the start of it."""
        for entry in self.entries():
            yield entry.folder, entry.folder.name if entry.contract is None else entry.contract.engine_id

    def _drop_names(self, folder: Path) -> tuple[str, ...]:
        ids = {held for held in read_names(self.root).values() if held[:FOLDER_LENGTH] == folder.name}
        return tuple(name for engine_id in sorted(ids) for name in drop_names(self.root, engine_id))

    def _folders(self) -> Iterator[Path]:
        if not self.root.is_dir():
            return
        for folder in sorted(self.root.iterdir()):
            hidden = folder.name.startswith(".")
            if not hidden and not folder.is_symlink() and (folder / CONTRACT_FILE).is_file():
                yield folder


def make_way(home: Path) -> None:
    """Put a damaged engine away, so that a whole one of the same id can take its place."""
    if home.is_dir() and not home.is_symlink() and not is_whole(home):
        put_away(home)


def _copy_folder(source: Path, into: Path) -> None:
    contract = read_contract(source)
    names = (CONTRACT_FILE, *sorted(listed_files(contract)))
    for name in names:
        if not _is_file(source / name):
            raise EngineRefused(
                f"{name} must be a regular file", "none, a link or a device", "Copy the files themselves."
            )
    check_room(into, sum((source / name).stat().st_size for name in names))
    for name in names:
        shutil.copyfile(source / name, into / name, follow_symlinks=False)


def _is_file(path: Path) -> bool:
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return False
