"""Scores of held-out predictions, with what chance and token ids alone give, and how sure they are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from workbench.analysis.folds import bootstrap_weights, group_sums
from workbench.analysis.logistic import softmax
from workbench.analysis.ridge import r_squared

if TYPE_CHECKING:
    from workbench.analysis.labels import Task
    from workbench.index.blocks import F64, I64


def scores_of(task: Task, truth: F64, outputs: F64) -> F64:
    """Score each target: R2 (regression) or accuracy (classification), float64 [target]."""
    if task == "regression":
        return r_squared(truth, outputs)
    return np.array([float(np.mean(outputs.argmax(axis=1) == truth[:, 0]))])


def balanced_accuracy(truth: F64, outputs: F64) -> float:
    """Mean recall over the classes that occur."""
    codes, hit = truth[:, 0].astype(np.int64), outputs.argmax(axis=1) == truth[:, 0]
    counts = np.bincount(codes)
    recall = np.bincount(codes, weights=hit)[counts > 0] / counts[counts > 0]
    return float(recall.mean())


def majority_outputs(task: Task, truth: F64, folds: I64, n_outputs: int) -> F64:
    """Predict the training mean or majority class of each fold: float64 [row, output]."""
    return token_outputs(task, truth, folds, np.zeros(len(truth), np.int64), n_outputs)


def token_outputs(task: Task, truth: F64, folds: I64, tokens: I64, n_outputs: int) -> F64:
    """Predict from the token id alone: its training mean or majority, or that of all rows for an unseen token."""
    ids = np.unique(tokens, return_inverse=True)[1]
    n_ids = int(ids.max()) + 1
    target = truth if task == "regression" else np.eye(n_outputs)[truth[:, 0].astype(np.int64)]
    out = np.empty((len(truth), n_outputs))
    for fold in np.unique(folds):
        train, test = folds != fold, folds == fold
        counts = np.bincount(ids[train], minlength=n_ids)
        overall = target[train].mean(axis=0)
        sums = np.stack(
            [np.bincount(ids[train], weights=column, minlength=n_ids) for column in target[train].T], axis=1
        )
        mean = np.where(counts[:, None] > 0, sums / np.maximum(counts, 1)[:, None], overall)
        out[test] = mean[ids[test]]
    return out


def group_interval(
    task: Task, truth: F64, outputs: F64, groups: I64, *, repeats: int = 1000, seed: int = 0, level: float = 0.95
) -> tuple[float, float]:
    """Bootstrap the mean score over groups, with the models held fixed: (low, high) of the middle `level`."""
    weights, numbers = bootstrap_weights(groups, repeats, seed=seed)
    count = weights @ group_sums(np.ones(len(truth)), numbers)
    draws = np.zeros(repeats)
    if task == "classification":
        hit = outputs.argmax(axis=1) == truth[:, 0]
        draws = weights @ group_sums(hit, numbers) / count
    else:
        for y, guess in zip((truth - truth.mean(axis=0)).T, (outputs - truth.mean(axis=0)).T, strict=True):
            error = weights @ group_sums((y - guess) ** 2, numbers)
            total = weights @ group_sums(y**2, numbers) - (weights @ group_sums(y, numbers)) ** 2 / count
            draws += (1 - error / np.where(total > 0, total, np.nan)) / truth.shape[1]
    tail = (1 - level) / 2
    return float(np.nanquantile(draws, tail)), float(np.nanquantile(draws, 1 - tail))


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Calibration:
    """How predictions compare with the truth, from held-out rows.

    Attributes
    ----------
    predicted, observed : float64 [bin]
        Mean confidence and accuracy a bin (classification), or mean prediction and truth (regression, first target).
    count : int64 [bin]
    error : float
        Expected calibration error: mean |predicted - observed| over rows, in the unit of the two.
    slope : float or None
        Slope of truth on prediction for a regression; 1 is calibrated, below 1 overconfident.
    """

    predicted: F64
    observed: F64
    count: I64
    error: float
    slope: float | None


def calibration(task: Task, truth: F64, outputs: F64, *, bins: int = 10) -> Calibration:
    """Measure calibration in bins of equal counts."""
    if task == "classification":
        probability = softmax(outputs)[0]
        guess, value = probability.max(axis=1), (outputs.argmax(axis=1) == truth[:, 0]).astype(np.float64)
        slope = None
    else:
        guess, value = outputs[:, 0], truth[:, 0]
        spread = float(guess.var())
        slope = float(np.cov(guess, value, bias=True)[0, 1] / spread) if spread > 0 else None
    parts = np.array_split(np.argsort(guess, kind="stable"), min(bins, len(guess)))
    predicted = np.array([guess[part].mean() for part in parts])
    observed = np.array([value[part].mean() for part in parts])
    count = np.array([len(part) for part in parts], dtype=np.int64)
    error = float(np.abs(predicted - observed) @ count / count.sum())
    return Calibration(predicted=predicted, observed=observed, count=count, error=error, slope=slope)
