"""What may be said of a tap, given a measured floor: equal sizes are compared, or nothing is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from workbench.analysis.floors import CLAIM, Floor, metrics_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from workbench.analysis.drift import TapDrift
    from workbench.index.blocks import F32

NO_FLOOR = "floor not measured"
EQUAL = "bit-equal"
WITHIN = "within the floor"
ABOVE = "above the floor"
_OF_A_SAMPLE = ("overlap_loss", "overlap_zscored_loss")


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """What may be said of one tap.

    Attributes
    ----------
    text : str
        "bit-equal", "floor not measured", "within the floor" or "above the floor".
    multiple : float or None
        Mean error as a multiple of its floor; None without a floor, or where the floor is exactly 0.
    worst_multiple : float or None
        The same of the worst row; where the floor was measured on fewer rows, of `worst_of_as_many`.
    worst_of_as_many : float or None
        Largest error to expect among as many rows of this run as the floor was measured on.
    multiples : mapping of metric to float or None
        Of every metric that has a floor of its own size; see `comparable`.
    """

    text: str
    multiple: float | None
    worst_multiple: float | None
    worst_of_as_many: float | None
    multiples: Mapping[str, float | None]


def judge(drift: TapDrift, floor: Floor | None) -> Verdict:
    """Say what may be said of a tap, given a floor."""
    found = comparable(drift, floor)
    multiples: dict[str, float | None] = {}
    for name, value in found.items():
        least = floor.value(drift.tap, name) if floor else None
        multiples[name] = value / least if least else None
    mean = "error_mean" if "error_mean" in found else "cka_distance"
    least = floor.value(drift.tap, mean) if floor else None
    if drift.equal_rows == drift.n_rows:
        text = EQUAL
    elif least is None:
        text = NO_FLOOR
    else:
        text = ABOVE if found.get(mean, 0.0) > CLAIM * least else WITHIN
    return Verdict(
        text=text, multiple=multiples.get(mean), worst_multiple=multiples.get("error_worst"),
        worst_of_as_many=found.get("error_worst"), multiples=multiples,
    )  # fmt: skip


def comparable(drift: TapDrift, floor: Floor | None) -> dict[str, float]:
    """Metrics of a tap in the sizes that the floor was measured in.

    The worst of many rows is larger than the worst of few, though nothing differs: where the run has more rows, its
    worst error is replaced by the one to expect among as many rows as the floor has, and the worst cosine is left out.
    So is neighbour overlap where the floor's sample was smaller, since neighbours lie closer among more rows.
    """
    found = metrics_of(drift)
    if floor is None:
        return found
    if drift.n_rows > floor.n_rows > 0:
        found.pop("cosine_distance_worst", None)
        if "error_worst" in found and len(drift.errors):
            found["error_worst"] = worst_of_as_many(drift.errors, floor.n_rows)
    if drift.n_sample > floor.n_rows:
        for name in _OF_A_SAMPLE:
            found.pop(name, None)
    return found


def worst_of_as_many(errors: F32, n: int) -> float:
    """Give the largest error to expect among `n` rows drawn at random, each at most once.

    Parameters
    ----------
    errors : float32 [row]
        NaN where a row was left out.
    n : int
        Rows drawn; all of them where there are no more.

    Returns
    -------
    float
        Sum over rows, from the largest error down, of the error times the chance that it is the largest of the draw:
        `C(N - j, n - 1) / C(N, n)` for the j-th largest of N.
    """
    values = np.sort(errors[np.isfinite(errors)].astype(np.float64))[::-1]
    total = len(values)
    if n >= total:
        return float(values[0]) if total else float("nan")
    rank = np.arange(1, total - n + 1)
    chances = np.cumprod(np.concatenate([[n / total], (total - rank - n + 1) / (total - rank)]))
    return float(values[: len(chances)] @ chances)
