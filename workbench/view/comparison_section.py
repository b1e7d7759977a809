"""Build comparisons on a page."""

from __future__ import annotations

from typing import Any


def comparison_columns(comparison: Any, rows: Any) -> list[Any]:
    return []


def comparison_section(comparison: Any, runs: Any, rows: Any, rule: Any) -> dict[str, Any]:
    raise NotImplementedError


def drift_clause(comparison: Any) -> str | None:
    return None


def drift_fact(comparison: Any) -> tuple[str, str, str | None]:
    raise NotImplementedError
