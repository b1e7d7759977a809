"""The three-way split: how much of a build's error is its number format, and how much the engine.

(1) a float32 reference, (2) the same low precision in the reference runtime, (3) the engine under test. (2) against (1)
is the dtype error, (3) against (2) the engine error, (3) against (1) the total.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from workbench.analysis.comparing import compare
from workbench.analysis.results import Figures, Provenance, Result
from workbench.errors import AnalysisError

if TYPE_CHECKING:
    from workbench.analysis.comparison import Comparison
    from workbench.store import Run


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ErrorSplit(Result):
    """Three comparisons that share their prompts.

    Attributes
    ----------
    dtype, engine, total : Comparison
    engine_means : str
        What the second step holds: "engine error", or "engine and quantisation together" where the reference runtime
        cannot do that precision and a 16-bit build stood in.
    """

    kind: ClassVar[str] = "error split"
    dtype: Comparison
    engine: Comparison
    total: Comparison
    engine_means: str
    provenance: Provenance

    def columns(self) -> dict[str, npt.NDArray[Any]]:
        """One line a tap: mean and worst error of each step."""
        table: dict[str, npt.NDArray[Any]] = {"tap": np.array([drift.tap for drift in self.total.taps])}
        for name, part in (("dtype", self.dtype), ("engine", self.engine), ("total", self.total)):
            drifts = [part.tap(tap) for tap in table["tap"]]
            table[f"{name}_error"] = np.array([drift.error_mean for drift in drifts])
            table[f"{name}_worst"] = np.array([drift.error_worst for drift in drifts])
        return table

    def __str__(self) -> str:
        table = self.columns()
        lines = [f"Error by source (mean |b - a| / |a|); the middle step is {self.engine_means}; norms do not add up"]
        for i, tap in enumerate(table["tap"]):
            parts = ", ".join(f"{name} {table[f'{name}_error'][i]:.2g}" for name in ("dtype", "engine", "total"))
            lines.append(f"  {tap}: {parts}")
        return "\n".join(lines)

    def figures(self) -> Figures:
        """The three errors by tap: of the mean row and of the worst."""
        from workbench.analysis.charts import lines

        table, title = self.columns(), str(self).split("\n", maxsplit=1)[0]

        def by_tap(which: str) -> Any:
            series = {name: table[f"{name}_{which}"] for name in ("dtype", "engine", "total")}
            return lines(table["tap"].tolist(), series, title, "tap", f"{which} |b - a| / |a|", log=True)

        return {"mean error": lambda: by_tap("error"), "worst row": lambda: by_tap("worst")}


def split_error(
    reference: Run, same_precision: Run, under_test: Run, *, stand_in: bool = False, **options: Any
) -> ErrorSplit:
    """Split a build's error into dtype and engine.

    Parameters
    ----------
    reference, same_precision, under_test : Run
        Float32 reference; the low precision in the reference runtime; the engine under test.
    stand_in : bool
        Whether `same_precision` is a 16-bit build that stands in for a precision which the reference runtime lacks.
    **options
        As for `compare`, such as `floor`.

    Raises
    ------
    AnalysisError
        If the three runs do not share a tap.
    """
    common = [tap for tap in reference.taps if tap in same_precision.taps and tap in under_test.taps]
    if not common:
        raise AnalysisError("the three runs must hold a common tap", "none", "Extract one with all three engines.")
    options.setdefault("taps", common)
    total = compare(reference, under_test, **options)
    return ErrorSplit(
        dtype=compare(reference, same_precision, **options),
        engine=compare(same_precision, under_test, **options),
        total=total,
        engine_means="engine and quantisation together" if stand_in else "engine error",
        provenance=total.provenance,
    )
