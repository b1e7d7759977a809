"""Ridge regression for many penalties, targets and folds at once, in float64.

1. Each fold's products are taken once; those of any training set are sums over its folds, and standardising on the
   training rows is arithmetic on these sums.
2. One Cholesky factor a penalty; every target (true and shuffled labels side by side) shares it.
3. Where there are fewer rows than dimensions, the products of rows [row, row] take the place of [d_model, d_model].
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Sequence

    from workbench.index.blocks import F32, F64, I64

ALPHAS = tuple(float(10.0**p) for p in range(6))


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Standard:
    """Mean and scale of training rows, float64 [d_model]; constant dimensions have scale 1 and become 0."""

    mean: F64
    scale: F64

    def apply(self, states: F32 | F64) -> F64:
        """Standardise rows, float64 [row, d_model]."""
        out = states.astype(np.float64)
        out -= self.mean
        out /= self.scale
        return out


def fit_standard(states: F32 | F64) -> Standard:
    """Measure mean and scale of rows [row, d_model]."""
    mean = states.mean(axis=0, dtype=np.float64)
    return standard_from(mean, states.var(axis=0, dtype=np.float64))


def standard_from(mean: F64, variance: F64) -> Standard:
    """Make a Standard; a variance within rounding of float32 values counts as constant."""
    scale = np.sqrt(np.maximum(variance, 0.0))
    constant = scale <= np.abs(mean) * 2.0**-22
    return Standard(mean=mean, scale=np.where(constant, 1.0, scale))


def solve_ridge(gram: F64, right: F64, alphas: Sequence[float]) -> F64:
    """Solve (gram + alpha I) w = right for each penalty: float64 [alpha, d, target]."""
    from scipy.linalg import cho_factor, cho_solve

    diagonal = np.arange(len(gram))
    out = np.empty((len(alphas), *right.shape))
    for i, alpha in enumerate(alphas):
        damped = gram.copy()
        damped[diagonal, diagonal] += alpha
        factor = cho_factor(damped.T, lower=False, overwrite_a=True, check_finite=False)
        out[i] = cho_solve(factor, right, check_finite=False)
    return out


def ridge_path(train: F64, targets: F64, alphas: Sequence[float]) -> F64:
    """Solve ridge for each penalty on rows at hand.

    Parameters
    ----------
    train : float64 [row, d_model]
        Standardised (centred) rows.
    targets : float64 [row, target]
    alphas : sequence of float
        Penalties on the squared weights, against the sum (not the mean) of squared errors.

    Returns
    -------
    float64 [alpha, d_model, target]
        Weights; the intercept of a target is its mean.
    """
    centred = targets - targets.mean(axis=0)
    if train.shape[1] > train.shape[0]:
        return np.asarray(train.T @ solve_ridge(train @ train.T, centred, alphas))
    return solve_ridge(train.T @ train, train.T @ centred, alphas)


class FoldSums:
    """Products of each fold, from which ridge on any set of folds follows.

    Parameters
    ----------
    states : float32 [row, d_model]
    targets : float64 [row, target]
    folds : int64 [row]
    """

    def __init__(self, states: F32, targets: F64, folds: I64) -> None:
        # shifted and scaled by the whole set's values only to keep digits; each training set's own are taken off below
        self.shift = fit_standard(states)
        n_folds = int(folds.max()) + 1
        width, n_targets = states.shape[1], targets.shape[1]
        self.count = np.bincount(folds, minlength=n_folds).astype(np.float64)
        self.sums = np.empty((n_folds, width))
        self.target_sums = np.empty((n_folds, n_targets))
        self.gram = np.empty((n_folds, width, width))
        self.cross = np.empty((n_folds, width, n_targets))
        for fold in range(n_folds):
            rows, aims = self.shift.apply(states[folds == fold]), targets[folds == fold]
            self.sums[fold], self.target_sums[fold] = rows.sum(axis=0), aims.sum(axis=0)
            self.gram[fold], self.cross[fold] = rows.T @ rows, rows.T @ aims

    def solve(self, train: npt.ArrayLike, alphas: Sequence[float]) -> tuple[Standard, F64, F64]:
        """Fit on the folds `train`: the standard of its rows, weights [alpha, d_model, target], intercepts [target]."""
        part = np.asarray(train)
        n = self.count[part].sum()
        mean, aim = self.sums[part].sum(axis=0) / n, self.target_sums[part].sum(axis=0) / n
        gram = self.gram[part].sum(axis=0) - n * np.outer(mean, mean)
        cross = self.cross[part].sum(axis=0) - n * np.outer(mean, aim)
        standard = standard_from(mean, np.diagonal(gram) / n)
        gram /= standard.scale[:, None] * standard.scale[None, :]
        weights = solve_ridge(gram, cross / standard.scale[:, None], alphas)
        own = Standard(mean=self.shift.mean + mean * self.shift.scale, scale=standard.scale * self.shift.scale)
        return own, weights, aim


def r_squared(truth: F64, predicted: F64) -> F64:
    """Share of the variance explained, for each target: float64 [target]; NaN where the truth never changes."""
    total = ((truth - truth.mean(axis=0)) ** 2).sum(axis=0)
    error = ((truth - predicted) ** 2).sum(axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(total > 0, 1 - error / total, np.nan)
