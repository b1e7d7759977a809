"""Probes on a page: score with folds, beside what shuffled labels, the mean and the token id give."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.view.columns import ViewColumn, number_column
from workbench.view.provenance import run_id
from workbench.view.rows import rows_by_id

if TYPE_CHECKING:
    from collections.abc import Sequence

    from workbench.analysis import Probe
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
TOP = 5
_NUMBERS = [2, 3, 4, 5, 6, 7, 8, 9, 10, 11]


def metric_of(probe: Probe) -> str:
    """Name the score of a probe."""
    return "R²" if probe.task == "regression" else "accuracy"


def targets_of(probe: Probe, rule: Redaction) -> list[str]:
    """Name what a probe predicts, as far as the page may."""
    return [rule.word(name) or f"target {number}" for number, name in enumerate(probe.labels, start=1)]


def probe_sections(
    probes: Sequence[Probe], rule: Redaction, engines: Sequence[str], rows: DrawnRows
) -> list[dict[str, Any]]:
    """Build one section for each kind of score.

    Parameters
    ----------
    probes : sequence of Probe
    rule : Redaction
    engines : sequence of str
        Name of each probe's engine; empty strings where all are of one engine.
    rows : DrawnRows
    """
    sections = []
    for task in dict.fromkeys(probe.task for probe in probes):
        pairs = [(p, e) for p, e in zip(probes, engines, strict=True) if p.task == task]
        sections.append(_section([p for p, _ in pairs], rule, [e for _, e in pairs], rows))
    return sections


def _section(probes: Sequence[Probe], rule: Redaction, engines: Sequence[str], rows: DrawnRows) -> dict[str, Any]:
    first = probes[0]
    what = sorted({name for probe in probes for name in targets_of(probe, rule)})
    return {
        "type": "probe",
        "title": f"What a linear probe reads: {_listed(what)}",
        "lead": _lead(first, rule),
        "metric": metric_of(first),
        "entries": [_entry(probe, engine, rule) for probe, engine in zip(probes, engines, strict=True)],
        "baseline": "token id alone",
        "heads": list(_HEADS),
        "rows": [row for probe in probes for row in _rows(probe, rule)],
        "numbers": _NUMBERS,
        "extremes": _extremes(max(probes, key=lambda probe: probe.score), rows, rule),
        "notes": _notes(probes),
    }


def _lead(probe: Probe, rule: Redaction) -> str:
    unit = "R² of held-out groups" if probe.task == "regression" else "accuracy on held-out groups"
    by = (rule.word(probe.group_by) or "group").removeprefix("equal ")
    return f"{unit[0].upper()}{unit[1:]}: {probe.folds} folds, rows of equal {by} never on both sides."


def _entry(probe: Probe, engine: str, rule: Redaction) -> dict[str, Any]:
    low, high = probe.control_range
    return {
        "label": f"{probe.tap} · {engine}" if engine else probe.tap,
        "note": ", ".join(targets_of(probe, rule)),
        "score": _number(probe.score),
        "folds": [_number(score) for score in probe.fold_scores],
        "control": [_number(low), _number(probe.control), _number(high)],
        "baseline": _number(probe.token_baseline),
    }


def _rows(probe: Probe, rule: Redaction) -> list[list[Any]]:
    targets = targets_of(probe, rule)
    low, high = probe.interval
    rest = [
        _range(low, high),
        round(probe.control, 4),
        _range(*probe.control_range),
        _rounded(probe.baseline),
        _rounded(probe.token_baseline),
        _rounded(probe.selectivity),
        probe.n_groups,
        probe.n_rows,
        _rounded(probe.alpha),
    ]
    rows: list[list[Any]] = [[probe.tap, _listed(targets), _rounded(probe.score), *rest]]
    if len(targets) > 1:
        scores = [probe.scores[name] for name in probe.labels]
        rows += [
            ["", target, _rounded(score), *[""] * len(rest)] for target, score in zip(targets, scores, strict=True)
        ]
    return rows


def _extremes(probe: Probe, rows: DrawnRows, rule: Redaction) -> list[dict[str, Any]]:
    """List the prompts at both ends of the held-out predictions, or the surest mistakes of a classifier."""
    if run_id(rows.run) not in probe.provenance.runs:
        return []
    if probe.task == "classification":
        return [_mistakes(probe, rows, rule)] if rule.keep is None else []
    lists = []
    for number, target in enumerate(targets_of(probe, rule)):
        order = np.argsort(probe.predictions[:, number], kind="stable")
        ends = {"Lowest": order[:TOP], "Highest": order[::-1][:TOP]}
        for word, chosen in ends.items():
            cells = [
                (at, [_rounded(probe.predictions[at, number]), _rounded(probe.truth[at, number])]) for at in chosen
            ]
            lists.append(
                _listing(f"{word} {target}, as read at {probe.tap}", ["held-out", "label"], cells, probe, rows, rule)
            )
    return lists


def _mistakes(probe: Probe, rows: DrawnRows, rule: Redaction) -> dict[str, Any]:
    said, truth = probe.predictions.argmax(axis=1), probe.truth[:, 0].astype(np.int64)
    margin = probe.predictions.max(axis=1) - probe.predictions[np.arange(len(truth)), truth]
    wrong = [at for at in np.argsort(-margin, kind="stable")[: 2 * TOP] if said[at] != truth[at]]
    cells = [(at, [probe.classes[said[at]], probe.classes[truth[at]]]) for at in wrong]
    return _listing(f"Surest mistakes at {probe.tap}", ["held-out", "label"], cells, probe, rows, rule)


def _listing(
    title: str, heads: list[str], cells: Sequence[tuple[Any, list[Any]]], probe: Probe, rows: DrawnRows, rule: Redaction
) -> dict[str, Any]:
    place = rows_by_id(rows)
    prompt_of_row = np.asarray(rows.run.prompt_of_rows(), np.int64)
    listed = []
    for at, values in cells:
        row = int(probe.rows[at])
        text = rule.text(rows.run.prompts.texts[prompt_of_row[row]]) or "–"
        listed.append({"cells": [text[:200], *values], "row": place.get(row)})
    numbers = [1, 2] if probe.task == "regression" else []
    return {"title": title, "heads": ["prompt", *heads], "numbers": numbers, "rows": listed}


def _range(low: float, high: float) -> str:
    return f"{low:.3f} to {high:.3f}".replace("-", "\N{MINUS SIGN}")


def _notes(probes: Sequence[Probe]) -> list[str]:
    notes = []
    seen = [probe.labels for probe in probes]
    if len(set(seen)) < len(seen):
        notes.append("Several taps read the same target; scores are not corrected for choosing the best one.")
    dropped = sum(probe.dropped for probe in probes)
    if dropped:
        notes.append(f"{dropped:,} rows without a label take no part.")
    return notes


def prediction_columns(probe: Probe, rows: DrawnRows, rule: Redaction) -> list[ViewColumn]:
    """Give held-out predictions as columns of the map; classifications give whether the class was right."""
    place = np.searchsorted(rows.ids, probe.rows)
    place = np.minimum(place, len(rows) - 1)
    known = rows.ids[place] == probe.rows
    columns = []
    for number, target in enumerate(targets_of(probe, rule)):
        if probe.task == "regression":
            values = np.full(len(rows), np.nan)
            values[place[known]] = probe.predictions[known, number]
            columns.append(number_column(f"{target}, held-out at {probe.tap}", values))
        else:
            right = probe.predictions.argmax(axis=1) == probe.truth[:, 0].astype(np.int64)
            codes = np.full(len(rows), 2, np.uint16)
            codes[place[known]] = right[known]
            columns.append(
                ViewColumn(
                    name=f"{target}, held-out at {probe.tap}", per="row", values=codes, labels=("wrong", "right")
                )
            )
    return columns


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _number(value: Any) -> float | None:
    return None if value is None or not np.isfinite(value) else float(value)


def _rounded(value: Any) -> float | None:
    number = _number(value)
    return None if number is None else float(f"{number:.3g}")
