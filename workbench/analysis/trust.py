"""How far a map can be trusted: trustworthiness and continuity of its neighbourhoods.

Trustworthiness falls where the map shows neighbours that are none in the states, continuity where true neighbours are
torn apart (Venna and Kaski, 2006). Both are 1 for a perfect map and about 0.5 for a random one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from workbench.errors import AnalysisError

if TYPE_CHECKING:
    from workbench.index.blocks import F32, I64


@dataclass(frozen=True, kw_only=True, slots=True)
class Trust:
    """Trustworthiness and continuity at `k` neighbours, measured on `n` rows."""

    trustworthiness: float
    continuity: float
    k: int
    n: int


def map_trust(states: F32, coordinates: F32, k: int = 10) -> Trust:
    """Measure both on rows that fit in memory: needs a few [row, row] matrices, so give a sample.

    Parameters
    ----------
    states : float32 [row, d_model]
    coordinates : float32 [row, component]
    k : int
        Neighbours; lowered to what the number of rows allows (below half of it).

    Raises
    ------
    AnalysisError
        If there are fewer than five rows or the numbers of rows differ.
    """
    n = len(states)
    if n != len(coordinates) or n < 5:
        got = f"{n} states and {len(coordinates)} coordinates"
        raise AnalysisError("trust needs at least five rows with one coordinate each", got, "Give more rows.")
    k = max(1, min(k, (n - 1) // 2 - 1))
    high, low = _ranks(states), _ranks(coordinates)
    return Trust(trustworthiness=_score(high, low, k), continuity=_score(low, high, k), k=k, n=n)


def _ranks(points: F32) -> npt.NDArray[np.int32]:
    """Rank of every row as a neighbour of every other, int32 [row, row]; the row itself has rank 0."""
    centred = points.astype(np.float64) - points.mean(axis=0, dtype=np.float64)
    square = np.einsum("ij,ij->i", centred, centred)
    distance = square[:, None] + square[None, :] - 2 * centred @ centred.T
    np.fill_diagonal(distance, -np.inf)
    order: I64 = np.argsort(distance, axis=1, kind="stable")
    ranks = np.empty(distance.shape, np.int32)
    np.put_along_axis(ranks, order, np.arange(len(points), dtype=np.int32)[None, :], axis=1)
    return ranks


def _score(truth: npt.NDArray[np.int32], shown: npt.NDArray[np.int32], k: int) -> float:
    """Penalise rows among the k nearest in `shown` by how far beyond k they are in `truth`."""
    n = len(truth)
    near = (shown >= 1) & (shown <= k)
    beyond = np.maximum(truth.astype(np.int64) - k, 0)[near].sum()
    return float(1 - 2 * beyond / (n * k * (2 * n - 3 * k - 1)))
