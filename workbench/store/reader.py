"""Reading a run: open at once, load only what is asked for."""

from __future__ import annotations

import random
import time
import warnings
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.errors import ChecksumMismatch, ContractError, JournalDamaged, StoreError, TapError
from workbench.store.batches import Batches, journal_content, part_records
from workbench.store.filesystem import StoreWarning, is_folder
from workbench.store.layout import HEAD, STATISTICS, TAPS, TOKENS, VALIDITY
from workbench.store.manifest import Manifest, PartEntry, load_manifest
from workbench.store.opening import TensorFile
from workbench.store.positions import Positions, prompt_of_rows, row_offsets, token_index
from workbench.store.taparray import TapArray, open_tap

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from workbench.prompts import PromptSet
    from workbench.store.journal import JournalContent, Record
    from workbench.store.statistics import TapStatistics

_TAIL_BATCHES = 2


def open_run(path: str | Path, *, scrub: float = 0.0) -> Run:
    """Open a stored run for reading; a run that is being written shows what is committed now.

    Parameters
    ----------
    path : str or Path
        Run folder.
    scrub : float
        Share of the batches whose checksums are recomputed first, 0 to 1.

    Returns
    -------
    Run

    Raises
    ------
    StoreError
        If the folder is no run, damaged, or of a newer format.
    ChecksumMismatch
        If a scrubbed batch is damaged.
    """
    folder = Path(path)
    if not is_folder(folder):
        raise StoreError(f"{str(folder)!r} must be a run folder", "no folder", "Give the folder that `extract` wrote.")
    run = Run(folder, load_manifest(folder))
    if scrub:
        for number, name in run.batches.sample(scrub, random.SystemRandom()):
            run.batches.check(run.tap(name), number)
    return run


class Run:
    """A stored run: hidden states of prompts at some taps, from one engine.

    Attributes
    ----------
    path : Path
        Run folder.
    manifest : Manifest
        Everything about the run but its rows.
    n_prompts, n_rows : int
        Prompts and rows that are stored; of an unfinished run, those that are committed.
    """

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.path = folder
        self.manifest = manifest
        self._records: list[tuple[Record, ...]] | None = None
        self._arrays: dict[tuple[str, bool], TapArray] = {}
        if manifest.status == "complete":
            self.n_prompts, self.n_rows = manifest.counts.prompts, manifest.counts.rows
        else:
            self._records = [_committed(folder, part, len(manifest.taps)) for part in manifest.parts]
            self._take_watermark()
            self._drop_torn_tail()

    def _take_watermark(self) -> None:
        """Count what the records of an unfinished run, which has one part, cover."""
        records = self._all_records()[0]
        self.n_prompts, self.n_rows = (records[-1].stop_prompt, records[-1].stop_row) if records else (0, 0)

    def _drop_torn_tail(self) -> None:
        """Leave out last batches whose bytes never reached the disk, as after a power cut with a lying drive."""
        for _ in range(_TAIL_BATCHES):
            error = self._first_mismatch(len(self.batches) - 1)
            if error is None:
                return
            warnings.warn(f"{self.path}: the last batch is left out; {error}", StoreWarning, stacklevel=4)
            records = list(self._all_records()[0][:-1])
            while records and records[-1].continues:
                records.pop()
            self._records = [tuple(records)]
            self._take_watermark()
            self._arrays.clear()
            self.__dict__.pop("batches", None)

    def _first_mismatch(self, number: int) -> ChecksumMismatch | None:
        try:
            for name in self.taps if number >= 0 else ():
                self.batches.check(self.tap(name), number)
        except ChecksumMismatch as error:
            return error
        return None

    def _all_records(self) -> list[tuple[Record, ...]]:
        if self._records is None:
            n_taps = len(self.manifest.taps)
            self._records = [part_records(self.path, part, n_taps) for part in self.manifest.parts]
        return self._records

    @property
    def status(self) -> str:
        """`complete`, or `writing` for a run that is not sealed."""
        return self.manifest.status

    @property
    def durability(self) -> str:
        """What was asked of the disk: `full` or `process-crash-only`."""
        return self.manifest.durability.asked

    @property
    def contract(self) -> dict[str, Any]:
        """Contract of the engine, whole."""
        return dict(self.manifest.contract)

    @property
    def provenance(self) -> dict[str, Any]:
        """How the run was made: tokenizer, template, batch plan, code version, policies."""
        return dict(self.manifest.provenance)

    @property
    def engine_id(self) -> str | None:
        """Id of the engine, or None for rows from elsewhere."""
        found = self.manifest.contract.get("engine_id")
        return found if isinstance(found, str) else None

    @property
    def taps(self) -> tuple[str, ...]:
        """Names of the taps."""
        return tuple(tap.name for tap in self.manifest.taps)

    @property
    def positions(self) -> Positions:
        """Which tokens of a prompt have a row."""
        return self.manifest.positions

    def __repr__(self) -> str:
        weaker = "" if self.durability == "full" else f", durability {self.durability}"
        state = "" if self.status == "complete" else f" of {self.manifest.counts.prompts}, not finished"
        held = f"{self.n_prompts} prompts{state}, {self.n_rows} rows, taps {', '.join(self.taps)}"
        return f"Run({str(self.path)!r}, {held}{weaker})"

    def tap(self, name: str, *, checked: bool = False) -> TapArray:
        """Give the rows of a tap as an array that is never loaded whole.

        Parameters
        ----------
        name : str
            Tap.
        checked : bool
            Whether slices and gathers check the batches that they touch, each once.

        Raises
        ------
        TapError
            If the run has no such tap.
        """
        if name not in self.taps:
            raise TapError(f"a tap must be one of {', '.join(self.taps)}", repr(name), "Choose one, or extract it.")
        if (name, checked) not in self._arrays:
            self._arrays[name, checked] = open_tap(
                self.path, self.manifest, name, self.n_rows, check=self._check, checked=checked
            )
        return self._arrays[name, checked]

    def _check(self, name: str, start: int, stop: int) -> None:
        for number in self.batches.at_rows(start, stop):
            self.batches.check(self.tap(name), number)

    @cached_property
    def batches(self) -> Batches:
        """Every stored batch with its checksums."""
        return Batches(self.path, self.manifest, self._all_records())

    @cached_property
    def _tokens(self) -> TensorFile:
        return TensorFile(self.path / TOKENS, self.manifest.files.get(TOKENS))

    @cached_property
    def all_offsets(self) -> NDArray[np.int64]:
        """Where the tokens of each prompt begin, for all prompts that the run is meant to hold."""
        offsets: NDArray[np.int64] = self._tokens.array("offsets", "I64")
        n_tokens = len(self._tokens.array("ids", "I32"))
        fits = len(offsets) == self.manifest.counts.prompts + 1 and offsets[0] == 0 and offsets[-1] == n_tokens
        if not fits or (np.diff(offsets) < 0).any():
            raise StoreError(f"{TOKENS} must have rising offsets over its ids", "others", "Restore it from a copy.")
        return offsets

    @property
    def offsets(self) -> NDArray[np.int64]:
        """Where the tokens of each stored prompt begin in `tokens`; int64 [prompt + 1]."""
        return self.all_offsets[: self.n_prompts + 1]

    @property
    def all_tokens(self) -> NDArray[np.int32]:
        """Token ids of all prompts that the run is meant to hold, flat; int32 [token]."""
        return np.asarray(self._tokens.array("ids", "I32"))

    @property
    def tokens(self) -> NDArray[np.int32]:
        """Token ids of the stored prompts, flat; int32 [token]."""
        return self.all_tokens[: int(self.offsets[-1])]

    @cached_property
    def row_offsets(self) -> NDArray[np.int64]:
        """Where the rows of each stored prompt begin; int64 [prompt + 1]."""
        return row_offsets(np.diff(self.offsets), self.positions)

    @cached_property
    def _table(self) -> Any:
        from workbench.store.contents import prompts_table
        from workbench.store.layout import PROMPTS

        return prompts_table(self.path, self.manifest.files.get(PROMPTS, ""))

    @cached_property
    def all_prompts(self) -> PromptSet:
        """The prompt set that the run is meant to hold."""
        from workbench.store.contents import prompts_from

        prompts = prompts_from(self._table)
        if prompts.content_hash != self.manifest.prompts_hash:
            must = f"the prompts must have hash {self.manifest.prompts_hash}"
            raise ChecksumMismatch(must, prompts.content_hash, "Restore prompts.parquet from a copy.")
        return prompts

    @cached_property
    def prompts(self) -> PromptSet:
        """The stored prompts, with their metadata columns."""
        if self.n_prompts == self.manifest.counts.prompts:
            return self.all_prompts
        return self.all_prompts.select(np.arange(self.n_prompts))

    def flag(self, name: str) -> NDArray[np.bool_]:
        """Give a flag of every stored prompt: `truncated` or `lossy`; bool [prompt]."""
        if name not in ("truncated", "lossy"):
            raise ContractError("a flag must be 'truncated' or 'lossy'", repr(name), "Choose one.")
        return np.asarray(self._table.column(name).to_numpy())[: self.n_prompts]

    def original_lengths(self) -> NDArray[np.int64]:
        """Give the number of tokens of every stored prompt before any were left out; int64 [prompt]."""
        return np.asarray(self._table.column("original_length").to_numpy())[: self.n_prompts]

    def rows_of(self, prompt_ids: Iterable[Any]) -> NDArray[np.int64]:
        """List the rows of prompts, in the order asked.

        Parameters
        ----------
        prompt_ids : iterable of str or int
            Ids of prompts (the `id` column, or row numbers).

        Returns
        -------
        int64 [row]

        Raises
        ------
        ContractError
            If an id is not stored.
        """
        places = self._places
        wanted = [getattr(one, "item", lambda one=one: one)() for one in prompt_ids]
        unknown = [one for one in wanted if one not in places]
        if unknown:
            raise ContractError("prompt ids must be stored in the run", repr(unknown[:3])[:120], "See run.prompts.ids.")
        pieces = [np.arange(self.row_offsets[places[one]], self.row_offsets[places[one] + 1]) for one in wanted]
        return np.concatenate(pieces).astype(np.int64) if pieces else np.empty(0, dtype=np.int64)

    @cached_property
    def _places(self) -> dict[Any, int]:
        return {one: at for at, one in enumerate(self.prompts.ids)}

    def prompt_of_rows(self) -> NDArray[np.int64]:
        """Give the prompt (its number) of every row; int64 [row]."""
        return prompt_of_rows(self.row_offsets)

    def token_index(self) -> NDArray[np.int64]:
        """Give the place of every row within its prompt, from 0, or -1 for means; int64 [row]."""
        return token_index(np.diff(self.offsets), self.positions)

    @cached_property
    def flagged_rows(self) -> NDArray[np.int64]:
        """Rows with NaN or infinity at any tap; int64 [n], sorted."""
        if VALIDITY in self.manifest.files:
            file = TensorFile(self.path / VALIDITY, self.manifest.files[VALIDITY])
            return np.asarray(file.array("flagged_rows", "I64"))
        from workbench.store.flags import flagged_rows

        return flagged_rows(self.path, self.manifest, self._all_records()[0])

    @property
    def valid(self) -> NDArray[np.bool_]:
        """Whether each row is free of NaN and infinity at every tap; bool [row]."""
        out = np.ones(self.n_rows, dtype=np.bool_)
        out[self.flagged_rows] = False
        return out

    def statistics(self, tap: str) -> TapStatistics:
        """Give the statistics gathered while the rows of a tap were written.

        Raises
        ------
        TapError
            If the run has no such tap.
        """
        array = self.tap(tap)
        if STATISTICS in self.manifest.files:
            return self._saved_statistics[tap]
        from workbench.store.statistics import empty_statistics, merge_statistics, rows_statistics

        total = empty_statistics(array.shape[1])
        for start in range(0, len(array), 1 << 14):
            total = merge_statistics(total, rows_statistics(array.raw(start, start + (1 << 14)), array.kind))
        return total

    @cached_property
    def _saved_statistics(self) -> dict[str, TapStatistics]:
        from workbench.store.keeping import load_statistics

        return load_statistics(self.path, self.manifest.taps, self.manifest.files[STATISTICS])[0]

    @cached_property
    def head(self) -> dict[str, Any] | None:
        """Output head that travels with the rows, see `store.head.head_bytes`; None where it was not kept.

        Raises
        ------
        ChecksumMismatch, StoreError
            If its file is damaged, or of another checkpoint.
        """
        if HEAD not in self.manifest.files:
            return None
        from workbench.store.head import load_head

        checkpoint = self.manifest.contract.get("checkpoint")
        digest = str(checkpoint.get("digest", "")) if isinstance(checkpoint, dict) else ""
        return load_head(self.path, self.manifest.files[HEAD], digest)

    @property
    def size_bytes(self) -> int:
        """Bytes of all files of the run."""
        return sum(
            file.stat().st_size
            for folder in (self.path, self.path / TAPS)
            for file in folder.iterdir()
            if file.is_file()
        )


def _committed(folder: Path, part: PartEntry, n_taps: int) -> tuple[Record, ...]:
    content = _journal_of_live_run(folder, part, n_taps)
    if content.dropped_bytes:
        message = (
            f"{folder}: {content.dropped_bytes} bytes at the end of the journal are no whole record and are left out"
        )
        warnings.warn(message, StoreWarning, stacklevel=5)
    return content.records


def _journal_of_live_run(folder: Path, part: PartEntry, n_taps: int) -> JournalContent:
    """Read a journal that may be growing at this moment: what looks torn is read again first."""
    for wait_s in (0.0, 0.02, 0.1):
        time.sleep(wait_s)
        try:
            content, _ = journal_content(folder, part, n_taps)
        except JournalDamaged:
            if wait_s == 0.1:
                raise
            continue
        if not content.dropped_bytes:
            break
    return content
