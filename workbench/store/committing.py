"""The way of a batch to the disk: fill, write, sync, record, acknowledge; each step of one group beside the next.

The caller fills a group; a writer thread hashes and writes full groups; a sync thread brings them to the disk and
appends their record, while another gathers their statistics. Nothing is acknowledged before its record is synced.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.errors import StoreError, WorkbenchError
from workbench.store.checksums import BatchIdentity, start_checksum
from workbench.store.dtypes import StorageType, count_special, narrow, storage_type
from workbench.store.files import NO_ROOM, explain
from workbench.store.journal import BLOCK, Record, TapRecord
from workbench.store.layout import segment_id
from workbench.store.statistics import TapStatistics, rows_statistics

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from numpy.typing import NDArray

    from workbench.store.contents import InputHasher
    from workbench.store.manifest import TapSpec
    from workbench.store.recording import JournalWriter
    from workbench.store.segments import Origin, SegmentWriter


# Hashed and written at a time: what was hashed is still in the cache when it is copied, and the page cache takes a
# whole group at once up to four times slower.
PIECE_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Plan:
    """What a run will hold, known before the first row.

    Attributes
    ----------
    row_offsets : int64 [prompt + 1]
        Where the rows of each prompt begin.
    bounds : tuple of int
        First prompt of each shard, and the number of prompts.
    """

    taps: tuple[TapSpec, ...]
    row_offsets: NDArray[np.int64]
    bounds: tuple[int, ...]
    origin: Origin
    lease: bytes = bytes(16)

    @property
    def row_bytes(self) -> int:
        """Bytes of one row over all taps."""
        return sum(tap.width * storage_type(tap.dtype).itemsize for tap in self.taps)

    def parts(self, first: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """Cut a range of prompts at the shards: (shard, first prompt, stop prompt)."""
        for shard, (begin, end) in enumerate(zip(self.bounds[:-1], self.bounds[1:], strict=True)):
            if max(first, begin) < min(stop, end):
                yield shard, max(first, begin), min(stop, end)


@dataclass(slots=True, eq=False)
class Part:
    """Rows of a group in one shard: one record."""

    shard: int
    first_row: int
    stop_row: int
    record: Record


@dataclass(slots=True, eq=False)
class Group:
    """Batches that are synced and recorded together."""

    first_prompt: int
    stop_prompt: int
    first_row: int
    buffers: dict[str, NDArray[Any]]
    capacity: int
    opened_at: float
    n_rows: int = 0
    parts: list[Part] = field(default_factory=list)
    statistics: dict[str, TapStatistics] | None = None
    saturated: dict[int, dict[str, int]] = field(default_factory=dict)  # by first row of a commit
    non_finite: dict[int, dict[str, int]] = field(default_factory=dict)

    def payload(self, tap: str, first_row: int, stop_row: int) -> NDArray[Any]:
        """Give rows of the run that lie in this group."""
        return self.buffers[tap][first_row - self.first_row : stop_row - self.first_row]


class Committer:
    """Takes batches in order and acknowledges them in order.

    Parameters
    ----------
    plan : Plan
        Taps, rows and shards.
    segments, journal : SegmentWriter, JournalWriter
        The files.
    hasher : InputHasher
        Hash of what went into a batch.
    group_bytes, group_s : int, float
        A group is closed at this size or age, whichever comes first.
    in_flight : int
        Groups that may be on their way to the disk while one is filled.
    publish : callable
        Called when the list of files has changed.
    acknowledge : callable (Group)
        Called when a group is safe.
    no_room : callable
        Called when the disk is full, to free the reserve.
    """

    def __init__(
        self, plan: Plan, segments: SegmentWriter, journal: JournalWriter, hasher: InputHasher, *,
        group_bytes: int, group_s: float, in_flight: int,
        publish: Callable[[], None], acknowledge: Callable[[Group], None], no_room: Callable[[], None],
    ) -> None:  # fmt: skip
        self._plan, self._segments, self._journal, self._hasher = plan, segments, journal, hasher
        self._group_rows = max(1, group_bytes // plan.row_bytes)
        self._group_s, self._in_flight = group_s, in_flight
        self._publish, self._acknowledge, self._no_room = publish, acknowledge, no_room
        self._state = threading.Condition()
        self._gate = threading.Lock()  # held while a group is written, and while a poisoned segment is replaced
        self._open: Group | None = None
        self._closed: deque[Group] = deque()
        self._written: deque[Group] = deque()
        self._busy = 0  # closed groups that are not acknowledged
        self._spare: list[dict[str, NDArray[Any]]] = []
        self._stopping = False
        self._failure: BaseException | None = None
        self._batches = len(journal.records)
        self._threads = [
            threading.Thread(target=self._run, args=(step,), daemon=True)
            for step in (self._write_next, self._measure_next, self._sync_next)
        ]
        for thread in self._threads:
            thread.start()

    def add(self, first: int, stop: int, rows: Mapping[str, NDArray[Any]]) -> None:
        """Take a batch; returns when it is copied, waits while too much is in flight."""
        offsets = self._plan.row_offsets
        n_rows = int(offsets[stop] - offsets[first])
        with self._state:
            if self._open is not None and self._open.n_rows + n_rows > self._open.capacity:
                self._close_open()
            if self._open is None:
                self._wait(lambda: self._busy < self._in_flight)
                self._open = self._new_group(first, n_rows)
                self._state.notify_all()  # the writer thread now has an age to watch
            self._check()
            self._fill(self._open, stop, n_rows, rows)
            if self._open.n_rows >= self._group_rows:
                self._close_open()

    def flush(self) -> None:
        """Wait until everything taken is acknowledged.

        Raises
        ------
        StoreError
            If the disk failed before.
        """
        with self._state:
            self._close_open()
            self._wait(lambda: self._busy == 0)

    def stop(self) -> None:
        """End the threads; what is not written yet is dropped."""
        with self._state:
            self._stopping = True
            self._state.notify_all()
        for thread in self._threads:
            thread.join()

    def _check(self) -> None:
        if self._failure is None:
            return
        if isinstance(self._failure, WorkbenchError):
            raise type(self._failure)(*self._failure.args) from self._failure
        raise StoreError("the writer must keep running", repr(self._failure), "Resume the run.") from self._failure

    def _wait(self, ready: Callable[[], bool]) -> None:
        while not ready():
            self._check()
            self._state.wait()
        self._check()

    def _close_open(self) -> None:
        if self._open is not None:
            self._closed.append(self._open)
            self._busy += 1
            self._open = None
            self._state.notify_all()

    def _new_group(self, first: int, n_rows: int) -> Group:
        capacity = max(self._group_rows, n_rows)
        if capacity == self._group_rows and self._spare:
            buffers = self._spare.pop()
        else:
            kinds = {tap.name: (storage_type(tap.dtype).bits, tap.width) for tap in self._plan.taps}
            buffers = {name: np.empty((capacity, width), dtype=bits) for name, (bits, width) in kinds.items()}
        row = int(self._plan.row_offsets[first])
        return Group(
            first_prompt=first, stop_prompt=first, first_row=row, buffers=buffers, capacity=capacity,
            opened_at=time.monotonic(),
        )  # fmt: skip

    def _fill(self, group: Group, stop: int, n_rows: int, rows: Mapping[str, NDArray[Any]]) -> None:
        place = slice(group.n_rows, group.n_rows + n_rows)
        non_finite = group.non_finite.setdefault(group.first_row + group.n_rows, {})
        saturated = group.saturated.setdefault(group.first_row + group.n_rows, {})
        for tap in self._plan.taps:
            bad, over = narrow(rows[tap.name], storage_type(tap.dtype), group.buffers[tap.name][place])
            non_finite[tap.name] = non_finite.get(tap.name, 0) + bad
            saturated[tap.name] = saturated.get(tap.name, 0) + over
        group.n_rows += n_rows
        group.stop_prompt = stop

    def _run(self, step: Callable[[], bool]) -> None:
        try:
            while step():
                pass
        except OSError as error:
            if error.errno in NO_ROOM:
                self._no_room()
            self._fail(explain(error, _where(error), "a batch must be written"))
        except BaseException as error:  # noqa: BLE001 - handed to the caller's thread
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        with self._state:
            self._failure = self._failure or error
            self._stopping = True
            self._state.notify_all()

    def _write_next(self) -> bool:
        with self._state:
            while not self._closed:
                if self._stopping:
                    return False
                left = self._group_s - (time.monotonic() - self._open.opened_at) if self._open else None
                if left is not None and left <= 0:
                    self._close_open()
                else:
                    self._state.wait(left)
            if self._stopping:
                return False
            group = self._closed.popleft()
        with self._gate:
            self._write(group)
            with self._state:
                self._written.append(group)
                self._state.notify_all()
        return True

    def _measure_next(self) -> bool:
        with self._state:
            while not (group := next((one for one in self._written if one.statistics is None), None)):
                if self._stopping:
                    return False
                self._state.wait()
        found = {}
        for tap in self._plan.taps:
            some = any(counts[tap.name] for counts in group.non_finite.values())
            raw = group.buffers[tap.name][: group.n_rows]
            found[tap.name] = rows_statistics(raw, storage_type(tap.dtype), may_flag=some)
        with self._state:
            group.statistics = found
            self._state.notify_all()
        return True

    def _write(self, group: Group) -> None:
        pieces = list(self._plan.parts(group.first_prompt, group.stop_prompt))
        for shard, first, stop in pieces:
            rows = int(self._plan.row_offsets[first]), int(self._plan.row_offsets[stop])
            record = self._write_part(group, shard, (first, stop), rows, continues=stop != group.stop_prompt)
            group.parts.append(Part(shard=shard, first_row=rows[0], stop_row=rows[1], record=record))

    def _write_part(
        self, group: Group, shard: int, prompts: tuple[int, int], rows: tuple[int, int], *, continues: bool
    ) -> Record:
        """Hash and write the rows of one shard; its record is not written yet."""
        origin = self._plan.origin
        store_id, run_id = bytes.fromhex(origin.store_id), bytes.fromhex(origin.run_id)
        input_hash = self._hasher.of(*prompts)
        taps = []
        for tap in self._plan.taps:
            identity = BatchIdentity(
                store_id=store_id, run_id=run_id, segment=segment_id(tap.name, shard), batch=self._batches,
                first_row=rows[0], stop_row=rows[1], dtype=tap.dtype, width=tap.width,
                input_hash=input_hash, lease=self._plan.lease,
            )  # fmt: skip
            checksum = self._hash_and_write(tap, rows[0], group.payload(tap.name, *rows), identity)
            non_finite, saturated = _counts(group, tap.name, rows, storage_type(tap.dtype))
            taps.append(TapRecord(checksum=checksum, non_finite=non_finite, saturated=saturated))
        record = Record(
            batch=self._batches, first_prompt=prompts[0], stop_prompt=prompts[1], first_row=rows[0], stop_row=rows[1],
            store_id=store_id, run_id=run_id, lease=self._plan.lease, input_hash=input_hash, taps=tuple(taps),
            continues=continues,
        )  # fmt: skip
        self._batches += 1
        return record

    def _hash_and_write(self, tap: TapSpec, first_row: int, payload: NDArray[Any], identity: BatchIdentity) -> bytes:
        """Hash rows and write them, piece by piece: what was hashed is in the cache when it is copied."""
        hasher = start_checksum(identity)
        row_bytes = tap.width * storage_type(tap.dtype).itemsize
        aligned = BLOCK // math.gcd(BLOCK, row_bytes)
        step = max(1, PIECE_BYTES // (row_bytes * aligned)) * aligned
        for at in range(0, len(payload), step):
            piece = payload[at : at + step]
            hasher.update(piece)
            self._segments.write(tap.name, first_row + at, piece)
        return bytes(hasher.digest())

    def _sync_next(self) -> bool:
        with self._state:
            while not self._written:
                if self._stopping:
                    return False
                self._state.wait()
            group = self._written[0]
        for part in group.parts:
            for tap in self._plan.taps:
                if part.stop_row > part.first_row:
                    self._sync_segment(tap.name, part)
        for part in group.parts:
            self._append(part.record)
        with self._state:
            while group.statistics is None:
                if self._failure is not None or self._stopping:  # then nobody measures it any more
                    return False
                self._state.wait()
        self._acknowledge(group)
        with self._state:
            self._written.popleft()
            self._busy -= 1
            if group.capacity == self._group_rows:
                self._spare.append(group.buffers)
            self._state.notify_all()
        return True

    def _sync_segment(self, tap: str, part: Part) -> None:
        try:
            self._segments.sync(tap, part.first_row)
        except OSError:
            with self._gate:  # nothing is written while the file is replaced
                self._segments.poison(tap, part.first_row, part.shard)
                self._publish()
                for group in list(self._written):
                    for other in group.parts:
                        if other.shard == part.shard:
                            self._segments.write(
                                tap, other.first_row, group.payload(tap, other.first_row, other.stop_row)
                            )
            self._segments.sync(tap, part.first_row)

    def _append(self, record: Record) -> None:
        try:
            self._journal.append(record)
        except OSError as error:
            if error.errno in NO_ROOM:
                raise  # nothing was written yet: the file had no room to grow
            self._journal.replace()
            self._publish()
            self._journal.append(record)


def _counts(group: Group, tap: str, rows: tuple[int, int], kind: StorageType) -> tuple[int, int]:
    """Count values that are no finite number, and values that did not fit, in rows of a group."""
    firsts = [first for first in group.saturated if rows[0] <= first < max(rows[1], rows[0] + 1)]
    saturated = sum(group.saturated[first][tap] for first in firsts)
    some = any(counts[tap] for counts in group.non_finite.values())
    return (count_special(group.payload(tap, *rows), kind) if some else 0), saturated


def _where(error: OSError) -> Any:
    from pathlib import Path

    return Path(str(error.filename)) if error.filename else Path("the run")
