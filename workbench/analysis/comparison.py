"""What a comparison of two builds found, tap by tap, with its verdicts.

Words follow the evidence: a tap is "above the floor" only where its drift exceeds `floors.CLAIM` times the measured
floor. Without a floor the numbers are given and nothing is claimed.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from workbench.analysis.drift import TapDrift
from workbench.analysis.floors import CLAIM, Floor
from workbench.analysis.judging import ABOVE, EQUAL, NO_FLOOR, Verdict
from workbench.analysis.results import Figures, Provenance, Result
from workbench.errors import AnalysisError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from workbench.analysis.joining import Joined
    from workbench.analysis.lens import RankAgreement
    from workbench.index.blocks import I64


@dataclass(frozen=True, kw_only=True, slots=True)
class WorstToken:
    """A row with a large error: where it stands and what it says."""

    tap: str
    row_a: int
    row_b: int
    prompt: int
    prompt_id: str
    token_index: int
    token_id: int
    error: float
    text: str


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Comparison(Result):
    """A comparison of two runs, tap by tap.

    Attributes
    ----------
    taps : tuple of TapDrift
    verdicts : mapping of tap to Verdict
    floor : Floor or None
    joined : Joined
        Which rows were compared; entry i of `TapDrift.errors` is its row i.
    worst : tuple of WorstToken
        The rows with the largest error of each tap, worst first.
    notes : tuple of str
        What a reader must know beside the numbers, such as a floor of another engine.
    predictions : tuple of RankAgreement
        How far the lens predictions agree at each tap of the residual stream; empty without a head.
    """

    kind: ClassVar[str] = "comparison"
    taps: tuple[TapDrift, ...]
    verdicts: Mapping[str, Verdict]
    floor: Floor | None
    joined: Joined
    worst: tuple[WorstToken, ...]
    notes: tuple[str, ...]
    n_rows: int
    engine_a: str
    engine_b: str
    provenance: Provenance
    predictions: tuple[RankAgreement, ...] = ()

    def tap(self, name: str) -> TapDrift:
        """Give the measures of one tap."""
        for drift in self.taps:
            if drift.tap == name:
                return drift
        names = ", ".join(drift.tap for drift in self.taps)
        raise AnalysisError(f"a compared tap is one of {names}", repr(name), "Choose one of them.")

    @property
    def above(self) -> tuple[str, ...]:
        """Taps whose drift exceeds the floor."""
        return tuple(drift.tap for drift in self.taps if self.verdicts[drift.tap].text == ABOVE)

    def rows_above(self, tap: str) -> I64:
        """Joined rows whose error exceeds the floor's worst row, int64 [row], worst first; none without a floor.

        A run with more rows than the floor has such rows by chance; see `rows_above_by_chance`.
        """
        least = self.floor.value(tap, "error_worst") if self.floor else None
        errors = self.tap(tap).errors
        if least is None:
            return np.empty(0, np.int64)
        order = np.argsort(-np.nan_to_num(errors, nan=-1.0), kind="stable")
        return order[errors[order] > CLAIM * least]

    @property
    def rows_above_by_chance(self) -> float | None:
        """Most rows to expect above the floor's worst at a tap if this were one more repeat; None without a floor.

        One more row exceeds the worst of n like rows with chance 1 / (n + 1).
        """
        return None if self.floor is None else self.n_rows / (self.floor.n_rows + 1)

    def columns(self) -> dict[str, npt.NDArray[Any]]:
        """One line a tap: every measure, its verdict and multiple of the floor."""
        names = [
            f.name for f in dataclasses.fields(TapDrift) if isinstance(getattr(self.taps[0], f.name), float | int | str)
        ]
        table = {name: np.array([getattr(drift, name) for drift in self.taps]) for name in names}
        verdicts = [self.verdicts[drift.tap] for drift in self.taps]
        table["verdict"] = np.array([verdict.text for verdict in verdicts])
        table["floor_multiple"] = np.array([np.nan if v.multiple is None else v.multiple for v in verdicts])
        return table

    def __str__(self) -> str:
        floor = (
            f"floor of {len(self.floor.repeats)} repeats ({', '.join(self.floor.kinds)})" if self.floor else NO_FLOOR
        )
        lines = [f"{self.engine_a[:12]} (reference) and {self.engine_b[:12]}: {self.n_rows:,} rows, {floor}"]
        width = max(len(drift.tap) for drift in self.taps)
        lines += [f"  {drift.tap:<{width}}  {self._line(drift)}" for drift in self.taps]
        if self.worst:
            w = max(self.worst, key=lambda one: one.error)
            lines.append(
                f"  worst row: {w.tap}, error {w.error:.2g}, prompt {w.prompt_id}, token {w.token_index}: {w.text!r}"
            )
        lines += [
            f"  {one.tap}: most likely token equal on {one.first:.1%}, {one.shared:.1%} of the first {one.top} shared"
            for one in self.predictions
        ]
        lines += [f"  note: {note}" for note in self.notes]
        return "\n".join(lines)

    def _line(self, drift: TapDrift) -> str:
        verdict = self.verdicts[drift.tap]
        if verdict.text == EQUAL:
            return EQUAL
        part = (
            f"error {drift.error_mean:.2g} mean, {drift.error_worst:.2g} worst, "
            if np.isfinite(drift.error_mean)
            else ""
        )
        part += f"CKA {drift.cka:.4f} (z-scored {drift.cka_zscored:.4f}, n={drift.n_rows:,}), "
        part += f"neighbours in common {drift.overlap:.0%} (chance {drift.overlap_chance:.1%}); "
        if verdict.multiple is not None:
            return part + f"{verdict.text}, {verdict.multiple:.3g}x"
        return part + verdict.text + (" (which is exactly 0)" if verdict.text == ABOVE else "")

    def figures(self) -> Figures:
        """By tap: error with its floor, cosine, CKA, neighbours in common."""
        from workbench.analysis.charts import lines

        names, table = [drift.tap for drift in self.taps], self.columns()
        ending = f", {self.n_rows:,} rows" + ("" if self.floor else f" ({NO_FLOOR})")
        error: dict[str, npt.ArrayLike] = {"mean error": table["error_mean"], "worst row": table["error_worst"]}
        if self.floor:
            error["floor of the mean"] = [self.floor.value(tap, "error_mean") or np.nan for tap in names]
        cosine = {"cosine": "cosine_mean", "centred": "centred_cosine_mean", "permuted pairs": "centred_cosine_floor"}
        others = {
            "cosine": cosine,
            "CKA": {"CKA": "cka", "z-scored": "cka_zscored"},
            "neighbours in common": {"raw": "overlap", "z-scored": "overlap_zscored", "by chance": "overlap_chance"},
        }

        def by_tap(kind: str) -> Any:
            series = {name: table[column] for name, column in others[kind].items()}
            return lines(names, series, f"{kind} by tap{ending}", "tap", kind)

        drawn: dict[str, Any] = {
            "error": lambda: lines(names, error, f"Error by tap{ending}", "tap", "|b - a| / |a|", log=True)
        }
        return drawn | {kind: partial(by_tap, kind) for kind in others}
