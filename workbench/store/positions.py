"""Which rows a prompt has: the one place that turns `positions` into row numbers, and cuts prompts by rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from workbench.errors import ContractError

if TYPE_CHECKING:
    from numpy.typing import NDArray

Positions = str | tuple[int, ...]


def check_positions(positions: object) -> Positions:
    """Return positions in their one form.

    Raises
    ------
    ContractError
        If they are neither "all", "last" or "mean" nor distinct offsets.
    """
    if isinstance(positions, str) and positions in ("all", "last", "mean"):
        return positions
    offsets = tuple(positions) if isinstance(positions, tuple | list) else ()
    if offsets and all(type(offset) is int for offset in offsets) and len(set(offsets)) == len(offsets):
        return offsets
    raise ContractError(
        "positions must be 'all', 'last', 'mean' or a tuple of distinct offsets", repr(positions)[:80], "Choose one."
    )


def row_offsets(lengths: NDArray[np.int64], positions: Positions) -> NDArray[np.int64]:
    """Say where the rows of each prompt begin.

    A prompt without tokens has no row. An offset that a prompt does not reach gives no row, so that padding is never
    stored as data.

    Parameters
    ----------
    lengths : int64 [prompt]
        Real tokens of each prompt.
    positions : str or tuple of int
        "all", "last", "mean", or offsets (negative: from the end).

    Returns
    -------
    int64 [prompt + 1]
        Rows of prompt `p` are `row_offsets[p]` to `row_offsets[p + 1] - 1`.
    """
    if positions == "all":
        counts = lengths
    elif isinstance(positions, str):
        counts = (lengths > 0).astype(np.int64)
    else:
        counts = np.zeros(len(lengths), dtype=np.int64)
        for offset in positions:
            counts += _reached(lengths, offset)
    out = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(counts, out=out[1:])
    return out


def _reached(lengths: NDArray[np.int64], offset: int) -> NDArray[np.bool_]:
    return lengths > offset if offset >= 0 else lengths >= -offset


def cut_prompts(offsets: NDArray[np.int64], most_rows: int) -> tuple[int, ...]:
    """Cut prompts into pieces of at most so many rows; a prompt with more is a piece of its own.

    Parameters
    ----------
    offsets : int64 [prompt + 1]
        Where the rows of each prompt begin.
    most_rows : int
        Rows of a piece.

    Returns
    -------
    tuple of int
        First prompt of each piece, and the number of prompts.
    """
    bounds = [0]
    n_prompts = len(offsets) - 1
    while bounds[-1] < n_prompts:
        end = int(np.searchsorted(offsets, offsets[bounds[-1]] + most_rows, side="right")) - 1
        bounds.append(min(max(end, bounds[-1] + 1), n_prompts))
    return tuple(bounds)


def prompt_of_rows(offsets: NDArray[np.int64]) -> NDArray[np.int64]:
    """Give the prompt of every row; int64 [row]."""
    return np.repeat(np.arange(len(offsets) - 1, dtype=np.int64), np.diff(offsets))


def token_index(lengths: NDArray[np.int64], positions: Positions) -> NDArray[np.int64]:
    """Give the place of every row within its prompt, from 0; -1 for a mean over the prompt.

    Parameters
    ----------
    lengths : int64 [prompt]
        Real tokens of each prompt.
    positions : str or tuple of int
        As for `row_offsets`.

    Returns
    -------
    int64 [row]
    """
    if positions == "all":
        starts = np.cumsum(lengths) - lengths
        return np.arange(int(lengths.sum()), dtype=np.int64) - np.repeat(starts, lengths)
    filled = lengths[lengths > 0]
    if positions == "last":
        return filled - 1
    if isinstance(positions, str):
        return np.full(len(filled), -1, dtype=np.int64)
    places = np.stack([np.where(offset >= 0, offset, lengths + offset) for offset in positions], axis=1)
    reached = np.stack([_reached(lengths, offset) for offset in positions], axis=1)
    return places[reached].astype(np.int64)
