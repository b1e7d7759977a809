"""GGUF files, version 2 or 3: header, metadata and tensor table, checked against the real size of the file.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.
"""

from __future__ import annotations

import math
import re
import struct
from typing import TYPE_CHECKING, Any

from workbench.checkpoint.layout import Span, check_layout
from workbench.checkpoint.paths import Folder, MappedFile
from workbench.checkpoint.quants import GGUF_TYPES, TensorType, gguf_type
from workbench.checkpoint.source import MappedTensors, TensorEntry
from workbench.errors import CheckpointError, UnsupportedError, shown

if TYPE_CHECKING:
    import mmap
    from collections.abc import Mapping
    from pathlib import Path

MAX_METADATA_BYTES = 64 << 20
MAX_KEYS = 16_384
MAX_TENSORS = 100_000
MAX_NAME_BYTES = 512
MAX_STRING_BYTES = 16 << 20
MAX_ARRAY = 1 << 20
MAX_ARRAY_TOTAL = 3 << 19  # over all arrays: at most about 120 MB of Python objects
MAX_RANK = 4
MAX_PADDING = 4096  # bytes behind the last tensor

_DO = "Get the file again from where it was published, or convert it again."
_STRING, _ARRAY, _BOOL = 8, 9, 7
_NUMBERS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<B", 10: "<Q", 11: "<q", 12: "<d"}
_SCALARS = {code: struct.Struct(code) for code in _NUMBERS.values()}
_TYPE_NAMES = {
    0: "UINT8", 1: "INT8", 2: "UINT16", 3: "INT16", 4: "UINT32", 5: "INT32", 6: "FLOAT32", 7: "BOOL", 8: "STRING",
    9: "ARRAY", 10: "UINT64", 11: "INT64", 12: "FLOAT64",
}  # fmt: skip
_WHOLE = "UINT8 INT8 UINT16 INT16 UINT32 INT32 UINT64 INT64"
# What a key demands where a wrong type would be misread; [] is an array.
_DEMANDS = {
    "general.architecture": "STRING",
    "general.alignment": "UINT32",
    "split.no": _WHOLE,
    "split.count": _WHOLE,
    "split.tensors.count": _WHOLE,
    "tokenizer.ggml.model": "STRING",
    "tokenizer.ggml.pre": "STRING",
    "tokenizer.ggml.tokens": "[STRING]",
    "tokenizer.ggml.merges": "[STRING]",
    "tokenizer.ggml.scores": "[FLOAT32]",
    "tokenizer.ggml.token_type": "[INT32] [UINT32]",
    "tokenizer.chat_template": "STRING",
}
_BYTE_TOKEN = 6
_ENTRIES = [struct.Struct(f"<{rank}QIQ") for rank in range(MAX_RANK + 1)]  # axes, type and offset of a tensor


def open_gguf(path: Path) -> MappedTensors:
    """Open a GGUF file; of a split one, any part names the whole.

    Parameters
    ----------
    path : Path
        The file.

    Returns
    -------
    MappedTensors
        Its tensors, and as `metadata` its keys with plain Python values (arrays are lists).

    Raises
    ------
    CheckpointError
        If the file is broken, hostile or incomplete.
    UnsupportedError
        If its version or a tensor type is not read here.
    """
    return gguf_in(Folder(path.parent), path.name)[0]


def gguf_in(folder: Folder, name: str) -> tuple[MappedTensors, list[MappedFile]]:
    """Open a GGUF file of a folder, with all its parts if it is split; the mapped files are in their order."""
    found = re.fullmatch(r"(.*)-(\d{5})-of-(\d{5})\.gguf", name, re.DOTALL)
    first = f"{found[1]}-00001-of-{found[3]}.gguf" if found else name
    file = folder.map(first)
    metadata, entries = parse_gguf(file)
    count = _split_count(metadata, first)
    if count == 1:
        if first != name:
            raise CheckpointError(f"{shown(first)}: `split.count` must be {int(found[3]) if found else 1}", "1", _DO)
        return MappedTensors(shown(name), entries, metadata), [file]
    if found is None or int(found[3]) != count:
        raise CheckpointError(f"{shown(name)}: the name must end in -00001-of-{count:05}.gguf", shown(name), _DO)
    _check_split(metadata, first, 0, count)
    files = [file]
    for number in range(1, count):
        part = folder.map(f"{found[1]}-{number + 1:05}-of-{found[3]}.gguf")
        part_metadata, part_entries = parse_gguf(part)
        _check_split(part_metadata, part.name, number, count)
        entries += part_entries
        files.append(part)
    _check_whole(metadata, entries, first)
    return MappedTensors(shown(first), entries, metadata), files


def _split_count(metadata: Mapping[str, object], name: str) -> int:
    count = metadata.get("split.count", 1) or 1
    if not isinstance(count, int) or not 1 <= count <= 1024:
        raise CheckpointError(f"{shown(name)}: `split.count` must be 1 to 1024", shown(count), _DO)
    return count


def _check_split(metadata: Mapping[str, object], name: str, number: int, count: int) -> None:
    got = (metadata.get("split.no"), metadata.get("split.count"))
    if got != (number, count):
        raise CheckpointError(
            f"{shown(name)}: `split.no` must be {number} and `split.count` {count}", f"{got[0]} and {got[1]}", _DO
        )


def _check_whole(metadata: Mapping[str, object], entries: list[TensorEntry], name: str) -> None:
    declared = metadata.get("split.tensors.count", len(entries))
    if declared != len(entries):
        raise CheckpointError(f"{shown(name)}: the parts must hold {declared} tensors", f"{len(entries)}", _DO)
    seen: set[str] = set()
    for entry in entries:
        if entry.name in seen:
            raise CheckpointError(f"{shown(name)}: a tensor must be in one part", f"{shown(entry.name)} in two", _DO)
        seen.add(entry.name)


def parse_gguf(file: MappedFile) -> tuple[dict[str, object], list[TensorEntry]]:
    """Parse metadata and tensor table.

    Parameters
    ----------
    file : MappedFile
        The whole file.

    Returns
    -------
    dict, list of TensorEntry
        Metadata and tensors, in the order of the file.

    Raises
    ------
    CheckpointError
        If anything is not as the format says, or beyond the caps of this module.
    """
    cursor = _Cursor(file.map, shown(file.name))
    n_tensors, n_keys = _header(cursor)
    cursor.end = min(cursor.size, MAX_METADATA_BYTES)
    metadata = _metadata(cursor, n_keys)
    _check_tokens(metadata, cursor.label)
    cursor.end = cursor.size
    alignment = _alignment(metadata, cursor.label)
    spans = [_tensor(cursor) for _ in range(n_tensors)]
    start = -(-cursor.at // alignment) * alignment
    check_layout(
        [Span(name, offset, kind.size_bytes(math.prod(shape))) for name, shape, kind, offset in spans],
        label=cursor.label,
        room=max(0, cursor.size - start),
        alignment=alignment,
        padding=MAX_PADDING,
    )
    entries = [
        TensorEntry(
            name=name,
            shape=shape,
            type=kind.name,
            data=file.data[start + offset : start + offset + kind.size_bytes(math.prod(shape))],
        )
        for name, shape, kind, offset in spans
    ]
    return metadata, entries


class _Cursor:
    """Reads forward through the bytes before `end`, and says what was being read when they run out."""

    def __init__(self, buffer: mmap.mmap, label: str) -> None:
        self.buffer = buffer
        self.label = label
        self.at = 0
        self.size = len(buffer)
        self.end = self.size
        self.n_array = 0

    def fail(self, what: str, got: str) -> CheckpointError:
        return CheckpointError(f"{self.label}: {what}", got, _DO)

    def need(self, n_bytes: int, field: str) -> None:
        left = self.end - self.at
        if n_bytes > left:
            cap = " (the cap of the metadata)" if self.end < self.size else ""
            raise self.fail(f"{field} must fit in the file", f"{n_bytes} bytes at {self.at}, {left} are left{cap}")

    def number(self, code: str, field: str) -> Any:
        shape = _SCALARS[code]
        self.need(shape.size, field)
        (value,) = shape.unpack_from(self.buffer, self.at)
        self.at += shape.size
        return value

    def text(self, field: str, cap: int, *, strict: bool = True) -> str:
        size = self.number("<Q", f"the length of {field}")
        if size > cap:
            raise self.fail(f"{field} must have at most {cap} bytes", f"{size}")
        self.need(size, field)
        raw = self.buffer[self.at : self.at + size]
        self.at += size
        try:
            return raw.decode()
        except UnicodeDecodeError:
            if strict:
                raise self.fail(f"{field} must be UTF-8", shown(raw.decode("latin-1"))) from None
            return raw.decode("latin-1")  # the old encoding of such texts; nothing hangs on them

    def texts(self, count: int, field: str) -> list[str]:
        """Many strings; the same checks as `text`, written flat because vocabularies have a million of them."""
        buffer, at, end, unpack = self.buffer, self.at, self.end, struct.Struct("<Q").unpack_from
        found: list[str] = []
        add = found.append
        try:
            for _ in range(count):
                (size,) = unpack(buffer, at)
                at += 8
                if size > end - at or size > MAX_STRING_BYTES:
                    raise self.fail(f"each string of {field} must fit in the file", f"{size} bytes at {at}")
                add(buffer[at : at + size].decode())
                at += size
        except struct.error:
            raise self.fail(f"{field} must fit in the file", f"{count} strings, {len(found)} are there") from None
        except UnicodeDecodeError:
            raise self.fail(f"{field} must be UTF-8", f"string {len(found)}, which is not") from None
        self.at = at
        return found


def _header(cursor: _Cursor) -> tuple[int, int]:
    cursor.need(24, "the header")
    magic, version = cursor.buffer[0:4], cursor.buffer[4:8]
    if magic != b"GGUF":
        raise cursor.fail("the file must begin with GGUF", shown(magic.decode("ascii", "backslashreplace")))
    number = int.from_bytes(version, "little")
    if number not in {2, 3}:
        swapped = " (a big-endian file)" if int.from_bytes(version, "big") in {2, 3} else ""
        raise UnsupportedError(f"{cursor.label}: the version must be 2 or 3, little-endian", f"{number}{swapped}", _DO)
    cursor.at = 8
    n_tensors, n_keys = cursor.number("<Q", "the tensor count"), cursor.number("<Q", "the key count")
    left = cursor.size - 24
    # At least: a key takes length, character, type, byte; a tensor takes length, character, rank, size, type, offset.
    for count, cap, least, what in ((n_tensors, MAX_TENSORS, 33, "tensor"), (n_keys, MAX_KEYS, 14, "key")):
        if count > min(cap, left // least):
            raise cursor.fail(
                f"the {what} count must be at most {cap} and fit in the file", f"{count} with {left} bytes left"
            )
    return n_tensors, n_keys


def _metadata(cursor: _Cursor, count: int) -> dict[str, object]:
    found: dict[str, object] = {}
    for number in range(count):
        key = cursor.text(f"key {number}", MAX_NAME_BYTES)
        if not key or key in found:
            raise cursor.fail(
                "each key must be there once and not empty", f"{shown(key)} again" if key else "an empty key"
            )
        found[key] = _value(cursor, key)
    return found


def _value(cursor: _Cursor, key: str) -> object:
    field = f"the value of {shown(key)}"
    kind = cursor.number("<I", f"the type of {shown(key)}")
    demand = _DEMANDS.get(key)
    if kind != _ARRAY:
        _check_kind(cursor, field, kind, demand, "{}")
        return (
            cursor.text(field, MAX_STRING_BYTES, strict=demand is not None)
            if kind == _STRING
            else _scalar(cursor, kind, field)
        )
    kind = cursor.number("<I", f"the element type of {shown(key)}")
    if kind == _ARRAY:
        raise cursor.fail(f"{field} must be an array of one level", "an array of arrays")
    _check_kind(cursor, field, kind, demand, "[{}]")
    count = cursor.number("<Q", f"the length of {shown(key)}")
    cursor.n_array += min(count, MAX_ARRAY + 1)
    if count > MAX_ARRAY or cursor.n_array > MAX_ARRAY_TOTAL:
        raise cursor.fail(f"{field} must have at most {MAX_ARRAY} elements, all arrays {MAX_ARRAY_TOTAL}", f"{count}")
    if kind == _STRING:
        return cursor.texts(count, field)
    code = _NUMBERS[kind]
    width = struct.calcsize(code) * count
    cursor.need(width, field)
    values = list(struct.unpack_from(f"<{count}{code[1]}", cursor.buffer, cursor.at))
    cursor.at += width
    return [value != 0 for value in values] if kind == _BOOL else values


def _check_kind(cursor: _Cursor, field: str, kind: int, demand: str | None, form: str) -> None:
    if kind not in _TYPE_NAMES:
        raise cursor.fail(f"{field} must be of a known type", f"type {kind}")
    name = form.format(_TYPE_NAMES[kind])
    if demand is not None and name not in demand.split():
        raise cursor.fail(f"{field} must be {demand.replace(' ', ' or ')}", name)


def _scalar(cursor: _Cursor, kind: int, field: str) -> object:
    value = cursor.number(_NUMBERS[kind], field)
    if isinstance(value, float) and not math.isfinite(value):
        raise cursor.fail(f"{field} must be finite", f"{value}")
    if kind == _BOOL and value > 1:
        raise cursor.fail(f"{field} must be 0 or 1", f"{value}")
    return value == 1 if kind == _BOOL else value


def _check_tokens(metadata: Mapping[str, object], label: str) -> None:
    tokens = metadata.get("tokenizer.ggml.tokens")
    for key in ("tokenizer.ggml.scores", "tokenizer.ggml.token_type"):
        values = metadata.get(key)
        if isinstance(values, list) and (not isinstance(tokens, list) or len(values) != len(tokens)):
            want = len(tokens) if isinstance(tokens, list) else 0
            raise CheckpointError(f"{label}: `{key}` must have one value a token, {want}", f"{len(values)}", _DO)
    kinds = metadata.get("tokenizer.ggml.token_type")
    if not isinstance(kinds, list) or not isinstance(tokens, list):
        return
    for number, (kind, token) in enumerate(zip(kinds, tokens, strict=True)):
        if kind == _BYTE_TOKEN and re.fullmatch(r"<0x[0-9A-F]{2}>", token) is None:
            raise CheckpointError(f"{label}: the byte token {number} must be like <0x0A>", shown(token), _DO)


def _alignment(metadata: Mapping[str, object], label: str) -> int:
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or not 1 <= alignment <= 1 << 20 or alignment & (alignment - 1):
        raise CheckpointError(f"{label}: `general.alignment` must be a power of two up to 2^20", shown(alignment), _DO)
    return alignment


def _tensor(cursor: _Cursor) -> tuple[str, tuple[int, ...], TensorType, int]:
    name = cursor.text("a tensor name", MAX_NAME_BYTES)
    rank = cursor.number("<I", "the rank of a tensor")
    if not name or not 1 <= rank <= MAX_RANK:
        raise cursor.fail(f"a tensor must have a name and 1 to {MAX_RANK} axes", f"{shown(name)} with {rank}")
    cursor.need(8 * rank + 12, "the entry of a tensor")
    *sizes, number, offset = _ENTRIES[rank].unpack_from(cursor.buffer, cursor.at)
    cursor.at += 8 * rank + 12
    kind = GGUF_TYPES.get(number) or gguf_type(number, f"{cursor.label}: tensor {shown(name)}")
    if min(sizes) < 1 or math.prod(sizes) > cursor.size * kind.block_values:
        raise cursor.fail(f"the axes of {shown(name)} must be at least 1 and fit in the file", f"{sizes}")
    if sizes[0] % kind.block_values:
        what = f"a row of {shown(name)}, {kind.name}, must be whole blocks of {kind.block_values}"
        raise cursor.fail(what, f"{sizes[0]} values")
    return name, tuple(reversed(sizes)), kind, offset
