"""Grids of 4 bits: one that is fitted to a matrix, and the one that a checkpoint's file already has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.graph.blocks import BLOCK, in_blocks, joined

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from workbench.checkpoint.weights import Weights

_MIDDLE = 8
_SHRINKS = (1.0, 0.95, 0.9, 0.85, 0.8)
_LAYOUT = {"Q4_0": (18, 2), "Q4_1": (20, 4)}  # bytes of a block of 32, and where its codes begin


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Grid:
    """A matrix as its file stores it.

    Parameters
    ----------
    parts : tuple of array
        Codes uint8 [out, block, 16], two a byte, the even one low; scales float32 [out, block]; offsets float32
        [out, block]. A weight is `(code - 8) * scale + offset`.
    """

    parts: tuple[NDArray[np.uint8], NDArray[np.float32], NDArray[np.float32]]


def quantise4(matrix: NDArray[np.float32]) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """Round a matrix to 4 bits in blocks along its rows; of a few scales, each block takes the one that errs least.

    Parameters
    ----------
    matrix : float32 [out, in]
        Weights.

    Returns
    -------
    codes : uint8 [out, block, 16]
        Two a byte, the even one low; whole numbers -8 to 7, plus 8.
    scales : float32 [out, block]
        A weight is `(code - 8) * scale`.
    """
    blocks = in_blocks(matrix)
    n_out, n_blocks, _ = blocks.shape
    at = np.abs(blocks).argmax(axis=2)[:, :, None]
    extreme = np.take_along_axis(blocks, at, axis=2)[:, :, 0] / np.float32(-_MIDDLE)  # it becomes -8 and is exact
    best_error = np.full((n_out, n_blocks), np.inf, dtype=np.float32)
    best_scale = np.ones((n_out, n_blocks), dtype=np.float32)
    best_codes = np.zeros(blocks.shape, dtype=np.uint8)
    for shrink in _SHRINKS:
        scale = np.where(extreme == 0, np.float32(1), extreme * np.float32(shrink)).astype(np.float32)
        levels = np.clip(np.rint(blocks / scale[:, :, None]), -_MIDDLE, _MIDDLE - 1)
        error = np.square(levels * scale[:, :, None] - blocks).sum(axis=2)
        better = error < best_error
        best_error = np.where(better, error, best_error)
        best_scale = np.where(better, scale, best_scale)
        best_codes = np.where(better[:, :, None], (levels + _MIDDLE).astype(np.uint8), best_codes)
    return _packed(best_codes), best_scale


def grid_of(weights: Weights, name: str) -> Grid | None:
    """Read the 4-bit grid of a matrix from its file; None where the file has none, or holds it only as a part."""
    raw = getattr(weights, "raw", None)
    kind = weights.type(name) if raw is not None else ""
    if kind not in _LAYOUT or raw is None:
        return None
    shape, data = weights.shape(name), raw(name)
    if len(shape) != 2 or shape[1] % BLOCK or data is None:
        return None
    size, start = _LAYOUT[kind]
    blocks = np.asarray(data, dtype=np.uint8).reshape(shape[0], shape[1] // BLOCK, size)
    head = np.ascontiguousarray(blocks[:, :, :start]).view(np.float16).astype(np.float32)
    scales = np.ascontiguousarray(head[:, :, 0])
    codes = np.concatenate([blocks[:, :, start:] & 15, blocks[:, :, start:] >> 4], axis=2)  # low halves come first
    offsets = head[:, :, 1] + _MIDDLE * scales if kind == "Q4_1" else np.zeros_like(scales)
    return Grid(parts=(_packed(codes), scales, offsets))


def values_of(grid: Grid) -> NDArray[np.float32]:
    """Give back the matrix [out, in] that a grid stands for."""
    codes, scales, offsets = grid.parts
    return joined(_levels(codes) * scales[:, :, None] + offsets[:, :, None], codes.shape[1] * BLOCK)


def dequantise4(codes: NDArray[np.uint8], scales: NDArray[np.float32], n_in: int) -> NDArray[np.float32]:
    """Give back the matrix [out, in] that codes and scales of `quantise4` stand for."""
    return joined(_levels(codes) * scales[:, :, None], n_in)


def _packed(codes: NDArray[Any]) -> NDArray[np.uint8]:
    return np.ascontiguousarray(codes[:, :, 0::2] | (codes[:, :, 1::2] << 4)).astype(np.uint8)


def _levels(codes: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Whole numbers -8 to 7, [out, block, 32]."""
    both = np.stack([codes & 15, codes >> 4], axis=-1)
    return both.reshape(*codes.shape[:2], -1).astype(np.float32) - np.float32(_MIDDLE)
