"""Bytes of a run's files: names, and safetensors headers written and parsed here.

A segment is a safetensors file with one tensor `rows` [row, width], whose header is padded so that row 0 lies at byte
4096. The format has no checksum of its own; those of the rows are in the journal.
"""

from __future__ import annotations

import json
import math
import os
import re
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from workbench.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from workbench.store.dtypes import StorageType

ROWS_AT = 4096  # one page: rows can be mapped and written aligned
FORMAT = 1
MANIFEST, PREVIOUS, JOURNAL, LOCK, RESERVE = "manifest.json", "manifest.prev.json", "journal", "lock", "reserve"
PROMPTS, TOKENS, STATISTICS, VALIDITY = (
    "prompts.parquet",
    "tokens.safetensors",
    "statistics.safetensors",
    "validity.safetensors",
)
HEAD = "head.safetensors"
TAPS = "taps"
MAX_HEADER_BYTES = 16 << 20
MAX_TENSORS, MAX_RANK, MAX_NAME_BYTES = 100_000, 8, 512
ITEM_BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "I16": 2, "U16": 2, "F16": 2, "BF16": 2,
    "I32": 4, "U32": 4, "F32": 4, "I64": 8, "U64": 8, "F64": 8,
}  # fmt: skip
_NAME = re.compile(r"(?!(?:con|prn|aux|nul|com[0-9]|lpt[0-9])(?:\.|$))[a-z0-9](?:[a-z0-9._-]{0,62}[a-z0-9_-])?")
_SEGMENT_FILE = re.compile(r"[a-z0-9](?:[a-z0-9._-]{0,80})\.safetensors")


def is_name(text: str) -> bool:
    """Say whether a text may be a name in a path: lower case, short, no device name, no dot at the end."""
    return _NAME.fullmatch(text) is not None


def is_segment_file(text: str) -> bool:
    """Say whether a text may name a segment below `taps/`."""
    return _SEGMENT_FILE.fullmatch(text) is not None


def is_own_file(text: str) -> bool:
    """Say whether a text names a file that lies directly in a run folder."""
    fixed = (MANIFEST, PREVIOUS, LOCK, RESERVE, PROMPTS, TOKENS, STATISTICS, VALIDITY, HEAD)
    return text in fixed or re.fullmatch(JOURNAL + r"(\.[a-z0-9.]{1,20})?", text) is not None


def segment_file(tap: str, shard: int, generation: int = 0) -> str:
    """Name the file of a segment; a generation above 0 replaces a poisoned one."""
    middle = f".{shard:05d}" if shard or generation else ""
    return f"{tap}{middle}{f'.r{generation}' if generation else ''}.safetensors"


def segment_id(tap: str, shard: int) -> str:
    """Name a segment in checksums and messages."""
    return f"{tap}/{shard:05d}"


def rows_header(kind: StorageType, shape: tuple[int, int], metadata: Mapping[str, str]) -> bytes:
    """Write the first 4096 bytes of a segment.

    Parameters
    ----------
    kind : StorageType
        Dtype of the rows.
    shape : (int, int)
        Rows and width.
    metadata : mapping of str to str
        Store, run, segment and tap.

    Raises
    ------
    StoreError
        If the header does not fit a page.
    """
    size = shape[0] * shape[1] * kind.itemsize
    return safetensors_header({"rows": (kind.name, shape, size)}, metadata, size_bytes=ROWS_AT)


def safetensors_header(
    tensors: Mapping[str, tuple[str, tuple[int, ...], int]],
    metadata: Mapping[str, str],
    *,
    size_bytes: int | None = None,
) -> bytes:
    """Write a safetensors header for tensors that follow it in this order.

    Parameters
    ----------
    tensors : mapping of str to (dtype, shape, bytes)
        Tensors in file order.
    metadata : mapping of str to str
        Free text fields.
    size_bytes : int, optional
        Length that the header is padded to; a multiple of 8 that fits by default.

    Raises
    ------
    StoreError
        If the header does not fit `size_bytes`.
    """
    entries: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    at = 0
    for name, (dtype, shape, length) in tensors.items():
        entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + length]}
        at += length
    text = json.dumps(entries, separators=(",", ":")).encode()
    total = size_bytes if size_bytes is not None else 8 + (len(text) + 7) // 8 * 8
    if len(text) > total - 8:
        raise StoreError(f"a header must fit {total - 8} bytes", f"{len(text)}", "Shorten the names.")
    return struct.pack("<Q", total - 8) + text.ljust(total - 8)  # the format allows trailing spaces


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorPlace:
    """Where a tensor lies in its file, in bytes from the start of the file."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Header:
    """Checked content of a safetensors header."""

    tensors: Mapping[str, TensorPlace]
    metadata: Mapping[str, str]
    size_bytes: int


def read_header(fd: int, name: str) -> Header:
    """Read and check the header of an open safetensors file against the file's real size.

    Parameters
    ----------
    fd : int
        Descriptor of a regular file.
    name : str
        Name for messages.

    Raises
    ------
    StoreError
        If the file is no safetensors file, or has a hole, an overlap, or bytes that no tensor covers.
    """
    size = os.fstat(fd).st_size
    if size < 8:
        raise _broken(name, "start with 8 bytes of header length", f"{size} bytes")
    (length,) = struct.unpack("<Q", os.pread(fd, 8, 0))
    if not 2 <= length <= min(size - 8, MAX_HEADER_BYTES):
        raise _broken(name, f"have a header of 2 to {min(size - 8, MAX_HEADER_BYTES)} bytes", str(length))
    return parse_header(os.pread(fd, length, 8), size - 8 - length, name)


def parse_header(text: bytes, data_bytes: int, name: str) -> Header:
    """Check header text against the number of bytes that follow it; see `read_header`."""
    entries = parse_json(text, name)
    metadata = entries.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise _broken(name, "have text in __metadata__", type(metadata).__name__)
    if len(entries) > MAX_TENSORS:
        raise _broken(name, f"hold at most {MAX_TENSORS} tensors", str(len(entries)))
    base = 8 + len(text)
    places = {key: _place(name, key, entry, base) for key, entry in entries.items()}
    at = base
    for key, place in sorted(places.items(), key=lambda item: (item[1].start, item[1].stop)):
        if place.start != at:
            raise _broken(name, f"have tensor {key[:80]!r} begin at byte {at}", str(place.start))
        at = place.stop
    if at != base + data_bytes:
        raise _broken(name, f"end at byte {at}, where its last tensor ends", f"{base + data_bytes} bytes")
    return Header(tensors=places, metadata=metadata, size_bytes=base)


def _place(name: str, key: str, entry: object, base: int) -> TensorPlace:
    if len(key.encode("utf-8", "surrogatepass")) > MAX_NAME_BYTES or not isinstance(entry, dict):
        raise _broken(name, "describe each tensor by an object under a short name", repr(key)[:80])
    dtype, shape, ends = entry.get("dtype"), _counts(entry.get("shape")), _counts(entry.get("data_offsets"))
    if set(entry) != {"dtype", "shape", "data_offsets"} or not isinstance(dtype, str) or dtype not in ITEM_BYTES:
        raise _broken(name, f"give tensor {key[:80]!r} a known dtype, a shape and data_offsets", repr(dtype)[:40])
    if shape is None or ends is None or len(shape) > MAX_RANK or len(ends) != 2:
        raise _broken(
            name, f"give tensor {key[:80]!r} whole numbers as shape and data_offsets", ascii(entry.get("shape"))[:80]
        )
    if ends[1] - ends[0] != math.prod(shape) * ITEM_BYTES[dtype]:
        raise _broken(name, f"give tensor {key[:80]!r} {math.prod(shape) * ITEM_BYTES[dtype]} bytes", repr(ends)[:80])
    return TensorPlace(dtype=dtype, shape=tuple(shape), start=base + ends[0], stop=base + ends[1])


def _counts(value: object) -> list[int] | None:
    if isinstance(value, list) and all(type(part) is int and 0 <= part < 1 << 62 for part in value):
        return value
    return None


def _broken(name: str, must: str, got: str) -> StoreError:
    return StoreError(f"{name!r} must {must}", got, "The file is damaged or not what it claims to be.")


def parse_json(text: bytes, name: str) -> dict[str, Any]:
    """Parse a JSON object that may come from anywhere: no twin keys, no NaN, no deep nesting.

    Raises
    ------
    StoreError
        If it is anything else.
    """
    try:
        value = json.loads(text.decode("utf-8"), object_pairs_hook=_no_twins, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise _broken(
            name, "be JSON without twin keys or NaN", f"{type(error).__name__}: {str(error)[:80]!r}"
        ) from None
    if not isinstance(value, dict):
        raise _broken(name, "be a JSON object", type(value).__name__)
    return value


def _no_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("twin keys")
    return found


def _no_constant(text: str) -> object:
    raise ValueError(f"{text} is no number")
