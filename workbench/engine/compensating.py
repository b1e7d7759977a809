"""Error-compensated rounding to 4 bits: what one column loses, the columns that are still to be rounded make up for.

A product is judged by its outputs: the change of a matrix counts as much as the Gram matrix of its inputs says. Blocks
are rounded in the order of their inputs' size, columns within them too, with scale and zero chosen when a block's turn
comes, and the rest of the matrix moves by the least squares that remain. Before that, the whole matrix moves towards
one that undoes what the inputs have lost already.

References
----------
Frantar et al. (2023), arXiv:2210.17323; Li et al. (2025), arXiv:2504.02692.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.graph.blocks import BLOCK
from workbench.graph.grids import Fit, codes4, levels4

if TYPE_CHECKING:
    from numpy.typing import NDArray

DAMPING = 0.1
PULL = 0.5  # more follows the prompts of calibration, and errs more on others
_STIFFNESS = 1.0


def compensated(matrix: NDArray[np.float32], gram: NDArray[np.floating[Any]], damping: float = DAMPING) -> Fit:
    """Fit a matrix to 4 bits so that its product errs little.

    Parameters
    ----------
    matrix : float32 [out, in]
        Weights; matrices that read the same inputs may lie one on another.
    gram : float [in, in]
        Sum of the outer products of the inputs. Inputs that were never seen, or always together, are no harm.
    damping : float
        Share of the mean of the Gram matrix's diagonal that every input counts besides.

    Returns
    -------
    Fit
        In blocks of 32 along the rows.
    """
    n_out, n_in = matrix.shape
    n_blocks = -(-n_in // BLOCK)
    blocks, factor = _plan(gram, n_blocks, damping)
    rest = np.zeros((n_blocks * BLOCK, n_out), dtype=np.float32)
    rest[:n_in] = matrix.T
    rest = rest[blocks.reshape(-1)]
    codes = np.empty((n_blocks, BLOCK, n_out), dtype=np.uint8)
    scales = np.empty((n_blocks, n_out), dtype=np.float32)
    zeros = np.empty((n_blocks, n_out), dtype=np.uint8)
    for turn, columns in enumerate(blocks):
        start, stop = turn * BLOCK, (turn + 1) * BLOCK
        mine = factor[start:stop, start:stop]
        scale, zero = levels4(rest[start:stop], np.diag(mine) ** -2)
        rounded, lost = _rounded(rest[start:stop], mine, scale, zero)
        rest[stop:] -= factor[start:stop, stop:].T @ lost
        at = columns[0] // BLOCK
        codes[at, columns % BLOCK] = rounded
        scales[at], zeros[at] = scale, zero
    return Fit(
        codes=np.ascontiguousarray(codes.transpose(2, 0, 1)),
        scales=np.ascontiguousarray(scales.T),
        zeros=np.ascontiguousarray(zeros.T),
        n_in=n_in,
    )


def aimed(matrix: NDArray[np.float32], inputs: NDArray[np.float32], exact: NDArray[np.float32]) -> NDArray[np.float32]:
    """Move a matrix so that inputs which have lost something already give more of what exact ones would.

    Parameters
    ----------
    matrix : float32 [out, in]
        Weights.
    inputs, exact : float32 [token, in]
        What reaches the product with the fitted weights before it, and with those of the checkpoint.

    Returns
    -------
    float32 [out, in]
        Of the least squares that also count how far the matrix moves, `PULL` of the way.
    """
    gram = inputs.T @ inputs
    mean = float(np.diag(gram).mean()) if len(inputs) else 0.0
    if not mean:
        return matrix
    gram[np.diag_indices_from(gram)] += np.float32(_STIFFNESS * mean)
    missing = inputs.T @ ((exact - inputs) @ matrix.T)
    return np.asarray(matrix + PULL * np.linalg.solve(gram, missing).T, dtype=np.float32)


def _plan(
    gram: NDArray[np.floating[Any]], n_blocks: int, damping: float
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Order of columns int64 [block, 32], and the upper Cholesky factor of the damped inverse in that order."""
    n_in = len(gram)
    full = np.zeros((n_blocks * BLOCK, n_blocks * BLOCK))
    full[:n_in, :n_in] = gram
    size = np.diag(full).copy()
    mean = size[:n_in].mean()
    full[np.diag_indices_from(full)] += damping * mean if mean > 0 else 1.0
    blocks = np.arange(len(full)).reshape(n_blocks, BLOCK)
    blocks = blocks[np.argsort(-size[blocks].sum(axis=1), kind="stable")]
    blocks = np.take_along_axis(blocks, np.argsort(-size[blocks], axis=1, kind="stable"), axis=1)
    order = blocks.reshape(-1)
    backwards: NDArray[np.float64] = np.ascontiguousarray(full[np.ix_(order, order)][::-1, ::-1])
    lower = _inverse(np.asarray(np.linalg.cholesky(backwards)))  # the inverse's factor, without the inverse
    return blocks, np.ascontiguousarray(lower[::-1, ::-1], dtype=np.float32)


def _inverse(lower: NDArray[np.float64]) -> NDArray[np.float64]:
    """Inverse of a lower triangular matrix, by halves: products of matrices do nearly all of the work."""
    half = len(lower) // 2
    if half < BLOCK:
        return np.tril(np.linalg.inv(lower))
    found = np.zeros_like(lower)
    found[:half, :half], found[half:, half:] = _inverse(lower[:half, :half]), _inverse(lower[half:, half:])
    found[half:, :half] = -found[half:, half:] @ (lower[half:, :half] @ found[:half, :half])
    return found


def _rounded(
    rest: NDArray[np.float32], factor: NDArray[np.float32], scale: NDArray[np.float32], zero: NDArray[np.float32]
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Codes [in, out] of one block, and what each column loses as a share of its own room; `rest` is changed."""
    codes, lost = np.empty_like(rest), np.empty_like(rest)
    for column, values in enumerate(rest):
        codes[column] = codes4(values, scale, zero)
        lost[column] = (values - (codes[column] - zero) * scale) / factor[column, column]
        rest[column + 1 :] -= factor[column, column + 1 :, None] * lost[column]
    return codes, lost
