"""A probe of one engine read on another: scores side by side, and which prompts flip, against a repeat."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.view.columns import ViewColumn, number_column
from workbench.view.listing import listed, numbers, range_words, rounded, row_list, score_words, table
from workbench.view.placing import class_column, spread
from workbench.view.probe_section import LEAST_TAPS, targets_of
from workbench.view.provenance import engine_name, run_id

if TYPE_CHECKING:
    from collections.abc import Sequence

    from workbench.analysis import Transfer
    from workbench.store import Run
    from workbench.view.redaction import Redaction
    from workbench.view.rows import DrawnRows

MAX_FLIPS = 15
MAX_MOVES = 5
_HEADS = ["tap", "at home", "on the other", "95 % interval", "repeat", "flips", "of a repeat", "agreement", "mean move"]


def transfer_sections(
    transfers: Sequence[Transfer], runs: Sequence[Run], rule: Redaction, rows: DrawnRows | None
) -> list[dict[str, Any]]:
    """Build one section for each target and pair of runs."""
    groups: dict[tuple[Any, ...], list[Transfer]] = {}
    for one in transfers:
        groups.setdefault((one.labels, one.provenance.runs), []).append(one)
    return [_section(group, runs, rule, rows) for group in groups.values()]


def _section(group: Sequence[Transfer], runs: Sequence[Run], rule: Redaction, rows: DrawnRows | None) -> dict[str, Any]:
    best = max(group, key=lambda one: one.score_home)
    home, away = _names(best, runs)
    metric = "R²" if best.task == "regression" else "accuracy"
    return {
        "type": "result",
        "title": f"Does the probe of {listed(targets_of(best, rule))} survive on {away}?",
        "lead": (
            f"Fitted on {home}. The folds' own models read {away}'s states of the rows that they never saw; {metric}, "
            f"{best.n_rows:,} rows."
        ),
        "verdict": _verdict(best),
        "charts": _charts(group, metric),
        "tables": [
            table("Scores and flips", _HEADS, _scores(group), list(range(1, len(_HEADS)))),
            _flips(best, rule, rows),
        ],
        "notes": [_flip_words(best)],
    }


def _names(transfer: Transfer, runs: Sequence[Run]) -> tuple[str, str]:
    by_id = {run_id(run): engine_name(run) for run in runs}
    found = [by_id.get(name) for name in transfer.provenance.runs[:2]]
    return found[0] or "the first engine", found[1] or "the other engine"


def _verdict(best: Transfer) -> dict[str, Any]:
    if best.floor_flips is None or best.floor_moved is None:
        text = "Floor not measured: flips stand without a claim. Pass repeat=, a run of the first engine again."
        return {"text": text, "measured": False}
    farthest = float(best.floor_moved.max(initial=0.0))
    beyond = int((best.moved > farthest).sum())
    text = (
        f"At {best.tap}, {len(best.flips):,} of {best.n_rows:,} rows flip; on a repeat of the first engine "
        f"{best.floor_flips:,} of {len(best.floor_moved):,}. {beyond:,} rows move farther than any row of the repeat."
    )
    return {"text": text, "measured": True}


def _charts(group: Sequence[Transfer], metric: str) -> list[dict[str, Any]]:
    if len({one.tap for one in group}) >= LEAST_TAPS:
        series = [
            {"name": "at home", "values": numbers(one.score_home for one in group), "mark": "soft"},
            {
                "name": "on the other engine",
                "values": numbers(one.score_away for one in group),
                "low": numbers(one.interval_away[0] for one in group),
                "high": numbers(one.interval_away[1] for one in group),
                "mark": "main",
            },
        ]
        if any(one.floor_score is not None for one in group):
            series.append({"name": "repeat", "values": numbers(one.floor_score for one in group), "mark": "dash"})
        return [{"kind": "curves", "title": f"{metric} by tap", "places": [one.tap for one in group], "series": series}]
    entries = []
    for one in group:
        entries.append({"label": "at home", "note": one.tap, "score": one.score_home})
        away = {"label": "on the other engine", "note": one.tap, "score": one.score_away}
        entries.append(away | {"interval": numbers(one.interval_away)})
        if one.floor_score is not None:
            entries.append({"label": "on a repeat", "note": one.tap, "score": one.floor_score})
    return [{"kind": "scores", "title": metric, "entries": entries, "metric": metric}]


def _scores(group: Sequence[Transfer]) -> list[list[Any]]:
    return [
        [
            one.tap,
            score_words(one.score_home),
            score_words(one.score_away),
            range_words(*one.interval_away),
            None if one.floor_score is None else score_words(one.floor_score),
            f"{len(one.flips):,} of {one.n_rows:,}",
            None if one.floor_flips is None else f"{one.floor_flips:,}",
            f"{100 * one.agreement:.1f} %",
            rounded(one.shift),
        ]
        for one in group
    ]


def _flips(transfer: Transfer, rule: Redaction, rows: DrawnRows | None) -> dict[str, Any]:
    """List the prompts whose reading flips, farthest moved first; where none does, those that move farthest."""
    own = rows if rows is not None and run_id(rows.run) == transfer.provenance.runs[0] else None
    farthest = None if transfer.floor_moved is None else float(transfer.floor_moved.max(initial=0.0)) or None
    cells = []
    places = transfer.places if len(transfer.flips) else np.argsort(-transfer.moved, kind="stable")[:MAX_MOVES]
    for at in places[:MAX_FLIPS]:
        moved = float(transfer.moved[at])
        times = [] if transfer.floor_moved is None else [None if farthest is None else rounded(moved / farthest)]
        cells.append((int(at), [*_readings(transfer, int(at), rule), rounded(moved), *times]))
    each = ["label", "at home", "on the other"]
    if transfer.task == "regression" and len(transfer.labels) > 1:
        each = [f"{name}, {word}" for name in targets_of(transfer, rule) for word in ("label", "home", "other")]
    heads = [*each, "moved by", *([] if transfer.floor_moved is None else ["times the repeat's farthest"])]
    what = "Prompts that flip" if len(transfer.flips) else "No prompt flips; those that move farthest"
    title = f"{what} at {transfer.tap}"
    return row_list(title, heads, cells, transfer.rows, own, rule, numeric=transfer.task == "regression")


def _readings(transfer: Transfer, at: int, rule: Redaction) -> list[Any]:
    if transfer.task == "classification":
        codes = [int(transfer.truth[at, 0]), int(transfer.home[at].argmax()), int(transfer.away[at].argmax())]
        return [rule.word(transfer.classes[code]) or f"class {code + 1}" for code in codes]
    parts = (transfer.truth, transfer.home, transfer.away)
    return [rounded(part[at, k]) for k in range(len(transfer.labels)) for part in parts]


def _flip_words(transfer: Transfer) -> str:
    if transfer.task == "classification":
        return (
            "A row flips where the class read differs; a move is the mean change of the class scores in their spread."
        )
    return "A row flips where a predicted number moves by more than a tenth of the labels' spread."


def transfer_columns(transfers: Sequence[Transfer], rows: DrawnRows, rule: Redaction) -> list[ViewColumn]:
    """Give columns of the map: how far each reading moved, and of classes whether it flipped; best tap of a target."""
    mine = [one for one in transfers if one.provenance.runs[0] == run_id(rows.run)]
    columns = []
    for labels in dict.fromkeys(one.labels for one in mine):
        one = max((one for one in mine if one.labels == labels), key=lambda one: one.score_home)
        name = f"{listed(targets_of(one, rule))} at {one.tap}"
        if one.task == "classification":
            flipped = np.isin(one.rows, one.flips)
            columns.append(class_column(f"reading of {name}", flipped, one.rows, rows, ("stays", "flips")))
        columns.append(number_column(f"move of the reading of {name}", spread(one.moved, one.rows, rows), scale="log"))
    return columns
