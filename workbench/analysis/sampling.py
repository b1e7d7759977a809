"""Which rows a measure looks at: seeded samples spread over prompts, and rows left out by token id or as first tokens.

The first token of a prompt sees nothing before it and serves the others as a place to attend to: its state has often a
hundred times the norm of any other, is the same in every prompt, and would rule components, clusters and CKA
(arXiv:2309.17453, arXiv:2402.17762). Special tokens are masked by id, never by place.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from workbench.errors import AnalysisError
from workbench.index.blocks import as_rows

if TYPE_CHECKING:
    from workbench.index.blocks import I64
    from workbench.store import Run

FirstTokens = Literal["drop", "keep"]


def first_token_rows(run: Run) -> npt.NDArray[np.bool_]:
    """Mark the rows of first tokens, bool [row]; none where a prompt has one row by design, or no row is any other."""
    places = np.asarray(run.token_index(), np.int64)
    if run.positions in ("last", "mean") or not (places > 0).any():
        return np.zeros(len(places), np.bool_)
    return np.asarray(places == 0)


def asked_rows(run: Run, rows: npt.ArrayLike | None, first_tokens: FirstTokens) -> tuple[I64, int]:
    """Rows that a measure was asked for, int64 [row], and how many first tokens were left out of them.

    Raises
    ------
    AnalysisError
        If `first_tokens` is neither "drop" nor "keep", or rows are not of this run.
    """
    if first_tokens not in ("drop", "keep"):
        raise AnalysisError("first_tokens must be 'drop' or 'keep'", repr(first_tokens), "Choose one of them.")
    wanted = np.arange(run.n_rows, dtype=np.int64) if rows is None else as_rows(rows, run.n_rows)
    if first_tokens == "keep":
        return wanted, 0
    kept = wanted[~first_token_rows(run)[wanted]]
    return kept, len(wanted) - len(kept)


def said_of_first(dropped: int) -> str:
    """Say that first tokens were left out, for a list of what was measured; "" where none were."""
    return f"; {dropped:,} first tokens left out" if dropped else ""


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
