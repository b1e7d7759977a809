"""Open an engine: every hash first, then the backend, then a self-test; refuse with field, expected and actual."""

from __future__ import annotations

import json
import stat
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.engine.admission import check_pass, check_prompts, split_passes
from workbench.engine.backends.protocol import Session, get_backend
from workbench.engine.batch import flat_rows, make_feeds
from workbench.engine.contract import CONTRACT_FILE, MAX_CONTRACT_BYTES, Contract, engine_id_of, parse_contract
from workbench.engine.hashing import sha256_of
from workbench.engine.names import resolve_folder
from workbench.engine.tensors import check_tensors
from workbench.engine.trial import remember, remembered, run_trial
from workbench.errors import EngineRefused, EngineUnknown, shown
from workbench.tokens import Tokenizer, load_tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from workbench.checkpoint import Checkpoint

RECIPE_FILE = "recipe.json"
RECORDS = frozenset({"build.log", "layers.json", "timing.cache"})  # what a build said; none of it is run
TOKENIZER_FILE = "tokenizer.json"
_REBUILD = "Build it again with `workbench build`."


class Engine:
    """A loaded engine; made by `build` and `open_engine`.

    Attributes
    ----------
    path : Path
        Folder of the engine.
    contract : Contract
        What it accepts and emits, and what it was proven to do.
    checkpoint : Checkpoint or None
        Where `build` made it in this process, what it was made of.
    """

    def __init__(self, path: Path, contract: Contract, session: Session) -> None:
        self.path = path
        self.contract = contract
        self.checkpoint: Checkpoint | None = None
        self._session = session

    def __repr__(self) -> str:
        c = self.contract
        return f"Engine({c.checkpoint.name}, {c.precision.name}, {c.backend.name}, id {self.id[:12]})"

    @property
    def id(self) -> str:
        """The engine id: sha256 of recipe digest and plan."""
        return self.contract.engine_id

    @cached_property
    def tokenizer(self) -> Tokenizer | None:
        """The tokenizer that travels with the engine; None if it reads token ids only."""
        return read_tokenizer(self.path, self.contract)

    def run(self, prompts: Sequence[NDArray[Any]]) -> dict[str, NDArray[np.float32]]:
        """Run prompts in as many passes as the contract asks for.

        Parameters
        ----------
        prompts : sequence of int array [token]
            Token ids of each prompt; none empty, none longer than the contract's limit.

        Returns
        -------
        dict of tap name to float32 [row, d_model]
            Rows in prompt order: one a token for `all`, one a prompt for `last` and `mean`.

        Raises
        ------
        ContractError
            If a prompt is empty, too long, or holds an id outside the vocabulary.
        """
        check_prompts(prompts, self.contract)
        parts = []
        for few in split_passes(prompts, self.contract.limits):
            rows = self.submit(few)()
            parts.append({tap: np.array(array, dtype=np.float32) for tap, array in rows.items()})
        return {tap: np.concatenate([part[tap] for part in parts]) if len(parts) > 1 else parts[0][tap] for tap in rows}

    def submit(self, prompts: Sequence[NDArray[Any]]) -> Callable[[], dict[str, NDArray[Any]]]:
        """Launch a pass; the next may be launched before its rows are taken, so that copies and computing overlap.

        Parameters
        ----------
        prompts : sequence of int array [token]
            As for `run`.

        Returns
        -------
        callable
            Waits and gives the rows of each tap, [row, d_model], in the engine's own dtype. The arrays hold until two
            more passes were launched.

        Raises
        ------
        ContractError
            As `run` does, and if the prompts are more than one pass may hold.
        """
        contract = self.contract
        check_prompts(prompts, contract)
        check_pass(prompts, contract.limits)
        feeds = make_feeds(prompts, contract.positions, contract.inputs[0].dtype)
        launch = getattr(self._session, "submit", None)
        if launch is None:
            rows = flat_rows(self._taps_of(self._session.run(feeds)))
            return lambda: rows
        pending = launch(feeds)
        return lambda: flat_rows(self._taps_of(pending.result(copy=False)))

    def run_outputs(self, prompts: Sequence[NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Run one pass and give every output as the engine made it: also the cache of a baseline, and its token.

        Parameters
        ----------
        prompts : sequence of int array [token]
            As for `run`.

        Returns
        -------
        dict of str to array
            Shapes and dtypes as in the contract's output table; a cache on a GPU stays there and is not among them.
        """
        contract = self.contract
        check_prompts(prompts, contract)
        check_pass(prompts, contract.limits)
        return self._session.run(make_feeds(prompts, contract.positions, contract.inputs[0].dtype))

    def _taps_of(self, outputs: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        return {tap: outputs[tap] for tap in self.contract.taps}


def open_engine(path: str | Path, *, expect: str | None = None) -> Engine:
    """Open an engine folder after checking it against its contract.

    Parameters
    ----------
    path : str or Path
        Folder with `contract.json`; or a name that `workbench engines name` gave, in place of the folder's own.
    expect : str, optional
        Engine id that it must have, for engines that come from elsewhere.

    Returns
    -------
    Engine
        Loaded. The first time on a machine it is loaded and self-tested in a process of its own before.

    Raises
    ------
    EngineRefused
        If anything differs from the contract, before the backend has seen a byte of it; or if the trial fails.
    """
    folder = resolve_folder(Path(path))
    contract = read_contract(folder)
    if expect is not None and contract.engine_id != expect:
        raise EngineRefused("the engine id must be the expected one", f"{contract.engine_id}", f"Expected {expect}.")
    check_files(folder, contract)
    backend = get_backend(contract.backend.name)
    here = backend.available()
    if not here.ready:
        raise EngineRefused(f"the backend {contract.backend.name} must be ready", here.why, f"Run: {here.do}")
    backend.admit(contract)
    if not remembered(contract, here.version):
        run_trial(folder, contract)
        remember(contract, here.version)
    session = backend.load(folder)
    check_tensors(session, contract)
    return Engine(folder, contract, session)


def try_engine(path: str | Path) -> dict[str, Any]:
    """Check an engine and try it in a process of its own, whether or not it was tried here before.

    Returns
    -------
    dict
        As `run_trial`.

    Raises
    ------
    EngineRefused
        As `open_engine`.
    """
    folder = resolve_folder(Path(path))
    contract = read_contract(folder)
    check_files(folder, contract)
    backend = get_backend(contract.backend.name)
    here = backend.available()
    if not here.ready:
        raise EngineRefused(f"the backend {contract.backend.name} must be ready", here.why, f"Run: {here.do}")
    backend.admit(contract)
    found = run_trial(folder, contract)
    remember(contract, here.version)
    return found


def read_contract(folder: Path) -> Contract:
    """Read the contract of an engine, without touching the engine; its name may stand for its folder."""
    folder = resolve_folder(folder)
    path = folder / CONTRACT_FILE
    with _reading(CONTRACT_FILE):
        if not path.is_file():
            raise EngineRefused(f"an engine folder must hold {CONTRACT_FILE}", f"none in {folder.name!r}", _REBUILD)
        if path.stat().st_size > MAX_CONTRACT_BYTES:
            raise EngineRefused(f"{CONTRACT_FILE} must be below 16 MiB", f"{path.stat().st_size} bytes", _REBUILD)
        return parse_contract(path.read_bytes(), where=CONTRACT_FILE)


@contextmanager
def _reading(what: str) -> Iterator[None]:
    """Tell a file that cannot be read from one that is damaged."""
    try:
        yield
    except OSError as error:
        do = "Check its permissions, and try again."
        raise EngineUnknown(f"{what} must be readable", error.strerror or type(error).__name__, do) from error


def read_tokenizer(folder: Path, contract: Contract) -> Tokenizer | None:
    """Read the tokenizer of an engine folder; None if the engine reads token ids only.

    Raises
    ------
    EngineRefused
        If it is not the one of the contract.
    """
    if contract.tokenizer_digest is None:
        return None
    tokenizer = load_tokenizer((resolve_folder(folder) / TOKENIZER_FILE).read_bytes())
    if tokenizer.digest != contract.tokenizer_digest:
        raise EngineRefused(f"{TOKENIZER_FILE} must be {contract.tokenizer_digest}", tokenizer.digest, _REBUILD)
    return tokenizer


def check_files(folder: Path, contract: Contract) -> None:
    """Compare every file of an engine folder with the contract.

    Raises
    ------
    EngineRefused
        If a file is missing, unlisted, no regular file, or has another hash; or if the id is not that of the files.
    """
    listed = set(contract.files)
    with _reading("the engine folder"):
        there = {entry.name for entry in folder.iterdir()} - {CONTRACT_FILE}
        if there != listed:
            missing, extra = sorted(listed - there), sorted(there - listed)
            raise EngineRefused(
                "the folder must hold exactly the listed files", f"missing {missing}, extra {extra}", _REBUILD
            )
        for name in (CONTRACT_FILE, *sorted(listed)):
            if not stat.S_ISREG((folder / name).lstat().st_mode):
                raise EngineRefused(f"{name} must be a regular file", "a link or device", _REBUILD)
        paths = [folder / name for name in sorted(listed)]
        with ThreadPoolExecutor(max_workers=2) as pool:
            hashes = dict(zip(sorted(listed), pool.map(sha256_of, paths), strict=True))
    for name, digest in hashes.items():
        if digest != contract.files[name]:
            raise EngineRefused(f"sha256 of {name} must be {contract.files[name]}", digest, _REBUILD)
    check_recipe(folder, contract)
    plan = {name: digest for name, digest in contract.files.items() if name in plan_files(contract)}
    if engine_id_of(contract.recipe_digest, plan) != contract.engine_id:
        raise EngineRefused("the engine id must be that of recipe and plan", contract.engine_id, _REBUILD)


def is_whole(folder: Path) -> bool:
    """Whether a folder holds an engine that is what its contract says.

    Raises
    ------
    EngineUnknown
        If that cannot be said, so that nobody takes it for damaged.
    """
    try:
        check_files(folder, read_contract(folder))
    except EngineUnknown:
        raise
    except EngineRefused:
        return False
    return True


def check_recipe(folder: Path, contract: Contract) -> None:
    """Hold a contract against the recipe beside it, whose digest is part of the engine id.

    Whoever knows the id knows then which weights, taps, rows and limits are behind it, whoever sealed the contract.

    Raises
    ------
    EngineRefused
        With the field, what the recipe says, and what the contract says.
    """
    if (contract.tokenizer_digest is None) == (TOKENIZER_FILE in contract.files):
        has = "is listed" if TOKENIZER_FILE in contract.files else "is not listed"
        raise EngineRefused(f"{TOKENIZER_FILE} must be listed just where there is a tokenizer", f"it {has}", _REBUILD)
    if RECIPE_FILE not in contract.files:
        raise EngineRefused(f"an engine folder must hold {RECIPE_FILE}", "none in its contract", _REBUILD)
    if contract.files[RECIPE_FILE] != contract.recipe_digest:  # a recipe is named by the sha256 of its canonical form
        raise EngineRefused(
            f"sha256 of {RECIPE_FILE} must be the recipe digest {contract.recipe_digest}",
            contract.files[RECIPE_FILE],
            _REBUILD,
        )
    recipe: dict[str, Any] = json.loads((folder / RECIPE_FILE).read_bytes())
    positions = contract.positions
    said = {
        "checkpoint": contract.checkpoint.digest,
        "precision": contract.precision.name,
        "method": contract.precision.method,
        "taps": list(contract.taps),
        "positions": positions if isinstance(positions, str) else list(positions),
        "backend": contract.backend.name,
        "max_tokens": contract.limits.max_tokens,
        "options": contract.backend.options,
    }
    for field, value in said.items():
        if recipe.get(field) != value:
            raise EngineRefused(
                f"{field} of {CONTRACT_FILE} must be that of {RECIPE_FILE}, {shown(recipe.get(field))}",
                shown(value),
                _REBUILD,
            )


def plan_files(contract: Contract) -> set[str]:
    """Name the files that the backend runs: all but those that the workbench wrote beside them."""
    return set(contract.files) - {RECIPE_FILE, TOKENIZER_FILE, contract.self_test.file} - RECORDS


def find_engine(root: Path, recipe_digest: str, backend_version: str) -> Path | None:
    """Look for an engine of a recipe among the folders of `root`."""
    for folder in sorted(root.iterdir()):
        if folder.name.startswith(".") or not (folder / CONTRACT_FILE).is_file():
            continue
        try:
            contract = read_contract(folder)
        except EngineRefused:
            continue
        if contract.recipe_digest == recipe_digest and contract.backend.version == backend_version:
            return folder
    return None
