"""Columns of a pandas DataFrame as plain Python values. pandas itself is not imported."""

from __future__ import annotations

import math
from typing import Any

from workbench.errors import PromptError
from workbench.prompts.promptset import show


def is_frame(source: object) -> bool:
    """Whether `source` is a pandas DataFrame."""
    kind = type(source)
    return any(base.__module__.partition(".")[0] == "pandas" and base.__name__ == "DataFrame" for base in kind.__mro__)


def columns_of_frame(frame: Any) -> dict[str, list[Any]]:
    """Columns of a DataFrame; NaN, NaT and NA become None, NumPy scalars Python's own. The index is dropped.

    Raises
    ------
    PromptError
        If a column name is no text or stands twice.
    """
    columns: dict[str, list[Any]] = {}
    for position, name in enumerate(frame.columns):
        if not isinstance(name, str) or name in columns:
            raise PromptError("column names must be text and differ", show(name), "Rename the column.")
        series = frame.iloc[:, position]
        columns[name] = _narrowed([plain(value) for value in series.tolist()])
    return columns


def plain(value: Any) -> Any:
    """A value without NumPy's or pandas' own scalar types; what is missing becomes None."""
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return None
    if hasattr(value, "item") and getattr(value, "ndim", 0) == 0 and hasattr(value, "dtype"):
        value = value.item()
    return None if isinstance(value, float) and math.isnan(value) else value


def _narrowed(values: list[Any]) -> list[Any]:
    """Undo what pandas does to an integer column with a gap: it turns all of it into floats."""
    present = [value for value in values if value is not None]
    gap = len(present) < len(values)
    if gap and present and all(isinstance(value, float) and value.is_integer() for value in present):
        return [None if value is None else int(value) for value in values]
    return values
