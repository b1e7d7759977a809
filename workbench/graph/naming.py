"""Patterns that name modules, as in the list of layers that a recipe keeps in higher precision."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def is_named(module: str, patterns: Iterable[str]) -> bool:
    """Whether a pattern matches a canonical module, or the weight of it."""
    return any(fnmatchcase(module, pattern) or fnmatchcase(f"{module}.weight", pattern) for pattern in patterns)
