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
from workbench.analysis.results import Figures, Provenance, Result, provenance
from workbench.analysis.ridge import fit_standard
from workbench.errors import AnalysisError

if TYPE_CHECKING:
    from workbench.analysis.labels import Task
    from workbench.analysis.probe import Probe
    from workbench.analysis.sweeping import Sweep
    from workbench.index.blocks import F64, I64
    from workbench.store import Run

FLIP = 0.1  # of the labels' spread: a predicted number that moves farther counts as flipped


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
    rows : int64 [row]
        Rows (ids of the home run) that both runs hold.
    truth : float64 [row, target]
    home, away : float64 [row, output]
        Held-out predictions on each run: values, or one score a class.
    moved : float64 [row]
        How far the prediction moved: largest change over targets in standard deviations of the labels, or mean change
        of the class scores in standard deviations of these.
    floor_moved : float64 [row] or None
        The same on the repeat, for the rows that it holds.
    flips : int64 [flip]
        Rows (ids of the home run) whose class differs, or whose prediction moves by more than a tenth of the labels'
        spread, farthest moved first; `floor_flips` how many do on the repeat.
    flip_prompts : tuple of str
        Prompt ids of those rows.
    shift : float
        Mean absolute change of the outputs, in standard deviations of the labels (or of the class scores).
    """

    kind: ClassVar[str] = "transfer"
    tap: str
    labels: tuple[str, ...]
    task: Task
    classes: tuple[str, ...]
    score_home: float
    score_away: float
    interval_away: tuple[float, float]
    floor_score: float | None
    rows: I64
    truth: F64
    home: F64
    away: F64
    moved: F64
    floor_moved: F64 | None
    flips: I64
    floor_flips: int | None
    flip_prompts: tuple[str, ...]
    shift: float
    n_rows: int
    provenance: Provenance

    @property
    def agreement(self) -> float:
        """Share of the rows that do not flip."""
        return 1 - len(self.flips) / max(1, self.n_rows)

    @property
    def floor_agreement(self) -> float | None:
        """The same on the repeat; None where there was none."""
        if self.floor_flips is None or self.floor_moved is None:
            return None
        return 1 - self.floor_flips / max(1, len(self.floor_moved))

    def columns(self) -> dict[str, npt.NDArray[Any]]:
        """The rows that flip, farthest moved first: prompt, label, both predictions, how far they moved."""
        at = self.places
        table: dict[str, npt.NDArray[Any]] = {"row": self.flips, "prompt": np.array(self.flip_prompts, dtype=object)}
        if self.task == "classification":
            names = np.array(self.classes, dtype=object)
            table["label"] = names[self.truth[at, 0].astype(np.int64)]
            table |= {"home": names[self.home[at].argmax(axis=1)], "away": names[self.away[at].argmax(axis=1)]}
        else:
            for i, name in enumerate(self.labels):
                table |= {name: self.truth[at, i], f"{name} home": self.home[at, i], f"{name} away": self.away[at, i]}
        return table | {"moved": self.moved[at]}

    @property
    def places(self) -> I64:
        """Where the flipped rows stand in `rows`, int64 [flip]."""
        order = np.argsort(self.rows)
        return np.asarray(order[np.searchsorted(self.rows, self.flips, sorter=order)], np.int64)

    def __str__(self) -> str:
        floor = "floor not measured" if self.floor_score is None else f"a repeat gives {self.floor_score:.3f}"
        flips = "" if self.floor_flips is None else f" (a repeat: {self.floor_flips})"
        low, high = self.interval_away
        return (
            f"Probe of {', '.join(self.labels)} at {self.tap}: {self.score_home:.3f} at home, {self.score_away:.3f} on "
            f"the other build (95% interval {low:.3f} to {high:.3f}); {floor}; "
            f"{len(self.flips)} of {self.n_rows} rows flip{flips}"
        )

    def figures(self) -> Figures:
        """The scores, and how many rows moved how far."""
        from workbench.analysis.charts import bars, lines

        scores = {"home": self.score_home, "other build": self.score_away}
        scores |= {} if self.floor_score is None else {"repeat": self.floor_score}
        shares = np.linspace(0, 1, 101)
        curves = {"other build": np.quantile(self.moved, shares)}
        curves |= {} if self.floor_moved is None else {"repeat": np.quantile(self.floor_moved, shares)}
        title = str(self)[:160]
        names = [f"{share:.0%}" for share in shares]
        return {
            "scores": lambda: bars(list(scores), list(scores.values()), title, "score"),
            "moves": lambda: lines(names, curves, title, "share of the rows", "moved by at most"),
        }


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
    there = _read(probe, home, away)
    again = None if repeat is None else _read(probe, home, repeat)
    flips = there.at[there.flipped][np.argsort(-there.moved[there.flipped], kind="stable")]
    rows = probe.rows[flips]
    prompts = np.asarray(home.prompt_of_rows(), np.int64)[rows]
    truth = probe.truth[there.at]
    runs = [home, away] if repeat is None else [home, away, repeat]
    return Transfer(
        tap=probe.tap, labels=probe.labels, task=probe.task, classes=probe.classes,
        score_home=_score(probe, there.at, there.home), score_away=_score(probe, there.at, there.away),
        interval_away=group_interval(probe.task, truth, there.away, probe.groups[there.at]),
        floor_score=None if again is None else _score(probe, again.at, again.away),
        rows=probe.rows[there.at], truth=truth, home=there.home, away=there.away, moved=there.moved,
        floor_moved=None if again is None else again.moved, flips=rows,
        floor_flips=None if again is None else int(again.flipped.sum()),
        flip_prompts=tuple(str(home.prompts.ids[prompt]) for prompt in prompts), shift=there.shift,
        n_rows=len(there.at),
        provenance=provenance(
            runs, taps=[probe.tap], seed=probe.provenance.seed, n_rows=len(there.at),
            parameters=probe.provenance.parameters,
        ),
    )  # fmt: skip


def transfer_sweep(
    sweep: Sweep, home: Run, away: Run, *, other_engine: bool = False, repeat: Run | None = None
) -> tuple[Transfer, ...]:
    """Read the probes of a sweep on another run, tap by tap; taps that a run lacks are left out.

    Raises
    ------
    AnalysisError
        As for `transfer`; or if the runs share no tap of the sweep.
    """
    runs = [home, away] if repeat is None else [home, away, repeat]
    shared = [probe for probe in sweep.probes if all(probe.tap in run.taps for run in runs)]
    if not shared:
        got = ", ".join(probe.tap for probe in sweep.probes)
        raise AnalysisError("the runs must hold a tap of the sweep", got, "Extract one with both engines.")
    return tuple(transfer(probe, home, away, other_engine=other_engine, repeat=repeat) for probe in shared)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Reading:
    """Held-out predictions of the rows that two runs hold: `at` are places in the probe."""

    at: I64
    home: F64
    away: F64
    flipped: npt.NDArray[np.bool_]
    moved: F64
    shift: float


def _read(probe: Probe, home: Run, away: Run) -> _Reading:
    at, here, there = _outputs(probe, home, away)
    change = np.abs(here - there)
    if probe.task == "classification":
        flipped = here.argmax(axis=1) != there.argmax(axis=1)
        change /= float(here.std()) or 1.0
        moved = change.mean(axis=1)
    else:
        change /= np.maximum(probe.truth[at].std(axis=0), 1e-300)
        moved = change.max(axis=1)
        flipped = moved > FLIP
    return _Reading(at=at, home=here, away=there, flipped=flipped, moved=moved, shift=float(change.mean()))


def _score(probe: Probe, at: I64, outputs: F64) -> float:
    return float(np.nanmean(scores_of(probe.task, probe.truth[at], outputs)))


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
