"""The few numbers at the head of a page, and what the provenance says of each view."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from workbench.view.comparison_section import drift_fact
from workbench.view.maps import MapFrame, method_name
from workbench.view.probe_section import metric_of, targets_of
from workbench.view.provenance import engine_name, field, result_facts
from workbench.view.wording import best, signed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from workbench.view.given import Given
    from workbench.view.redaction import Redaction


def facts_of(given: Given, rule: Redaction) -> list[dict[str, str | None]]:
    """Choose at most five numbers: what was read, with what, and what was found."""
    run = given.runs[0]
    width = next((tap.width for tap in run.manifest.taps if tap.name == run.taps[-1]), 0)
    each = "one row a prompt" if run.n_rows == run.n_prompts else f"{run.n_rows:,} rows"
    facts = [
        _fact("Prompts", f"{run.n_prompts:,}", f"{int(run.offsets[-1]):,} tokens, {each}"),
        _fact(
            _plural("tap", len(run.taps)),
            run.taps[-1] if len(run.taps) == 1 else str(len(run.taps)),
            f"{width} wide, up to {run.taps[-1]}",
        ),
        _fact(_plural("engine", len(given.runs)), *_engines(given)),
    ]
    probe = best(given.all_probes)
    if probe is not None:
        what = " and ".join(targets_of(probe, rule))
        facts.append(
            _fact(
                f"Probe: {what}",
                f"{metric_of(probe)} {signed(probe.score)}",
                f"shuffled labels {signed(probe.control)}",
            )
        )
    if given.comparisons:
        facts.append(_fact(*drift_fact(given.comparisons[0])))
    if given.clusters and len(facts) < 5:
        facts.append(_fact("Clusters", str(len(given.clusters[0].names)), None))
    return facts


def _engines(given: Given) -> tuple[str, str]:
    precisions = [str(field(run.contract, "precision.name") or "engine") for run in given.runs]
    backends = dict.fromkeys(str(field(run.contract, "backend.name") or "") for run in given.runs)
    return " and ".join(dict.fromkeys(precisions)), ", ".join(name for name in backends if name) or engine_name(
        given.runs[0]
    )


def _fact(label: str, value: str, note: str | None) -> dict[str, str | None]:
    return {"label": label, "value": value, "note": note}


def _plural(word: str, n: int) -> str:
    return word.capitalize() + ("s" if n != 1 else "")


def view_facts(
    given: Given, projections: Sequence[Any], frames: Sequence[MapFrame], rule: Redaction
) -> list[tuple[str, list[list[str]]]]:
    """Describe each map and each result for the provenance."""
    views = []
    for number, frame in enumerate(frames):
        title = f"Map: {method_name(frame.method)} at {frame.tap}"
        made = result_facts(projections[number], rule) if projections else []
        views.append((title, [["badge", frame.badge], *made, *[list(fact) for fact in frame.facts]]))
    return views + [(result_title(result), result_facts(result, rule)) for result in given.results]


def result_title(result: Any) -> str:
    """Name a result in the provenance."""
    taps = result.provenance.taps
    where = "" if not taps else f" at {taps[0]}" if len(taps) == 1 else f" at {len(taps)} taps"
    return f"{result.kind.capitalize()}{where}"
