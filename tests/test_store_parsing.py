"""Bytes of headers and journals: golden forms, round trips, and changed bytes that end in one typed error."""

from __future__ import annotations

import contextlib
import json
import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.errors import JournalDamaged, StoreError
from workbench.store.checksums import BatchIdentity, batch_checksum, crc32c, crc32c_of_rows
from workbench.store.dtypes import storage_type
from workbench.store.journal import (
    GROWTH_SLOTS,
    Record,
    TapRecord,
    read_journal,
    record_bytes,
    slot_bytes,
    slot_of,
    start_slot,
)
from workbench.store.layout import is_name, parse_header, rows_header, safetensors_header, segment_file

STORE, RUN = bytes(range(16)), bytes(range(16, 32))


def test_crc32c_has_its_published_values() -> None:
    import numpy as np

    assert crc32c(b"123456789") == 0xE3069283  # RFC 3720, appendix B.4 and the usual check value
    assert crc32c(bytes(32)) == 0x8A9136AA
    assert crc32c(b"\xff" * 32) == 0x62A8AB43
    rows = np.array([list(bytes(32)), list(b"\xff" * 32)], dtype=np.uint8)
    assert crc32c_of_rows(rows).tolist() == [0x8A9136AA, 0x62A8AB43]


def test_a_segment_header_is_one_page_and_its_bytes_are_fixed() -> None:
    header = rows_header(storage_type("BF16"), (3, 4), {"run": "r"})
    assert len(header) == 4096
    assert header[:8] == struct.pack("<Q", 4088)
    want = b'{"__metadata__":{"run":"r"},"rows":{"dtype":"BF16","shape":[3,4],"data_offsets":[0,24]}}'
    assert header[8:].rstrip() == want
    place = parse_header(header[8:], 24, "x").tensors["rows"]
    assert (place.start, place.stop, place.shape) == (4096, 4120, (3, 4))
    with pytest.raises(StoreError, match="fit 4088"):
        rows_header(storage_type("BF16"), (3, 4), {"run": "r" * 5000})


def record(batch: int, row: int, n_taps: int = 2, **changes: Any) -> Record:
    taps = tuple(TapRecord(checksum=bytes([at % 256] * 16), non_finite=at, saturated=batch) for at in range(n_taps))
    asked = {
        "batch": batch, "first_prompt": row, "stop_prompt": row + 2, "first_row": row, "stop_row": row + 2,
        "store_id": STORE, "run_id": RUN, "lease": bytes(16), "input_hash": bytes(16), "taps": taps,
    }  # fmt: skip
    return Record(**(asked | changes))


def journal(records: list[Record], n_taps: int = 2) -> bytes:
    start = start_slot(store_id=STORE, run_id=RUN, table_digest=bytes(16), n_taps=n_taps)
    data = start + b"".join(slot_of(one) for one in records)
    return data.ljust(GROWTH_SLOTS * slot_bytes(n_taps), b"\0")


def read(data: bytes, n_taps: int = 2) -> Any:
    return read_journal(
        lambda offset, length: data[offset : offset + length],
        size_bytes=len(data), name="journal", store_id=STORE, run_id=RUN, n_taps=n_taps,
    )  # fmt: skip


@pytest.mark.parametrize("n_taps", [1, 2, 165, 166, 400])
def test_a_journal_round_trips_for_any_number_of_taps(n_taps: int) -> None:
    records = [record(at, 2 * at, n_taps) for at in range(5)]
    assert record_bytes(n_taps) == 128 + 24 * n_taps
    assert slot_bytes(n_taps) == 8192 * (1 if n_taps <= 165 else 2 if n_taps <= 336 else 3)
    content = read(journal(records, n_taps), n_taps)
    assert list(content.records) == records
    assert (content.dropped_bytes, content.weak_slots) == (0, ())


def test_one_good_copy_is_enough_and_a_torn_tail_is_dropped() -> None:
    data = bytearray(journal([record(at, 2 * at) for at in range(3)]))
    data[8192 * 2 + 50] ^= 1
    assert read(bytes(data)).weak_slots == (2,)
    data[8192 * 3 + 50] ^= 1
    data[8192 * 3 + 4096 + 50] ^= 1
    content = read(bytes(data))
    assert len(content.records) == 2
    assert content.dropped_bytes == 8192
    data[8192 + 50] ^= 1
    data[8192 + 4096 + 50] ^= 1
    with pytest.raises(JournalDamaged):
        read(bytes(data))


def test_a_commit_over_two_shards_counts_only_whole() -> None:
    first, second = record(0, 0), record(1, 2, continues=True)
    content = read(journal([first, second]))
    assert list(content.records) == [first]
    assert content.dropped_bytes == 8192
    assert len(read(journal([first, second, record(2, 4)])).records) == 3


@pytest.mark.parametrize("cut", [1, 8191, 8192, 31 * 8192, 32 * 8192 - 1])
def test_a_cut_journal_is_never_taken_for_a_shorter_one(cut: int) -> None:
    with pytest.raises(JournalDamaged):
        read(journal([record(at, 2 * at) for at in range(3)])[:-cut])


def test_a_journal_of_another_run_or_out_of_order_is_refused() -> None:
    for wrong in (
        [record(0, 0), record(1, 5)],
        [record(0, 0, run_id=bytes(16))],
        [record(0, 0), record(7, 2)],
        [record(0, 0), record(1, 2, stop_row=1)],
    ):
        with pytest.raises(JournalDamaged):
            read(journal(wrong))


@settings(deadline=None, max_examples=300)
@given(data=st.data())
def test_changed_journal_bytes_end_in_one_typed_error_or_a_prefix(data: st.DataObject) -> None:
    records = [record(at, 2 * at) for at in range(4)]
    mutant = bytearray(journal(records))
    for _ in range(data.draw(st.integers(1, 6))):
        mutant[data.draw(st.integers(0, 6 * 8192))] = data.draw(st.integers(0, 255))
    try:
        content = read(bytes(mutant))
    except JournalDamaged:
        return
    assert list(content.records) == records[: len(content.records)]


@settings(deadline=None, max_examples=300)
@given(data=st.data())
def test_changed_header_bytes_end_in_one_typed_error_or_the_same_places(data: st.DataObject) -> None:
    tensors = {"a": ("F32", (2, 3), 24), "b": ("I64", (2,), 16)}
    header = bytearray(safetensors_header(tensors, {"run": "r"})[8:])
    for _ in range(data.draw(st.integers(1, 4))):
        header[data.draw(st.integers(0, len(header) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = parse_header(bytes(header), 40, "x")
    except StoreError:
        return
    assert min(place.start for place in found.tensors.values()) == 8 + len(header)
    assert sum(place.stop - place.start for place in found.tensors.values()) == 40


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
@settings(deadline=None)
def test_any_json_is_a_header_or_a_typed_error(value: object) -> None:
    with contextlib.suppress(StoreError):
        parse_header(json.dumps(value).encode(), 40, "x")


def test_a_checksum_depends_on_everything_that_says_what_a_batch_is() -> None:
    asked: dict[str, Any] = {
        "store_id": STORE, "run_id": RUN, "segment": "a/00000", "batch": 1, "first_row": 2, "stop_row": 3,
        "dtype": "F32", "width": 4, "input_hash": bytes(16), "lease": bytes(16),
    }  # fmt: skip
    other: dict[str, Any] = {
        "store_id": RUN, "run_id": STORE, "segment": "b/00000", "batch": 2, "first_row": 1, "stop_row": 4,
        "dtype": "F16", "width": 5, "input_hash": RUN, "lease": RUN,
    }  # fmt: skip
    sums = {batch_checksum(BatchIdentity(**asked), b"rows")}
    for name, value in other.items():
        sums.add(batch_checksum(BatchIdentity(**(asked | {name: value})), b"rows"))
    sums.add(batch_checksum(BatchIdentity(**asked), b"rowz"))
    assert len(sums) == len(other) + 2


@pytest.mark.parametrize(
    "name",
    ["../x", "a/b", "C:\\x", "a\0", ".", "..", "", "a" * 300, "con", "nul.txt", "A", "a\n", "-a", "a.", " a", "é"],
)  # fmt: skip
def test_names_that_are_no_file_names_are_refused(name: str) -> None:
    assert not is_name(name)


def test_names_of_files() -> None:
    assert is_name("blocks.11.resid_post")
    assert segment_file("final_norm", 0) == "final_norm.safetensors"
    assert segment_file("final_norm", 3) == "final_norm.00003.safetensors"
    assert segment_file("final_norm", 0, 2) == "final_norm.00000.r2.safetensors"


def test_two_taps_that_would_share_a_file_are_refused(tmp_path: Any) -> None:
    from dataclasses import replace

    from store_toys import SMALL, new_run

    from workbench.errors import ContractError
    from workbench.store import TapSpec

    taps = (TapSpec("x", "F32", 8), TapSpec("x.00001", "F32", 8))
    with pytest.raises(ContractError, match=r"x\.00001"):
        new_run(tmp_path / "run", taps=taps, options=replace(SMALL, shard_bytes=500))


def test_arrow_reads_prompts_from_memory_of_its_own() -> None:
    """A thread of Arrow that lets go of Python's bytes while the process ends aborts it."""
    import sys

    from workbench.store.contents import in_arrow

    data = bytes(range(256)) * 10
    before = sys.getrefcount(data)
    reader = in_arrow(data)
    assert sys.getrefcount(data) == before
    assert reader.read() == data
