"""Does a probe survive on another build: its score there, beside its held-out score at home and what flips.

The folds' own models are fitted again on the first run and read the second run's states of their held-out rows, so no
row is scored by a model that saw it or its group, on either side.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from workbench.analysis.crossval import fit_readout
from workbench.analysis.joining import join_rows
from workbench.analysis.probe_scores import group_interval, scores_of
from workbench.analysis.results import Provenance, Result, provenance
from workbench.analysis.ridge import fit_standard
from workbench.errors import AnalysisError

if TYPE_CHECKING:
    from workbench.analysis.probing import Probe
    from workbench.index.blocks import F64, I64
    from workbench.store import Run


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Transfer(Result):
    """A probe read on two builds, over the same held-out rows.

    Attributes
    ----------
    score_home, score_away : float
    interval_away : (float, float)
        95% interval over groups.
    floor_score : float or None
        Score on a repeat of the home run: what repeating alone changes; None where no repeat was given.
    flips : int64 [row]
        Rows (ids of the home run) whose class differs, or whose prediction moves by more than a tenth of the labels'
        spread; `floor_flips` how many do on the repeat.
    flip_prompts : tuple of str
        Prompt ids of those rows.
    shift : float
        Mean absolute change of the first output, in standard deviations of the labels (or of the class scores).
    """

    kind: ClassVar[str] = "transfer"
    tap: str
    labels: tuple[str, ...]
    score_home: float
    score_away: float
    interval_away: tuple[float, float]
    floor_score: float | None
    flips: I64
    floor_flips: int | None
    flip_prompts: tuple[str, ...]
    shift: float
    n_rows: int
    provenance: Provenance

    def columns(self) -> dict[str, npt.NDArray[Any]]:
        """The rows that flip, with their prompts."""
        return {"row": self.flips, "prompt": np.array(self.flip_prompts, dtype=object)}

    def __str__(self) -> str:
        floor = "floor not measured" if self.floor_score is None else f"a repeat gives {self.floor_score:.3f}"
        flips = "" if self.floor_flips is None else f" (a repeat: {self.floor_flips})"
        low, high = self.interval_away
        return (
            f"Probe of {', '.join(self.labels)} at {self.tap}: {self.score_home:.3f} at home, {self.score_away:.3f} on "
            f"the other build (95% interval {low:.3f} to {high:.3f}); {floor}; "
            f"{len(self.flips)} of {self.n_rows} rows flip{flips}"
        )

    def plot(self) -> Any:
        """Draw the three scores; a plotly figure."""
        import plotly.graph_objects as go

        names = ["home", "other build"] + ([] if self.floor_score is None else ["repeat"])
        scores = [self.score_home, self.score_away] + ([] if self.floor_score is None else [self.floor_score])
        figure = go.Figure(go.Bar(x=names, y=scores))
        figure.update_layout(title=str(self)[:160], yaxis_title="score", template="plotly_white")
        return figure


def transfer(probe: Probe, home: Run, away: Run, *, other_engine: bool = False, repeat: Run | None = None) -> Transfer:
    """Read a probe on another run's states of the same prompts.

    Parameters
    ----------
    probe : Probe
        Fitted on `home`.
    home, away : Run
    other_engine : bool
        Must be set where the other run is of another engine: a probe belongs to one.
    repeat : Run, optional
        The same engine and prompts again, for the floor.

    Raises
    ------
    AnalysisError
        If the probe is not of `home`'s engine, or the other engine was not asked for.
    """
    if str(home.engine_id) != probe.engine_id:
        got = f"{probe.engine_id[:12]} and {str(home.engine_id)[:12]}"
        raise AnalysisError("the first run must be of the probe's engine", got, "Give the run that it was fitted on.")
    if str(away.engine_id) != probe.engine_id and not other_engine:
        do = "Set other_engine=True to measure transfer."
        raise AnalysisError("a probe reads states of its own engine", f"engine {str(away.engine_id)[:12]}", do)
    at, outputs_home, outputs_away = _outputs(probe, home, away)
    truth = probe.truth[at]
    rows = probe.rows[at]
    prompts = np.asarray(home.prompt_of_rows(), np.int64)[rows]
    score_home, score_away = (
        float(np.nanmean(scores_of(probe.task, truth, outputs))) for outputs in (outputs_home, outputs_away)
    )
    flipped, shift = _flips(probe, truth, outputs_home, outputs_away)
    again = None if repeat is None else _outputs(probe, home, repeat)
    floor_score = floor_flips = None
    if again is not None:
        there = probe.truth[again[0]]
        floor_score = float(np.nanmean(scores_of(probe.task, there, again[2])))
        floor_flips = int(_flips(probe, there, again[1], again[2])[0].sum())
    runs = [home, away] if repeat is None else [home, away, repeat]
    return Transfer(
        tap=probe.tap, labels=probe.labels, score_home=score_home, score_away=score_away,
        interval_away=group_interval(probe.task, truth, outputs_away, probe.groups[at]),
        floor_score=floor_score, flips=rows[flipped], floor_flips=floor_flips,
        flip_prompts=tuple(str(home.prompts.ids[prompt]) for prompt in prompts[flipped]), shift=shift, n_rows=len(at),
        provenance=provenance(
            runs, taps=[probe.tap], seed=probe.provenance.seed, n_rows=len(at), parameters=probe.provenance.parameters
        ),
    )  # fmt: skip


def _outputs(probe: Probe, home: Run, away: Run) -> tuple[I64, F64, F64]:
    """Held-out outputs of the rows that both runs hold: places in the probe, and outputs [row, output] on each run."""
    joined = join_rows(home, away)
    partner = np.full(home.n_rows, -1, np.int64)
    partner[joined.rows_a] = joined.rows_b
    at = np.flatnonzero(partner[probe.rows] >= 0)
    states = home.tap(probe.tap)[probe.rows]
    other = away.tap(probe.tap)[partner[probe.rows[at]]]
    if other.shape[1] != states.shape[1]:
        raise AnalysisError(
            f"states must be [row, d_model={states.shape[1]}]", str(other.shape), "Use one model's builds."
        )
    n_out = probe.weights.shape[1]
    here, there = np.empty((len(at), n_out)), np.empty((len(at), n_out))
    for fold in np.unique(probe.fold_of_row):
        train, test = probe.fold_of_row != fold, probe.fold_of_row[at] == fold
        standard = fit_standard(states[train])
        balanced = bool(probe.provenance.parameters.get("balanced", False))
        weights, bias = fit_readout(
            standard.apply(states[train]), probe.truth[train], probe.method, [float(probe.alphas[fold])],
            len(probe.classes), balanced=balanced,
        )  # fmt: skip
        here[test] = standard.apply(states[at[test]]) @ weights[0] + bias[0]
        there[test] = standard.apply(other[test]) @ weights[0] + bias[0]
    return at, here, there


def _flips(probe: Probe, truth: F64, here: F64, there: F64) -> tuple[npt.NDArray[np.bool_], float]:
    if probe.task == "classification":
        flipped = here.argmax(axis=1) != there.argmax(axis=1)
        spread = float(here.std()) or 1.0
        return flipped, float(np.abs(here - there).mean() / spread)
    spread_of = np.maximum(truth.std(axis=0), 1e-300)
    moved = np.abs(here - there) / spread_of
    return (moved > 0.1).any(axis=1), float(moved.mean())
