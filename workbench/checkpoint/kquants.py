"""Block types of 256 values in sub-blocks of 16 or 32, whose scales are themselves quantised.

Layouts: ggml-common.h and ggml-quants.c (k-quants, and IQ4_XS, which shares their shape).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from workbench.checkpoint.smallquants import IQ4_LEVELS, column, nibbles

Blocks = NDArray[Any]
Codes = NDArray[np.uint8]
Out = NDArray[np.float32]


def _planes(packed: Codes, bits: int) -> Codes:
    """Codes uint8 [..., 8 // bits, n] of bytes [..., n]: plane p holds bits p * bits and up of every byte."""
    planes = np.empty((*packed.shape[:-1], 8 // bits, packed.shape[-1]), dtype=np.uint8)
    for plane in range(8 // bits):
        np.right_shift(packed, plane * bits, out=planes[..., plane, :])
    planes &= (1 << bits) - 1
    return planes


def _scale_sub_blocks(out: Out, scale: Out, minimum: Out | None = None) -> None:
    """Multiply sub-blocks of `out` [block, 256] by `scale` [block, sub-block], then take `minimum` off."""
    parts = out.reshape(*scale.shape, -1)
    parts *= scale[..., None]
    if minimum is not None:
        parts -= minimum[..., None]


def _six_bit_pairs(scales: Codes) -> tuple[Codes, Codes]:
    """Eight 6-bit scales and eight 6-bit minima [block, 8] of 12 bytes.

    Bytes 0-3 and 4-7 hold the first four scales and minima in their low six bits; their top two bits, and the nibbles
    of bytes 8-11, make up the last four.
    """
    first, second, nibble = scales[:, 0:4], scales[:, 4:8], scales[:, 8:12]
    scale = np.concatenate([first & 63, (nibble & 15) | ((first >> 6) << 4)], axis=1)
    minimum = np.concatenate([second & 63, (nibble >> 4) | ((second >> 6) << 4)], axis=1)
    return scale, minimum


def _q2_k(blocks: Blocks, out: Out) -> None:
    out[...] = _planes(blocks["qs"].reshape(-1, 2, 32), 2).reshape(-1, 256)
    scale = column(blocks["d"]) * (blocks["scales"] & 15).astype(np.float32)
    minimum = column(blocks["dmin"]) * (blocks["scales"] >> 4).astype(np.float32)
    _scale_sub_blocks(out, scale, minimum)


def _q3_k(blocks: Blocks, out: Out) -> None:
    out[...] = _planes(blocks["qs"].reshape(-1, 2, 32), 2).reshape(-1, 256)
    high = _planes(blocks["hmask"], 1).reshape(-1, 256)
    out += high * np.float32(4)
    out -= 4  # a set bit of the mask means that nothing is taken off
    low, top = nibbles(blocks["scales"][:, :8]), _planes(blocks["scales"][:, 8:], 2).reshape(-1, 16)
    scale = (low | (top << 4)).astype(np.float32) - 32
    _scale_sub_blocks(out, column(blocks["d"]) * scale)


def _q4_k(blocks: Blocks, out: Out) -> None:
    out[...] = nibbles(blocks["qs"].reshape(-1, 4, 32)).reshape(-1, 256)
    scale, minimum = _six_bit_pairs(blocks["scales"])
    _scale_sub_blocks(
        out, column(blocks["d"]) * scale.astype(np.float32), column(blocks["dmin"]) * minimum.astype(np.float32)
    )


def _q5_k(blocks: Blocks, out: Out) -> None:
    codes = nibbles(blocks["qs"].reshape(-1, 4, 32)).reshape(-1, 256)
    codes |= _planes(blocks["qh"], 1).reshape(-1, 256) << 4
    out[...] = codes
    scale, minimum = _six_bit_pairs(blocks["scales"])
    _scale_sub_blocks(
        out, column(blocks["d"]) * scale.astype(np.float32), column(blocks["dmin"]) * minimum.astype(np.float32)
    )


def _q6_k(blocks: Blocks, out: Out) -> None:
    codes = nibbles(blocks["ql"].reshape(-1, 2, 64)).reshape(-1, 256)
    codes |= _planes(blocks["qh"].reshape(-1, 2, 32), 2).reshape(-1, 256) << 4
    out[...] = codes
    out -= 32
    _scale_sub_blocks(out, column(blocks["d"]) * blocks["scales"].astype(np.float32))


def _q8_k(blocks: Blocks, out: Out) -> None:
    np.multiply(blocks["qs"], blocks["d"][:, None], out=out, dtype=np.float32)


def _iq4_xs(blocks: Blocks, out: Out) -> None:
    codes = nibbles(blocks["qs"].reshape(-1, 8, 16)).reshape(-1, 256)
    np.take(IQ4_LEVELS, codes, out=out, mode="clip")
    low = _planes(blocks["scales_l"][..., None], 4).reshape(-1, 8)
    high = _planes(np.ascontiguousarray(blocks["scales_h"])[..., None], 2).reshape(-1, 8)
    scale = (low | (high << 4)).astype(np.float32) - 32
    _scale_sub_blocks(out, column(blocks["d"]) * scale)


_D, _DMIN = ("d", "<f2"), ("dmin", "<f2")

# name, number in GGUF files, values a block, dtype of a block, decoder, whether float32 holds every value
TABLE = (
    ("Q2_K", 10, 256, [("scales", "u1", (16,)), ("qs", "u1", (64,)), _D, _DMIN], _q2_k, True),
    ("Q3_K", 11, 256, [("hmask", "u1", (32,)), ("qs", "u1", (64,)), ("scales", "u1", (12,)), _D], _q3_k, True),
    ("Q4_K", 12, 256, [_D, _DMIN, ("scales", "u1", (12,)), ("qs", "u1", (128,))], _q4_k, True),
    ("Q5_K", 13, 256, [_D, _DMIN, ("scales", "u1", (12,)), ("qh", "u1", (32,)), ("qs", "u1", (128,))], _q5_k, True),
    ("Q6_K", 14, 256, [("ql", "u1", (128,)), ("qh", "u1", (64,)), ("scales", "i1", (16,)), _D], _q6_k, True),
    ("Q8_K", 15, 256, [("d", "<f4"), ("qs", "i1", (256,)), ("bsums", "<i2", (16,))], _q8_k, True),
    ("IQ4_XS", 23, 256, [_D, ("scales_h", "u1", (2,)), ("scales_l", "u1", (4,)), ("qs", "u1", (128,))], _iq4_xs, True),
)
