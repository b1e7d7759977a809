"""Nested, grouped cross-validation of linear readouts.

1. Outer folds hold whole groups. The penalty of an outer fold is the one that scores best in inner folds, cut from the
   rest; the outer model is then fitted on all other folds. Scaling is measured inside each fit. No row, nor any row of
   its group, has a part in its own prediction.
2. Ridge: for every pair of folds one model is fitted without both. It is the inner model of each of the two when the
   other one is held out, so k folds need k(k-1)/2 inner fits. Shuffled labels go the same way, each with its own
   penalty.
3. Logistic: the inner fold of an outer fold is the next one; penalties go from strong to weak and end once the inner
   log loss rises. Shuffled labels use the penalty of the true ones.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np

from workbench.analysis.logistic import TOLERANCE, balanced_weights, logistic_path, row_axes, softmax
from workbench.analysis.ridge import FoldSums, fit_standard, ridge_path
from workbench.errors import AnalysisError

if TYPE_CHECKING:
    from workbench.index.blocks import F32, F64, I64

Tick = Callable[[], None]
SHUFFLED_TOLERANCE = 1e-5  # ten times looser than for the true labels: of a control only the mean counts
SUMS_WIDTH = 4096  # above it, products of each fold take more memory than refitting takes time


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class HeldOut:
    """Predictions of every row by a model that never saw its group.

    Attributes
    ----------
    outputs : float64 [set, row, output]
        Set 0 has the true labels, the others shuffled ones. Outputs are values, or one score a class.
    alphas : float64 [fold]
        Penalty chosen for the true labels.
    """

    outputs: F64
    alphas: F64


def fit_readout(
    states: F64, values: F64, method: str, alphas: Sequence[float], n_classes: int, *, balanced: bool = False
) -> tuple[F64, F64]:
    """Fit a readout on standardised rows, one a penalty.

    Parameters
    ----------
    states : float64 [row, d_model]
        Standardised.
    values : float64 [row, target]
        Numbers, or class codes in one column.

    Returns
    -------
    weights : float64 [alpha, d_model, output]
    intercepts : float64 [alpha, output]
    """
    if method == "ridge":
        return ridge_path(states, values, alphas), np.repeat(values.mean(axis=0)[None], len(alphas), axis=0)
    codes = values[:, 0].astype(np.int64)
    if method == "logistic":
        row_weights = balanced_weights(codes, n_classes) if balanced else None
        return logistic_path(row_axes(states), codes, n_classes, alphas, row_weights=row_weights)
    weights, bias = class_means(states, codes, n_classes)
    return np.repeat(weights[None], len(alphas), axis=0), np.repeat(bias[None], len(alphas), axis=0)


def class_means(states: F64, codes: I64, n_classes: int) -> tuple[F64, F64]:
    """Read the nearest class mean: score = x.m - |m|^2 / 2; with two classes, along the difference of their means."""
    counts = np.bincount(codes, minlength=n_classes)
    sums = np.stack([states[codes == c].sum(axis=0, dtype=np.float64) for c in range(n_classes)])
    means = sums / np.maximum(counts, 1)[:, None]
    return means.T, np.where(counts > 0, -(means**2).sum(axis=1) / 2, -1e300)  # a class not seen is never chosen


class RidgeReadout:
    """Ridge from the products of folds, or fitted anew where those would be too wide or the rows too few."""

    def __init__(self, states: F32, sets: F64, folds: I64) -> None:
        self.states, self.folds, self.n_targets = states, folds, sets.shape[2]
        self.flat = np.ascontiguousarray(sets.transpose(1, 0, 2)).reshape(len(states), -1)
        narrow = states.shape[1] <= SUMS_WIDTH and states.shape[1] * 2 <= len(states)
        self.sums = FoldSums(states, self.flat, folds) if narrow else None

    def outputs(self, left_out: Sequence[int], alphas: Sequence[float]) -> list[F64]:
        """Fit without some folds; apply to each of them: float64 [alpha, set, row, target] each."""
        if self.sums:
            kept = [fold for fold in range(len(self.sums.count)) if fold not in left_out]
            standard, weights, bias = self.sums.solve(kept, alphas)
        else:
            train = ~np.isin(self.folds, left_out)
            standard = fit_standard(self.states[train])
            weights = ridge_path(standard.apply(self.states[train]), self.flat[train], alphas)
            bias = self.flat[train].mean(axis=0)
        return [self._apply(standard.apply(self.states[self.folds == fold]), weights, bias) for fold in left_out]

    def _apply(self, rows: F64, weights: F64, bias: F64) -> F64:
        values = rows @ weights + bias
        return values.reshape(len(weights), len(rows), -1, self.n_targets).transpose(0, 2, 1, 3)


class ClassReadout:
    """Logistic regression or class means, one label set after the other on shared axes."""

    def __init__(self, states: F32, sets: F64, folds: I64, method: str, n_classes: int, *, balanced: bool) -> None:
        self.states, self.folds, self.codes = states, folds, sets[:, :, 0].astype(np.int64)
        self.method, self.n_classes, self.balanced = method, n_classes, balanced

    def outputs(self, fold: int, alpha: float) -> F64:
        """Fit every label set without a fold and apply it there: float64 [set, row, output]."""
        train, test = self.folds != fold, self.folds == fold
        standard = fit_standard(self.states[train])
        rows, unseen = standard.apply(self.states[train]), standard.apply(self.states[test])
        axes = row_axes(rows) if self.method == "logistic" else None
        out = np.empty((len(self.codes), len(unseen), self.n_classes))

        def one(s: int) -> None:
            codes = self.codes[s][train]
            if axes is None:
                weights, bias = class_means(rows, codes, self.n_classes)
            else:
                stop = TOLERANCE if s == 0 else SHUFFLED_TOLERANCE
                heavy = self._heavy(codes)
                path = logistic_path(axes, codes, self.n_classes, [alpha], row_weights=heavy, tolerance=stop)
                weights, bias = path[0][0], path[1][0]
            out[s] = unseen @ weights + bias

        with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
            list(pool.map(one, range(len(self.codes))))
        return out

    def choose(self, outer: int, inner: int, alphas: Sequence[float]) -> int:
        """Find the penalty whose fit without both folds gives the inner one the smallest log loss.

        Not the accuracy: between penalties it differs by few rows, and the choice would be noise.
        """
        train, test = (self.folds != outer) & (self.folds != inner), self.folds == inner
        codes = self.codes[0]
        standard = fit_standard(self.states[train])
        unseen = standard.apply(self.states[test])
        heavy = self._heavy(codes)
        weight = np.ones(len(unseen)) if heavy is None else heavy[test]
        losses = np.full(len(alphas), np.inf)

        def enough(i: int, weights: F64, bias: F64) -> bool:
            score = unseen @ weights + bias
            losses[i] = weight @ (softmax(score)[1] - score[np.arange(len(score)), codes[test]])
            return bool(losses[i] > losses.min())

        axes = row_axes(standard.apply(self.states[train]))
        logistic_path(axes, codes[train], self.n_classes, alphas, row_weights=self._heavy(codes[train]), enough=enough)
        return int(np.argmin(losses))

    def _heavy(self, codes: I64) -> F64 | None:
        return balanced_weights(codes, self.n_classes) if self.balanced else None


def held_out(
    states: F32,
    sets: F64,
    folds: I64,
    method: str,
    alphas: Sequence[float],
    *,
    n_classes: int = 0,
    balanced: bool = False,
    tick: Tick | None = None,
) -> HeldOut:
    """Predict every row from the other folds.

    Parameters
    ----------
    states : float32 [row, d_model]
    sets : float64 [set, row, target]
        True labels first, then shuffled ones.
    folds : int64 [row]

    Raises
    ------
    AnalysisError
        If a penalty must be chosen with fewer than three folds.
    """
    n_folds = int(folds.max()) + 1
    search = len(alphas) > 1 and method != "mean_difference"
    if search and n_folds < 3:
        raise AnalysisError(
            "choosing a penalty needs three folds or more", f"{n_folds}", "Give one alpha, or more folds."
        )
    tick = tick or (lambda: None)
    if method == "ridge":
        return _held_out_ridge(RidgeReadout(states, sets, folds), sets, folds, alphas, search=search, tick=tick)
    readout = ClassReadout(states, sets, folds, method, n_classes, balanced=balanced)
    chosen = np.zeros(n_folds, np.int64)
    outputs = np.empty((len(sets), len(states), n_classes))
    for fold in range(n_folds):
        if search:
            chosen[fold] = readout.choose(fold, (fold + 1) % n_folds, alphas)
        outputs[:, folds == fold] = readout.outputs(fold, alphas[int(chosen[fold])])
        tick()
    return HeldOut(outputs=outputs, alphas=np.array(alphas)[chosen])


def _held_out_ridge(
    readout: RidgeReadout, sets: F64, folds: I64, alphas: Sequence[float], *, search: bool, tick: Tick
) -> HeldOut:
    n_folds, n_sets = int(folds.max()) + 1, len(sets)
    chosen = _choose_ridge(readout, sets, folds, alphas, tick) if search else np.zeros((n_folds, n_sets), np.int64)
    outputs = np.empty(sets.shape)
    for fold in range(n_folds):
        test = np.flatnonzero(folds == fold)
        wanted, place = np.unique(chosen[fold], return_inverse=True)
        found = readout.outputs([fold], [alphas[i] for i in wanted])[0]
        outputs[:, test] = found[place, np.arange(n_sets)]
        tick()
    return HeldOut(outputs=outputs, alphas=np.array([alphas[i] for i in chosen[:, 0]]))


def _choose_ridge(readout: RidgeReadout, sets: F64, folds: I64, alphas: Sequence[float], tick: Tick) -> I64:
    """Find the best penalty of each outer fold and set, int64 [fold, set], from sums of inner squared errors."""
    n_folds = int(folds.max()) + 1
    sums = np.zeros((n_folds, len(alphas), len(sets), sets.shape[2]))
    for pair in combinations(range(n_folds), 2):
        for fold, outer, outputs in zip(pair, pair[::-1], readout.outputs(pair, alphas), strict=True):
            error = outputs - sets[:, folds == fold]
            sums[outer] += np.einsum("asrt,asrt->ast", error, error)
        tick()
    rest = np.stack([sets[:, folds != fold].var(axis=1) * (folds != fold).sum() for fold in range(n_folds)])
    with np.errstate(divide="ignore", invalid="ignore"):
        scores = 1 - sums / rest[:, None]  # R2 of [fold, alpha, set, target]
    chosen: I64 = np.where(np.isfinite(scores), scores, -1.0).mean(axis=3).argmax(axis=1)
    return chosen
