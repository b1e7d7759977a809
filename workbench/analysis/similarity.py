"""How alike two sets of states of the same rows are.

Every similarity has a z-scored twin: one massive dimension can make unrelated sets look equal (arXiv:2402.17762), and
the twin takes its weight away. Measures of spaces (CKA, neighbour overlap) z-score each side by itself; measures of
displacement (error, cosine) use the reference's mean and scale on both sides, or a shift would be hidden.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from workbench.errors import AnalysisError
from workbench.index.blocks import BLOCK_BYTES, F32, F64, I64, Moments, Rows, moments, rows_of


@dataclass(frozen=True, kw_only=True, slots=True)
class Cka:
    """Debiased linear CKA and its z-scored twin over `n` rows: about 0 where unrelated (or below), 1 where equal.

    `constant_dims` are the dimensions of either side that never change; they are left out of the twin.
    """

    raw: float
    zscored: float
    n: int
    constant_dims: tuple[int, int]


def debiased_linear_cka(a: Any, b: Any) -> Cka:
    """Compare two sets of states of the same rows, blind to rotation and scale.

    Parameters
    ----------
    a, b : array, stored tap or Rows, [row, d_model]
        Row i of both belongs together; `d_model` may differ between the two.

    Returns
    -------
    Cka
        Raw and z-scored, with the number of rows.

    Raises
    ------
    AnalysisError
        If the numbers of rows differ or are below four, or one side never changes.

    References
    ----------
    Kornblith et al. (2019), arXiv:1905.00414; debiased as in Murphy et al. (2024), arXiv:2405.01012. No [row, row]
    matrix is made: with `kx`, `ky` the squared norms of the centred rows,
    `hsic = (|X'Y|^2 - kx.ky + sum(kx) sum(ky) / ((n-1)(n-2)) - 2 kx.ky / (n-2)) / (n (n-3))`.
    """
    left, right = rows_of(a), rows_of(b)
    check_pair(left, right, least=4)
    sums = SpaceSums(moments(left), moments(right), dtype=np.float64)
    for _, x, y in paired_blocks(left, right):
        sums.add(*sums.centre(x, y))
    return sums.cka()


def check_pair(left: Rows, right: Rows, *, least: int = 1) -> None:
    """Refuse two sets whose rows cannot belong together."""
    if len(left) != len(right):
        raise AnalysisError(
            "both sides must hold the same rows", f"{len(left)} and {len(right)} rows", "Join them first."
        )
    if len(left) < least:
        raise AnalysisError(f"this measure needs at least {least} rows", f"{len(left)}", "Give more rows.")


def paired_blocks(left: Rows, right: Rows, size_bytes: int = BLOCK_BYTES // 2) -> Any:
    """Yield (first row, block of the left, block of the right) with the same rows in both."""
    step = max(1, size_bytes // (4 * max(left.shape[1], right.shape[1])))
    pairs = zip(left.blocks(4 * step * left.shape[1]), right.blocks(4 * step * right.shape[1]), strict=True)
    for (first, x), (_, y) in pairs:
        yield first, x, y


class SpaceSums:
    """Sums over rows from which CKA and its twin follow, whatever the number of rows.

    Products are taken in `dtype` within a block and added up in float64. The twin needs no second set of products:
    scaling the dimensions of centred X and Y scales rows and columns of X'Y.
    """

    def __init__(self, left: Moments, right: Moments, *, dtype: npt.DTypeLike = np.float32) -> None:
        self.left, self.right, self.dtype = left, right, dtype
        width = len(left.mean)
        total = width + len(right.mean)
        self.split, self.n = width, 0
        self.gram = np.zeros((total, total))
        self.mean = np.concatenate([left.mean, right.mean]).astype(dtype)
        self.weights = tuple(
            np.stack([np.ones_like(side.mean), np.where(side.constant, 0.0, side.scale**-2.0)], axis=1).astype(dtype)
            for side in (left, right)
        )
        # sums of kx, ky, kx*kx, ky*ky, kx*ky; one column raw, one z-scored
        self.norms = np.zeros((5, 2))

    def centre(self, x: F32, y: F32) -> tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]:
        """Centre a block of both sides into one array [row, d_left + d_right]; also views of its two parts."""
        both = np.empty((len(x), len(self.mean)), self.dtype)
        np.subtract(x, self.mean[: self.split], out=both[:, : self.split])
        np.subtract(y, self.mean[self.split :], out=both[:, self.split :])
        return both, both[:, : self.split], both[:, self.split :]

    def add(self, both: npt.NDArray[Any], x: npt.NDArray[Any], y: npt.NDArray[Any]) -> tuple[F64, F64]:
        """Add a centred block; gives back the squared row norms [row, (raw, z-scored)] of both sides."""
        self.n += len(both)
        self.gram += both.T @ both
        kx = ((x * x) @ self.weights[0]).astype(np.float64)
        ky = ((y * y) @ self.weights[1]).astype(np.float64)
        self.norms += [side.sum(axis=0) for side in (kx, ky, kx * kx, ky * ky, kx * ky)]
        return kx, ky

    def cka(self) -> Cka:
        """Finish: CKA from the sums so far."""
        scales = [np.sqrt(side[:, 1].astype(np.float64)) for side in self.weights]
        z = np.concatenate(scales)
        values = [
            self._cka(self.gram, self.norms[:, 0]),
            self._cka(self.gram * z[:, None] * z[None, :], self.norms[:, 1]),
        ]
        constant = (int(self.left.constant.sum()), int(self.right.constant.sum()))
        return Cka(raw=values[0], zscored=values[1], n=self.n, constant_dims=constant)

    def _cka(self, gram: F64, norms: F64) -> float:
        s, n = self.split, self.n
        sum_x, sum_y, xx, yy, xy = norms

        def hsic(product: F64, a: float, b: float, ab: float) -> float:
            square = float((product**2).sum())
            return (square - ab + a * b / ((n - 1) * (n - 2)) - 2 * ab / (n - 2)) / (n * (n - 3))

        own = hsic(gram[:s, :s], sum_x, sum_x, xx) * hsic(gram[s:, s:], sum_y, sum_y, yy)
        if not own > 0:
            raise AnalysisError("CKA needs rows that differ", "a side whose rows are all equal", "Leave this tap out.")
        return float(hsic(gram[:s, s:], sum_x, sum_y, xy) / np.sqrt(own))


def cosine_distance(error: F64, a: F64, b: F64) -> F64:
    """1 - cosine of pairs, from |a - b|^2, |a|^2 and |b|^2; NaN where a side is zero.

    Not from the dot product: in float32 that would lose every distance below 1e-7, which is where builds differ.
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        size = np.sqrt(a * b)
        value = (error - (np.sqrt(a) - np.sqrt(b)) ** 2) / (2 * size)
        return np.where(size > 0, np.maximum(value, 0.0), np.nan)


def permuted_cosine(a: F32, b: F32, *, seed: int = 0, repeats: int = 5) -> float:
    """Mean cosine over permuted pairs: what unrelated rows of these two sets already give.

    Parameters
    ----------
    a, b : float32 [row, d_model]
    repeats : int
        Permutations; no row is paired with itself.
    """
    n = len(a)
    if n < 2:
        raise AnalysisError("the cosine floor needs at least two rows", f"{n}", "Give more rows.")
    rng = np.random.default_rng(seed)
    sizes = [np.linalg.norm(side.astype(np.float64), axis=1) for side in (a, b)]
    values = []
    for shift in rng.integers(1, n, size=repeats):
        order = rng.permutation(n)
        partner = np.empty(n, np.int64)
        partner[order] = np.roll(order, shift)  # a derangement: a shuffled circle, turned
        dots = np.einsum("ij,ij->i", a, b[partner], dtype=np.float64)
        size = sizes[0] * sizes[1][partner]
        values.append(float(np.mean(dots[size > 0] / size[size > 0])) if (size > 0).any() else np.nan)
    return float(np.mean(values))


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Overlap:
    """Share of the k nearest rows that two spaces have in common.

    `per_row` is float64 [row]; `chance` is what unrelated spaces give, k / (n - 1), or its mean where rows of the same
    prompt are left out.
    """

    mean: float
    chance: float
    k: int
    n: int
    metric: str
    per_row: F64


def neighbour_overlap(
    a: F32, b: F32, k: int = 10, *, groups: npt.ArrayLike | None = None, centre: bool = True
) -> Overlap:
    """Compare exact k-nearest-neighbour sets of two spaces in high dimensions, never on a map.

    Parameters
    ----------
    a, b : float32 [row, d_model]
        `d_model` may differ.
    k : int
        Neighbours a row; the row itself is never one.
    groups : int64 [row], optional
        Rows of the same group (prompt) are no neighbours.
    centre : bool
        Remove each side's mean first; without it the cosine of hidden states is high everywhere.
    """
    n = len(a)
    if len(b) != n or n < 2 or not 1 <= k < n:
        raise AnalysisError(
            "neighbour overlap needs equal numbers of rows, more than k", f"{n}, {len(b)}, k={k}", "Lower k."
        )
    barred = np.arange(n) if groups is None else np.asarray(groups)
    sets = [neighbour_sets(side - side.mean(axis=0) if centre else side, k, barred) for side in (a, b)]
    shared = (sets[0][:, :, None] == sets[1][:, None, :]) & (sets[0][:, :, None] >= 0)
    per_row = shared.sum(axis=(1, 2)) / k
    sizes = np.bincount(np.unique(barred, return_inverse=True)[1])[np.unique(barred, return_inverse=True)[1]]
    chance = float(np.mean(k / np.maximum(n - sizes, 1)))
    name = "cosine after removing the mean" if centre else "cosine"
    return Overlap(mean=float(per_row.mean()), chance=min(chance, 1.0), k=k, n=n, metric=name, per_row=per_row)


def neighbour_sets(states: F32, k: int, barred: npt.ArrayLike) -> I64:
    """Nearest rows of every row by cosine, unordered, int64 [row, k]; equal `barred` values never count, -1 fills."""
    groups = np.asarray(barred)
    size = np.linalg.norm(states, axis=1, keepdims=True)
    unit = np.ascontiguousarray(states / np.where(size > 0, size, 1), dtype=np.float32)
    out = np.empty((len(unit), k), np.int64)
    alone = len(np.unique(groups)) == len(groups)  # each row bars itself only
    step = max(1, BLOCK_BYTES // (4 * len(unit)))
    for first in range(0, len(unit), step):
        score = unit[first : first + step] @ unit.T
        here = np.arange(first, first + len(score))
        if alone:
            score[here - first, here] = -np.inf
        else:
            score[groups[here, None] == groups[None, :]] = -np.inf
        out[first : first + step] = _largest(score, k)
    return out


def _largest(score: F32, k: int) -> I64:
    """Columns of the k largest scores of each row, int64 [row, k], unordered; -1 for scores of -inf."""
    cut = np.partition(score, score.shape[1] - k, axis=1)[:, -k]
    inside = score >= cut[:, None]
    if np.count_nonzero(inside) == inside.shape[0] * k:  # no ties at any cut: several times faster than argpartition
        columns: I64 = np.flatnonzero(inside) % inside.shape[1]  # np.nonzero takes ten times as long in 2-D
        return columns.reshape(-1, k)
    near = np.argpartition(score, score.shape[1] - k, axis=1)[:, -k:]
    near[np.take_along_axis(score, near, axis=1) == -np.inf] = -1
    return near
