"""Where tensors lie in a file: one behind the other, none twice, none over another, none outside."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from workbench.errors import CheckpointError, shown

if TYPE_CHECKING:
    from collections.abc import Sequence

_DO = "Get the file again from where it was published, or convert it again."


class Span(NamedTuple):
    """Bytes of a tensor: `start` counts from the first byte behind the header."""

    name: str
    start: int
    size: int


def check_layout(spans: Sequence[Span], *, label: str, room: int, alignment: int = 1, padding: int = 0) -> None:
    """Hold the tensors of a file to its bytes.

    Parameters
    ----------
    spans : sequence of Span
        All tensors of the file, in any order.
    label : str
        What errors call the file.
    room : int
        Bytes of the file behind its header.
    alignment : int
        What every start is a multiple of; a gap is the least that this needs.
    padding : int
        How many bytes may follow the last tensor, beyond what the alignment needs.

    Raises
    ------
    CheckpointError
        If a name stands twice, a start is not aligned, tensors overlap or leave a hole, or the bytes do not match.
    """
    names = set()
    end, before = 0, "the header"
    for span in sorted(spans, key=lambda span: (span.start, span.size)):
        if span.name in names:
            raise CheckpointError(f"{label}: a tensor must be there once", f"{shown(span.name)} twice", _DO)
        names.add(span.name)
        what = f"{label}: tensor {shown(span.name)}"
        if span.start % alignment:
            raise CheckpointError(f"{what} must start at a multiple of {alignment}", f"{span.start}", _DO)
        expected = -(-end // alignment) * alignment
        if span.start != expected:
            fault = "overlap" if span.start < end else "leave a hole behind"
            raise CheckpointError(f"{what} must not {fault} {before}, so start at {expected}", f"{span.start}", _DO)
        end, before = span.start + span.size, shown(span.name)
        if end > room:
            raise CheckpointError(f"{what} must end within the {room} bytes of data", f"its end at {end}", _DO)
    if room - end >= alignment + padding:
        raise CheckpointError(f"{label}: tensors must cover the data", f"{room - end} bytes that belong to none", _DO)
