"""Probes on a page: score by tap with interval and controls, and the prompts at both ends of what is read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.view.columns import number_column
from workbench.view.listing import finite, listed, numbers, range_words, rounded, row_list, score_words
from workbench.view.placing import class_column, spread
from workbench.view.provenance import engine_name, run_id

if TYPE_CHECKING:
    from collections.abc import Sequence

    from workbench.analysis import Probe, Sweep, Transfer
    from workbench.store import Run
    from workbench.view.columns import ViewColumn
    from workbench.view.given import Given
    from workbench.view.redaction import Redaction
    from workbench.view.rows import DrawnRows

_HEADS = (
    "tap",
    "target",
    "score",
    "95 % interval",
    "shuffled labels",
    "their range",
    "baseline",
    "token alone",
    "selectivity",
    "groups",
    "rows",
    "penalty",
)
_NUMBERS = [2, 3, 4, 5, 6, 7, 8, 9, 10, 11]
TOP = 5
MAX_LISTED = 4  # classes whose surest prompts are listed
MAX_POINTS = 1_500
LEAST_TAPS = 3  # so many taps make a curve


def metric_of(probe: Probe) -> str:
    """Name the score of a probe."""
    return "R²" if probe.task == "regression" else "accuracy"


def targets_of(probe: Probe | Transfer, rule: Redaction) -> list[str]:
    """Name what a probe predicts, as far as the page may."""
    return [rule.word(name) or f"target {number}" for number, name in enumerate(probe.labels, start=1)]


def probe_sections(given: Given, rule: Redaction, rows: DrawnRows | None) -> list[dict[str, Any]]:
    """Build one section for each sweep, and one for each kind of score among the other probes.

    Parameters
    ----------
    given : Given
    rule : Redaction
    rows : DrawnRows or None
        None where the page has no run, and so no prompts.
    """
    sections = [_section(sweep.probes, rule, given.runs, rows, sweep) for sweep in given.sweeps]
    for task in dict.fromkeys(probe.task for probe in given.probes):
        probes = [probe for probe in given.probes if probe.task == task]
        sections.append(_section(probes, rule, given.runs, rows, None))
    return sections


def _section(
    probes: Sequence[Probe], rule: Redaction, runs: Sequence[Run], rows: DrawnRows | None, sweep: Sweep | None
) -> dict[str, Any]:
    first = probes[0]
    what = list(dict.fromkeys(name for probe in probes for name in targets_of(probe, rule)))
    several = len({probe.engine_id for probe in probes}) > 1
    engines = [_engine_of(probe.engine_id, runs) if several else "" for probe in probes]
    best = max(probes, key=lambda probe: probe.score)
    return {
        "type": "probe",
        "title": f"What a linear probe reads: {listed(what)}",
        "lead": _lead(first, rule),
        "metric": metric_of(first),
        "layers": None if several else layers_of(probes, rule),
        "points": [] if rows is not None else _points(best, rule),
        "entries": [_entry(probe, engine, rule) for probe, engine in zip(probes, engines, strict=True)],
        "baseline": "token id alone",
        "heads": list(_HEADS),
        "rows": [row for probe in probes for row in _rows(probe, rule)],
        "numbers": _NUMBERS,
        "extremes": [] if rows is None else _extremes(best, rows, rule),
        "notes": _notes(probes, sweep),
    }


def _engine_of(engine_id: str, runs: Sequence[Run]) -> str:
    return next((engine_name(run) for run in runs if run.engine_id == engine_id), str(engine_id)[:8])


def layers_of(probes: Sequence[Probe], rule: Redaction) -> dict[str, Any] | None:
    """Score by tap as curves; None where the probes are not of one target at several taps."""
    if len({probe.tap for probe in probes}) < max(LEAST_TAPS, len(probes)) or len({p.labels for p in probes}) > 1:
        return None
    score = {
        "name": metric_of(probes[0]),
        "values": numbers(probe.score for probe in probes),
        "low": numbers(probe.interval[0] for probe in probes),
        "high": numbers(probe.interval[1] for probe in probes),
    }
    token = {"name": "token id alone", "values": numbers(probe.token_baseline for probe in probes), "mark": "base"}
    band = {
        "name": "shuffled labels",
        "low": numbers(probe.control_range[0] for probe in probes),
        "high": numbers(probe.control_range[1] for probe in probes),
    }
    title, places = "Score by tap, with its 95 % interval", [probe.tap for probe in probes]
    charts: list[dict[str, Any]] = [
        {"kind": "curves", "title": title, "places": places, "series": [score, token], "band": band}
    ]
    if len(probes[0].labels) > 1:
        series = [
            {"name": name, "values": numbers(probe.scores[label] for probe in probes)}
            for name, label in zip(targets_of(probes[0], rule), probes[0].labels, strict=True)
        ]
        charts.append({"kind": "curves", "title": "Each target", "places": places, "series": series})
    return {"charts": charts}


def _points(probe: Probe, rule: Redaction) -> list[dict[str, Any]]:
    """Label against held-out prediction, for a page without maps; a seeded sample of many rows."""
    if probe.task != "regression":
        return []
    n = len(probe.rows)
    keep = np.arange(n) if n <= MAX_POINTS else np.sort(np.random.default_rng(0).choice(n, MAX_POINTS, replace=False))
    told = "" if n <= MAX_POINTS else f", {MAX_POINTS:,} of {n:,} rows"
    return [
        {
            "kind": "points",
            "title": f"{target} at {probe.tap}{told}",
            "x": [rounded(value) for value in probe.truth[keep, k]],
            "y": [rounded(value) for value in probe.predictions[keep, k]],
            "xname": "label",
            "yname": "held-out prediction",
        }
        for k, target in enumerate(targets_of(probe, rule))
    ]


def _lead(probe: Probe, rule: Redaction) -> str:
    unit = "R² of held-out groups" if probe.task == "regression" else "accuracy on held-out groups"
    by = (rule.word(probe.group_by) or "group").removeprefix("equal ")
    return f"{unit[0].upper()}{unit[1:]}: {probe.folds} folds, rows of equal {by} never on both sides."


def _entry(probe: Probe, engine: str, rule: Redaction) -> dict[str, Any]:
    low, high = probe.control_range
    return {
        "label": f"{probe.tap} · {engine}" if engine else probe.tap,
        "note": ", ".join(targets_of(probe, rule)),
        "score": finite(probe.score),
        "interval": numbers(probe.interval),
        "folds": numbers(probe.fold_scores),
        "control": [finite(low), finite(probe.control), finite(high)],
        "baseline": finite(probe.token_baseline),
    }


def _rows(probe: Probe, rule: Redaction) -> list[list[Any]]:
    targets = targets_of(probe, rule)
    low, high = probe.interval
    rest = [
        range_words(low, high),
        round(probe.control, 4),
        range_words(*probe.control_range),
        rounded(probe.baseline),
        rounded(probe.token_baseline),
        rounded(probe.selectivity),
        probe.n_groups,
        probe.n_rows,
        rounded(probe.alpha),
    ]
    rows: list[list[Any]] = [[probe.tap, listed(targets), rounded(probe.score), *rest]]
    if len(targets) > 1:
        scores = [probe.scores[name] for name in probe.labels]
        rows += [["", target, rounded(score), *[""] * len(rest)] for target, score in zip(targets, scores, strict=True)]
    return rows


def _extremes(probe: Probe, rows: DrawnRows, rule: Redaction) -> list[dict[str, Any]]:
    """List the prompts at both ends of the direction, by held-out predictions; of a classifier also its mistakes."""
    if run_id(rows.run) not in probe.provenance.runs:
        return []
    if probe.task == "classification":
        return [*_surest(probe, rows, rule), _mistakes(probe, rows, rule)] if rule.keep is None else []
    lists = []
    for number, target in enumerate(targets_of(probe, rule)):
        order = np.argsort(probe.predictions[:, number], kind="stable")
        ends = {"Lowest": order[:TOP], "Highest": order[::-1][:TOP]}
        for word, chosen in ends.items():
            cells = [(at, [rounded(probe.predictions[at, number]), rounded(probe.truth[at, number])]) for at in chosen]
            title = f"{word} {target}, as read at {probe.tap}"
            lists.append(row_list(title, ["held-out", "label"], cells, probe.rows, rows, rule, numeric=True))
    return lists


def _surest(probe: Probe, rows: DrawnRows, rule: Redaction) -> list[dict[str, Any]]:
    """List the prompts that lie farthest on the side of each class: two classes are the two ends of one direction."""
    sizes = probe.class_counts
    lists = []
    for name in sorted(probe.classes, key=lambda name: -sizes[name])[:MAX_LISTED]:
        code = probe.classes.index(name)
        margin = probe.predictions[:, code] - np.delete(probe.predictions, code, axis=1).max(axis=1)
        chosen = np.argsort(-margin, kind="stable")[:TOP]
        cells = [(at, [rounded(margin[at]), probe.classes[int(probe.truth[at, 0])]]) for at in chosen]
        title = f"Surest {name}, as read at {probe.tap}"
        lists.append(row_list(title, ["ahead by", "label"], cells, probe.rows, rows, rule))
    return lists


def _mistakes(probe: Probe, rows: DrawnRows, rule: Redaction) -> dict[str, Any]:
    said, truth = probe.predictions.argmax(axis=1), probe.truth[:, 0].astype(np.int64)
    margin = probe.predictions.max(axis=1) - probe.predictions[np.arange(len(truth)), truth]
    wrong = [at for at in np.argsort(-margin, kind="stable")[: 2 * TOP] if said[at] != truth[at]]
    cells = [(at, [probe.classes[said[at]], probe.classes[truth[at]]]) for at in wrong]
    return row_list(f"Surest mistakes at {probe.tap}", ["held-out", "label"], cells, probe.rows, rows, rule)


def _notes(probes: Sequence[Probe], sweep: Sweep | None) -> list[str]:
    notes = []
    if sweep is not None:
        notes.append(
            f"The best tap is {sweep.best}. Single scores are not corrected for choosing it; chosen anew for each fold "
            f"by the other folds, the score is {score_words(sweep.best_corrected)}."
        )
    elif len({probe.labels for probe in probes}) < len(probes):
        notes.append("Several taps read the same target; scores are not corrected for choosing the best one.")
    dropped = max(probe.dropped for probe in probes) if sweep else sum(probe.dropped for probe in probes)
    if dropped:
        notes.append(f"{dropped:,} rows without a label take no part.")
    return notes


def prediction_columns(probe: Probe, rows: DrawnRows, rule: Redaction) -> list[ViewColumn]:
    """Give held-out predictions as columns of the map; classifications give whether the class was right."""
    columns = []
    for number, target in enumerate(targets_of(probe, rule)):
        name = f"{target}, held-out at {probe.tap}"
        if probe.task == "regression":
            columns.append(number_column(name, spread(probe.predictions[:, number], probe.rows, rows)))
        else:
            right = probe.predictions.argmax(axis=1) == probe.truth[:, 0].astype(np.int64)
            columns.append(class_column(name, right, probe.rows, rows, ("wrong", "right")))
    return columns
