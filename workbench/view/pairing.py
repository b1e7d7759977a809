"""Which row of another run is the same token of the same prompt: by prompt hash and position, never by place in a file."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from workbench.store import Run
    from workbench.view.rows import DrawnRows


def partners(rows: DrawnRows, other: Run) -> npt.NDArray[np.int64]:
    """Find the twin of each drawn row.

    Parameters
    ----------
    rows : DrawnRows
        Of one run.
    other : Run

    Returns
    -------
    int64 [row]
        Row id in `other`; -1 where it has no such row. Of equal prompts the first stands for the first, and so on.
    """
    return _match(_keys(rows.run)[rows.ids], _keys(other))


def _keys(run: Run) -> npt.NDArray[np.str_]:
    seen: dict[str, int] = {}
    names = []
    for digest in run.prompts.hashes:
        seen[digest] = seen.get(digest, 0) + 1
        names.append(f"{digest} {seen[digest]}")
    prompt = np.asarray(run.prompt_of_rows(), np.int64)
    index = np.asarray(run.token_index(), np.int64)
    # the place among the rows of its prompt tells apart offsets that name one token twice
    return np.array([f"{names[p]} {t}" for p, t in zip(prompt.tolist(), index.tolist(), strict=True)], dtype=np.str_)


def _match(wanted: npt.NDArray[np.str_], there: npt.NDArray[np.str_]) -> npt.NDArray[np.int64]:
    place = {key: row for row, key in reversed(list(enumerate(there.tolist())))}
    return np.array([place.get(key, -1) for key in wanted.tolist()], np.int64)


def take(values: npt.NDArray[np.float32], rows: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
    """Take rows of `values` [row, component]; NaN where the row id is -1."""
    taken = np.full((len(rows), values.shape[1]), np.nan, np.float32)
    known = rows >= 0
    taken[known] = values[rows[known]]
    return taken
