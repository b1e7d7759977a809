"""Sentences of a page, made of the numbers at hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workbench.view.probe_section import metric_of, targets_of
from workbench.view.provenance import model_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from workbench.analysis import Comparison, Probe
    from workbench.store import Run
    from workbench.view.redaction import Redaction

NO_FLOOR = "floor not measured"


def figure(value: float) -> str:
    """Write a number to two or three figures, the way the page does."""
    if value == 0:
        return "0"
    return _power(value) if not 1e-4 <= abs(value) < 1e6 else f"{value:.3g}"


_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def _power(value: float) -> str:
    head, tail = f"{value:.1e}".split("e")
    return f"{head} × 10{str(int(tail)).translate(_RAISED)}"


def signed(value: float) -> str:
    """Write a score to two places, with a true minus and no minus zero."""
    return f"{value:.2f}".replace("-0.00", "0.00").replace("-", "\N{MINUS SIGN}")


def times(value: float) -> str:
    """Write a multiple to three figures, without exponent up to billions."""
    return f"{float(f'{value:.3g}'):,.0f}" if 100 <= value < 1e9 else figure(value)


def percent(value: float) -> str:
    """Write a share; small ones with a power of ten."""
    return f"{100 * value:.2g} %" if value >= 1e-4 else figure(value)


def best(probes: Sequence[Probe]) -> Probe | None:
    """Find the probe to speak of first: the best score of the first kind."""
    same = [probe for probe in probes if probe.task == probes[0].task and probe.labels == probes[0].labels]
    return max(same, key=lambda probe: probe.score) if same else None


def probe_clause(probe: Probe, rule: Redaction) -> str:
    """Say what a probe reads, beside its control."""
    targets = targets_of(probe, rule)
    what = targets[0] if len(targets) == 1 else f"{', '.join(targets[:-1])} and {targets[-1]}"
    score, control = signed(probe.score), signed(probe.control)
    return f"a linear probe reads {what} at {probe.tap} with {metric_of(probe)} {score} (shuffled labels: {control})"


def headline(
    run: Run, probes: Sequence[Probe], comparisons: Sequence[Comparison], rule: Redaction, clause: str | None
) -> str:
    """Say the finding in one sentence."""
    subject = f"{run.n_prompts:,} prompts" if run.n_prompts != 1 else "One prompt"
    start = f"{subject} through {model_name(run, rule)}"
    parts = []
    found = best(probes)
    if found is not None:
        parts.append(probe_clause(found, rule))
    if comparisons and clause:
        parts.append(clause)
    if not parts:
        return f"{start}: {run.n_rows:,} hidden states at {len(run.taps)} {'tap' if len(run.taps) == 1 else 'taps'}."
    return f"{start}: {'; '.join(parts)}."
