"""Principal components of rows that need not fit in memory.

1. Up to `EXACT_WIDTH` dimensions: the covariance in one pass (float32 products of blocks shifted near the mean, summed
   in float64), then its eigenvectors: exact up to rounding.
2. Wider: block subspace iteration from a random start (Halko et al. 2011, arXiv:0909.4061), one pass an iteration.
3. Either way `residual` says how exact: the largest `|C v - variance v|` over the components, as a share of the first
   variance, measured in the last pass.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from workbench.errors import AnalysisError
from workbench.index.blocks import F32, F64, Progress, Rows, rows_of

QUICK_ROWS = 2_048
QUICK_WIDTH = 512  # up to it the exact fit is one quick pass as well
EXACT_WIDTH = 1280  # beyond it the eigenvectors of [d_model, d_model] cost more than a few passes over the rows
OVERSAMPLE = 20
QUICK_OVERSAMPLE = 8
ITERATIONS = 5


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Pca:
    """Principal axes of a set of rows.

    Attributes
    ----------
    mean : float64 [d_model]
    components : float64 [component, d_model]
        Orthonormal, largest variance first, signed so that the largest entry of each is positive.
    variance : float64 [component]
        Variance (divided by n - 1) along each component.
    total_variance : float
        Sum over all dimensions, so `variance / total_variance` is the share explained.
    residual : float
        How far the components are from eigenvectors, as a share of the first variance; no unit.
    """

    mean: F64
    components: F64
    variance: F64
    total_variance: float
    n_rows: int
    residual: float
    algorithm: str

    @property
    def explained(self) -> F64:
        """Share of the total variance along each component."""
        return self.variance / self.total_variance if self.total_variance else np.zeros_like(self.variance)

    def transform(self, source: Any, progress: Progress | None = None) -> F32:
        """Project rows: float32 [row, component]."""
        rows = rows_of(source)
        axes: F32 = np.ascontiguousarray(self.components.T, dtype=np.float32)
        mean = self.mean.astype(np.float32)
        out = np.empty((len(rows), axes.shape[1]), np.float32)
        for first, block in rows.blocks():
            out[first : first + len(block)] = (block - mean) @ axes
            if progress:
                progress(first + len(block), len(rows))
        return out


def fit_pca(source: Any, n_components: int, *, seed: int = 0, progress: Progress | None = None) -> Pca:
    """Fit principal components in blocks.

    Parameters
    ----------
    source : array, stored tap or Rows, [row, d_model]
    n_components : int
        At most the smaller of rows - 1 and d_model are kept.
    seed : int
        Start of the subspace iteration (wide data only).

    Raises
    ------
    AnalysisError
        If there are fewer than two rows, or a value is not finite.
    """
    rows = _rows_to_fit(source)
    n_rows, width = rows.shape
    keep = max(1, min(n_components, n_rows - 1, width))
    with np.errstate(invalid="ignore", over="ignore"):  # inf and NaN are found by their sums and refused
        if width <= EXACT_WIDTH or keep + OVERSAMPLE >= width // 2:
            return _exact(rows, keep, progress)
        start = np.random.default_rng(seed).standard_normal((width, keep + OVERSAMPLE))
        return _iterated(rows, keep, start, ITERATIONS, progress)


def _rows_to_fit(source: Any) -> Rows:
    rows = rows_of(source)
    if len(rows) < 2:
        raise AnalysisError("a projection needs at least two rows", f"{len(rows)}", "Give more rows.")
    return rows


def quick_pca(source: Any, n_components: int, *, seed: int = 0) -> Pca:
    """Fit a few components in one pass over the rows, for a first look; `residual` says how exact they are.

    The pass starts from the components of `QUICK_ROWS` rows, chosen by the seed. Variance and share explained are of
    all rows.

    Parameters
    ----------
    source : array, stored tap or Rows, [row, d_model]
    n_components : int
    seed : int

    Raises
    ------
    AnalysisError
        If there are fewer than two rows, or a value is not finite.
    """
    rows = _rows_to_fit(source)
    n_rows, width = rows.shape
    if width <= QUICK_WIDTH:
        return fit_pca(rows, n_components, seed=seed)
    keep = max(1, min(n_components, n_rows - 1, width))
    rng = np.random.default_rng(seed)
    chosen = np.sort(rng.choice(n_rows, min(QUICK_ROWS, n_rows), replace=False))
    with np.errstate(invalid="ignore", over="ignore"):
        few = rows.take(chosen)
        few -= few.mean(axis=0, dtype=np.float64).astype(np.float32)
        image = rng.standard_normal((width, min(width, keep + QUICK_OVERSAMPLE)))
        for _ in range(ITERATIONS):
            basis: F32 = np.linalg.qr(image)[0].astype(np.float32)
            image = np.asarray(few.T @ (few @ basis), np.float64)
        return _iterated(rows, keep, image, 1, None)


def _first_mean(rows: Rows) -> F32:
    _, block = next(iter(rows.blocks()))
    return np.asarray(block.mean(axis=0, dtype=np.float64), np.float32)


def _refuse_non_finite(total: F64) -> None:
    if not np.isfinite(total).all():
        bad = np.flatnonzero(~np.isfinite(total))
        raise AnalysisError(
            "states must be finite", f"{len(bad)} dimensions with inf or NaN, first {bad[0]}", "Leave those rows out."
        )


def _exact(rows: Rows, keep: int, progress: Progress | None) -> Pca:
    n_rows, width = rows.shape
    shift = _first_mean(rows)
    total, gram = np.zeros(width), np.zeros((width, width))
    for first, block in rows.blocks():
        near = block - shift
        total += near.sum(axis=0, dtype=np.float64)
        gram += near.T @ near
        if progress:
            progress(first + len(block), n_rows)
    _refuse_non_finite(total)
    offset = total / n_rows
    covariance = (gram - n_rows * np.outer(offset, offset)) / (n_rows - 1)
    from scipy.linalg import eigh

    variance, vectors = eigh(covariance, subset_by_index=[width - keep, width - 1])
    variance, vectors = np.maximum(variance[::-1], 0.0), vectors[:, ::-1]
    return _finish(
        rows, shift + offset, covariance @ vectors, vectors, variance, float(np.trace(covariance)), "covariance"
    )


def _iterated(rows: Rows, keep: int, image: F64, passes: int, progress: Progress | None) -> Pca:
    n_rows = len(rows)
    shift = _first_mean(rows)
    sums: tuple[F64, float] | None = None
    basis = image
    for iteration in range(passes):
        basis = np.linalg.qr(image)[0]
        part = _part(progress, iteration * n_rows, passes * n_rows)
        image, found = _gram_times(rows, shift, basis, part, first=sums is None)
        sums = sums or found
        offset = sums[0] / n_rows
        image = (image - n_rows * np.outer(offset, offset @ basis)) / (n_rows - 1)
    assert sums is not None
    offset, square = sums[0] / n_rows, sums[1]
    trace = (square - n_rows * float(offset @ offset)) / (n_rows - 1)
    small = basis.T @ image
    variance, rotation = np.linalg.eigh((small + small.T) / 2)
    order = np.argsort(variance)[::-1][:keep]
    rotation, variance = rotation[:, order], np.maximum(variance[order], 0.0)
    algorithm = f"subspace iteration, {passes} pass{'' if passes == 1 else 'es'}"
    return _finish(rows, shift + offset, image @ rotation, basis @ rotation, variance, trace, algorithm)


def _part(progress: Progress | None, before: int, total: int) -> Progress | None:
    return None if progress is None else lambda done, _: progress(before + done, total)


def _gram_times(
    rows: Rows, shift: F32, basis: F64, progress: Progress | None, *, first: bool
) -> tuple[F64, tuple[F64, float]]:
    """Multiply the Gram matrix of the shifted rows with a basis in one pass; the first also gives sums and squares."""
    n_rows, width = rows.shape
    narrow = basis.astype(np.float32)
    image, total, square = np.zeros(basis.shape), np.zeros(width), 0.0
    for start, block in rows.blocks():
        near = block - shift
        if first:
            total += near.sum(axis=0, dtype=np.float64)
            square += float(np.einsum("ij,ij->j", near, near).sum(dtype=np.float64))
        image += near.T @ (near @ narrow)
        if progress:
            progress(start + len(block), n_rows)
    _refuse_non_finite(total)
    return image, (total, square)


def _finish(rows: Rows, mean: F64, image: F64, vectors: F64, variance: F64, trace: float, algorithm: str) -> Pca:
    off = np.linalg.norm(image - vectors * variance, axis=0)
    signs = np.sign(vectors[np.argmax(np.abs(vectors), axis=0), np.arange(vectors.shape[1])])
    return Pca(
        mean=np.asarray(mean, np.float64),
        components=np.ascontiguousarray((vectors * np.where(signs == 0, 1.0, signs)).T),
        variance=variance,
        total_variance=trace,
        n_rows=len(rows),
        residual=float(off.max() / variance[0]) if variance[0] > 0 else 0.0,
        algorithm=algorithm,
    )
