"""How far the same rows lie apart in two builds, at one tap.

Two passes over the rows: means and variances, then everything else in blocks, with float32 products within a block and
float64 sums. Neighbour overlap and permuted cosines are measured on a stated sample.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from workbench.analysis.similarity import (
    SpaceSums,
    cosine_distance,
    neighbour_overlap,
    paired_blocks,
    permuted_cosine,
)
from workbench.errors import AnalysisError
from workbench.index.blocks import F32, F64, I64, Moments, Progress, Rows, moments

WORST_ROWS = 10
NAN = float("nan")


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class TapDrift:
    """Measures of one tap; errors and cosines use the first run's mean and scale, spaces each their own.

    Attributes
    ----------
    n_rows, n_sample : int
        Rows compared, and rows of the sample for neighbour overlap and permuted cosines.
    error_mean, error_median, error_p99, error_worst : float
        |b - a| / |a| over rows; `zscored_error_mean` the same in units of each dimension's spread.
    cosine_mean, cosine_worst, cosine_floor : float
        Cosine of the pairs, its smallest, and its mean over permuted pairs; `centred_` with the mean removed,
        `zscored_` also scaled.
    cosine_distance_mean : float
        1 - cosine, kept apart since it is lost below 1e-7 of the cosine.
    cka, cka_zscored : float
        Debiased linear CKA.
    overlap, overlap_zscored, overlap_chance : float
        Share of the k nearest rows in common.
    equal_rows : int
        Rows that are equal in every value.
    left_out_a, left_out_b : int
        Rows with inf or NaN; `max_abs_a`, `max_abs_b` the largest value of the others.
    massive_a, massive_b : tuple of (dimension, share of the variance)
    constant_dims : (int, int)
        Dimensions that never change.
    worst_dims : tuple of (dimension, rms error in units of that dimension's spread)
    errors : float32 [row]
        |b - a| / |a| of each joined row; NaN where left out.
    worst : int64 [at most 10]
        Joined rows with the largest error, worst first.
    """

    tap: str
    n_rows: int
    n_sample: int
    error_mean: float = NAN
    error_median: float = NAN
    error_p99: float = NAN
    error_worst: float = NAN
    zscored_error_mean: float = NAN
    cosine_mean: float = NAN
    cosine_worst: float = NAN
    cosine_distance_mean: float = NAN
    cosine_distance_worst: float = NAN
    cosine_floor: float = NAN
    centred_cosine_mean: float = NAN
    centred_cosine_worst: float = NAN
    centred_cosine_floor: float = NAN
    zscored_cosine_mean: float = NAN
    zscored_cosine_floor: float = NAN
    cka: float = NAN
    cka_zscored: float = NAN
    overlap: float = NAN
    overlap_zscored: float = NAN
    overlap_chance: float = NAN
    overlap_k: int = 0
    equal_rows: int = 0
    left_out_a: int = 0
    left_out_b: int = 0
    max_abs_a: float = NAN
    max_abs_b: float = NAN
    massive_a: tuple[tuple[int, float], ...] = ()
    massive_b: tuple[tuple[int, float], ...] = ()
    constant_dims: tuple[int, int] = (0, 0)
    worst_dims: tuple[tuple[int, float], ...] = ()
    errors: F32 = field(default_factory=lambda: np.empty(0, np.float32))
    worst: I64 = field(default_factory=lambda: np.empty(0, np.int64))


def measure_drift(
    tap: str,
    a: Rows,
    b: Rows,
    *,
    sample: I64,
    groups: I64 | None = None,
    k: int = 10,
    seed: int = 0,
    known: tuple[Moments | None, Moments | None] = (None, None),
    progress: Progress | None = None,
) -> TapDrift:
    """Measure one tap on finite, joined rows.

    Parameters
    ----------
    a, b : Rows [row, d_model]
        Row i of both is the same token; `a` is the reference. Of other widths, only the spaces are compared.
    sample : int64 [row]
        Rows for neighbour overlap and permuted cosines.
    groups : int64 [row], optional
        Prompt of each row; if given, rows of the same prompt are no neighbours.
    known : (Moments or None, Moments or None)
        Means and variances of both sides, where they are known; else they take a pass over the rows.
    """
    if len(a) < 1:
        raise AnalysisError("a comparison needs rows", f"none that are finite at {tap}", "See the runs' validity.")
    left, right = known[0] or moments(a), known[1] or moments(b)
    walk = _Walk(left, right, len(a), same_width=a.shape[1] == b.shape[1])
    for first, x, y in paired_blocks(a, b):
        walk.add(first, x, y)
        if progress:
            progress(first + len(x), len(a))
    found: dict[str, Any] = walk.summary() if walk.same_width else {}
    barred = None if groups is None else groups[sample]
    found |= _spaces(walk.sums, a.take(sample), b.take(sample), k=k, groups=barred, seed=seed)
    return TapDrift(
        tap=tap,
        n_rows=len(a),
        n_sample=len(sample),
        max_abs_a=walk.largest[0],
        max_abs_b=walk.largest[1],
        massive_a=tuple(left.massive()),
        massive_b=tuple(right.massive()),
        constant_dims=(int(left.constant.sum()), int(right.constant.sum())),
        **found,
    )


class _Walk:
    """The second pass: row errors, cosines and the sums of both spaces."""

    def __init__(self, left: Moments, right: Moments, n_rows: int, *, same_width: bool) -> None:
        self.same_width, self.left = same_width, left
        self.sums = SpaceSums(left, right)
        self.largest = [0.0, 0.0]
        if same_width:
            self.shift = (right.mean - left.mean).astype(np.float32)
            self.weights = self.sums.weights[0]
            self.dims = np.zeros(len(left.mean))
            # squared sizes [row, (raw, z-scored)] of the error, and of both sides with the reference's mean removed
            self.error, self.size_a, self.size_b = (np.empty((n_rows, 2)) for _ in range(3))
            self.raw = np.empty((n_rows, 2))  # squared norms of a and b as they are
            self.equal = 0

    def add(self, first: int, x: F32, y: F32) -> None:
        """Take in a block of both sides."""
        for side, block in enumerate((x, y)):
            self.largest[side] = max(self.largest[side], float(block.max()), -float(block.min()))
        both, near_x, near_y = self.sums.centre(x, y)
        kx, _ = self.sums.add(both, near_x, near_y)
        if not self.same_width:
            return
        here = slice(first, first + len(x))
        gap = y - x
        same = ~gap.any(axis=1)
        self.equal += int(same.sum())
        square = np.square(gap, out=gap)
        self.dims += square.sum(axis=0, dtype=np.float64)
        self.error[here] = square @ self.weights
        self.size_a[here] = kx
        moved = near_y + self.shift
        self.size_b[here] = np.square(moved, out=moved) @ self.weights
        self.raw[here, 0] = np.einsum("ij,ij->i", x, x)
        self.raw[here, 1] = np.einsum("ij,ij->i", y, y)

    def summary(self) -> dict[str, Any]:
        """Summarise rows."""
        with np.errstate(divide="ignore", invalid="ignore"):
            error = np.sqrt(self.error[:, 0] / self.raw[:, 0])
            error[(self.error[:, 0] == 0) & (self.raw[:, 0] == 0)] = 0.0
            zscored = np.sqrt(self.error[:, 1] / self.size_a[:, 1])
            zscored[self.error[:, 1] == 0] = 0.0
        raw = cosine_distance(self.error[:, 0], self.raw[:, 0], self.raw[:, 1])
        centred = cosine_distance(self.error[:, 0], self.size_a[:, 0], self.size_b[:, 0])
        scaled = cosine_distance(self.error[:, 1], self.size_a[:, 1], self.size_b[:, 1])
        rms = np.sqrt(self.dims / len(error)) / self.left.scale
        return {
            "error_mean": float(error.mean()),
            "error_median": float(np.median(error)),
            "error_p99": float(np.quantile(error, 0.99)),
            "error_worst": float(error.max()),
            "zscored_error_mean": float(zscored.mean()),
            "cosine_mean": 1 - _mean(raw),
            "cosine_worst": 1 - _max(raw),
            "cosine_distance_mean": _mean(raw),
            "cosine_distance_worst": _max(raw),
            "centred_cosine_mean": 1 - _mean(centred),
            "centred_cosine_worst": 1 - _max(centred),
            "zscored_cosine_mean": 1 - _mean(scaled),
            "equal_rows": self.equal,
            "worst_dims": tuple((int(dim), float(rms[dim])) for dim in np.argsort(-rms)[:5]),
            "errors": error.astype(np.float32),
            "worst": np.argsort(-error, kind="stable")[:WORST_ROWS].astype(np.int64),
        }


def _spaces(sums: SpaceSums, x: F32, y: F32, *, k: int, groups: I64 | None, seed: int) -> dict[str, Any]:
    """Compare the two spaces; what is not defined for so few or so equal rows stays NaN."""
    left, right = sums.left, sums.right
    mean_x, mean_y, scale_x, scale_y = (
        value.astype(np.float32) for value in (left.mean, right.mean, left.scale, right.scale)
    )
    out: dict[str, Any] = {}
    if sums.n >= 4:
        try:
            found = sums.cka()
            out |= {"cka": found.raw, "cka_zscored": found.zscored}
        except AnalysisError:  # a tap whose rows are all equal, such as the embedding of one last token
            pass
    near_x, near_y = x - mean_x, y - mean_y
    scaled_x, scaled_y = near_x / scale_x, near_y / scale_y
    varied = not (left.constant.all() or right.constant.all())
    if len(x) > k + 1 and varied:
        raw = neighbour_overlap(near_x, near_y, k, groups=groups, centre=False)
        scaled = neighbour_overlap(scaled_x, scaled_y, k, groups=groups, centre=False)
        out |= {"overlap": raw.mean, "overlap_zscored": scaled.mean, "overlap_chance": raw.chance, "overlap_k": k}
    if len(x) > 1 and x.shape[1] == y.shape[1]:
        moved = y - mean_x
        out["cosine_floor"] = permuted_cosine(x, y, seed=seed)
        out["centred_cosine_floor"] = permuted_cosine(near_x, moved, seed=seed)
        out["zscored_cosine_floor"] = permuted_cosine(scaled_x, moved / scale_x, seed=seed)
    return out


def _mean(values: F64) -> float:
    good = values[np.isfinite(values)]
    return float(good.mean()) if len(good) else NAN


def _max(values: F64) -> float:
    good = values[np.isfinite(values)]
    return float(good.max()) if len(good) else NAN
