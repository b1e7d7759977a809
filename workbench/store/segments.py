"""Segments being written: preallocated files of one tap, cut into shards at the same rows for all taps."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from workbench.errors import StoreError
from workbench.store.dtypes import STORAGE_TYPES
from workbench.store.layout import FORMAT, ROWS_AT, TAPS, read_header, rows_header, segment_file, segment_id
from workbench.store.manifest import SegmentEntry, TapSpec
from workbench.store.positions import cut_prompts

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from workbench.store.files import Disk


def shard_bounds(row_offsets: NDArray[np.int64], row_bytes: int, limit_bytes: int) -> tuple[int, ...]:
    """Choose the prompts at which shards begin, so that no shard exceeds a limit unless one prompt does.

    Parameters
    ----------
    row_offsets : int64 [prompt + 1]
        Where the rows of each prompt begin.
    row_bytes : int
        Bytes of the widest row.
    limit_bytes : int
        Most bytes of a shard.

    Returns
    -------
    tuple of int
        First prompt of each shard, and the number of prompts.
    """
    bounds = cut_prompts(row_offsets, max(1, limit_bytes // row_bytes))
    return bounds if len(bounds) > 1 else (0, 0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Origin:
    """Who writes: the ids in every header and checksum."""

    store_id: str
    run_id: str


def segment_header(entry: SegmentEntry, tap: TapSpec, origin: Origin) -> bytes:
    """Write the header of a segment, with the ids that the reader checks."""
    metadata = {
        "format": str(FORMAT), "store": origin.store_id, "run": origin.run_id, "segment": entry.segment,
        "tap": entry.tap,
    }  # fmt: skip
    return rows_header(STORAGE_TYPES[tap.dtype], (entry.capacity, tap.width), metadata)


def check_header(fd: int, entry: SegmentEntry, tap: TapSpec, origin: Origin) -> None:
    """Check an open segment against its entry: ids, dtype, shape and the file's real size.

    Raises
    ------
    StoreError
        If the file is cut, or belongs to another run, or holds something else.
    """
    header = read_header(fd, entry.file)
    rows = header.tensors.get("rows")
    want = {"store": origin.store_id, "run": origin.run_id, "segment": entry.segment}
    got = {key: header.metadata.get(key, "nothing")[:80] for key in want}
    if got != want:
        raise StoreError(
            f"{entry.file} must be of {want}", f"{got}", "It is a file of another run; restore the right one."
        )
    if len(header.tensors) != 1 or rows is None or rows.start != ROWS_AT:
        raise StoreError(f"{entry.file} must hold one tensor, at byte {ROWS_AT}", "another layout", "It is damaged.")
    if (rows.dtype, rows.shape) != (tap.dtype, (entry.capacity, tap.width)):
        must = f"{entry.file} must hold {tap.dtype} [row={entry.capacity}, {tap.width}]"
        raise StoreError(must, f"{rows.dtype} {list(rows.shape)}", "It is damaged.")
    if os.pread(fd, ROWS_AT, 0) != segment_header(entry, tap, origin):
        raise StoreError(f"{entry.file} must have the header that was written", "other bytes", "It is damaged.")


class SegmentWriter:
    """All segments of a run while it is written."""

    def __init__(self, folder: Path, disk: Disk, taps: Sequence[TapSpec], origin: Origin) -> None:
        self._folder = folder / TAPS
        self._disk = disk
        self._origin = origin
        self._taps = {tap.name: tap for tap in taps}
        self._row_bytes = {tap.name: STORAGE_TYPES[tap.dtype].itemsize * tap.width for tap in taps}
        self.entries: list[SegmentEntry] = []
        self._open: dict[str, int] = {}  # by file name, the shards being written
        self._opening = threading.Lock()

    def create(self, tap: str, shard: int, first_row: int, stop_row: int, generation: int = 0) -> SegmentEntry:
        """Create a segment file with all its bytes reserved and its header synced."""
        entry = SegmentEntry(
            tap=tap, segment=segment_id(tap, shard), file=segment_file(tap, shard, generation), part=0,
            first_row=first_row, stop_row=stop_row, capacity=stop_row - first_row, state="writing",
        )  # fmt: skip
        size = ROWS_AT + entry.capacity * self._row_bytes[tap]
        fd = self._disk.create(self._part(entry), size)
        try:
            self._disk.write(fd, segment_header(entry, self._taps[tap], self._origin), 0)
            self._disk.sync(fd)
        finally:
            self._disk.close(fd)
        self.entries.append(entry)
        return entry

    def adopt(self, entries: Sequence[SegmentEntry], watermark: int) -> None:
        """Take over the segments of an interrupted run; those that will be written again are checked."""
        self.entries = list(entries)
        for entry in entries:
            if entry.state == "writing" and entry.stop_row > watermark:
                self._descriptor(entry)

    def entry_at(self, tap: str, row: int) -> SegmentEntry:
        """Find the segment that a row of a tap is written to."""
        for entry in self.entries:
            if entry.tap == tap and entry.first_row <= row < entry.stop_row:
                return entry
        raise StoreError(f"row {row} of {tap!r} must have a segment", "none", "Report this with the manifest.")

    def write(self, tap: str, first_row: int, payload: NDArray[Any]) -> None:
        """Write rows to their place."""
        if not len(payload):
            return
        entry = self.entry_at(tap, first_row)
        if first_row + len(payload) > entry.stop_row:
            must = f"a write to {entry.file} must end by row {entry.stop_row}"
            raise StoreError(must, str(first_row + len(payload)), "Report this with the manifest.")
        offset = ROWS_AT + (first_row - entry.first_row) * self._row_bytes[tap]
        self._disk.write(self._descriptor(entry), payload, offset)

    def sync(self, tap: str, row: int) -> None:
        """Bring the rows of a segment to the disk."""
        self._disk.sync_data(self._descriptor(self.entry_at(tap, row)))

    def poison(self, tap: str, row: int, shard: int) -> None:
        """Abandon a segment that failed to sync, and go on from `row` in a new file."""
        entry = self.entry_at(tap, row)
        self.close_file(entry)
        generation = 1 + sum(other.tap == tap and other.state == "poisoned" for other in self.entries)
        self._replace(entry, entry.model_copy(update={"stop_row": row, "state": "poisoned"}))
        self.create(tap, shard, row, entry.stop_row, generation)
        self._disk.sync_folder(self._folder)

    def seal(self, stop_row: int) -> bool:
        """Give every full segment up to a row its final name; return whether there was one."""
        full = [entry for entry in self.entries if entry.state == "writing" and entry.stop_row <= stop_row]
        for entry in full:
            self.close_file(entry)
            if self._part(entry).exists():
                self._disk.rename(self._part(entry), self._folder / entry.file)
            self._replace(entry, entry.model_copy(update={"state": "sealed"}))
        if full:
            self._disk.sync_folder(self._folder)
        return bool(full)

    def close_file(self, entry: SegmentEntry) -> None:
        """Close a segment's descriptor, if it is open."""
        if (fd := self._open.pop(entry.file, None)) is not None:
            self._disk.close(fd)

    def close(self) -> None:
        """Close all descriptors."""
        for entry in self.entries:
            self.close_file(entry)

    def _replace(self, old: SegmentEntry, new: SegmentEntry) -> None:
        self.entries[self.entries.index(old)] = new

    def _part(self, entry: SegmentEntry) -> Path:
        return self._folder / f"{entry.file}.part"

    def _descriptor(self, entry: SegmentEntry) -> int:
        with self._opening:
            if entry.file not in self._open:
                path = self._part(entry)
                fd = self._disk.open(path if path.exists() else self._folder / entry.file)
                self._open[entry.file] = fd
                check_header(fd, entry, self._taps[entry.tap], self._origin)
            return self._open[entry.file]
