"""The journal: one checksummed record a batch, written twice, and the only place that says what is stored.

A slot holds two equal copies of a record, each padded with zeros to whole 4 KiB blocks and closed by a CRC32C. Slot 0
names the run. Only one slot is ever unsynced, so a bad slot can only be the last one unless the disk lied.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from workbench.errors import JournalDamaged
from workbench.store.checksums import crc32c, crc32c_of_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

BLOCK = 4096
GROWTH_SLOTS = 32
_HEAD = struct.Struct("<4sHHIQQQQQQ16s16s16s16s")
_TAP = struct.Struct("<16sII")
_CRC = struct.Struct("<I")
_RECORD, _START = b"HSWJ", b"HSWH"
_CONTINUES = 1
_VERSION = 1
_SLOTS_AT_ONCE = 4096
SlotReader: TypeAlias = "Callable[[int, int], bytes]"


@dataclass(frozen=True, kw_only=True, slots=True)
class TapRecord:
    """What a record says of one tap: checksum and counts."""

    checksum: bytes
    non_finite: int
    saturated: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """One stored batch: consecutive prompts and rows of every tap.

    Attributes
    ----------
    batch : int
        Number of the batch, from 0; its slot is one higher.
    continues : bool
        Whether the next batch belongs to the same commit, so that this one alone counts for nothing.
    """

    batch: int
    first_prompt: int
    stop_prompt: int
    first_row: int
    stop_row: int
    store_id: bytes
    run_id: bytes
    lease: bytes
    input_hash: bytes
    taps: tuple[TapRecord, ...]
    continues: bool = False

    def to_bytes(self, magic: bytes = _RECORD) -> bytes:
        """Give the record with its CRC32C."""
        flags = _CONTINUES if self.continues else 0
        head = _HEAD.pack(
            magic, _VERSION, len(self.taps), flags, self.batch, self.first_prompt, self.stop_prompt,
            self.first_row, self.stop_row, 0, self.store_id, self.run_id, self.lease, self.input_hash,
        )  # fmt: skip
        body = head + b"".join(_TAP.pack(tap.checksum, tap.non_finite, tap.saturated) for tap in self.taps)
        return body + _CRC.pack(crc32c(body))


def record_bytes(n_taps: int) -> int:
    """Bytes of a record of so many taps."""
    return _HEAD.size + n_taps * _TAP.size + _CRC.size


def copy_bytes(n_taps: int) -> int:
    """Bytes of one copy in its slot: whole blocks."""
    return -(-record_bytes(n_taps) // BLOCK) * BLOCK


def slot_bytes(n_taps: int) -> int:
    """Bytes of a slot."""
    return 2 * copy_bytes(n_taps)


def slot_of(record: Record) -> bytes:
    """Give the bytes of a record's slot: two equal copies."""
    return _slot(record.to_bytes(), len(record.taps))


def _slot(text: bytes, n_taps: int) -> bytes:
    return text.ljust(copy_bytes(n_taps), b"\0") * 2


def start_slot(*, store_id: bytes, run_id: bytes, table_digest: bytes, n_taps: int) -> bytes:
    """Give slot 0, which names the run and the digest of its tap table."""
    taps = (TapRecord(checksum=bytes(16), non_finite=0, saturated=0),) * n_taps
    start = Record(
        batch=0, first_prompt=0, stop_prompt=0, first_row=0, stop_row=0,
        store_id=store_id, run_id=run_id, lease=bytes(16), input_hash=table_digest, taps=taps,
    )  # fmt: skip
    return _slot(start.to_bytes(_START), n_taps)


def parse_record(text: bytes, magic: bytes = _RECORD) -> Record | None:
    """Read a record whose CRC32C has been checked; None if it is not one of this kind."""
    head = _HEAD.unpack_from(text)
    kind, version, n_taps, flags, batch, first_prompt, stop_prompt, first_row, stop_row, zero, *ids = head
    if kind != magic or version != _VERSION or record_bytes(n_taps) != len(text) or zero or flags & ~_CONTINUES:
        return None
    taps = tuple(
        TapRecord(checksum=checksum, non_finite=non_finite, saturated=saturated)
        for checksum, non_finite, saturated in _TAP.iter_unpack(text[_HEAD.size : -_CRC.size])
    )
    store_id, run_id, lease, input_hash = ids
    return Record(
        batch=batch, first_prompt=first_prompt, stop_prompt=stop_prompt, first_row=first_row, stop_row=stop_row,
        store_id=store_id, run_id=run_id, lease=lease, input_hash=input_hash, taps=taps, continues=bool(flags),
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class JournalContent:
    """What a journal says.

    Attributes
    ----------
    records : tuple of Record
        Batches that count, in order.
    dropped_bytes : int
        Bytes of a torn tail that was left out.
    weak_slots : tuple of int
        Slots with only one good copy.
    """

    records: tuple[Record, ...]
    dropped_bytes: int
    weak_slots: tuple[int, ...]


def read_journal(
    read: SlotReader, *, size_bytes: int, name: str, store_id: bytes, run_id: bytes, n_taps: int
) -> JournalContent:
    """Read a journal, dropping a torn tail and refusing anything worse.

    Parameters
    ----------
    read : callable (offset, length) -> bytes
        How to read the file.
    size_bytes : int
        Real size of the file.
    name : str
        Name for messages.
    store_id, run_id : bytes
        What slot 0 must say.
    n_taps : int
        Taps of the run.

    Raises
    ------
    JournalDamaged
        If the file is cut, belongs to another run, or has a bad record before a good one.
    """
    size = slot_bytes(n_taps)
    if size_bytes % (GROWTH_SLOTS * size) or not size_bytes:
        raise _damaged(name, f"be a multiple of {GROWTH_SLOTS * size} bytes long", str(size_bytes))
    first, weak = _start(read(0, size), n_taps)
    if first is None:
        raise _damaged(name, "begin with a good first slot", "two bad copies")
    if (first.store_id, first.run_id) != (store_id, run_id):
        raise _damaged(name, f"belong to run {run_id.hex()}", first.run_id.hex())
    kept, last_seen, weak_slots = _walk(read, size_bytes, n_taps, name, [0] if weak else [])
    if last_seen + 1 >= size_bytes // size:
        raise _damaged(name, "end with an empty slot", "a full one, as if the file had been cut")
    tail = last_seen - len(kept)
    _check_chain(kept, name, store_id, run_id)
    while kept and kept[-1].continues:
        kept.pop()
        tail += 1
    return JournalContent(records=tuple(kept), dropped_bytes=tail * size, weak_slots=tuple(weak_slots))


def _start(slot: bytes, n_taps: int) -> tuple[Record | None, bool]:
    copies = [parse_record(text, _START) if text else None for text in _good_copies(slot, n_taps)[0]]
    good = [copy for copy in copies if copy is not None]
    return (good[0] if good else None), len(good) == 1


def _good_copies(slots: bytes, n_taps: int) -> list[list[bytes]]:
    """Give, for each slot, the text of each copy, empty where its CRC32C or its padding is bad."""
    length, copy = record_bytes(n_taps), copy_bytes(n_taps)
    blocks = np.frombuffer(slots, dtype=np.uint8).reshape(-1, copy)
    good = np.asarray(
        crc32c_of_rows(blocks[:, : length - 4]) == blocks[:, length - 4 : length].copy().view("<u4")[:, 0]
    )
    good = np.logical_and(good, np.count_nonzero(blocks[:, length:], axis=1) == 0)
    texts = [bytes(block[:length]) if fine else b"" for block, fine in zip(blocks, good, strict=True)]
    return [texts[at : at + 2] for at in range(0, len(texts), 2)]


def _walk(
    read: SlotReader, size_bytes: int, n_taps: int, name: str, weak: list[int]
) -> tuple[list[Record], int, list[int]]:
    """Collect good records up to the first blank or bad slot, and make sure that no good one follows."""
    kept: list[Record] = []
    last_seen = bad = 0
    for index, (texts, blank) in _slots(read, size_bytes, n_taps):
        if blank:
            bad = bad or index
            continue
        last_seen = index
        records = [parse_record(text) for text in texts if text]
        record = next((found for found in records if found is not None), None)
        if record is None:
            bad = bad or index
            continue
        if bad:
            raise _damaged(name, f"have a good record in slot {bad}", f"a bad one, before a good one in slot {index}")
        if record.batch != index - 1 or len(set(records)) != 1:
            raise _damaged(name, f"hold batch {index - 1} in slot {index}", f"batch {record.batch}, or two that differ")
        kept.append(record)
        if len(records) == 1:
            weak.append(index)
    return kept, last_seen, weak


def _slots(read: SlotReader, size_bytes: int, n_taps: int) -> Iterator[tuple[int, tuple[list[bytes], bool]]]:
    size = slot_bytes(n_taps)
    n_slots = size_bytes // size
    for start in range(1, n_slots, _SLOTS_AT_ONCE):
        stop = min(start + _SLOTS_AT_ONCE, n_slots)
        data = read(start * size, (stop - start) * size)
        if len(data) != (stop - start) * size:
            raise _damaged("journal", f"hold {size_bytes} bytes", "fewer while reading")
        used = np.count_nonzero(np.frombuffer(data, dtype=np.uint8).reshape(-1, size), axis=1) > 0
        n_used = int(np.flatnonzero(used)[-1]) + 1 if used.any() else 0
        texts = _good_copies(data[: n_used * size], n_taps) if n_used else []
        for at in range(n_used):
            yield start + at, (texts[at], not used[at])


def _check_chain(records: list[Record], name: str, store_id: bytes, run_id: bytes) -> None:
    prompt = row = 0
    for record in records:
        if (record.store_id, record.run_id) != (store_id, run_id):
            raise _damaged(
                name, f"hold records of run {run_id.hex()}", f"{record.run_id.hex()} at batch {record.batch}"
            )
        if (
            (record.first_prompt, record.first_row) != (prompt, row)
            or record.stop_row < row
            or record.stop_prompt < prompt
        ):
            raise _damaged(name, f"go on at prompt {prompt}, row {row}", f"batch {record.batch} elsewhere")
        prompt, row = record.stop_prompt, record.stop_row


def _damaged(name: str, must: str, got: str) -> JournalDamaged:
    return JournalDamaged(
        f"{name!r} must {must}", got, "Run `workbench verify RUN`; restore the file from a copy, or extract again."
    )


def pack_records(records: tuple[Record, ...]) -> bytes:
    """Put records behind each other, for the manifest."""
    return b"".join(record.to_bytes() for record in records)


def unpack_records(data: bytes, n_taps: int, name: str, *, store_id: bytes, run_id: bytes) -> tuple[Record, ...]:
    """Read what `pack_records` wrote.

    Raises
    ------
    JournalDamaged
        If any of it is bad.
    """
    length = record_bytes(n_taps)
    if len(data) % length:
        raise _damaged(name, f"hold records of {length} bytes", f"{len(data)} bytes")
    rows = np.frombuffer(data, dtype=np.uint8).reshape(-1, length)
    good = np.asarray(crc32c_of_rows(rows[:, :-4]) == rows[:, -4:].copy().view("<u4")[:, 0])
    found = [parse_record(bytes(row)) for row in rows]
    records = [record for record, fine in zip(found, good, strict=True) if record is not None and fine]
    if len(records) != len(rows):
        raise _damaged(name, "hold only good records", f"{len(rows) - len(records)} bad ones")
    _check_chain(records, name, store_id, run_id)
    return tuple(records)
