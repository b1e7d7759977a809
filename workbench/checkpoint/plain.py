"""Types that store each value by itself: floats, 8-bit floats and integers."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Blocks = NDArray[Any]
Out = NDArray[np.float32]


def _cast(blocks: Blocks, out: Out) -> None:
    out[:, 0] = blocks


def _bf16(blocks: Blocks, out: Out) -> None:
    bits = out[:, 0].view(np.uint32)
    np.left_shift(blocks, 16, out=bits, dtype=np.uint32)


def _f8_table(exponent_bits: int, mantissa_bits: int, *, infinities: bool) -> Out:
    """Values of the 256 codes of an 8-bit float. E4M3 (finite) has NaN at all ones; E5M2 follows IEEE 754."""
    bias = (1 << (exponent_bits - 1)) - 1
    table = np.empty(256, dtype=np.float32)
    for code in range(256):
        exponent = (code >> mantissa_bits) & ((1 << exponent_bits) - 1)
        fraction = (code & ((1 << mantissa_bits) - 1)) / (1 << mantissa_bits)
        value = 2.0 ** (exponent - bias) * (1 + fraction) if exponent else 2.0 ** (1 - bias) * fraction
        if infinities and exponent == (1 << exponent_bits) - 1:
            value = np.nan if fraction else np.inf
        elif not infinities and code & 127 == 127:
            value = np.nan
        table[code] = -value if code & 128 else value
    return table


_E4M3 = _f8_table(4, 3, infinities=False)
_E5M2 = _f8_table(5, 2, infinities=True)


def _e4m3(blocks: Blocks, out: Out) -> None:
    np.take(_E4M3, blocks, out=out[:, 0], mode="clip")


def _e5m2(blocks: Blocks, out: Out) -> None:
    np.take(_E5M2, blocks, out=out[:, 0], mode="clip")


# name, number in GGUF files, values a block, dtype of a block, decoder, whether float32 holds every value
TABLE = (
    ("F32", 0, 1, "<f4", _cast, True),
    ("F16", 1, 1, "<f2", _cast, True),
    ("BF16", 30, 1, "<u2", _bf16, True),
    ("F64", 28, 1, "<f8", _cast, True),  # rounded to nearest: the one lossy float
    ("F8_E4M3", None, 1, "u1", _e4m3, True),
    ("F8_E5M2", None, 1, "u1", _e5m2, True),
    ("I8", 24, 1, "i1", _cast, True),
    ("I16", 25, 1, "<i2", _cast, True),
    ("I32", 26, 1, "<i4", _cast, False),
    ("I64", 27, 1, "<i8", _cast, False),
    ("U8", None, 1, "u1", _cast, True),
    ("U16", None, 1, "<u2", _cast, True),
    ("U32", None, 1, "<u4", _cast, False),
    ("U64", None, 1, "<u8", _cast, False),
    ("BOOL", None, 1, "u1", _cast, True),
)
