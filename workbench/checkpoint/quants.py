"""Types of stored tensors, and how each becomes float32.

Layouts of the block types: ggml (`ggml-common.h`, `ggml-quants.c`). One block is one record of a NumPy dtype whose
fields carry ggml's names: `d` scale, `m` or `dmin` minimum, `qs` low bits, `qh` high bits, `scales` packed scales of
sub-blocks. The arithmetic is in float32 and in ggml's order, so that results are equal to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workbench.checkpoint import kquants, plain, smallquants
from workbench.errors import CheckpointError, UnsupportedError

_EXACT = 1 << 24  # every integer up to here is a float32
Decoder = Callable[[NDArray[Any], NDArray[np.float32]], None]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class TensorType:
    """How values are stored.

    `block` is the dtype of one block of `block_values` values; `decoder` fills float32 [block, block_values] from
    [block] records; `gguf_id` is the number of the type in GGUF files, or None where GGUF has no such type.
    """

    name: str
    gguf_id: int | None
    block_values: int
    block: np.dtype[Any]
    decoder: Decoder
    exact: bool = True

    @property
    def block_bytes(self) -> int:
        """Bytes of one block."""
        return int(self.block.itemsize)

    def size_bytes(self, n_values: int) -> int:
        """Bytes of `n_values` values, which must be whole blocks."""
        return n_values // self.block_values * self.block_bytes


def _rows() -> list[TensorType]:
    return [
        TensorType(name=name, gguf_id=gguf_id, block_values=values, block=np.dtype(block), decoder=decoder, exact=exact)
        for table in (plain.TABLE, smallquants.TABLE, kquants.TABLE)
        for name, gguf_id, values, block, decoder, exact in table
    ]


TYPES: dict[str, TensorType] = {kind.name: kind for kind in _rows()}
GGUF_TYPES: dict[int, TensorType] = {kind.gguf_id: kind for kind in TYPES.values() if kind.gguf_id is not None}

# Known to GGUF, not read here: an error can then say which type it met.
UNREAD_GGUF_TYPES = {
    4: "Q4_2", 5: "Q4_3", 9: "Q8_1", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 21: "IQ3_S", 22: "IQ2_S",
    29: "IQ1_M", 31: "Q4_0_4_4", 32: "Q4_0_4_8", 33: "Q4_0_8_8", 34: "TQ1_0", 35: "TQ2_0", 36: "IQ4_NL_4_4",
    37: "IQ4_NL_4_8", 38: "IQ4_NL_8_8", 40: "NVFP4", 41: "Q1_0",
}  # fmt: skip


def decode(data: NDArray[np.uint8], type_name: str, label: str, *, slice_bytes: int = 512 << 10) -> NDArray[np.float32]:
    """Decode the bytes of whole blocks.

    Parameters
    ----------
    data : uint8 [size_bytes]
        Bytes as they lie in the file.
    type_name : str
        Key of `TYPES`.
    label : str
        What errors call the tensor.
    slice_bytes : int
        Bytes of float32 that are decoded at a time; temporaries are of this order.

    Returns
    -------
    float32 [value]
        A read-only view of `data` for aligned F32, else a new array.

    Raises
    ------
    CheckpointError
        If integers are beyond what float32 holds exactly.
    """
    kind = TYPES[type_name]
    if type_name == "F32" and data.ctypes.data % 4 == 0:
        return data.view("<f4")
    blocks = data.view(kind.block)
    out = np.empty((len(blocks), kind.block_values), dtype=np.float32)
    step = max(1, slice_bytes // (4 * kind.block_values))
    # Bytes are data, not results: a NaN or Inf among them is the reader's to judge, not a warning of this arithmetic.
    with np.errstate(all="ignore"):
        for start in range(0, len(blocks), step):
            part, into = blocks[start : start + step], out[start : start + step]
            kind.decoder(part, into)
            if not kind.exact and (part.max() > _EXACT or (kind.block.kind == "i" and part.min() < -_EXACT)):
                raise CheckpointError(
                    f"{label}: integers must be exact in float32",
                    f"{type_name} beyond 2^24",
                    "Read the raw bytes instead.",
                )
    return out.reshape(-1)


def gguf_type(number: int, label: str) -> TensorType:
    """Find a type by its number in GGUF files.

    Raises
    ------
    UnsupportedError
        If the type is not read here; the message names it where it is known.
    """
    kind = GGUF_TYPES.get(number)
    if kind is None:
        raise UnsupportedError(
            f"{label}: the tensor type must be one of {', '.join(k.name for k in GGUF_TYPES.values())}",
            UNREAD_GGUF_TYPES.get(number, f"the unknown type {number}"),
            "Convert the checkpoint to a type of the list, such as Q8_0 or F16.",
        )
    return kind
