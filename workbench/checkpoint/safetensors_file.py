"""safetensors files: the header is checked against the real size of the file, and the data is mapped.

Format: https://github.com/huggingface/safetensors#format.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from workbench.checkpoint.jsontext import load_json
from workbench.checkpoint.layout import Span, check_layout
from workbench.checkpoint.paths import Folder, MappedFile
from workbench.checkpoint.quants import TYPES
from workbench.checkpoint.source import MappedTensors, TensorEntry
from workbench.errors import CheckpointError, UnsupportedError, shown

if TYPE_CHECKING:
    from pathlib import Path

MAX_HEADER_BYTES = 16 << 20
MAX_TENSORS = 100_000
MAX_NAME_BYTES = 512
MAX_RANK = 8
DTYPES = (
    "F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2", "I64", "I32", "I16", "I8", "U64", "U32", "U16", "U8", "BOOL",
)  # fmt: skip

_DO = "Get the file again from where it was published, or save it again."
_FIELDS = {"dtype", "shape", "data_offsets"}


def open_safetensors(path: Path) -> MappedTensors:
    """Open one safetensors file.

    Parameters
    ----------
    path : Path
        The file.

    Returns
    -------
    MappedTensors
        Its tensors, and as `metadata` its `__metadata__`.

    Raises
    ------
    CheckpointError
        If the file is broken or hostile.
    UnsupportedError
        If a dtype is not read here.
    """
    file = Folder(path.parent).map(path.name)
    metadata, entries = parse_safetensors(file)
    return MappedTensors(shown(path.name), entries, metadata)


def parse_safetensors(file: MappedFile) -> tuple[dict[str, str], list[TensorEntry]]:
    """Parse the header.

    Parameters
    ----------
    file : MappedFile
        The whole file.

    Returns
    -------
    dict, list of TensorEntry
        `__metadata__` and the tensors, in the order of their bytes.

    Raises
    ------
    CheckpointError
        If anything is not as the format says, or beyond the caps of this module.
    """
    label = shown(file.name)
    size = int.from_bytes(bytes(file.data[:8]), "little")
    left = len(file.data) - 8
    if left < 2 or not 2 <= size <= min(left, MAX_HEADER_BYTES):
        raise CheckpointError(
            f"{label}: the header must have 2 to {MAX_HEADER_BYTES} bytes and fit in the file",
            f"{size} bytes with {max(left, 0)} left",
            _DO,
        )
    head = bytes(file.data[8 : 8 + size])
    if not head.startswith(b"{"):
        raise CheckpointError(
            f"{label}: the header must begin with {{", shown(head[:8].decode("ascii", "backslashreplace")), _DO
        )
    header = load_json(head, f"the header of {label}", max_bytes=MAX_HEADER_BYTES)
    metadata = _metadata(header.pop("__metadata__", {}), label)
    if len(header) > MAX_TENSORS:
        raise CheckpointError(f"{label}: there must be at most {MAX_TENSORS} tensors", f"{len(header)}", _DO)
    rows = [_row(name, fields, label) for name, fields in header.items()]
    rows.sort(key=lambda row: row[3])
    check_layout([Span(row[0], *row[3]) for row in rows], label=label, room=left - size)
    data = file.data[8 + size :]
    entries = [
        TensorEntry(name=name, shape=shape, type=dtype, data=data[start : start + length])
        for name, dtype, shape, (start, length) in rows
    ]
    return metadata, entries


def _metadata(value: object, label: str) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise CheckpointError(f"{label}: `__metadata__` must map text to text", shown(value), _DO)
    return value


def _row(name: str, fields: Any, label: str) -> tuple[str, str, tuple[int, ...], tuple[int, int]]:
    def fault(what: str, got: object) -> CheckpointError:
        return CheckpointError(f"{label}: tensor {shown(name)}{what}", f"{got}", _DO)

    if not name or len(name.encode(errors="surrogatepass")) > MAX_NAME_BYTES:
        raise fault(f": the name must have 1 to {MAX_NAME_BYTES} bytes", f"{len(name)} characters")
    if not isinstance(fields, dict) or fields.keys() != _FIELDS:
        got = shown(sorted(fields)) if isinstance(fields, dict) else f"a {type(fields).__name__}"
        raise fault(" must have dtype, shape and data_offsets, nothing else", got)
    dtype, shape, offsets = fields["dtype"], fields["shape"], fields["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPES:
        got = shown(dtype) if isinstance(dtype, str) else f"a {type(dtype).__name__}"
        raise UnsupportedError(f"{label}: tensor {shown(name)}: dtype must be one of {', '.join(DTYPES)}", got, _DO)
    if not _are_counts(shape) or len(shape) > MAX_RANK or math.prod([size or 1 for size in shape]) >= 1 << 48:
        raise fault(f": shape must be whole numbers, at most {MAX_RANK} axes, below 2^48 values", shown(shape))
    if not _are_counts(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise fault(": data_offsets must be two whole numbers, a start and an end", shown(offsets))
    want = TYPES[dtype].size_bytes(math.prod(shape))
    if offsets[1] - offsets[0] != want:
        raise fault(f": {shape} values of {dtype} must take {want} bytes", offsets[1] - offsets[0])
    return name, dtype, tuple(shape), (offsets[0], want)


def _are_counts(value: object) -> bool:
    return isinstance(value, list) and set(map(type, value)) <= {int} and min(value, default=0) >= 0
