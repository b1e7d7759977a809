"""What every reader of a checkpoint offers: named tensors, read as float32, and the metadata beside them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from workbench.checkpoint.quants import TYPES, decode
from workbench.errors import CheckpointError, shown

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

# Rows are decoded in slices of about this many bytes of float32, so that a slice and its temporaries stay in the cache.
SLICE_BYTES = 512 << 10


class TensorFile(Protocol):
    """Tensors by the names that the file gives them; one file, or a set of shards that together are one."""

    @property
    def metadata(self) -> Mapping[str, object]:
        """Key-value data of the file: GGUF metadata, or `__metadata__` of a safetensors file."""
        ...

    @property
    def names(self) -> Sequence[str]:
        """Names of all tensors, in the order of the file."""
        ...

    def __contains__(self, name: object) -> bool:
        """Whether there is a tensor of this name."""
        ...

    def shape(self, name: str) -> tuple[int, ...]:
        """Size of each axis, slowest first: a matrix is [out, in], in GGUF files too."""
        ...

    def type(self, name: str) -> str:
        """How the values are stored: "F32", "F16", "BF16", "Q4_1" and so on."""
        ...

    def read(self, name: str) -> NDArray[np.float32]:
        """Values as float32: a read-only view of the file where it holds F32, else decoded into a new array."""
        ...

    def read_rows(self, name: str, start: int, stop: int) -> NDArray[np.float32]:
        """Rows `start` to `stop` of the first axis as float32, without decoding the others."""
        ...

    def raw(self, name: str) -> NDArray[np.uint8]:
        """Bytes of the tensor as they lie in the file, a read-only view."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class TensorEntry:
    """One tensor of a file: where its bytes lie and how they are read.

    `shape` is slowest axis first, `type` a key of `quants.TYPES`, `data` uint8 [size_bytes], a read-only view.
    """

    name: str
    shape: tuple[int, ...]
    type: str
    data: NDArray[np.uint8]


class MappedTensors:
    """Tensors of one or more memory-mapped files.

    Parameters
    ----------
    label : str
        What errors call the file.
    entries : sequence of TensorEntry
        Checked entries; names are unique.
    metadata : mapping
        Key-value data of the file.
    left_out : sequence of str
        Tensors that lie in the files but are no part of this set.
    """

    def __init__(
        self,
        label: str,
        entries: Sequence[TensorEntry],
        metadata: Mapping[str, object],
        *,
        left_out: Sequence[str] = (),
    ) -> None:
        self._label = label
        self._entries = {entry.name: entry for entry in entries}
        self._metadata = metadata
        self.left_out = tuple(left_out)

    @property
    def metadata(self) -> Mapping[str, object]:
        """Key-value data of the file."""
        return self._metadata

    @property
    def names(self) -> Sequence[str]:
        """Names of all tensors, in the order of the file."""
        return tuple(self._entries)

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def entry(self, name: str) -> TensorEntry:
        """Find a tensor.

        Raises
        ------
        CheckpointError
            If the file has no tensor of this name.
        """
        try:
            return self._entries[name]
        except KeyError:
            raise CheckpointError(
                f"{self._label} must hold the tensor {shown(name)}",
                f"{len(self._entries)} tensors without it",
                "Use the whole checkpoint as published.",
            ) from None

    def shape(self, name: str) -> tuple[int, ...]:
        """Size of each axis, slowest first."""
        return self.entry(name).shape

    def type(self, name: str) -> str:
        """How the values are stored."""
        return self.entry(name).type

    def raw(self, name: str) -> NDArray[np.uint8]:
        """Bytes of the tensor as they lie in the file, uint8 [size_bytes], a read-only view."""
        return self.entry(name).data

    def read(self, name: str) -> NDArray[np.float32]:
        """Values as float32 in the shape of the tensor."""
        entry = self.entry(name)
        return decode(entry.data, entry.type, f"{self._label}: {shown(name)}", slice_bytes=SLICE_BYTES).reshape(
            entry.shape
        )

    def read_rows(self, name: str, start: int, stop: int) -> NDArray[np.float32]:
        """Rows `start` to `stop` of the first axis as float32; as with slices, the ends are cut to the tensor.

        Raises
        ------
        CheckpointError
            If the tensor has no axis.
        """
        entry = self.entry(name)
        if not entry.shape:
            raise CheckpointError(f"{shown(name)} must have rows", "a tensor without axes", "Read it whole.")
        start, stop, _ = slice(start, stop).indices(entry.shape[0])
        stop = max(start, stop)
        shape = (stop - start, *entry.shape[1:])
        kind = TYPES[entry.type]
        row = kind.size_bytes(_product(entry.shape[1:])) if len(entry.shape) > 1 else kind.block_bytes
        if len(entry.shape) == 1 and kind.block_values > 1:
            return self.read(name)[start:stop]
        data = entry.data[start * row : stop * row]
        return decode(data, entry.type, f"{self._label}: {shown(name)}", slice_bytes=SLICE_BYTES).reshape(shape)


def _product(sizes: Sequence[int]) -> int:
    product = 1
    for size in sizes:
        product *= size
    return product
