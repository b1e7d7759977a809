"""Reading a run: open at once, load only what is asked for."""

from __future__ import annotations

import random
import warnings
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.errors import ChecksumMismatch, StoreError, TapError
from workbench.store.batches import Batches, committed_records, part_records
from workbench.store.filesystem import StoreWarning, is_folder
from workbench.store.flags import flagged_rows
from workbench.store.inputs import Inputs
from workbench.store.layout import HEAD, STATISTICS, TAPS, VALIDITY
from workbench.store.manifest import Manifest, load_manifest
from workbench.store.opening import TensorFile
from workbench.store.taparray import TapArray, open_tap

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from workbench.store.journal import Record
    from workbench.store.positions import Positions
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


class Run(Inputs):
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
            self._records = [committed_records(folder, part, len(manifest.taps)) for part in manifest.parts]
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
    def flagged_rows(self) -> NDArray[np.int64]:
        """Rows with NaN or infinity at any tap; int64 [n], sorted."""
        if VALIDITY in self.manifest.files:
            file = TensorFile(self.path / VALIDITY, self.manifest.files[VALIDITY])
            return np.asarray(file.array("flagged_rows", "I64"))
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
