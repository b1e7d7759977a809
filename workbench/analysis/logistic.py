"""Multinomial logistic regression with an L2 penalty, for many penalties and label sets on the same rows.

1. The rows are turned onto their principal axes once (`row_axes`); all fits on these rows share them.
2. The loss, `sum of -w log p(class) + alpha / 2 |W|^2` (intercepts free; `alpha` is scikit-learn's `1 / C`), is
   minimised by L-BFGS over weights divided by `1 / sqrt(p (1 - p) eigenvalue + alpha)`: with the curvature near 1 along
   every axis it takes tens of steps where the plain variables take hundreds.
3. Products are float32, loss and weights float64.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from workbench.index.blocks import F32, F64, I64

ALPHAS = (10.0, 100.0, 1_000.0, 10_000.0)
TOLERANCE = 1e-6  # relative change of the loss at which a fit ends


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class RowAxes:
    """Standardised rows on their principal axes.

    Attributes
    ----------
    scores : float32 [row, axis]
    axes : float64 [d_model, axis]
        Orthonormal; axes along which the rows do not vary are left out, since weights there are 0.
    power : float64 [axis]
        Sum of squares along each axis.
    """

    scores: F32
    axes: F64
    power: F64


def row_axes(train: F64) -> RowAxes:
    """Find the principal axes of standardised rows [row, d_model], by the smaller of the two products."""
    wide = train.shape[1] > train.shape[0]
    power, vectors = np.linalg.eigh(train @ train.T if wide else train.T @ train)
    keep = power > power[-1] * 1e-10
    power, vectors = power[keep], vectors[:, keep]
    axes = train.T @ (vectors / np.sqrt(power)) if wide else vectors
    scores = vectors * np.sqrt(power) if wide else train @ vectors
    return RowAxes(scores=scores.astype(np.float32), axes=axes, power=power)


def logistic_path(
    rows: RowAxes,
    codes: I64,
    n_classes: int,
    alphas: Sequence[float],
    *,
    row_weights: F64 | None = None,
    tolerance: float = TOLERANCE,
    enough: Callable[[int, F64, F64], bool] | None = None,
) -> tuple[F64, F64]:
    """Fit one model a penalty, from strong to weak, each started at the last.

    Parameters
    ----------
    rows : RowAxes
    codes : int64 [row]
        Class of each row, 0 to n_classes - 1.
    n_classes : int
    alphas : sequence of float
    row_weights : float64 [row], optional
    tolerance : float
        Relative change of the loss at which a fit ends.
    enough : callable (index of the penalty, weights, intercepts), optional
        Asked after each fit; true ends the path, and weaker penalties stay NaN.

    Returns
    -------
    weights : float64 [alpha, d_model, class]
    intercepts : float64 [alpha, class]
    """
    from scipy.optimize import minimize

    n_rows, n_axes = rows.scores.shape
    weight = np.ones(n_rows) if row_weights is None else row_weights
    truth = np.zeros((n_rows, n_classes))
    truth[np.arange(n_rows), codes] = 1.0
    share = np.maximum((truth * weight[:, None]).sum(axis=0) / weight.sum(), 1e-6)
    out_w, out_b = (
        np.full((len(alphas), rows.axes.shape[0], n_classes), np.nan),
        np.full((len(alphas), n_classes), np.nan),
    )
    bias = np.log(share) - np.log(share).mean()
    turned = np.zeros((n_axes, n_classes))
    size = n_axes * n_classes
    for i in np.argsort(alphas)[::-1]:
        alpha = float(alphas[i])
        step = (rows.power[:, None] * (share * (1 - share)) * weight.mean() + alpha) ** -0.5

        def loss(flat: F64, step: F64 = step, alpha: float = alpha) -> tuple[float, F64]:
            w = flat[:size].reshape(n_axes, n_classes) * step
            score = (rows.scores @ w.astype(np.float32)).astype(np.float64) + flat[size:]
            probability, log_sum = softmax(score)
            value = float(weight @ (log_sum - score[np.arange(n_rows), codes])) + alpha / 2 * float((w**2).sum())
            pull = (probability - truth) * weight[:, None]
            gradient = ((rows.scores.T @ pull.astype(np.float32)).astype(np.float64) + alpha * w) * step
            return value / n_rows, np.concatenate([gradient.ravel(), pull.sum(axis=0)]) / n_rows

        start = np.concatenate([(turned / step).ravel(), bias])
        options = {"maxiter": 200, "gtol": 1e-7, "ftol": tolerance}
        found = minimize(loss, start, jac=True, method="L-BFGS-B", options=options).x
        turned, bias = found[:size].reshape(n_axes, n_classes) * step, found[size:]
        out_w[i], out_b[i] = rows.axes @ turned, bias
        if enough and enough(int(i), out_w[i], out_b[i]):
            break
    return out_w, out_b


def softmax(score: F64) -> tuple[F64, F64]:
    """Probabilities [row, class] and the log of the sum of exponentials [row]."""
    top = score.max(axis=1, keepdims=True)
    exponent = np.exp(score - top)
    total = exponent.sum(axis=1, keepdims=True)
    return exponent / total, (np.log(total) + top)[:, 0]


def balanced_weights(codes: npt.ArrayLike, n_classes: int) -> F64:
    """Weight rows so that every class counts the same; the weights sum to the number of rows."""
    codes = np.asarray(codes)
    counts = np.bincount(codes, minlength=n_classes)
    present = int((counts > 0).sum())
    return np.asarray((len(codes) / (present * np.maximum(counts, 1)))[codes], np.float64)
