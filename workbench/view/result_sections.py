"""Sections of results that have no form of their own: lens, neighbours, prompt pair, churn, error split, curve."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.view.listing import listed, numbers, rounded, row_list, table
from workbench.view.provenance import run_id
from workbench.view.wording import figure

if TYPE_CHECKING:
    from collections.abc import Callable

    from workbench.view.redaction import Redaction
    from workbench.view.rows import DrawnRows

MAX_SHADES = 24  # clusters a side of a table of shades


def result_section(result: Any, rule: Redaction, rows: DrawnRows | None) -> dict[str, Any]:
    """Build the section of a result by its kind."""
    own = rows if rows is not None and run_id(rows.run) in result.provenance.runs else None
    found = _BUILDERS[result.kind](result, rule, own)
    return {"type": "result", "lead": None, "verdict": None, "charts": [], "tables": [], "notes": []} | found


def _lens(lens: Any, _rule: Redaction, _rows: DrawnRows | None) -> dict[str, Any]:
    entropy = lens.columns()["entropy"]
    bands = [
        {"name": "agreement", "values": numbers(lens.agreement), "floors": None},
        {"name": "divergence, nats", "values": numbers(lens.divergence), "floors": None},
        {"name": "entropy, nats", "values": numbers(entropy), "floors": None},
    ]
    lines = [
        [tap, f"{100 * agreement:.1f} %", rounded(divergence), rounded(nats)]
        for tap, agreement, divergence, nats in zip(lens.taps, lens.agreement, lens.divergence, entropy, strict=True)
    ]
    middle = lens.taps[len(lens.taps) // 2]
    share = 100 * float(lens.agreement[len(lens.taps) // 2])
    return {
        "said": f"At {middle} the head's first token is that of {lens.taps[-1]} on {share:.0f} % of the rows",
        "title": "What the output head would say at each tap",
        "lead": f"Logit lens of {lens.provenance.sampling}; agreement is with the first token at {lens.taps[-1]}.",
        "charts": [{"kind": "ribbon", "title": "By tap", "places": list(lens.taps), "bands": bands}],
        "tables": [table("By tap", ["tap", "agreement", "divergence, nats", "entropy, nats"], lines, [1, 2, 3])],
    }


def _neighbours(near: Any, rule: Redaction, rows: DrawnRows | None) -> dict[str, Any]:
    asked = rule.word(near.question) or "a question"
    places = ["mean" if token < 0 else int(token) for token in near.tokens]
    if rows is None:
        lines = [
            [rule.text(text) or f"row {int(row):,}", int(row), place, rounded(score)]
            for text, row, place, score in zip(near.texts, near.rows, places, near.scores, strict=True)
        ]
        shown = table("Nearest rows", ["prompt", "row", "position", near.metric], lines, [1, 2, 3])
    else:
        cells = [(k, [int(near.rows[k]), places[k], rounded(near.scores[k])]) for k in range(len(near.rows))]
        heads = ["row", "position", near.metric]
        shown = row_list("Nearest rows", heads, cells, near.rows, rows, rule, numeric=True)
    lead = f"At {near.tap}, in full width, by {near.metric}; the search is exact."
    said = f"Nearest to {asked}: {shown['rows'][0]['cells'][0]}" if shown["rows"] else f"Nothing is near {asked}"
    return {"said": said, "title": f"Nearest to {asked}", "lead": lead, "tables": [shown]}


def _pair(pair: Any, rule: Redaction, rows: DrawnRows | None) -> dict[str, Any]:
    names = [f"prompt {prompt}" for prompt in pair.prompts]
    texts = [] if rows is None else [rule.text(rows.run.prompts.texts[prompt]) for prompt in pair.prompts]
    mean = [float(np.nanmean(row)) if np.isfinite(row).any() else None for row in pair.distances]
    far = [float(np.nanmax(row)) if np.isfinite(row).any() else None for row in pair.distances]
    paths = [
        {"name": name, "points": [numbers(point) for point in pair.paths[:, side]]} for side, name in enumerate(names)
    ]
    series = [{"name": "mean", "values": numbers(mean)}, {"name": "largest", "values": numbers(far), "mark": "dash"}]
    heads = ["token", "in the other", "equal", *pair.taps]
    lines = [
        [int(a), int(b), "yes" if same else "no", *[rounded(x) for x in distances]]
        for (a, b), same, distances in zip(pair.aligned, pair.same, pair.distances.T, strict=True)
    ]
    charts: list[dict[str, Any]] = [
        {"kind": "paths", "title": "Last token of each prompt through the taps, one frame", "places": list(pair.taps)}
        | {"series": paths}
    ]
    if len(pair.taps) > 1:
        title = "Distance of aligned tokens, |b − a| / |a|"
        charts.append({"kind": "curves", "title": title, "places": list(pair.taps), "series": series})
    known = [(value, tap) for value, tap in zip(mean, pair.taps, strict=True) if value is not None]
    widest = max(known, default=(0.0, pair.taps[-1]))
    n = len(pair.aligned)
    return {
        "said": f"Prompts {pair.prompts[0]} and {pair.prompts[1]} lie farthest apart at {widest[1]}: {widest[0]:.2g}",
        "title": f"Two prompts side by side: {pair.prompts[0]} and {pair.prompts[1]}",
        "lead": f"Aligned tokens: {n:,}, equal ones and those that replace each other.",
        "charts": charts,
        "tables": [table("Aligned tokens", heads, lines, list(range(3, len(heads))))],
        "notes": [f"{name}: {text}" for name, text in zip(names, texts, strict=False) if text],
    }


def _churn(churn: Any, rule: Redaction, _rows: DrawnRows | None) -> dict[str, Any]:
    sides = [[rule.word(name) or f"cluster {k + 1}" for k, name in enumerate(names)] for names in churn.names]
    found = churn.columns()
    lines = [
        [sides[0][i], sides[1][j], int(before), int(after), int(stayed), f"{100 * stayed / max(1, before):.1f} %"]
        for (i, j), before, after, stayed in zip(
            churn.matched, found["rows_a"], found["rows_b"], found["stayed"], strict=True
        )
    ]
    heads = ["first", "second", "rows", "rows", "in both", "stayed"]
    charts = []
    if max(churn.table.shape) <= MAX_SHADES:
        noise = [bool(churn.table[-1].any()), bool(churn.table[:, -1].any())]
        rows, columns = ([*side, "noise"] if any_of else side for side, any_of in zip(sides, noise, strict=True))
        shades = {"kind": "shades", "title": "Where the rows of each cluster went", "rows": rows, "columns": columns}
        charts = [shades | {"values": churn.table[: len(rows), : len(columns)].tolist()}]
    return {
        "said": str(churn),
        "title": "What became of the clusters",
        "lead": f"Clusters are matched one to one by common rows; adjusted Rand index {churn.adjusted_rand:.3f}.",
        "charts": charts,
        "tables": [table("Matched clusters", heads, lines, [2, 3, 4, 5])],
    }


def _split(split: Any, _rule: Redaction, _rows: DrawnRows | None) -> dict[str, Any]:
    found, names = split.columns(), ("dtype", "engine", "total")
    taps = found["tap"].tolist()
    series: list[dict[str, Any]] = [{"name": name, "values": numbers(found[f"{name}_error"])} for name in names]
    lines = [
        [tap, *[figure(float(found[f"{name}_{kind}"][k])) for name in names for kind in ("error", "worst")]]
        for k, tap in enumerate(taps)
    ]
    heads = ["tap", *[f"{name}, {kind}" for name in names for kind in ("mean", "worst")]]
    title = "Mean |b − a| / |a| by tap"
    step = "" if split.engine_means == "engine error" else f"; the step called engine is {split.engine_means}"
    last = ", ".join(f"{name} {figure(float(found[f'{name}_error'][-1]))}" for name in names)
    return {
        "said": f"Error at {taps[-1]}: {last}",
        "title": "Where the error comes from",
        "lead": f"Number format and engine apart{step}. Norms do not add up.",
        "charts": [{"kind": "curves", "title": title, "places": taps, "series": series, "log": True}],
        "tables": [table("Error by source", heads, lines, list(range(1, len(heads))))],
    }


def _curve(curve: Any, rule: Redaction, _rows: DrawnRows | None) -> dict[str, Any]:
    what = listed([rule.word(name) or f"target {k}" for k, name in enumerate(curve.labels, start=1)])
    places = [f"{int(n):,}" for n in curve.groups]
    low, high = curve.scores - curve.spread, curve.scores + curve.spread
    series = [{"name": "score", "values": numbers(curve.scores), "low": numbers(low), "high": numbers(high)}]
    lines = [
        [int(n), rounded(score), rounded(spread)]
        for n, score, spread in zip(curve.groups, curve.scores, curve.spread, strict=True)
    ]
    ends = [f"{rounded(curve.scores[k])} on {int(curve.groups[k]):,} training groups" for k in (0, -1)]
    return {
        "said": f"Held-out score {ends[0]}, {ends[1]}",
        "title": f"Score by training groups: {what}",
        "lead": "Held-out score of models fitted on growing shares of the groups; the band is the spread over folds.",
        "charts": [{"kind": "curves", "title": "Held-out score", "places": places, "series": series}],
        "tables": [table("Steps", ["training groups", "score", "spread over folds"], lines, [0, 1, 2])],
    }


_BUILDERS: dict[str, Callable[..., dict[str, Any]]] = {
    "lens": _lens,
    "neighbours": _neighbours,
    "prompt pair": _pair,
    "churn": _churn,
    "error split": _split,
    "learning curve": _curve,
}
