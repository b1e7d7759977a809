"""Rows in blocks: one way to walk an array, a stored tap, or a part of either, in float32 and bounded memory.

Every measure of the analysis room that walks all rows takes a `Rows`, so it works alike on an array in memory and on a
run larger than memory. A block is float32; sums over blocks are float64.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from workbench.errors import AnalysisError

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]
Progress = Callable[[int, int], None]

BLOCK_BYTES = 16 << 20  # of float32: small beside memory, large enough for the matrix product to run at full speed


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Rows:
    """Rows of one tap, or of several stacked, read in float32 blocks.

    Parameters
    ----------
    parts : tuple of array-like [row, d_model]
        NumPy arrays or stored taps (anything with `shape` and `[...]`).
    picks : tuple of (int64 [row] or None)
        Rows taken from each part, in order; None takes all.
    """

    parts: tuple[Any, ...]
    picks: tuple[I64 | None, ...]

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and width."""
        counts = (
            part.shape[0] if pick is None else len(pick) for part, pick in zip(self.parts, self.picks, strict=True)
        )
        return sum(counts), int(self.parts[0].shape[1])

    def __len__(self) -> int:
        return self.shape[0]

    def blocks(self, size_bytes: int = BLOCK_BYTES) -> Iterator[tuple[int, F32]]:
        """Yield (first row, float32 [row, d_model]) in order; a block may be read-only or a view."""
        step = max(1, size_bytes // (4 * max(1, self.shape[1])))
        done = 0
        for part, pick in zip(self.parts, self.picks, strict=True):
            total = int(part.shape[0]) if pick is None else len(pick)
            if pick is None and hasattr(part, "blocks"):  # a stored tap: its own walk also checks the stored bytes
                for first, block in part.blocks(4 * step * self.shape[1]):
                    yield done + first, block
                done += total
                continue
            for first in range(0, total, step):
                at = slice(first, min(first + step, total))
                block = np.asarray(part[at] if pick is None else part[pick[at]], dtype=np.float32)
                yield done + first, block
            done += total

    def take(self, rows: npt.ArrayLike | None = None) -> F32:
        """Gather rows (by their number in this object) into one float32 [row, d_model] array; None takes all."""
        if rows is None:
            blocks = [block for _, block in self.blocks()]
            return np.concatenate(blocks) if blocks else np.empty(self.shape, np.float32)
        wanted = np.asarray(rows, dtype=np.int64)
        out = np.empty((len(wanted), self.shape[1]), np.float32)
        done = 0
        for part, pick in zip(self.parts, self.picks, strict=True):
            total = int(part.shape[0]) if pick is None else len(pick)
            here = np.flatnonzero((wanted >= done) & (wanted < done + total))
            if len(here):
                local = wanted[here] - done
                out[here] = np.asarray(part[local if pick is None else pick[local]], dtype=np.float32)
            done += total
        return out


def rows_of(*parts: Any, rows: npt.ArrayLike | None = None) -> Rows:
    """Make a `Rows` of one or several arrays or taps; `rows` picks from a single one.

    Raises
    ------
    AnalysisError
        If a part is not two-dimensional, or widths differ.
    """
    if len(parts) == 1 and isinstance(parts[0], Rows):
        if rows is None:
            return parts[0]
        return pick_rows(parts[0], rows)
    for part in parts:
        if len(part.shape) != 2 or part.shape[1] != parts[0].shape[1]:
            got = "; ".join(str(tuple(other.shape)) for other in parts)
            raise AnalysisError("states must be [row, d_model] of one width", got, "Take all from one model.")
    if rows is not None and len(parts) > 1:
        raise AnalysisError("rows are picked from one array at a time", f"{len(parts)} arrays", "Pick before stacking.")
    return Rows(parts=parts, picks=(None if rows is None else as_rows(rows, int(parts[0].shape[0])),) * len(parts))


def pick_rows(source: Rows, rows: npt.ArrayLike) -> Rows:
    """Keep only some rows of a `Rows` (sorted by part)."""
    wanted = as_rows(rows, len(source))
    picks: list[I64] = []
    done = 0
    for part, pick in zip(source.parts, source.picks, strict=True):
        total = int(part.shape[0]) if pick is None else len(pick)
        local = wanted[(wanted >= done) & (wanted < done + total)] - done
        picks.append(local if pick is None else pick[local])
        done += total
    return Rows(parts=source.parts, picks=tuple(picks))


def as_rows(rows: npt.ArrayLike, n_rows: int) -> I64:
    """Turn row ids or a boolean mask into int64 row ids, checked against the number of rows."""
    given = np.asarray(rows)
    if given.dtype == np.bool_:
        if given.shape != (n_rows,):
            raise AnalysisError(f"a row mask must be [row={n_rows}]", str(given.shape), "Give one value a row.")
        return np.flatnonzero(given).astype(np.int64)
    ids = given.astype(np.int64)
    if ids.ndim != 1 or (len(ids) and (ids.min() < 0 or ids.max() >= n_rows)):
        got = f"shape {ids.shape}, from {ids.min()} to {ids.max()}" if ids.size else f"shape {ids.shape}"
        raise AnalysisError(f"row ids must be one list from 0 to {n_rows - 1}", got, "Give row ids of this run.")
    return ids


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Moments:
    """Mean and population variance of every dimension, float64 [d_model], over `count` rows."""

    count: int
    mean: F64
    variance: F64

    @property
    def scale(self) -> F64:
        """Standard deviation, with 1 where a dimension is constant (so that dividing leaves it at 0)."""
        return np.where(self.constant, 1.0, np.sqrt(self.variance))

    @property
    def constant(self) -> npt.NDArray[np.bool_]:
        """Which dimensions never change: variance within rounding of float32 values of that size."""
        return self.variance <= (np.abs(self.mean) * 2.0**-22) ** 2

    def massive(self, top: int = 5) -> list[tuple[int, float]]:
        """List the dimensions with the largest share of the total variance: (dimension, share)."""
        total = float(self.variance.sum())
        order = np.argsort(self.variance)[::-1][:top]
        return [(int(dim), float(self.variance[dim] / total) if total else 0.0) for dim in order]


def moments(source: Any, progress: Progress | None = None) -> Moments:
    """Measure mean and variance in one pass; blocks merge as in Chan et al. (1979), in float64."""
    rows = rows_of(source)
    count, mean, square = 0, np.zeros(rows.shape[1]), np.zeros(rows.shape[1])
    for first, block in rows.blocks():
        here = len(block)
        block_mean = block.mean(axis=0, dtype=np.float64)
        centred = block - block_mean.astype(np.float32)
        residue = centred.mean(axis=0, dtype=np.float64)  # what rounding the mean to float32 left over
        spread = np.einsum("ij,ij->j", centred, centred, dtype=np.float64) - here * residue**2
        shift = block_mean - mean
        square += spread + shift**2 * (count * here / (count + here))
        mean = mean + shift * (here / (count + here))
        count += here
        if progress:
            progress(first + here, len(rows))
    return Moments(count=count, mean=mean, variance=np.maximum(square, 0.0) / max(count, 1))
