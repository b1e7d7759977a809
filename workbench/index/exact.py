"""Exact nearest rows on the CPU, in blocks, in float32.

1. Scores of a block of rows against all queries are one matrix product.
2. The best `k` so far and the block's scores are merged, so memory does not grow with the number of rows.
3. bfloat16 rows are not unpacked: of each pair of values the high one is masked and the low one shifted into place,
   and each half meets its half of the query. That is one pass of integer work instead of two and a copy.

Score: cosine similarity, or minus the squared Euclidean distance; larger is nearer in both.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from workbench.errors import AnalysisError
from workbench.index.blocks import F32, I64, Progress, rows_of

Metric = Literal["cosine", "l2", "dot"]
METRICS = ("cosine", "l2", "dot")
SCAN_BYTES = (
    1 << 20
)  # of float32: half of a core's L2 cache, so that a block is unpacked and multiplied without leaving it

CHUNK_ROWS = 1 << 16  # handed to a thread at a time


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Neighbours:
    """Nearest rows of each query.

    Attributes
    ----------
    rows : int64 [query, k]
        Row ids, nearest first; -1 where fewer than k rows were allowed.
    scores : float32 [query, k]
        Cosine, minus squared distance, or dot product; -inf beside a -1.
    """

    rows: I64
    scores: F32
    metric: str


def check_metric(metric: str) -> None:
    """Refuse a metric that the index does not know."""
    if metric not in METRICS:
        raise AnalysisError(f"metric must be one of {', '.join(METRICS)}", repr(metric), "Choose one of them.")


def nearest_rows(
    source: Any,
    queries: npt.ArrayLike,
    k: int,
    *,
    metric: Metric = "cosine",
    groups: npt.ArrayLike | None = None,
    query_groups: npt.ArrayLike | None = None,
    progress: Progress | None = None,
) -> Neighbours:
    """Find the nearest rows of each query, exactly.

    Parameters
    ----------
    source : array, stored tap or Rows, [row, d_model]
    queries : float32 [query, d_model]
    k : int
        Neighbours a query.
    groups, query_groups : int64 [row], int64 [query], optional
        A row of the query's own group is never its neighbour: row ids leave out the row itself, prompt numbers leave
        out its whole prompt.

    Returns
    -------
    Neighbours

    Raises
    ------
    AnalysisError
        If k is below one, widths differ, or a query is not finite.
    """
    return ExactIndex(source, metric=metric).search(
        queries, k, groups=groups, query_groups=query_groups, progress=progress
    )


class ExactIndex:
    """An exact index over one tap: nothing is built but the row norms, at the first search that needs them."""

    def __init__(self, source: Any, *, metric: Metric = "cosine") -> None:
        check_metric(metric)
        self.rows = rows_of(source)
        self.metric = metric
        self._squares: F32 | None = None
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def squares(self) -> F32:
        """Squared norm of each row, float32 [row]; measured once."""
        with self._lock:
            if self._squares is None:
                out = np.empty(len(self.rows), np.float32)
                for first, block in self.rows.blocks():
                    out[first : first + len(block)] = np.einsum("ij,ij->i", block, block)
                self._squares = out
            return self._squares

    def search(
        self,
        queries: npt.ArrayLike,
        k: int,
        *,
        groups: npt.ArrayLike | None = None,
        query_groups: npt.ArrayLike | None = None,
        progress: Progress | None = None,
    ) -> Neighbours:
        """Find the nearest rows of each query; see `nearest_rows`."""
        wanted = np.atleast_2d(np.asarray(queries, dtype=np.float32))
        self._check(wanted, k)
        best = _Best(len(wanted), min(k, len(self)), groups, query_groups)
        if len(wanted) == 1 and self._is_paired():
            self._scan_bf16(wanted, best)
        else:
            done = 0
            for first, block in self.rows.blocks():
                best.merge(first, self._score(block @ wanted.T, wanted, first))
                done += len(block)
                if progress:
                    progress(done, len(self))
        return Neighbours(rows=best.rows, scores=best.scores, metric=self.metric)

    def _check(self, wanted: F32, k: int) -> None:
        if k < 1:
            raise AnalysisError("k must be at least 1", f"{k}", "Ask for one neighbour or more.")
        if wanted.ndim != 2 or wanted.shape[1] != self.rows.shape[1]:
            raise AnalysisError(
                f"queries must be [query, d_model={self.rows.shape[1]}]", str(wanted.shape), "Take them from this tap."
            )
        if not np.isfinite(wanted).all():
            raise AnalysisError("queries must be finite", "inf or NaN", "Leave that query out.")

    def _score(self, dots: F32, wanted: F32, first: int) -> F32:
        """Turn dot products [row, query] into scores."""
        if self.metric == "dot":
            return dots
        mine = self.squares[first : first + len(dots), None]
        theirs = np.einsum("ij,ij->i", wanted, wanted)[None, :]
        if self.metric == "l2":
            return np.asarray(np.minimum(2 * dots - mine - theirs, 0.0), np.float32)
        size = np.sqrt(mine) * np.sqrt(theirs)
        with np.errstate(invalid="ignore"):  # a row with inf or NaN gets NaN here and is left out below
            return np.asarray(np.divide(dots, size, out=np.zeros_like(dots), where=size != 0))

    def _is_paired(self) -> bool:
        """Tell whether all rows are stored as pairs of bfloat16 that can be read in place."""
        width = self.rows.shape[1]
        return width % 2 == 0 and all(
            pick is None and getattr(part, "storage_dtype", "") == "BF16"
            for part, pick in zip(self.rows.parts, self.rows.picks, strict=True)
        )

    def _scan_bf16(self, wanted: F32, best: _Best) -> None:
        low, high = np.ascontiguousarray(wanted[0, 0::2]), np.ascontiguousarray(wanted[0, 1::2])
        start = 0
        with ThreadPoolExecutor(2) as pool:
            for part in self.rows.parts:
                total = int(part.shape[0])
                jobs = []
                for first in range(0, total, CHUNK_ROWS):
                    raw = part.raw(first, min(first + CHUNK_ROWS, total))
                    jobs.append(pool.submit(_pair_dots, np.ascontiguousarray(raw).view(np.uint32), low, high))
                dots = np.concatenate([job.result() for job in jobs]) if jobs else np.empty(0, np.float32)
                best.merge(start, self._score(dots[:, None], wanted, start))
                start += total


def _pair_dots(pairs: npt.NDArray[np.uint32], low: F32, high: F32) -> F32:
    """Dot products of bfloat16 rows, given as uint32 [row, d_model / 2], with a query split into even and odd."""
    step = max(1, SCAN_BYTES // (4 * pairs.shape[1]))
    out = np.empty(len(pairs), np.float32)
    buffer = np.empty((step, pairs.shape[1]), np.uint32)
    for first in range(0, len(pairs), step):
        block = pairs[first : first + step]
        room = buffer[: len(block)]
        np.left_shift(block, 16, out=room)
        dots = room.view(np.float32) @ low
        np.bitwise_and(block, np.uint32(0xFFFF0000), out=room)
        out[first : first + len(block)] = dots + room.view(np.float32) @ high
    return out


class _Best:
    """The best k rows of each query so far."""

    def __init__(
        self, n_queries: int, k: int, groups: npt.ArrayLike | None, query_groups: npt.ArrayLike | None
    ) -> None:
        self.rows = np.full((n_queries, k), -1, np.int64)
        self.scores = np.full((n_queries, k), -np.inf, np.float32)
        self.groups = None if groups is None else np.asarray(groups)
        self.query_groups = None if query_groups is None else np.asarray(query_groups)
        if (self.groups is None) != (self.query_groups is None):
            raise AnalysisError("groups and query_groups go together", "only one of them", "Give both or neither.")

    def merge(self, first: int, scores: F32) -> None:
        """Merge the scores [row, query] of a block that starts at row `first`; equal scores keep the earlier row."""
        block = np.ascontiguousarray(scores.T)
        block[~np.isfinite(block)] = -np.inf  # a row with inf or NaN is nobody's neighbour
        if self.groups is not None and self.query_groups is not None:
            own = self.groups[first : first + block.shape[1]]
            block[self.query_groups[:, None] == own[None, :]] = -np.inf
        k = self.rows.shape[1]
        if block.shape[1] > 4 * k:
            # strictly more than k are kept where scores tie at the cut, so that ties go to the earlier row below
            cut = np.partition(block, block.shape[1] - k, axis=1)[:, -k]
            for query in range(len(block)):
                near = np.flatnonzero(block[query] >= cut[query])
                self._merge_one(query, near + first, block[query, near])
            return
        ids = np.arange(first, first + block.shape[1])
        for query in range(len(block)):
            self._merge_one(query, ids, block[query])

    def _merge_one(self, query: int, ids: I64, scores: F32) -> None:
        k = self.rows.shape[1]
        allowed = scores > -np.inf
        rows = np.concatenate([self.rows[query], ids[allowed]])
        values = np.concatenate([self.scores[query], scores[allowed]])
        order = np.lexsort((np.where(rows < 0, np.iinfo(np.int64).max, rows), -values))[:k]
        self.rows[query], self.scores[query] = rows[order], values[order]
