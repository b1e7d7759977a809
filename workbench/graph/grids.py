"""Grids of 4 bits: one that is fitted to a matrix, and the one that a checkpoint's file already has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.checkpoint.weights import ChangedWeights, Weights
from workbench.graph.blocks import BLOCK, in_blocks, joined

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

LEVELS = 15  # the largest code
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


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Fit:
    """A matrix that was fitted to 4 bits. A weight is `(code - zero) * scale`.

    Parameters
    ----------
    codes : uint8 [out, block, 32]
        Whole numbers 0 to 15; those beyond the end of a row are the zero.
    scales : float32 [out, block]
        Above 0.
    zeros : uint8 [out, block]
        Whole numbers 0 to 15.
    n_in : int
        Length of a row.
    """

    codes: NDArray[np.uint8]
    scales: NDArray[np.float32]
    zeros: NDArray[np.uint8]
    n_in: int

    @property
    def packed(self) -> NDArray[np.uint8]:
        """Codes uint8 [out, block, 16], two a byte, the even one low."""
        return _packed(self.codes)

    @property
    def packed_zeros(self) -> NDArray[np.uint8]:
        """Zeros uint8 [out, (block + 1) // 2], two a byte, the even one low; each row begins a byte."""
        even = np.pad(self.zeros, ((0, 0), (0, self.zeros.shape[1] % 2)))
        return _packed(even[:, None, :])[:, 0]

    @property
    def matrix(self) -> NDArray[np.float32]:
        """The matrix [out, in] that they stand for."""
        levels = self.codes.astype(np.float32) - self.zeros[:, :, None].astype(np.float32)
        return joined(levels * self.scales[:, :, None], self.n_in)

    def rows(self, order: NDArray[Any]) -> Fit:
        """The same of other rows, or of rows in another order."""
        return Fit(codes=self.codes[order], scales=self.scales[order], zeros=self.zeros[order], n_in=self.n_in)


class Fitted(ChangedWeights):
    """Weights of which some matrices were fitted to 4 bits; they have the fitted values.

    Parameters
    ----------
    weights : Weights
        The others.
    fits : mapping of str to Fit
        By tensor name.
    """

    def __init__(self, weights: Weights, fits: Mapping[str, Fit]) -> None:
        super().__init__(weights)
        self._fits = fits

    def __getitem__(self, name: str) -> NDArray[np.float32]:
        return self._fits[name].matrix if name in self._fits else self._weights[name]

    def fit(self, name: str) -> Fit | None:
        """What a matrix was fitted to, or None where it is as it was."""
        return self._fits.get(name)


def fit_of(weights: Weights, name: str) -> Fit | None:
    """What a matrix was fitted to; None where it was not."""
    find = getattr(weights, "fit", None)
    found: Fit | None = None if find is None else find(name)
    return found


def fit4(matrix: NDArray[np.float32]) -> Fit:
    """Fit a matrix [out, in] to 4 bits in blocks along its rows, each weight to the nearest of its block's levels."""
    blocks = in_blocks(matrix)
    flat = np.ascontiguousarray(blocks.reshape(-1, BLOCK).T)
    scales, zeros = levels4(flat, np.ones(BLOCK, dtype=np.float32))
    shape = blocks.shape[:2]
    codes = np.ascontiguousarray(codes4(flat, scales, zeros).T).astype(np.uint8).reshape(blocks.shape)
    return Fit(
        codes=codes, scales=scales.reshape(shape), zeros=zeros.astype(np.uint8).reshape(shape), n_in=matrix.shape[1]
    )


def levels4(
    block: NDArray[np.float32], importance: NDArray[np.float32]
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Choose scale and zero of blocks: of a few ranges, each takes the one that errs least.

    Parameters
    ----------
    block : float32 [in, out]
        One block of the inputs of every output.
    importance : float32 [in]
        What the square of an error counts.

    Returns
    -------
    scales, zeros : float32 [out]
        Scales above 0; zeros whole numbers 0 to 15. 0 is always a level.
    """
    low, high = np.minimum(block.min(axis=0), 0), np.maximum(block.max(axis=0), 0)
    best = np.full(block.shape[1], np.inf, dtype=np.float32)
    best_scale, best_zero = np.ones_like(best), np.zeros_like(best)
    for shrink in _SHRINKS:
        step = (high - low) * np.float32(shrink / LEVELS)
        scale = np.where(step > np.finfo(np.float32).tiny, step, np.float32(1))
        zero = np.clip(np.rint(-low * np.float32(shrink) / scale), 0, LEVELS)
        change = (codes4(block, scale, zero) - zero) * scale - block
        error = importance @ np.square(change, out=change)
        better = error < best
        best = np.where(better, error, best)
        best_scale, best_zero = np.where(better, scale, best_scale), np.where(better, zero, best_zero)
    return best_scale, best_zero


def codes4(values: NDArray[np.float32], scales: NDArray[np.float32], zeros: NDArray[np.float32]) -> NDArray[np.float32]:
    """Codes of the levels nearest to values [..., out], as float32."""
    codes = np.rint(values / scales) + zeros
    return np.asarray(np.clip(codes, 0, LEVELS, out=codes), dtype=np.float32)


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


def _packed(codes: NDArray[Any]) -> NDArray[np.uint8]:
    return np.ascontiguousarray(codes[:, :, 0::2] | (codes[:, :, 1::2] << 4)).astype(np.uint8)


def _levels(codes: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Whole numbers -8 to 7, [out, block, 32]."""
    both = np.stack([codes & 15, codes >> 4], axis=-1)
    return both.reshape(*codes.shape[:2], -1).astype(np.float32) - np.float32(_MIDDLE)
