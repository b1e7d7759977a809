"""Canonical names over the tensors of a file: read one by one, cut out of fused tensors, never invented."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from workbench.errors import CheckpointError, shown

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from workbench.checkpoint.source import TensorFile


@dataclass(frozen=True, kw_only=True, slots=True)
class Origin:
    """Where a canonical tensor lies in a file.

    Parameters
    ----------
    name : str
        Tensor of the file.
    index : int or None
        Which one of a stack along the first axis.
    rows : tuple of (int, int) or None
        Ranges of the first axis that follow one another in the canonical tensor; None for all of it. With
        `transposed` they count along the last axis of the file's tensor.
    transposed : bool
        Whether the file holds [in, out].
    plus : float
        Added to every value.
    stacked : tuple of str
        Tensors that make up the canonical one along a new first axis; empty for one tensor.
    as_row : bool
        Whether a vector stands for a matrix of one row.
    total : int
        How many rows the whole of a fused tensor must have; 0 where nothing is cut.
    """

    name: str
    index: int | None = None
    rows: tuple[tuple[int, int], ...] | None = None
    transposed: bool = False
    plus: float = 0.0
    stacked: tuple[str, ...] = ()
    as_row: bool = False
    total: int = 0


class Weights(Mapping[str, "NDArray[np.float32]"]):
    """Weights of a decoder by canonical name, float32, matrices as [out, in].

    Parameters
    ----------
    file : TensorFile
        Where the tensors lie.
    origins : mapping of str to Origin
        Canonical name to its place in the file.
    ignored : sequence of str
        Tensors of the file that are known to hold no weights, such as stored masks.
    """

    def __init__(
        self, file: TensorFile, origins: Mapping[str, Origin], *, ignored: frozenset[str] = frozenset()
    ) -> None:
        self._file = file
        self._origins = dict(origins)
        self._ignored = ignored

    def __iter__(self) -> Iterator[str]:
        return iter(self._origins)

    def __len__(self) -> int:
        return len(self._origins)

    def __contains__(self, name: object) -> bool:
        return name in self._origins

    def __getitem__(self, name: str) -> NDArray[np.float32]:
        origin = self.origin(name)
        if origin.as_row:
            parts = [self._file.read(origin.name)[None, :]]
        elif origin.stacked:
            parts = [np.stack([self._file.read(one) for one in origin.stacked])]
        elif origin.index is not None:
            array = self._file.read_rows(origin.name, origin.index, origin.index + 1)[0]
            array = array.T if origin.transposed else array
            parts = [array] if origin.rows is None else [array[start:stop] for start, stop in origin.rows]
        elif origin.transposed:
            array = self._file.read(origin.name).T
            parts = [array] if origin.rows is None else [array[start:stop] for start, stop in origin.rows]
        elif origin.rows is None:
            parts = [self._file.read(origin.name)]
        else:
            parts = [self._file.read_rows(origin.name, start, stop) for start, stop in origin.rows]
        array = parts[0] if len(parts) == 1 else np.concatenate(parts)
        return array + np.float32(origin.plus) if origin.plus else array

    def names(self) -> tuple[str, ...]:
        """List the canonical names."""
        return tuple(self._origins)

    def origin(self, name: str) -> Origin:
        """Say where a tensor lies in the file.

        Raises
        ------
        CheckpointError
            If the checkpoint has no such weights.
        """
        try:
            return self._origins[name]
        except KeyError:
            raise CheckpointError(
                f"the checkpoint must hold the weights {shown(name)}", "none", "Use the whole checkpoint as published."
            ) from None

    def shape(self, name: str) -> tuple[int, ...]:
        """Size of each axis of a canonical tensor; nothing is read."""
        return origin_shape(self._file, self.origin(name))

    def type(self, name: str) -> str:
        """How the file stores the values: "F32", "BF16", "Q4_1" and so on."""
        return self._file.type(self.origin(name).name)

    def raw(self, name: str) -> NDArray[np.uint8] | None:
        """Bytes of a tensor as they lie in the file, or None where the canonical tensor is only a part of it."""
        origin = self.origin(name)
        whole = origin == Origin(name=origin.name)
        return self._file.raw(origin.name) if whole else None

    @property
    def unused(self) -> tuple[str, ...]:
        """Tensors of the file that no canonical name refers to, in the order of the file."""
        origins = self._origins.values()
        used = {name for origin in origins for name in (origin.name, *origin.stacked)} | self._ignored
        return tuple(name for name in self._file.names if name not in used)


class ChangedWeights(Weights):
    """Weights whose values are made from those of others, under the same names and shapes.

    Parameters
    ----------
    weights : Weights
        The others.
    """

    def __init__(self, weights: Weights) -> None:
        self._weights = weights

    def __iter__(self) -> Iterator[str]:
        return iter(self._weights)

    def __len__(self) -> int:
        return len(self._weights)

    def __contains__(self, name: object) -> bool:
        return name in self._weights

    def names(self) -> tuple[str, ...]:
        """List the canonical names."""
        return self._weights.names()

    def shape(self, name: str) -> tuple[int, ...]:
        """Size of each axis of a canonical tensor."""
        return self._weights.shape(name)

    def type(self, name: str) -> str:
        """How the file stores the values."""
        return self._weights.type(name)

    def raw(self, name: str) -> NDArray[np.uint8] | None:
        """Give nothing: changed values are not those of the file."""
        del name
        return None


def origin_shape(file: TensorFile, origin: Origin) -> tuple[int, ...]:
    """Size of each axis of what an origin gives; nothing is read."""
    shape = tuple(file.shape(origin.name))
    if origin.as_row:
        return (1, *shape)
    if origin.stacked:
        return (len(origin.stacked), *shape)
    if origin.index is not None:
        shape = shape[1:]
    if origin.transposed:
        shape = shape[::-1]
    if origin.rows is not None:
        shape = (sum(stop - start for start, stop in origin.rows), *shape[1:])
    return shape
