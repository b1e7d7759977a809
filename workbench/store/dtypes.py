"""Storage types: lossless both ways where the type allows it, and every value that does not fit counted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from workbench.errors import ContractError

if TYPE_CHECKING:
    from numpy.typing import NDArray

_CHUNK = 1 << 17  # elements that stay in cache between the passes over them


@dataclass(frozen=True, kw_only=True, slots=True)
class StorageType:
    """One dtype of a segment, by its safetensors name.

    Attributes
    ----------
    name : str
        Name in the file: `F32`, `F16`, `BF16` or `F8_E4M3`.
    array : numpy.dtype
        What NumPy calls it (bfloat16 and float8 from ml_dtypes).
    bits : numpy.dtype
        Unsigned integer of the same size.
    magnitude, special : int
        Mask of all bits but the sign, and the smallest magnitude that is no finite number.
    """

    name: str
    array: np.dtype[Any]
    bits: np.dtype[Any]
    magnitude: int
    special: int

    @property
    def itemsize(self) -> int:
        """Bytes of a value."""
        return int(self.bits.itemsize)


STORAGE_TYPES = {
    kind.name: kind
    for kind in (
        StorageType(name="F32", array=np.dtype("<f4"), bits=np.dtype("<u4"), magnitude=0x7FFFFFFF, special=0x7F800000),
        StorageType(name="F16", array=np.dtype("<f2"), bits=np.dtype("<u2"), magnitude=0x7FFF, special=0x7C00),
        StorageType(
            name="BF16", array=np.dtype(ml_dtypes.bfloat16), bits=np.dtype("<u2"), magnitude=0x7FFF, special=0x7F80
        ),
        StorageType(
            name="F8_E4M3",
            array=np.dtype(ml_dtypes.float8_e4m3fn),
            bits=np.dtype("u1"),
            magnitude=0x7F,
            special=0x7F,  # e4m3 has no infinity: only this pattern, NaN, is special
        ),
    )
}
_F8_VALUES = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32)


def storage_type(name: str) -> StorageType:
    """Look a storage type up by its safetensors name.

    Raises
    ------
    ContractError
        If there is none of that name.
    """
    if name not in STORAGE_TYPES:
        raise ContractError(f"a storage dtype must be one of {', '.join(STORAGE_TYPES)}", repr(name), "Choose one.")
    return STORAGE_TYPES[name]


def storable(values: NDArray[Any], kind: StorageType) -> NDArray[Any]:
    """Widen values of another narrow type to float32, which holds each of them; others stay as they are."""
    narrow_types = (other.array for other in STORAGE_TYPES.values() if other.itemsize < 4)
    if values.dtype != kind.array and values.dtype in narrow_types:
        return values.astype(np.float32)
    return values


def narrow(values: NDArray[Any], kind: StorageType, out: NDArray[Any]) -> tuple[int, int]:
    """Store float32 values, or copy values that already have the storage type.

    Finite values beyond the range are stored as the largest finite value of their sign and counted; infinities
    stay infinities where the type has them and become NaN in F8_E4M3; NaN stays NaN.

    Parameters
    ----------
    values : float32 or storage dtype [row, width]
        What to store.
    kind : StorageType
        How to store it.
    out : unsigned integer of the storage size [row, width]
        Where to put the bits; C-contiguous.

    Returns
    -------
    non_finite, saturated : int
        Values that are no finite number in the source, and values that did not fit.
    """
    if values.dtype == kind.array or (values.dtype == kind.bits and kind.name != "F32"):
        np.copyto(out, values.view(kind.bits) if values.dtype != kind.bits else values)
        return count_special(out, kind), 0
    with np.errstate(over="ignore", invalid="ignore"):
        np.copyto(out.view(kind.array), values, casting="unsafe")
    if not (suspects := special_rows(out, kind)).size:
        return 0, 0
    return _settle(values, kind, out, suspects)


def _settle(values: NDArray[Any], kind: StorageType, out: NDArray[Any], suspects: NDArray[Any]) -> tuple[int, int]:
    """Saturate what overflowed in the rows that hold special values, and count."""
    non_finite = saturated = 0
    largest = kind.special - 1
    for row in suspects:
        finite = np.isfinite(values[row])
        over = finite & ((out[row] & kind.magnitude) >= kind.special)
        sign = out[row] & ~np.array(kind.magnitude, dtype=kind.bits)
        out[row] = np.where(over, sign | np.array(largest, dtype=kind.bits), out[row])
        non_finite += int(finite.size - finite.sum())
        saturated += int(over.sum())
    return non_finite, saturated


def widen(raw: NDArray[Any], kind: StorageType) -> NDArray[np.float32]:
    """Read stored bits as float32, without loss.

    Parameters
    ----------
    raw : unsigned integer of the storage size, any shape
        Bits as they lie in the file.
    kind : StorageType
        What they mean.

    Returns
    -------
    float32, same shape
        A copy; for F32 the same memory.
    """
    if kind.name == "F32":
        return raw.view(np.float32)
    if kind.name == "F8_E4M3":
        return np.asarray(_F8_VALUES[raw])
    return raw.view(kind.array).astype(np.float32)


def special_rows(raw: NDArray[Any], kind: StorageType) -> NDArray[np.int64]:
    """List the rows of stored bits [row, width] that hold NaN or infinity; int64 [n]."""
    step = max(1, _CHUNK // max(1, raw.shape[1]))
    found = []
    for start in range(0, len(raw), step):
        magnitude = raw[start : start + step] & np.array(kind.magnitude, dtype=kind.bits)
        if magnitude.size and magnitude.max() >= kind.special:
            found.append(start + np.flatnonzero((magnitude >= kind.special).any(axis=1)))
    return np.concatenate(found).astype(np.int64) if found else np.empty(0, dtype=np.int64)


def count_special(raw: NDArray[Any], kind: StorageType) -> int:
    """Count NaN and infinity in stored bits [row, width]."""
    rows = special_rows(raw, kind)
    return int(((raw[rows] & np.array(kind.magnitude, dtype=kind.bits)) >= kind.special).sum()) if rows.size else 0
