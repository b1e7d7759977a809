"""Build comparisons on a page: measures by tap beside the noise floor, the rows that differ most, both engines' cards.

Without a floor the page says "floor not measured" and claims nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.view.columns import ViewColumn, number_column
from workbench.view.provenance import differences, engine_facts, engine_name, field, run_id
from workbench.view.rows import rows_by_id
from workbench.view.wording import NO_FLOOR, figure, percent, times

if TYPE_CHECKING:
    from collections.abc import Sequence

    from workbench.analysis import Comparison, Transfer
    from workbench.analysis.drift import TapDrift
    from workbench.store import Run
    from workbench.view.redaction import Redaction
    from workbench.view.rows import DrawnRows

_ERROR = "Error is |b − a| / |a| of each row; the first engine is the reference."
MAX_ERROR_COLUMNS = 6
MAX_WORST = 30
_CARD = {
    "precision.name": "precision",
    "precision.weights": "weights",
    "precision.activations": "activations",
    "backend.name": "backend",
    "backend.version": "version",
    "backend.target": "target",
    "engine_id": "engine",
    "limits.max_tokens": "longest prompt, tokens",
}
_HEADS = [
    "tap",
    "verdict",
    "times the floor",
    "mean error",
    "99 % below",
    "worst row",
    "cosine",
    "centred",
    "of permuted pairs",
    "CKA",
    "z-scored",
    "neighbours in common",
    "z-scored",
    "by chance",
    "equal rows",
    "inf or NaN",
]


def comparison_columns(comparison: Comparison, rows: DrawnRows) -> list[ViewColumn]:
    """Give the error of each row as columns of the map, for the last taps that were compared."""
    if run_id(rows.run) != comparison.provenance.runs[0]:
        return []
    place = np.searchsorted(comparison.joined.rows_a, rows.ids)
    place = np.minimum(place, max(0, len(comparison.joined) - 1))
    known = comparison.joined.rows_a[place] == rows.ids
    columns = []
    for drift in comparison.taps[-MAX_ERROR_COLUMNS:]:
        if len(drift.errors):
            values = np.where(known, drift.errors[place], np.nan)
            columns.append(number_column(f"error at {drift.tap}", values, scale="log"))
    return columns


def comparison_section(
    comparison: Comparison,
    runs: Sequence[Run],
    rows: DrawnRows | None,
    rule: Redaction,
    transfers: Sequence[Transfer] = (),
) -> dict[str, Any]:
    """Build the section; `transfers` of the same two runs add the agreement of their probe to the ribbon."""
    pair = _pair(comparison, runs)
    titles = [engine_name(run) for run in pair]
    return {
        "type": "comparison",
        "title": " against ".join(_short_names(pair)) if pair else "Two engines",
        "lead": f"{comparison.n_rows:,} rows joined by prompt and token. {_ERROR}",
        "floor": floor_sentence(comparison),
        "measured": comparison.floor is not None,
        "cards": [
            {"title": title, "facts": engine_facts(run, rule, _CARD)} for title, run in zip(titles, pair, strict=True)
        ],
        "differences": differences(pair, rule) if pair else [],
        "ribbon": [*_ribbon(comparison), *_probe_bands(comparison, transfers, rule)],
        "entries": [_entry(drift, comparison) for drift in comparison.taps],
        "heads": _HEADS,
        "rows": [_row(drift, comparison) for drift in comparison.taps],
        "numbers": list(range(2, len(_HEADS))),
        "worst": _worst(comparison, rows, rule),
        "worstHeads": ["tap", "prompt", "position", "error"],
        "worstNumbers": [2, 3],
        "notes": [*_notes(comparison), *comparison.notes],
    }


def floor_sentence(comparison: Comparison) -> str:
    """Say what the numbers are judged against."""
    floor = comparison.floor
    if floor is None:
        do = "Measure it with measure_floor and pass it to compare."
        return f"{NO_FLOOR.capitalize()}: the numbers stand without a claim. {do}"
    claim = comparison.provenance.parameters.get("claim", 1)
    kinds = ", ".join(floor.kinds)
    repeats = f"{len(floor.repeats)} repeats" if len(floor.repeats) != 1 else "one repeat"
    measured = f"the largest difference among {repeats} of the reference ({kinds}), {floor.n_rows:,} rows"
    return f"Noise floor: {measured}. A tap counts as different beyond {claim:g} times the floor."


def _pair(comparison: Comparison, runs: Sequence[Run]) -> list[Run]:
    by_id = {run_id(run): run for run in runs}
    found = [by_id.get(name) for name in comparison.provenance.runs]
    return [run for run in found if run is not None] if all(run is not None for run in found) else []


def _short_names(pair: Sequence[Run]) -> list[str]:
    names = [str(field(run.contract, "precision.name") or "") for run in pair]
    return names if len(set(names)) == len(names) and all(names) else [engine_name(run) for run in pair]


def _entry(drift: TapDrift, comparison: Comparison) -> dict[str, Any]:
    floor = comparison.floor
    return {
        "label": drift.tap,
        "mean": _finite(drift.error_mean),
        "worst": _finite(drift.error_worst),
        "floor": _finite(floor.value(drift.tap, "error_mean")) if floor else None,
    }


def _ribbon(comparison: Comparison) -> list[dict[str, Any]]:
    """Measures by tap that mean more the further right they fall, z-scored, with the floor where it was measured."""
    floor = comparison.floor
    bands = []
    for name, attribute, distance in (
        ("CKA, z-scored", "cka_zscored", "cka_zscored_distance"),
        ("neighbours in common", "overlap_zscored", "overlap_zscored_loss"),
    ):
        values = [_finite(getattr(drift, attribute)) for drift in comparison.taps]
        lost = [floor.value(drift.tap, distance) if floor else None for drift in comparison.taps]
        floors = [None if x is None else 1 - x for x in lost]
        if any(value is not None for value in values):
            bands.append({"name": name, "values": values, "floors": floors if floor else None})
    return bands


def _probe_bands(comparison: Comparison, transfers: Sequence[Transfer], rule: Redaction) -> list[dict[str, Any]]:
    """Share of the rows at which a probe of the first engine says the same on the second, by tap."""
    pair, taps = comparison.provenance.runs, [drift.tap for drift in comparison.taps]
    same = [transfer for transfer in transfers if transfer.provenance.runs[:2] == pair]
    bands = []
    for labels in dict.fromkeys(transfer.labels for transfer in same):
        found = {transfer.tap: transfer for transfer in same if transfer.labels == labels}
        values = [found[tap].agreement if tap in found else None for tap in taps]
        floors = [found[tap].floor_agreement if tap in found else None for tap in taps]
        what = rule.word(" and ".join(labels))
        name = f"probe agrees: {what}" if what else "probe agrees"
        if any(value is not None for value in values):
            bands.append(
                {"name": name, "values": values, "floors": floors if any(f is not None for f in floors) else None}
            )
    return bands


def _row(drift: TapDrift, comparison: Comparison) -> list[Any]:
    verdict = comparison.verdicts[drift.tap]
    multiple = None if verdict.multiple is None else times(verdict.multiple)
    return [
        drift.tap,
        verdict.text,
        multiple,
        _error(drift.error_mean),
        _error(drift.error_p99),
        _error(drift.error_worst),
        *[_fixed(x, 5) for x in (drift.cosine_mean, drift.centred_cosine_mean, drift.centred_cosine_floor)],
        *[_fixed(x, 4) for x in (drift.cka, drift.cka_zscored)],
        *[_share(x) for x in (drift.overlap, drift.overlap_zscored, drift.overlap_chance)],
        drift.equal_rows,
        f"{drift.left_out_a:,} and {drift.left_out_b:,}",
    ]


def _worst(comparison: Comparison, rows: DrawnRows | None, rule: Redaction) -> list[dict[str, Any]]:
    place = rows_by_id(rows) if rows is not None and run_id(rows.run) == comparison.provenance.runs[0] else {}
    found = sorted(comparison.worst, key=lambda one: -one.error)[:MAX_WORST]
    return [
        {
            "cells": [
                one.tap,
                rule.text(one.text) or "–",
                one.token_index if one.token_index >= 0 else "mean",
                _error(one.error),
            ],
            "row": place.get(one.row_a),
        }
        for one in found
    ]


def _notes(comparison: Comparison) -> list[str]:
    drift = comparison.taps[-1]
    notes = [
        f"CKA is the debiased linear one, n = {drift.n_rows:,}; z-scored twins show what a few large dimensions hide.",
        f"Neighbours: the {drift.overlap_k} nearest in full width, on {drift.n_sample:,} rows.",
        "Cosines of permuted pairs are centred too: what unrelated rows would give.",
    ]
    massive = [f"{dim} ({100 * share:.0f} %)" for dim, share in drift.massive_a[:5]]
    if massive:
        notes.append(f"Dimensions with the largest share of the variance at {drift.tap}: {', '.join(massive)}.")
    return notes


def drift_clause(comparison: Comparison, runs: Sequence[Run]) -> str | None:
    """Say in a clause how far the two engines lie apart at the last tap."""
    drift, pair = comparison.taps[-1], _pair(comparison, runs)
    names = _short_names(pair) if pair else ["the first engine", "the second"]
    verdict = comparison.verdicts[drift.tap]
    if verdict.text == "bit-equal":
        return f"{names[1]} gives the same bits as {names[0]} at {drift.tap}"
    if not np.isfinite(drift.error_mean):
        return f"{names[1]} and {names[0]} share {_share(drift.overlap)} of their neighbours at {drift.tap}"
    start = f"{names[1]} lies {percent(drift.error_mean)} from {names[0]} at {drift.tap}"
    if comparison.floor is None:
        return f"{start} ({NO_FLOOR})"
    if verdict.text == "within the floor":
        return f"{start}, within the noise floor"
    beyond = (
        f"{times(verdict.multiple)} times the noise floor"
        if verdict.multiple is not None
        else "where repeats give the same bits"
    )
    return f"{start}, {beyond}"


def drift_fact(comparison: Comparison) -> tuple[str, str, str | None]:
    """Give label, value and note for the head of the page."""
    drift = comparison.taps[-1]
    verdict = comparison.verdicts[drift.tap]
    value = percent(drift.error_mean) if np.isfinite(drift.error_mean) else f"CKA {drift.cka:.3f}"
    note = f"{times(verdict.multiple)} times the floor" if verdict.multiple is not None else verdict.text
    return "Distance of the engines", "bit-equal" if verdict.text == "bit-equal" else value, note


def _finite(value: float | None) -> float | None:
    return None if value is None or not np.isfinite(value) else float(value)


def _error(value: float) -> str:
    return "–" if not np.isfinite(value) else percent(value) if value >= 1e-4 else figure(value)


def _fixed(value: float, places: int) -> str:
    return "–" if not np.isfinite(value) else f"{value:.{places}f}".replace("-", "\N{MINUS SIGN}")


def _share(value: float) -> str:
    return "–" if not np.isfinite(value) else f"{100 * value:.1f} %"
