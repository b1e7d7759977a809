"""The few numbers at the head of a page, and what the provenance says of each view."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from workbench.view.comparison_section import drift_fact
from workbench.view.maps import MapFrame, method_name
from workbench.view.probe_section import metric_of, targets_of
from workbench.view.provenance import engine_name, field
from workbench.view.wording import best, signed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from workbench.view.assembly import Given
    from workbench.view.redaction import Redaction


_OURS = ("method", "together", "metric", "task")  # parameters whose texts are the workbench's own words


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
    probe = best(given.probes)
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
    """Describe each map, cluster fit, probe and comparison for the provenance."""
    views = []
    for number, frame in enumerate(frames):
        title = f"Map: {method_name(frame.method)} at {frame.tap}"
        made = _made(projections[number], rule) if projections else []
        views.append((title, [["badge", frame.badge], *made, *[list(fact) for fact in frame.facts]]))
    results = (*given.clusters, *given.probes, *given.comparisons)
    return views + [(_title(result), _made(result, rule)) for result in results]


def _title(result: Any) -> str:
    return f"{result.kind.capitalize()} at {', '.join(result.provenance.taps[:4])}"


def _made(result: Any, rule: Redaction) -> list[list[str]]:
    made = result.provenance
    facts = [["seed", str(made.seed)], ["rows", made.sampling]]
    for name, value in made.parameters.items():
        if value is not None and (not rule.active or name in _OURS or _numeric(value)):
            facts.append([name.replace("_", " "), _short(value)])
    facts += [
        ["versions", ", ".join(f"{name} {version}" for name, version in made.versions.items())],
        ["computed", made.created],
    ]
    return facts


def _numeric(value: Any) -> bool:
    return isinstance(value, int | float) or (
        isinstance(value, list) and all(isinstance(v, int | float) for v in value)
    )


def _short(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(_short(item) for item in value)[:120]
    if isinstance(value, float):
        return f"{value:g}"
    text = str(value)
    return text if len(text) <= 120 else text[:119] + "…"
