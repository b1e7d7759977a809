"""Block-wise 8-bit weights: neighbours of a row, 32 unless it is said, share one float32 scale."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

BLOCK = 32
_ZERO = 128


def in_blocks(matrix: NDArray[np.float32], size: int = BLOCK) -> NDArray[np.float32]:
    """Cut the rows of a matrix [out, in] into blocks, float32 [out, block, size]; the last is filled up with zeros."""
    n_out, n_in = matrix.shape
    n_blocks = -(-n_in // size)
    if n_in % size == 0:
        return matrix.reshape(n_out, n_blocks, size)
    padded = np.zeros((n_out, n_blocks * size), dtype=np.float32)
    padded[:, :n_in] = matrix
    return padded.reshape(n_out, n_blocks, size)


def joined(blocks: NDArray[np.float32], n_in: int) -> NDArray[np.float32]:
    """Give back the matrix [out, in] of blocks [out, block, size]."""
    return np.ascontiguousarray(blocks.reshape(len(blocks), -1)[:, :n_in])


def quantise(matrix: NDArray[np.float32], size: int = BLOCK) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """Round a matrix to 8 bits in blocks along its rows.

    Parameters
    ----------
    matrix : float32 [out, in]
        Weights.
    size : int
        Of a block.

    Returns
    -------
    codes : uint8 [out, block, size]
        Whole numbers -127 to 127, plus 128; the last block of a row is filled up with zeros.
    scales : float32 [out, block]
        A weight is `(code - 128) * scale`; the largest of a block is exact, the others are off by half a scale at most.
    """
    blocks = in_blocks(matrix, size)
    scales = np.abs(blocks).max(axis=2) / np.float32(127)
    inverse = np.divide(np.float32(1), scales, out=np.zeros_like(scales), where=scales > 0)
    codes = np.rint(blocks * inverse[:, :, None]) + np.float32(_ZERO)
    return np.clip(codes, 1, 255).astype(np.uint8), scales


def dequantise(codes: NDArray[np.uint8], scales: NDArray[np.float32], n_in: int) -> NDArray[np.float32]:
    """Give back the matrix [out, in] that codes and scales stand for."""
    return joined((codes.astype(np.float32) - np.float32(_ZERO)) * scales[:, :, None], n_in)
