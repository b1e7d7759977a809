"""Values of some rows of a run, given to the rows that a view draws."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.view.columns import ViewColumn

if TYPE_CHECKING:
    from workbench.view.rows import DrawnRows


def spread(values: Any, row_of: Any, rows: DrawnRows) -> Any:
    """Give values of some rows of the run to the drawn rows, float64 [row]; NaN where there is none."""
    out = np.full(len(rows), np.nan)
    place = np.minimum(np.searchsorted(rows.ids, row_of), len(rows) - 1)
    known = rows.ids[place] == row_of
    out[place[known]] = values[known]
    return out


def class_column(name: str, yes: Any, row_of: Any, rows: DrawnRows, labels: tuple[str, str]) -> ViewColumn:
    """Make a column of two classes, the second where `yes`."""
    found = spread(np.asarray(yes, np.float64), row_of, rows)
    codes = np.where(np.isnan(found), 2, found).astype(np.uint16)
    return ViewColumn(name=name, per="row", values=codes, labels=labels, free=True)
