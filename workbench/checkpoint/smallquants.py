"""Block types of 32 values: one scale, at times one minimum, and 4, 5 or 8 bits a value.

The low nibbles of `qs` are values 0 to 15 of the block, the high nibbles values 16 to 31. Layouts: ggml-common.h.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Blocks = NDArray[Any]
Out = NDArray[np.float32]

# The 16 levels of IQ4_NL and IQ4_XS, from ggml-common.h (kvalues_iq4nl).
IQ4_LEVELS = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], dtype=np.float32)
# Twice the values of a 4-bit float with 2 exponent bits (OCP Microscaling Formats 1.0); the scale below is halved.
_FP4_LEVELS = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], dtype=np.float32)


def column(values: Blocks) -> Out:
    """Float32 [block, 1] of one number a block."""
    return values.astype(np.float32)[:, None]


def nibbles(qs: Blocks) -> NDArray[np.uint8]:
    """4-bit codes uint8 [..., 2 * n] of bytes [..., n]: first all low halves, then all high halves."""
    codes = np.empty((*qs.shape[:-1], 2, qs.shape[-1]), dtype=np.uint8)
    np.bitwise_and(qs, 15, out=codes[..., 0, :])
    np.right_shift(qs, 4, out=codes[..., 1, :])
    return codes.reshape(*qs.shape[:-1], 2 * qs.shape[-1])


def _five_bits(blocks: Blocks) -> NDArray[np.uint8]:
    high = np.unpackbits(np.ascontiguousarray(blocks["qh"]), axis=-1, bitorder="little")
    codes = nibbles(blocks["qs"])
    codes |= high << 4
    return codes


def _q4_0(blocks: Blocks, out: Out) -> None:
    out[...] = nibbles(blocks["qs"])
    out -= 8
    out *= column(blocks["d"])


def _q4_1(blocks: Blocks, out: Out) -> None:
    out[...] = nibbles(blocks["qs"])
    out *= column(blocks["d"])
    out += column(blocks["m"])


def _q5_0(blocks: Blocks, out: Out) -> None:
    out[...] = _five_bits(blocks)
    out -= 16
    out *= column(blocks["d"])


def _q5_1(blocks: Blocks, out: Out) -> None:
    out[...] = _five_bits(blocks)
    out *= column(blocks["d"])
    out += column(blocks["m"])


def _q8_0(blocks: Blocks, out: Out) -> None:
    np.multiply(blocks["qs"], column(blocks["d"]), out=out, dtype=np.float32)


def _iq4_nl(blocks: Blocks, out: Out) -> None:
    np.take(IQ4_LEVELS, nibbles(blocks["qs"]), out=out, mode="clip")
    out *= column(blocks["d"])


def _mxfp4(blocks: Blocks, out: Out) -> None:
    exponent = blocks["e"].astype(np.uint32)
    # Bits of 2^(e - 128) as float32, half of 2^(e - 127); the two smallest are subnormal.
    bits = np.where(exponent < 2, np.uint32(0x00200000) << exponent, (exponent - 1) << 23)
    np.take(_FP4_LEVELS, nibbles(blocks["qs"]), out=out, mode="clip")
    out *= bits.astype(np.uint32).view(np.float32)[:, None]


# name, number in GGUF files, values a block, dtype of a block, decoder, whether float32 holds every value
TABLE = (
    ("Q4_0", 2, 32, [("d", "<f2"), ("qs", "u1", (16,))], _q4_0, True),
    ("Q4_1", 3, 32, [("d", "<f2"), ("m", "<f2"), ("qs", "u1", (16,))], _q4_1, True),
    ("Q5_0", 6, 32, [("d", "<f2"), ("qh", "u1", (4,)), ("qs", "u1", (16,))], _q5_0, True),
    ("Q5_1", 7, 32, [("d", "<f2"), ("m", "<f2"), ("qh", "u1", (4,)), ("qs", "u1", (16,))], _q5_1, True),
    ("Q8_0", 8, 32, [("d", "<f2"), ("qs", "i1", (32,))], _q8_0, True),
    ("IQ4_NL", 20, 32, [("d", "<f2"), ("qs", "u1", (16,))], _iq4_nl, True),
    ("MXFP4", 39, 32, [("e", "u1"), ("qs", "u1", (16,))], _mxfp4, True),
)
