"""Inputs and outputs read back from the bytes of a TensorRT-RTX plan, where no card is there that could load it.

The format is not published. What is read here is the record of a bound tensor as versions 1.4 to 1.7 write it: every
value stands behind a tag of four bytes; a record holds name, type and sizes, and two sections list what is bound.
"""

from __future__ import annotations

import re
import struct
from dataclasses import replace
from typing import TYPE_CHECKING

from workbench.errors import EngineError
from workbench.graph.artefact import TensorSpec

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_MOST_NAME = 512
_MOST_AXES = 8
_MOST_TENSORS = 100_000
_MOST_RECORD = 1024
_TYPES = {
    0: "float32", 1: "float16", 2: "int8", 3: "int32", 4: "bool", 5: "uint8", 6: "float8_e4m3fn", 7: "bfloat16",
    8: "int64",
}  # fmt: skip


_RECORD = re.compile(b"\x13\x80\x01\x00.{8}\x01\x80\x0c\x80\x01\x00(?P<length>.{8})", re.DOTALL)
_SECTION = re.compile(b"\x08\x80\x01\x00(?P<count>.{8})\x01\x80\x2d\x80\x01\x00(?P<again>.{8})", re.DOTALL)
_SUFFIX = re.compile(r" \[profile \d+\]$")  # of the second profile's tensors, and of those after it
_BOUND = b"\x59\x80\x01\x00"
_REST = re.compile(
    b"\x1c\x80\x01\x00\x03\x80\x01\x00.\x0d\x80\x01\x00\x07\x80\x01\x00(?P<dtype>.{4})\x03\x80\x01\x00.", re.DOTALL
)
_SHAPE = re.compile(b"\x59\x80\x01\x00\x07\x80\x01\x00(?P<rank>.{4})\x01\x80\x09\x80\x01\x00(?P<count>.{8})", re.DOTALL)


Table = tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]


def read_table(plan: bytes) -> Table:
    """Read the bound tensors of a plan.

    Parameters
    ----------
    plan : bytes
        Serialised engine.

    Returns
    -------
    inputs, outputs : tuple of TensorSpec
        Axes are sizes, or "any" where they are dynamic; both empty where the format is another one.
    """
    return next(iter(read_tables(plan)), ((), ()))


def read_tables(plan: bytes) -> tuple[Table, ...]:
    """Read the bound tensors of every profile of a plan; none where the format is another one."""
    specs = {spec.name: spec for spec in _specs(plan)}
    sections = [list(_bound(plan, match)) for match in _SECTION.finditer(plan) if match["count"] == match["again"]]
    profiles: dict[str, list[list[str]]] = {}
    for names in sections:
        endings = {name.removeprefix(_SUFFIX.sub("", name)) for name in names}
        if len(endings) == 1 and set(names) <= set(specs):
            profiles.setdefault(endings.pop(), []).append(names)
    if any(len(named) < 2 for named in profiles.values()):
        return ()
    return tuple(_table(specs, named) for named in profiles.values())


def _table(specs: Mapping[str, TensorSpec], named: Sequence[Sequence[str]]) -> Table:
    """Inputs and outputs of one profile, under their plain names."""
    inner = {name for names in named[:-2] for name in names}  # made in one part of the plan and read in another
    inputs, outputs = (
        tuple(replace(specs[name], name=_SUFFIX.sub("", name)) for name in names if name not in inner)
        for names in named[-2:]
    )
    return inputs, outputs


def _specs(plan: bytes) -> Iterator[TensorSpec]:
    """Records of tensors: name, type, sizes."""
    for match in _RECORD.finditer(plan):
        name = _name(plan, match)
        rest = None if name is None else _REST.match(plan, match.end() + len(name))
        if name is None or rest is None:
            continue
        axes = _axes(plan, rest.end())
        dtype = _TYPES.get(struct.unpack("<I", rest["dtype"])[0])
        if axes is not None and dtype is not None:
            yield TensorSpec(name=name, dtype=dtype, axes=axes)


def _bound(plan: bytes, section: re.Match[bytes]) -> Iterator[str]:
    """Names of one section of the table of bound tensors: first come the inputs, then the outputs."""
    (count,) = struct.unpack("<Q", section["count"])
    at = section.end()
    for _ in range(min(count, _MOST_TENSORS)):
        match = _RECORD.search(plan, at, at + _MOST_RECORD)
        name = None if match is None else _name(plan, match)
        if match is None or name is None or not plan.startswith(_BOUND, match.end() + len(name)):
            return
        yield name
        at = match.end() + len(name)


def _name(plan: bytes, match: re.Match[bytes]) -> str | None:
    (length,) = struct.unpack("<Q", match["length"])
    data = plan[match.end() : match.end() + min(length, _MOST_NAME)]
    return data.decode("ascii") if data and data.isascii() and len(data) == length else None


def _axes(plan: bytes, at: int) -> tuple[str | int, ...] | None:
    shape = _SHAPE.search(plan, at, at + 256)
    if shape is None:
        return None
    (count,) = struct.unpack("<Q", shape["count"])
    if count > _MOST_AXES:
        return None
    sizes = struct.unpack_from(f"<{count}q", plan, shape.end())
    return tuple(size if size >= 0 else "any" for size in sizes)


def check_table(plan: bytes, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> bool:
    """Hold the tensors of a plan against those of the graph.

    Returns
    -------
    bool
        False where the plan's format is one that cannot be read.

    Raises
    ------
    EngineError
        If a tensor is missing, or has another type or size.
    """
    read = read_tables(plan)
    for table in read:
        for kind, wanted, there in zip(("input", "output"), (inputs, outputs), table, strict=True):
            expected = {spec.name: _plain(spec) for spec in wanted}
            actual = {spec.name: _plain(spec) for spec in there}
            if expected != actual:
                raise EngineError(
                    f"every {kind} of the plan must be as the graph says: {expected}",
                    f"{actual}",
                    "Update the workbench.",
                )
    return bool(read)


def _plain(spec: TensorSpec) -> str:
    return f"{spec.dtype} [{', '.join(str(axis) if isinstance(axis, int) else 'any' for axis in spec.axes)}]"
