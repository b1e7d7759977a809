"""Which rows a measure looks at: seeded samples spread over prompts, and rows left out by token id."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from workbench.index.blocks import I64


def sample_rows(prompt_of_row: npt.ArrayLike, n: int, *, seed: int = 0) -> I64:
    """Pick n rows, spread evenly over prompts, in ascending order; all rows where there are no more.

    Parameters
    ----------
    prompt_of_row : int64 [row]
    n : int
    seed : int

    Returns
    -------
    int64 [at most n]
        First one random row of every prompt, then a second of every prompt, and so on.
    """
    prompts = np.asarray(prompt_of_row)
    if len(prompts) <= n:
        return np.arange(len(prompts), dtype=np.int64)
    rng = np.random.default_rng(seed)
    order = np.lexsort((rng.random(len(prompts)), prompts))
    starts = np.flatnonzero(np.r_[True, np.diff(prompts[order]) != 0])
    lengths = np.diff(np.r_[starts, len(order)])
    turn = np.empty(len(prompts), np.int64)
    turn[order] = np.arange(len(order)) - np.repeat(starts, lengths)
    chosen = np.lexsort((rng.random(len(prompts)), turn))[:n]
    return np.sort(chosen).astype(np.int64)


def rows_without_tokens(token_of_row: npt.ArrayLike, ids: npt.ArrayLike) -> I64:
    """Rows whose token is none of the given ids: special tokens are masked by id, never by place.

    Parameters
    ----------
    token_of_row : int32 [row]
    ids : int32 [id]
    """
    return np.flatnonzero(~np.isin(np.asarray(token_of_row), np.asarray(list(np.atleast_1d(np.asarray(ids)))))).astype(
        np.int64
    )
