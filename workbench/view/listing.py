"""Tables and numbers of sections: rounded for readers, None where there is no number, rows that a click selects."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.view.rows import rows_by_id

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from workbench.view.redaction import Redaction
    from workbench.view.rows import DrawnRows

MAX_LINES = 40


def table(title: str, heads: list[str], lines: Sequence[list[Any]], right: list[int]) -> dict[str, Any]:
    """Describe a table; `right` names the columns of numbers."""
    rows = [{"cells": line, "row": None} for line in lines[:MAX_LINES]]
    told = f"{title} ({MAX_LINES:,} of {len(lines):,})" if len(lines) > MAX_LINES else title
    return {"title": told, "heads": heads, "numbers": right, "rows": rows}


def row_list(
    title: str,
    heads: list[str],
    cells: Sequence[tuple[Any, list[Any]]],
    row_of: Any,
    rows: DrawnRows | None,
    rule: Redaction,
    *,
    numeric: bool = False,
) -> dict[str, Any]:
    """List rows with their prompts; `cells` are (place in `row_of`, values). A click selects a row in the maps."""
    place = {} if rows is None else rows_by_id(rows)
    prompt_of_row = None if rows is None else np.asarray(rows.run.prompt_of_rows(), np.int64)
    found = []
    for at, values in cells:
        row = int(row_of[at])
        if rows is None or prompt_of_row is None:
            text = f"row {row:,}"
        else:
            text = rule.text(rows.run.prompts.texts[prompt_of_row[row]]) or f"row {row:,}"
        found.append({"cells": [text[:200], *values], "row": place.get(row)})
    right = list(range(1, len(heads) + 1)) if numeric else []
    return {"title": title, "heads": ["prompt", *heads], "numbers": right, "rows": found}


def range_words(low: float, high: float) -> str:
    """Write a range."""
    return f"{score_words(low)} to {score_words(high)}"


def score_words(value: float) -> str:
    """Write a score to three places, with a true minus and no minus zero."""
    return f"{value:.3f}".replace("-0.000", "0.000").replace("-", "\N{MINUS SIGN}")


def listed(names: Sequence[str]) -> str:
    """Join names with commas and an "and"."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def numbers(values: Iterable[Any]) -> list[float | None]:
    """Give numbers for a chart, None where one is not finite."""
    return [finite(value) for value in values]


def rounded(value: Any) -> float | None:
    """Round to three figures; None where it is not finite."""
    number = finite(value)
    return None if number is None else float(f"{number:.3g}")


def finite(value: Any) -> float | None:
    """Give a number for a chart, None where it is not finite."""
    return None if value is None or not np.isfinite(value) else float(value)
