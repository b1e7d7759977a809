"""Statistics of every tap and dimension, gathered while rows are written and mergeable over shards.

Moments are kept in float64 and merged by Chan, Golub and LeVeque (1979), "Updating formulae and a pairwise algorithm
for computing sample variances". Massive dimensions follow Sun et al. (2024), arXiv:2402.17762.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.errors import AnalysisError
from workbench.store.dtypes import StorageType, special_rows, widen

if TYPE_CHECKING:
    from numpy.typing import NDArray

_TILE = 1 << 16  # values at a time: their float64 copy stays in the second-level cache
NORM_EDGES = 2.0 ** (np.arange(-80, 81) / 4)  # a quarter of an octave each; fixed, so that histograms add up
MASSIVE_AT_LEAST, MASSIVE_TIMES_MEDIAN = 100.0, 1000.0


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class TapStatistics:
    """Numbers of one tap.

    Attributes
    ----------
    n_rows : int
        Rows that the moments are over: those without NaN or infinity.
    n_flagged : int
        Rows left out because of NaN or infinity.
    mean, second_moment : float64 [d_model]
        Mean, and sum of squared distances from it.
    minimum, maximum : float64 [d_model]
    non_finite : int64 [d_model]
        NaN and infinities seen in each dimension.
    norm_histogram : int64 [bin]
        Rows by Euclidean norm; bin 0 lies below `NORM_EDGES[0]`, the last above `NORM_EDGES[-1]`.
    norm_moments : float64 [4]
        Mean, sum of squared distances from it, minimum and maximum of the norm.
    """

    n_rows: int
    n_flagged: int
    mean: NDArray[np.float64]
    second_moment: NDArray[np.float64]
    minimum: NDArray[np.float64]
    maximum: NDArray[np.float64]
    non_finite: NDArray[np.int64]
    norm_histogram: NDArray[np.int64]
    norm_moments: NDArray[np.float64]

    @property
    def variance(self) -> NDArray[np.float64]:
        """Variance of each dimension over rows (divided by the number of rows); float64 [d_model]."""
        return self.second_moment / max(1, self.n_rows)

    @property
    def rms(self) -> NDArray[np.float64]:
        """Root mean square of each dimension; float64 [d_model]."""
        return np.asarray(np.sqrt(self.variance + self.mean**2))

    @property
    def norm_mean(self) -> float:
        """Mean Euclidean norm of a row."""
        return float(self.norm_moments[0])

    def massive_dims(
        self, at_least: float = MASSIVE_AT_LEAST, times_median: float = MASSIVE_TIMES_MEDIAN
    ) -> NDArray[np.int64]:
        """List dimensions whose largest magnitude dwarfs the others.

        Parameters
        ----------
        at_least : float
            Least magnitude.
        times_median : float
            Least multiple of the median root mean square over dimensions.

        Returns
        -------
        int64 [n]
            Dimensions, largest first.
        """
        if not self.n_rows:
            return np.empty(0, dtype=np.int64)
        largest = np.maximum(np.abs(self.minimum), np.abs(self.maximum))
        found = np.flatnonzero((largest >= at_least) & (largest >= times_median * np.median(self.rms)))
        return found[np.argsort(-largest[found], kind="stable")].astype(np.int64)


def empty_statistics(width: int) -> TapStatistics:
    """Give the statistics of no rows."""
    return TapStatistics(
        n_rows=0, n_flagged=0, mean=np.zeros(width), second_moment=np.zeros(width),
        minimum=np.full(width, np.inf), maximum=np.full(width, -np.inf), non_finite=np.zeros(width, dtype=np.int64),
        norm_histogram=np.zeros(len(NORM_EDGES) + 1, dtype=np.int64), norm_moments=np.array([0, 0, np.inf, -np.inf]),
    )  # fmt: skip


def _merge_moments(n: int, a: tuple[Any, Any], m: int, b: tuple[Any, Any]) -> tuple[Any, Any]:
    """Merge means and sums of squared distances of `n` and `m` rows."""
    delta = b[0] - a[0]
    total = max(1, n + m)
    return a[0] + delta * (m / total), a[1] + b[1] + delta**2 * (n * m / total)


def merge_statistics(a: TapStatistics, b: TapStatistics) -> TapStatistics:
    """Merge the statistics of two disjoint sets of rows.

    Raises
    ------
    AnalysisError
        If their widths differ.
    """
    if a.mean.shape != b.mean.shape:
        raise AnalysisError(f"statistics must have width {len(a.mean)}", f"{len(b.mean)}", "Merge shards of one tap.")
    mean, second = _merge_moments(a.n_rows, (a.mean, a.second_moment), b.n_rows, (b.mean, b.second_moment))
    norm, spread = _merge_moments(a.n_rows, tuple(a.norm_moments[:2]), b.n_rows, tuple(b.norm_moments[:2]))
    low, high = min(a.norm_moments[2], b.norm_moments[2]), max(a.norm_moments[3], b.norm_moments[3])
    return TapStatistics(
        n_rows=a.n_rows + b.n_rows, n_flagged=a.n_flagged + b.n_flagged, mean=mean, second_moment=second,
        minimum=np.minimum(a.minimum, b.minimum), maximum=np.maximum(a.maximum, b.maximum),
        non_finite=a.non_finite + b.non_finite, norm_histogram=a.norm_histogram + b.norm_histogram,
        norm_moments=np.array([norm, spread, low, high]),
    )  # fmt: skip


def rows_statistics(raw: NDArray[Any], kind: StorageType, *, may_flag: bool = True) -> TapStatistics:
    """Compute the statistics of stored rows.

    Parameters
    ----------
    raw : unsigned integer of the storage size [row, d_model]
        Bits as stored, so that the numbers are those of what a reader sees.
    kind : StorageType
        What they mean.
    may_flag : bool
        False where it is known that no value is NaN or infinite, which saves a pass.
    """
    flagged = special_rows(raw, kind) if may_flag else np.empty(0, dtype=np.int64)
    total = empty_statistics(raw.shape[1])
    if flagged.size:
        total = merge_statistics(total, _flagged(np.isfinite(widen(raw[flagged], kind))))
        raw = np.delete(raw, flagged, axis=0)
    return merge_statistics(total, _finite_statistics(raw, kind)) if len(raw) else total


def _flagged(finite: NDArray[np.bool_]) -> TapStatistics:
    empty = empty_statistics(finite.shape[1])
    values: dict[str, Any] = {field.name: getattr(empty, field.name) for field in fields(TapStatistics)}
    return TapStatistics(**values | {"n_flagged": len(finite), "non_finite": (~finite).sum(axis=0).astype(np.int64)})


def _finite_statistics(raw: NDArray[Any], kind: StorageType) -> TapStatistics:
    """Go through rows in tiles that stay in cache; sums are float64 and taken about the first row.

    float64: one massive coordinate swallows the others in float32 sums. About the first row: sums of squares about 0
    lose the variance of a dimension whose mean is large.
    """
    n_rows, width = raw.shape
    values = raw.view(kind.array)
    step = max(1, min(n_rows, _TILE // width))
    narrow, wide = np.empty((step, width), dtype=np.float32), np.empty((step, width))
    about = values[0].astype(np.float64)
    sums, squares = np.zeros(width), np.zeros(width)
    low, high = values[0].astype(np.float32), values[0].astype(np.float32)
    norms = np.empty(n_rows)
    for start in range(0, n_rows, step):
        stop = min(start + step, n_rows)
        tile, double = narrow[: stop - start], wide[: stop - start]
        np.copyto(tile, values[start:stop])
        np.copyto(double, tile)
        np.vecdot(double, double, out=norms[start:stop])
        np.minimum(low, np.minimum.reduce(tile, axis=0), out=low)
        np.maximum(high, np.maximum.reduce(tile, axis=0), out=high)
        np.subtract(double, about, out=double)
        sums += np.add.reduce(double, axis=0)
        np.multiply(double, double, out=double)
        squares += np.add.reduce(double, axis=0)
    np.sqrt(norms, out=norms)
    histogram = np.bincount(np.searchsorted(NORM_EDGES, norms, side="right"), minlength=len(NORM_EDGES) + 1)
    norm = norms.mean()
    return TapStatistics(
        n_rows=n_rows, n_flagged=0, mean=about + sums / n_rows,
        second_moment=np.maximum(squares - sums * (sums / n_rows), 0.0),
        minimum=low.astype(np.float64), maximum=high.astype(np.float64),
        non_finite=np.zeros(width, dtype=np.int64), norm_histogram=histogram.astype(np.int64),
        norm_moments=np.array([norm, ((norms - norm) ** 2).sum(), norms.min(), norms.max()]),
    )  # fmt: skip
