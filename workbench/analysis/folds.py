"""Grouped folds: rows of one group (a prompt text, a template, a country) never sit on both sides."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from workbench.errors import AnalysisError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from workbench.index.blocks import F64, I64


def group_numbers(values: Sequence[Any]) -> I64:
    """Number groups 0, 1, ... in order of first appearance; equal values (as text, with their type) share a number."""
    seen: dict[tuple[str, Any], int] = {}
    return np.array([seen.setdefault((type(v).__name__, v), len(seen)) for v in values], dtype=np.int64)


def grouped_folds(groups: npt.ArrayLike, n_folds: int, *, seed: int = 0) -> I64:
    """Deal groups to folds of about equal numbers of rows.

    Parameters
    ----------
    groups : int64 [row]
    n_folds : int
    seed : int
        Order in which groups of equal size are dealt.

    Returns
    -------
    int64 [row]
        Fold of each row, 0 to n_folds - 1.

    Raises
    ------
    AnalysisError
        If there are fewer groups than folds, or fewer than two folds.
    """
    _, numbers, sizes = np.unique(np.asarray(groups), return_inverse=True, return_counts=True)
    if n_folds < 2 or len(sizes) < n_folds:
        got = f"{len(sizes)} groups for {n_folds} folds"
        raise AnalysisError("cross-validation needs two folds or more, and a group for each", got, "Use fewer folds.")
    rng = np.random.default_rng(seed)
    fold_of_group = np.empty(len(sizes), np.int64)
    load = np.zeros(n_folds, np.int64)
    for group in np.lexsort((rng.random(len(sizes)), -sizes)):
        fold = int(np.argmin(load))
        fold_of_group[group] = fold
        load[fold] += sizes[group]
    return fold_of_group[numbers]


def shuffled_by_group(n_groups_of_row: npt.ArrayLike, rng: np.random.Generator) -> I64:
    """Give each row the row whose label it takes in a shuffle that keeps groups together.

    Groups swap places; inside a group, row j takes the label of row j of the other group (counted round where it is
    shorter). So labels that are equal within groups stay equal within groups.
    """
    groups = np.unique(np.asarray(n_groups_of_row), return_inverse=True)[1]
    order = np.argsort(groups, kind="stable")
    starts = np.searchsorted(groups[order], np.arange(groups.max() + 1))
    sizes = np.bincount(groups)
    partner = rng.permutation(len(sizes))
    place = np.empty(len(groups), np.int64)
    place[order] = np.arange(len(groups)) - starts[groups[order]]
    other = partner[groups]
    return order[starts[other] + place % sizes[other]]


def bootstrap_weights(groups: npt.ArrayLike, repeats: int, *, seed: int = 0) -> tuple[F64, I64]:
    """Draw how often each group enters each bootstrap sample: float64 [repeat, group], and the group of each row."""
    numbers = np.unique(np.asarray(groups), return_inverse=True)[1]
    return _draws(int(numbers.max()) + 1, repeats, seed), numbers


@lru_cache(maxsize=1)  # a sweep asks for the same draws at every tap
def _draws(n: int, repeats: int, seed: int) -> F64:
    weights = np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), size=repeats).astype(np.float64)
    weights.flags.writeable = False
    return weights


def group_sums(values: npt.ArrayLike, numbers: I64) -> F64:
    """Sum values [row] over the rows of each group, float64 [group]."""
    return np.bincount(numbers, weights=np.asarray(values, dtype=np.float64)).astype(np.float64)
