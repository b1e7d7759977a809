"""A fitted probe: its readout, its score, and what chance would have found."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from workbench.analysis.results import Figures, Provenance, Result
from workbench.errors import AnalysisError
from workbench.index.blocks import F64, I64, rows_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from workbench.analysis.labels import Task
    from workbench.analysis.probe_scores import Calibration


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Probe(Result):
    """A linear probe and everything needed to judge it.

    Attributes
    ----------
    score : float
        Mean R2 over targets, or accuracy, on held-out groups.
    scores : mapping
        Score of each target.
    interval : (float, float)
        95% interval of `score` by bootstrap over groups, models held fixed.
    fold_scores : float64 [fold]
    control : float
        Mean score over shuffled labels; `control_range` its smallest and largest.
    baseline : float
        Score of the training mean (about 0) or majority class.
    token_baseline : float
        Score of the token id alone.
    selectivity : float or None
        Score minus the score on random labels per token id; None where the rows have too few token ids.
    balanced : float or None
        Mean recall over classes.
    alpha : float
        Penalty of the final weights; `alphas` those chosen in the folds.
    weights : float64 [d_model, output], intercepts : float64 [output]
        Readout of standardised states: `(x - mean) / scale @ weights + intercepts`.
    groups, fold_of_row : int64 [row]
        Group and fold of the rows `rows`.
    predictions, truth : float64 [row, output], float64 [row, target]
        Held-out predictions (values, or one score a class) of the rows `rows`.
    dropped : int
        Rows without a label.
    """

    kind: ClassVar[str] = "probe"
    task: Task
    method: str
    tap: str
    labels: tuple[str, ...]
    classes: tuple[str, ...]
    score: float
    scores: Mapping[str, float]
    interval: tuple[float, float]
    fold_scores: F64
    folds: int
    control: float
    control_range: tuple[float, float]
    n_shuffles: int
    baseline: float
    token_baseline: float
    selectivity: float | None
    balanced: float | None
    alpha: float
    alphas: F64
    calibration: Calibration | None
    n_rows: int
    n_groups: int
    group_by: str
    dropped: int
    class_counts: Mapping[str, int]
    weights: F64
    intercepts: F64
    mean: F64
    scale: F64
    rows: I64
    groups: I64
    fold_of_row: I64
    predictions: F64
    truth: F64
    engine_id: str
    contract_digest: str
    provenance: Provenance

    def predict(self, states: npt.ArrayLike) -> F64:
        """Read states [row, d_model]: values, or one score a class, float64 [row, output]."""
        rows = rows_of(np.asarray(states) if isinstance(states, list) else states)
        if rows.shape[1] != len(self.mean):
            raise AnalysisError(
                f"states must be [row, d_model={len(self.mean)}]", str(rows.shape), "Use the probe's tap."
            )
        parts = [(block - self.mean) / self.scale @ self.weights + self.intercepts for _, block in rows.blocks()]
        return np.concatenate(parts) if parts else np.empty((0, self.weights.shape[1]))

    def classify(self, states: npt.ArrayLike) -> list[str]:
        """Name the class of each row of states."""
        if self.task != "classification":
            raise AnalysisError("only a classification names classes", self.task, "Use predict().")
        return [self.classes[code] for code in self.predict(states).argmax(axis=1)]

    @property
    def matrix(self) -> tuple[F64, F64]:
        """The readout of raw states as plain arrays: weights [d_model, output] and offsets [output]."""
        weights = self.weights / self.scale[:, None]
        return weights, self.intercepts - self.mean @ weights

    def columns(self) -> dict[str, npt.NDArray[Any]]:
        """Held-out prediction and truth of each row."""
        table: dict[str, npt.NDArray[Any]] = {"row": self.rows, "fold": self.fold_of_row}
        if self.task == "classification":
            names = np.array(self.classes)
            return table | {
                "truth": names[self.truth[:, 0].astype(np.int64)],
                "predicted": names[self.predictions.argmax(axis=1)],
            }
        for i, name in enumerate(self.labels):
            table |= {name: self.truth[:, i], f"{name} predicted": self.predictions[:, i]}
        return table

    def __str__(self) -> str:
        unit = "R2" if self.task == "regression" else "accuracy"
        low, high = self.interval
        each = ", ".join(f"{name} {value:.2f}" for name, value in self.scores.items()) if len(self.scores) > 1 else ""
        lines = [
            f"Probe of {', '.join(self.labels)} at {self.tap}: {unit} {self.score:.3f}"
            + (f" ({each})" if each else "")
            + f", 95% interval {low:.3f} to {high:.3f}",
            (
                f"  shuffled labels {self.control:.3f} ({self.control_range[0]:.3f} to {self.control_range[1]:.3f}, "
                f"{self.n_shuffles} shuffles), {'mean' if self.task == 'regression' else 'majority class'} "
                f"{self.baseline:.3f}, token id alone {self.token_baseline:.3f}"
            ),
            (
                f"  {self.method}, alpha {self.alpha:g}, {self.folds} folds of {self.n_groups} groups "
                f"({self.group_by}), {self.n_rows} rows, {self.dropped} without label"
            ),
        ]
        if self.balanced is not None:
            lines.append(f"  mean recall over {len(self.classes)} classes {self.balanced:.3f}")
        if self.selectivity is not None:
            lines.append(f"  selectivity {self.selectivity:.3f} (score minus random labels per token)")
        return "\n".join(lines)

    def figures(self) -> Figures:
        """Truth against held-out prediction of each target, or the confusion table."""
        from workbench.analysis.charts import confusion, scatter

        title, guess = str(self).split("\n", maxsplit=1)[0], self.predictions
        if self.task == "classification":
            return {"confusion": lambda: confusion(self.truth[:, 0], guess.argmax(axis=1), self.classes, title)}

        def of_target(at: int) -> Any:
            return scatter(self.truth[:, at], guess[:, at], title, self.labels[at], "held-out prediction")

        return {name: partial(of_target, at) for at, name in enumerate(self.labels)}
