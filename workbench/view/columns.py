"""Columns of a view: numbers with a colour range, or classes with their labels."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Sequence

_FEW = 20  # whole numbers with at most so many values, each met several times, are classes rather than amounts


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ViewColumn:
    """One value a prompt or a row.

    Attributes
    ----------
    name : str
    per : {"prompt", "row"}
    values : float32 or float64 [prompt or row], or uint16 or uint32 codes
        NaN and the code `len(labels)` mean that there is no value.
    labels : tuple of str or None
        Names of the classes; None for numbers.
    free : bool
        Whether name and labels are made by the workbench, already redacted where they speak of prompts.
    scale : {"linear", "log"}
        Of the colours of numbers.
    """

    name: str
    per: Literal["prompt", "row"]
    values: npt.NDArray[Any]
    labels: tuple[str, ...] | None = None
    free: bool = False
    scale: Literal["linear", "log"] = "linear"


def column_of(name: str, values: Sequence[Any], *, per: Literal["prompt", "row"] = "prompt") -> ViewColumn:
    """Make a column of plain values: numbers stay numbers, all else becomes classes."""
    kinds = {_kind(value) for value in values} - {"none"}
    if kinds and kinds <= {"whole", "real"}:
        numbers = np.array([math.nan if _kind(value) == "none" else float(value) for value in values])
        if kinds == {"real"} or not _class_like(numbers):
            return ViewColumn(name=name, per=per, values=_compact(numbers))
    return _classes(name, values, per)


def number_column(
    name: str,
    values: npt.ArrayLike,
    *,
    per: Literal["prompt", "row"] = "row",
    scale: Literal["linear", "log"] = "linear",
) -> ViewColumn:
    """Make a column of numbers that the workbench computed."""
    return ViewColumn(name=name, per=per, values=_compact(np.asarray(values, np.float64)), free=True, scale=scale)


def colour_range(values: npt.NDArray[Any], scale: str = "linear") -> dict[str, Any]:
    """Give the ends of a colour scale.

    Signed numbers get ends of equal size around 0. Ends move inwards to the 1st and 99th percentile where a few
    values would otherwise leave all others in one colour.
    """
    finite = values[np.isfinite(values)].astype(np.float64)
    if scale == "log":
        finite = finite[finite > 0]
        low, high = (float(finite.min()), float(finite.max())) if len(finite) else (0.1, 1.0)
        return {"low": low, "high": high, "signed": False, "clipped": False}
    if not len(finite):
        return {"low": 0.0, "high": 1.0, "signed": False, "clipped": False}
    low, high = float(finite.min()), float(finite.max())
    inner = np.percentile(finite, [1, 99])
    clipped = bool(high - low > 3 * (inner[1] - inner[0]) > 0)
    if clipped:
        low, high = float(inner[0]), float(inner[1])
    signed = low < 0 < high
    if signed:
        high = max(-low, high)
        low = -high
    return {"low": low, "high": high, "signed": signed, "clipped": clipped}


def _kind(value: Any) -> str:
    if value is None or (isinstance(value, float | np.floating) and math.isnan(value)):
        return "none"
    if isinstance(value, bool | np.bool_):
        return "other"
    if isinstance(value, int | np.integer):
        return "whole" if abs(int(value)) < 2**53 else "other"
    return "real" if isinstance(value, float | np.floating) else "other"


def _class_like(numbers: npt.NDArray[np.float64]) -> bool:
    found = numbers[~np.isnan(numbers)]
    distinct = len(np.unique(found))
    return distinct <= _FEW and len(found) >= 3 * distinct and bool(np.all(found == np.floor(found)))


def _compact(numbers: npt.NDArray[np.float64]) -> npt.NDArray[Any]:
    # float32 where it shows the same figures; whole numbers must come back exactly
    with np.errstate(over="ignore", invalid="ignore"):
        small = numbers.astype(np.float32)
        finite = numbers[np.isfinite(numbers)]
        exact = np.all((small[np.isfinite(numbers)] == finite) | (finite != np.floor(finite)))
        fits = np.all(np.isfinite(small) == np.isfinite(numbers))
    return small if bool(exact and fits) else numbers


def _classes(name: str, values: Sequence[Any], per: Literal["prompt", "row"]) -> ViewColumn:
    texts = [None if _kind(value) == "none" else _label(value) for value in values]
    labels = sorted({text for text in texts if text is not None}, key=_order)
    code = {label: number for number, label in enumerate(labels)}
    kind = np.uint16 if len(labels) < 65_535 else np.uint32
    codes = np.array([len(labels) if text is None else code[text] for text in texts], kind)
    return ViewColumn(name=name, per=per, values=codes, labels=tuple(labels))


def _label(value: Any) -> str:
    return str(int(value)) if isinstance(value, float | np.floating) and float(value).is_integer() else str(value)


def _order(label: str) -> tuple[int, float, str]:
    try:
        return (0, float(label), label)
    except ValueError:
        return (1, 0.0, label)
