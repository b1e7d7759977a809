"""Which row of another run is the same token of the same prompt."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from workbench.store import Run
    from workbench.view.rows import DrawnRows


def partners(rows: DrawnRows, other: Run) -> npt.NDArray[np.int64]:
    """Find the twin of each drawn row, as `compare` joins rows.

    Returns
    -------
    int64 [row]
        Row id in `other`; -1 where it has no such row.

    Raises
    ------
    AnalysisError
        If the runs share no prompt, or a common one has other token ids.
    """
    from workbench.analysis.joining import join_rows

    joined = join_rows(rows.run, other)
    twins = np.full(rows.run.n_rows, -1, np.int64)
    twins[joined.rows_a] = joined.rows_b
    return twins[rows.ids]


def take(values: npt.NDArray[np.float32], rows: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
    """Take rows of `values` [row, component]; NaN where the row id is -1."""
    taken = np.full((len(rows), values.shape[1]), np.nan, np.float32)
    known = rows >= 0
    taken[known] = values[rows[known]]
    return taken
