"""Fitting linear probes: what a linear readout finds in the states of one tap, beside what chance would find.

The score is measured on groups that the model never saw (nested cross-validation, `crossval.py`). Beside it stand the
majority class, labels shuffled by group, a control task of random labels per token (Hewitt and Liang, 2019,
arXiv:1909.03368), and what the token id alone predicts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from workbench.analysis import logistic, ridge
from workbench.analysis.crossval import HeldOut, fit_readout, held_out
from workbench.analysis.folds import grouped_folds, shuffled_by_group
from workbench.analysis.labels import Labels, Task, at_most, label_rows
from workbench.analysis.probe import Probe
from workbench.analysis.probe_scores import (
    balanced_accuracy,
    calibration,
    group_interval,
    majority_outputs,
    scores_of,
    token_outputs,
)
from workbench.analysis.results import provenance
from workbench.analysis.threads import few_threads
from workbench.errors import AnalysisError
from workbench.index.blocks import F32, F64, I64, Progress, rows_of
from workbench.progress import Show, shown

if TYPE_CHECKING:
    from collections.abc import Sequence

    from workbench.analysis.sampling import FirstTokens
    from workbench.store import Run

FIT_ROWS = 200_000
MIN_TOKEN_TYPES = 10  # with fewer, random labels per token say nothing about how much a probe can memorise


def fit_probe(
    run: Run,
    tap: str,
    labels: str | Sequence[Any] | npt.NDArray[Any],
    *,
    method: str | None = None,
    groups: str | Sequence[Any] | npt.NDArray[Any] | None = None,
    rows: npt.ArrayLike | None = None,
    task: Task | None = None,
    first_tokens: FirstTokens = "keep",
    folds: int = 5,
    alphas: Sequence[float] | None = None,
    shuffles: int = 20,
    balanced: bool = False,
    seed: int = 0,
    fit_rows: int = FIT_ROWS,
    progress: Show = True,
) -> Probe:
    """Fit a linear probe and measure it on groups that it never saw.

    Parameters
    ----------
    run : Run
    tap : str
    labels : str, column names, or one value a prompt or a row
        Numbers make a ridge regression, anything else a logistic classification.
    method : {"ridge", "logistic", "mean_difference"}, optional
        `mean_difference` reads the directions between class means.
    groups : str or one value a prompt, optional
        Column that holds rows together in folds; equal prompt texts by default.
    rows : row ids or mask, optional
    first_tokens : {"drop", "keep"}
        Whether first tokens, where a prompt has several rows, which know nothing of their prompt, are left out.
    folds : int
    alphas : sequence of float, optional
        Penalties on squared weights of standardised states; one is chosen in inner folds.
    shuffles : int
        Controls with labels shuffled by group; logistic controls use the penalty of the true labels.
    balanced : bool
        Weight classes alike in a logistic fit.
    seed : int
    fit_rows : int
        At most so many rows are read into memory, spread over prompts; the provenance says which.

    Returns
    -------
    Probe

    Raises
    ------
    AnalysisError
        If there are too few groups, no labels, states that are not finite, or a method that does not fit the task.
    """
    found = label_rows(run, labels, groups=groups, rows=rows, task=task, first_tokens=first_tokens)
    found = at_most(found, run.prompt_of_rows(), fit_rows, seed=seed)
    states = rows_of(run.tap(tap), rows=found.rows).take()
    fold_of_row = grouped_folds(found.groups, folds, seed=seed)
    with shown(f"probe {tap}", progress, "fit") as report:
        return probe_states(
            run, tap, found, states, fold_of_row,
            method=method, alphas=alphas, shuffles=shuffles, balanced=balanced, seed=seed, progress=report,
        )  # fmt: skip


def probe_states(
    run: Run,
    tap: str,
    found: Labels,
    states: F32,
    fold_of_row: I64,
    *,
    method: str | None = None,
    alphas: Sequence[float] | None = None,
    shuffles: int = 20,
    balanced: bool = False,
    seed: int = 0,
    progress: Progress | None = None,
) -> Probe:
    """Fit and judge a probe on rows already at hand; see `fit_probe`."""
    kind = _method(found, method)
    grid = tuple(alphas or (ridge.ALPHAS if kind == "ridge" else logistic.ALPHAS))
    if not np.isfinite(states).all():
        bad = int((~np.isfinite(states)).any(axis=1).sum())
        raise AnalysisError("a probe needs finite states", f"{bad} rows with inf or NaN", "Leave them out with rows=.")
    n_folds, rng = int(fold_of_row.max()) + 1, np.random.default_rng(seed)
    tokens = row_tokens(run)[found.rows]
    sets, n_token_sets = _label_sets(found, tokens, shuffles, rng, kind)
    steps = n_folds + (n_folds * (n_folds - 1) // 2 if len(grid) > 1 and kind == "ridge" else 0)
    done = iter(range(1, steps + 2))
    tick = (lambda: progress(next(done), steps + 1)) if progress else None
    n_classes = len(found.classes)
    with few_threads(states.shape[1]):
        unseen = held_out(states, sets, fold_of_row, kind, grid, n_classes=n_classes, balanced=balanced, tick=tick)
        standard = ridge.fit_standard(states)
        alpha = float(np.exp(np.median(np.log(unseen.alphas)))) if min(grid) > 0 else float(np.median(unseen.alphas))
        weights, bias = fit_readout(standard.apply(states), found.values, kind, [alpha], n_classes, balanced=balanced)
    if tick:
        tick()
    judged = _judge(found, unseen, fold_of_row, tokens=tokens, sets=sets, n_token_sets=n_token_sets, seed=seed)
    parameters = {"method": kind, "alphas": grid, "folds": n_folds, "shuffles": shuffles, "balanced": balanced}
    parameters |= {"labels": found.names, "group_by": found.group_by}
    contract: Any = run.contract
    return Probe(
        task=found.task, method=kind, tap=tap, labels=found.names, classes=found.classes, folds=n_folds,
        n_shuffles=shuffles, alpha=alpha, alphas=unseen.alphas, n_rows=len(states),
        n_groups=len(np.unique(found.groups)), group_by=found.group_by, dropped=found.dropped,
        weights=weights[0], intercepts=bias[0], mean=standard.mean, scale=standard.scale, rows=found.rows,
        groups=found.groups, fold_of_row=fold_of_row, predictions=unseen.outputs[0], truth=found.values,
        engine_id=str(run.engine_id),
        contract_digest=str(contract.get("digest", "")),
        provenance=provenance(
            [run], taps=[tap], seed=seed, n_rows=len(states), parameters=parameters, libraries=["scipy"],
            sampling=found.sampling,
        ),
        **judged,
    )  # fmt: skip


def _method(found: Labels, method: str | None) -> str:
    kind = method or ("ridge" if found.task == "regression" else "logistic")
    fitting = ("ridge",) if found.task == "regression" else ("logistic", "mean_difference")
    if kind not in fitting:
        raise AnalysisError(f"a {found.task} is fitted by {' or '.join(fitting)}", repr(kind), "Choose one of them.")
    if found.task == "classification" and len(found.classes) < 2:
        raise AnalysisError("a classification needs two classes", ", ".join(found.classes), "Choose another column.")
    return kind


def _label_sets(found: Labels, tokens: I64, shuffles: int, rng: np.random.Generator, kind: str) -> tuple[F64, int]:
    """True, shuffled, and last random labels per token id: float64 [set, row, target], and how many of the last."""
    sets = [found.values] + [found.values[shuffled_by_group(found.groups, rng)] for _ in range(shuffles)]
    ids = np.unique(tokens, return_inverse=True)[1]
    n_ids = int(ids.max()) + 1
    repeats = 0 if n_ids < MIN_TOKEN_TYPES else (5 if kind == "ridge" else 1)
    sets += [found.values[rng.integers(0, len(found.values), size=n_ids)][ids] for _ in range(repeats)]
    return np.stack(sets), repeats


def _judge(
    found: Labels, unseen: HeldOut, folds: I64, *, tokens: I64, sets: F64, n_token_sets: int, seed: int
) -> dict[str, Any]:
    """Everything that follows from held-out predictions, as fields of a Probe."""
    task, truth, outputs = found.task, found.values, unseen.outputs
    each = scores_of(task, truth, outputs[0])
    score = float(np.nanmean(each))
    controls = [float(np.nanmean(scores_of(task, sets[s], outputs[s]))) for s in range(1, len(sets))]
    shuffled, by_token = controls[: len(controls) - n_token_sets], controls[len(controls) - n_token_sets :]
    n_out = outputs.shape[2]
    classify = task == "classification"
    codes = truth[:, 0].astype(np.int64) if classify else np.empty(0, np.int64)
    counts = np.bincount(codes, minlength=len(found.classes))
    return {
        "score": score,
        "scores": {name: float(value) for name, value in zip(found.names, each, strict=True)},
        "interval": group_interval(task, truth, outputs[0], found.groups, seed=seed),
        "fold_scores": np.array(
            [np.nanmean(scores_of(task, truth[folds == f], outputs[0][folds == f])) for f in np.unique(folds)]
        ),
        "control": float(np.mean(shuffled)) if shuffled else float("nan"),
        "control_range": (min(shuffled, default=float("nan")), max(shuffled, default=float("nan"))),
        "baseline": float(np.nanmean(scores_of(task, truth, majority_outputs(task, truth, folds, n_out)))),
        "token_baseline": float(np.nanmean(scores_of(task, truth, token_outputs(task, truth, folds, tokens, n_out)))),
        "selectivity": score - float(np.mean(by_token)) if by_token else None,
        "balanced": balanced_accuracy(truth, outputs[0]) if classify else None,
        "calibration": calibration(task, truth, outputs[0]) if np.isfinite(outputs[0]).all() else None,
        "class_counts": {name: int(count) for name, count in zip(found.classes, counts, strict=True)},
    }


def row_tokens(run: Run) -> I64:
    """Token id of each row, int64 [row]; -1 where a row is a mean over tokens."""
    place = np.asarray(run.token_index(), dtype=np.int64)
    start = np.asarray(run.offsets, dtype=np.int64)[np.asarray(run.prompt_of_rows(), dtype=np.int64)]
    tokens = np.asarray(run.tokens)
    return np.where(place >= 0, tokens[np.minimum(start + np.maximum(place, 0), len(tokens) - 1)], -1).astype(np.int64)
