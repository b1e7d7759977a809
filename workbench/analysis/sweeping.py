"""The same probe at every tap, on the same folds, and how its score grows with the number of groups."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from workbench.analysis.crossval import held_out
from workbench.analysis.folds import grouped_folds
from workbench.analysis.labels import at_most, label_rows
from workbench.analysis.probe_scores import scores_of
from workbench.analysis.probing import FIT_ROWS, probe_states
from workbench.analysis.results import Figures, Provenance, Result, provenance
from workbench.analysis.threads import SMALL_WIDTH, few_threads
from workbench.errors import AnalysisError
from workbench.index.blocks import F64, I64, rows_of
from workbench.progress import Show, shown

if TYPE_CHECKING:
    from collections.abc import Sequence

    from workbench.analysis.probe import Probe
    from workbench.store import Run


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Sweep(Result):
    """Probes of one label at several taps.

    Attributes
    ----------
    probes : tuple of Probe
        In the order of the taps.
    best : str
        Tap with the highest held-out score.
    best_corrected : float
        Score when the tap is chosen anew for each fold by the other folds' scores: not inflated by choosing the best.
    """

    kind: ClassVar[str] = "sweep"
    probes: tuple[Probe, ...]
    best: str
    best_corrected: float
    provenance: Provenance

    def columns(self) -> dict[str, npt.NDArray[Any]]:
        """One line a tap: score with interval, control, baselines."""
        names = ("tap", "score", "control", "baseline", "token_baseline", "alpha", "n_rows", "n_groups")
        table = {name: np.array([getattr(probe, name) for probe in self.probes]) for name in names}
        for name in self.probes[0].scores:
            table[f"score of {name}"] = np.array([probe.scores[name] for probe in self.probes])
        low, high = np.array([probe.interval for probe in self.probes]).T
        return table | {"low": low, "high": high}

    def __str__(self) -> str:
        labels = ", ".join(self.probes[0].labels)
        lines = [
            (
                f"Probe of {labels} at {len(self.probes)} taps; best {self.best}, single scores not corrected for "
                f"choosing the best tap (corrected {self.best_corrected:.3f})"
            )
        ]
        width = max(len(probe.tap) for probe in self.probes)
        for probe in self.probes:
            low, high = probe.interval
            lines.append(
                f"  {probe.tap:<{width}}  {probe.score:.3f} ({low:.3f} to {high:.3f}), shuffled {probe.control:.3f}"
            )
        return "\n".join(lines)

    def figures(self) -> Figures:
        """Score by tap with its 95% interval and its control; the score of each target where there are several."""
        from workbench.analysis.charts import lines

        table, probe = self.columns(), self.probes[0]
        title = f"Probe of {', '.join(probe.labels)} by tap"
        main = {"score": table["score"], "shuffled labels": table["control"], "token id alone": table["token_baseline"]}
        each = {name: table[f"score of {name}"] for name in probe.scores}
        band = ("95% interval", table["low"], table["high"])
        taps = table["tap"].tolist()
        made: dict[str, Any] = {"score": lambda: lines(taps, main, title, "tap", "score", band=band)}
        if len(each) > 1:
            made["targets"] = lambda: lines(taps, each, title, "tap", "score")
        return made


def sweep_probe(
    run: Run,
    labels: str | Sequence[Any] | npt.NDArray[Any],
    *,
    taps: Sequence[str] | None = None,
    groups: str | Sequence[Any] | None = None,
    folds: int = 5,
    seed: int = 0,
    progress: Show = True,
    **options: Any,
) -> Sweep:
    """Fit the same probe at several taps, all on the same folds.

    Parameters
    ----------
    run : Run
    labels : as for `fit_probe`
    taps : sequence of str, optional
        All by default.
    **options
        `method`, `alphas`, `shuffles`, `balanced`, `fit_rows`, `rows`, `task`, `first_tokens` of `fit_probe`.
    """
    names = list(taps or run.taps)
    kinds = {name: options.pop(name) for name in ("rows", "task", "first_tokens") if name in options}
    fit_rows = options.pop("fit_rows", FIT_ROWS)
    found = at_most(label_rows(run, labels, groups=groups, **kinds), run.prompt_of_rows(), fit_rows, seed=seed)
    fold_of_row = grouped_folds(found.groups, folds, seed=seed)
    width = max(run.tap(tap).shape[1] for tap in names)

    def one(tap: str) -> Probe:
        states = rows_of(run.tap(tap), rows=found.rows).take()
        return probe_states(run, tap, found, states, fold_of_row, seed=seed, **options)

    # taps side by side, each with one BLAS thread: for products of this size the better use of the cores
    workers = min(len(names), os.cpu_count() or 1, 4) if width <= SMALL_WIDTH else 1
    probes = []
    with shown("probe sweep", progress, "tap") as report, few_threads(width), ThreadPoolExecutor(workers) as pool:
        for number, probe in enumerate(pool.map(one, names)):
            probes.append(probe)
            report(number + 1, len(names))
    scores = np.stack([probe.fold_scores for probe in probes])
    others = [np.delete(scores, fold, axis=1).mean(axis=1).argmax() for fold in range(scores.shape[1])]
    corrected = float(np.mean([scores[tap, fold] for fold, tap in enumerate(others)]))
    best = max(probes, key=lambda probe: probe.score).tap
    origin = provenance(
        [run],
        taps=names,
        seed=seed,
        n_rows=len(found.rows),
        parameters=probes[0].provenance.parameters,
        libraries=["scipy"],
    )
    return Sweep(probes=tuple(probes), best=best, best_corrected=corrected, provenance=origin)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class LearningCurve(Result):
    """Held-out score against the number of groups that the models were fitted on.

    Attributes
    ----------
    labels : tuple of str
    groups : int64 [step]
        Mean number of training groups.
    scores, spread : float64 [step]
        Mean and standard deviation over folds.
    """

    kind: ClassVar[str] = "learning curve"
    labels: tuple[str, ...]
    groups: I64
    scores: F64
    spread: F64
    provenance: Provenance

    def columns(self) -> dict[str, npt.NDArray[Any]]:
        """One line a step: training groups, score, spread over folds."""
        return {"groups": self.groups, "score": self.scores, "spread": self.spread}

    def __str__(self) -> str:
        steps = zip(self.groups, self.scores, self.spread, strict=True)
        return ", ".join(f"{n} groups {score:.3f} +- {spread:.3f}" for n, score, spread in steps)

    def figures(self) -> Figures:
        """Score by number of training groups, with the spread over folds."""
        from workbench.analysis.charts import lines

        band = ("spread over folds", self.scores - self.spread, self.scores + self.spread)
        names, title = [f"{n:,}" for n in self.groups], f"Probe of {', '.join(self.labels)} by training groups"
        return {"score": lambda: lines(names, {"score": self.scores}, title, "training groups", "score", band=band)}


def learning_curve(
    probe: Probe, run: Run, *, shares: Sequence[float] = (0.1, 0.2, 0.4, 0.7, 1.0), seed: int = 0
) -> LearningCurve:
    """Fit a probe anew on growing shares of the training groups, on its own folds and penalties.

    Raises
    ------
    AnalysisError
        If a share is not above 0 and at most 1.
    """
    if not all(0 < share <= 1 for share in shares):
        raise AnalysisError(
            "shares must be above 0 and at most 1", str(list(shares)), "Give shares such as 0.1 and 1.0."
        )
    groups = np.unique(probe.groups, return_inverse=True)[1]
    states = rows_of(run.tap(probe.tap), rows=probe.rows).take()
    rng = np.random.default_rng(seed)
    steps: list[tuple[int, list[float]]] = []
    order = rng.permutation(int(groups.max()) + 1)
    for share in shares:
        scores, counts = [], []
        for fold in range(probe.folds):
            test = probe.fold_of_row == fold
            present = np.unique(groups[~test])
            chosen = order[np.isin(order, present)][: max(2, round(share * len(present)))]
            train = np.isin(groups, chosen) & ~test
            keep = train | test
            part = np.where(test[keep], 0, 1)
            made = held_out(
                states[keep], probe.truth[None, keep], part, probe.method, [float(probe.alphas[fold])],
                n_classes=len(probe.classes),
            )  # fmt: skip
            scores.append(float(np.nanmean(scores_of(probe.task, probe.truth[test], made.outputs[0][part == 0]))))
            counts.append(len(chosen))
        steps.append((round(float(np.mean(counts))), scores))
    options = {**probe.provenance.parameters, "shares": list(shares)}
    return LearningCurve(
        labels=probe.labels,
        groups=np.array([n for n, _ in steps], np.int64),
        scores=np.array([np.mean(s) for _, s in steps]),
        spread=np.array([np.std(s) for _, s in steps]),
        provenance=provenance([run], taps=[probe.tap], seed=seed, n_rows=probe.n_rows, parameters=options),
    )
