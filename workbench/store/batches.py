"""Batches of a stored run: their records, and checking their bytes."""

from __future__ import annotations

import os
import time
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.errors import ChecksumMismatch, JournalDamaged, StoreError
from workbench.store.checksums import BatchIdentity, batch_checksum, digest_hex
from workbench.store.filesystem import StoreWarning
from workbench.store.journal import JournalContent, Record, read_journal, record_bytes, unpack_records
from workbench.store.manifest import Manifest, PartEntry, SegmentEntry, unpack_text
from workbench.store.opening import open_inside

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from random import Random

    from numpy.typing import NDArray

    from workbench.store.taparray import TapArray


def journal_content(folder: Path, part: PartEntry, n_taps: int) -> tuple[JournalContent, int]:
    """Read the journal of one part; return it with the file's size in bytes.

    Raises
    ------
    JournalDamaged, StoreError
        If it is missing, cut, of another run, or bad before its end.
    """
    try:
        fd, size = open_inside(folder / part.journal)
    except FileNotFoundError:
        raise StoreError(f"{part.journal!r} must be in the run", "no such file", "Restore it from a copy.") from None
    try:
        content = read_journal(
            lambda offset, length: os.pread(fd, length, offset),
            size_bytes=size, name=part.journal, n_taps=n_taps,
            store_id=bytes.fromhex(part.store_id), run_id=bytes.fromhex(part.run_id),
        )  # fmt: skip
    finally:
        os.close(fd)
    return content, size


def part_records(folder: Path, part: PartEntry, n_taps: int) -> tuple[Record, ...]:
    """Give the records of a sealed part, from the manifest if they are there, else from the journal.

    Raises
    ------
    JournalDamaged, ChecksumMismatch, StoreError
        If they are not those that were sealed.
    """
    if part.n_batches is None or part.records_digest is None:
        return journal_content(folder, part, n_taps)[0].records
    if part.records is not None:
        data = unpack_text(part.records, part.n_batches * record_bytes(n_taps))
        ids = {"store_id": bytes.fromhex(part.store_id), "run_id": bytes.fromhex(part.run_id)}
        return unpack_records(data, n_taps, "manifest.json", **ids)
    content, _ = journal_content(folder, part, n_taps)
    check_records(content.records, part)
    return content.records


def committed_records(folder: Path, part: PartEntry, n_taps: int) -> tuple[Record, ...]:
    """Give the records of a part that is being written; bytes after the last whole one are left out with a warning.

    Raises
    ------
    JournalDamaged, StoreError
        As `journal_content`.
    """
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


def check_records(records: Sequence[Record], part: PartEntry) -> None:
    """Hold records against the digest that was taken when the part was sealed.

    Raises
    ------
    ChecksumMismatch
        If they differ.
    """
    found = digest_hex(b"".join(record.to_bytes() for record in records))
    if found != part.records_digest:
        must = f"the records of {part.journal!r} must have digest {part.records_digest}"
        raise ChecksumMismatch(must, found, "Restore the journal from a copy.")


class Batches:
    """Every batch of a run, by row, each checked at most once.

    Parameters
    ----------
    folder : Path
        Run folder.
    manifest : Manifest
        What the run holds.
    records : sequence of sequences of Record
        Of each part.
    """

    def __init__(self, folder: Path, manifest: Manifest, records: Sequence[Sequence[Record]]) -> None:
        self.folder = folder
        self.manifest = manifest
        self.items = [(part, record) for part, some in zip(manifest.parts, records, strict=True) for record in some]
        self._stops = np.array([part.first_row + record.stop_row for part, record in self.items], dtype=np.int64)
        self._segments: dict[tuple[str, int], list[SegmentEntry]] = {}
        for entry in manifest.segments:
            self._segments.setdefault((entry.tap, entry.part), []).append(entry)
        self._good: set[tuple[str, int]] = set()

    def __len__(self) -> int:
        return len(self.items)

    def at_rows(self, start: int, stop: int) -> range:
        """Number the batches that hold rows `start` to `stop - 1`."""
        first = int(np.searchsorted(self._stops, start, side="right"))
        last = int(np.searchsorted(self._stops, stop, side="left"))
        return range(first, min(last + 1, len(self.items)))

    def rows(self, number: int) -> tuple[int, int]:
        """Give the rows of the run that a batch holds."""
        part, record = self.items[number]
        return part.first_row + record.first_row, part.first_row + record.stop_row

    def prompts(self, number: int) -> tuple[int, int]:
        """Give the prompts of the run that a batch holds."""
        part, record = self.items[number]
        return part.first_prompt + record.first_prompt, part.first_prompt + record.stop_prompt

    def sample(self, share: float, source: Random) -> list[tuple[int, str]]:
        """Choose a share of all batches at all taps, at least one: number and tap, in order."""
        every = [(number, tap.name) for number in range(len(self)) for tap in self.manifest.taps]
        if share >= 1 or not every:
            return every
        return sorted(source.sample(every, max(1, round(share * len(every)))))

    def check(self, array: TapArray, number: int) -> None:
        """Recompute the checksum of one batch of one tap.

        Raises
        ------
        ChecksumMismatch
            If its bytes are not those that were written; names segment and batch.
        """
        if (array.name, number) not in self._good:
            self.check_rows(array.name, number, np.ascontiguousarray(array.raw(*self.rows(number))))
            self._good.add((array.name, number))

    def check_rows(self, name: str, number: int, raw: NDArray[Any]) -> None:
        """Hold stored bits [row, d_model] against the checksum of one batch of one tap; see `check`."""
        part, record = self.items[number]
        rows = self.rows(number)
        segment = self._segment_of(name, number)
        at = [tap.name for tap in self.manifest.taps].index(name)
        spec = self.manifest.taps[at]
        identity = BatchIdentity(
            store_id=bytes.fromhex(part.store_id), run_id=bytes.fromhex(part.run_id), segment=segment,
            batch=record.batch, first_row=record.first_row, stop_row=record.stop_row, dtype=spec.dtype,
            width=spec.width, input_hash=record.input_hash, lease=record.lease,
        )  # fmt: skip
        found = batch_checksum(identity, raw)
        if found != record.taps[at].checksum:
            first, stop = self.prompts(number)
            raise ChecksumMismatch(
                f"batch {number} of segment {segment!r} must have checksum {record.taps[at].checksum.hex()}",
                found.hex(),
                f"Rows {rows[0]} to {rows[1] - 1} (prompts {first} to {stop - 1}) are damaged; extract them again.",
            )

    def _segment_of(self, tap: str, number: int) -> str:
        part, _ = self.items[number]
        start, stop = self.rows(number)
        entries = self._segments.get((tap, self.manifest.parts.index(part)), [])
        for entry in entries:
            if entry.first_row <= start and (start < entry.stop_row or start == stop == entry.stop_row):
                return entry.segment
        return f"{tap}/00000"
