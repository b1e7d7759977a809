"""Sentences of a page, made of the numbers at hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workbench.view.listing import listed
from workbench.view.probe_section import metric_of, targets_of
from workbench.view.provenance import model_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from workbench.analysis import Comparison, Probe, Sweep, Transfer
    from workbench.store import Run
    from workbench.view.given import Given
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
    if value >= 0.995:
        return f"{100 * value:,.0f} %"
    return f"{100 * value:.2g} %" if value >= 1e-4 else figure(value)


def best(probes: Sequence[Probe]) -> Probe | None:
    """Find the probe to speak of first: the best score of the first kind."""
    same = [probe for probe in probes if probe.task == probes[0].task and probe.labels == probes[0].labels]
    return max(same, key=lambda probe: probe.score) if same else None


def probe_clause(probe: Probe, rule: Redaction) -> str:
    """Say what a probe reads, beside its control."""
    targets = targets_of(probe, rule)
    what = listed(targets)
    score, control = signed(probe.score), signed(probe.control)
    return f"a linear probe reads {what} at {probe.tap} with {metric_of(probe)} {score} (shuffled labels: {control})"


def sweep_clause(sweep: Sweep, rule: Redaction) -> str:
    """Say where a probe reads best, with the score that choosing the tap does not inflate."""
    found = next(probe for probe in sweep.probes if probe.tap == sweep.best)
    return f"{probe_clause(found, rule)}, {signed(sweep.best_corrected)} corrected for choosing among taps"


def transfer_clause(transfer: Transfer, rule: Redaction) -> str:
    """Say what becomes of a probe on the other build, and whether that is more than noise."""
    probe = f"the probe of {listed(targets_of(transfer, rule))} at {transfer.tap}"
    start = f"{probe} scores {signed(transfer.score_away)} on the other build, {signed(transfer.score_home)} at home"
    flips = f"{len(transfer.flips):,} of {transfer.n_rows:,} rows flip"
    return f"{start}; {flips} ({NO_FLOOR if transfer.floor_flips is None else f'on a repeat {transfer.floor_flips:,}'})"


def clauses_of(given: Given, rule: Redaction, drift: str | None) -> list[str]:
    """Say what was found, most telling first."""
    parts = []
    found = best(given.probes)
    if given.sweeps:
        parts.append(sweep_clause(given.sweeps[0], rule))
    elif found is not None:
        parts.append(probe_clause(found, rule))
    if given.transfers:
        parts.append(transfer_clause(max(given.transfers, key=lambda one: one.score_home), rule))
    return [*parts, drift] if given.comparisons and drift else parts


def headline(run: Run, given: Given, rule: Redaction, drift: str | None) -> str:
    """Say the finding in one sentence."""
    subject = f"{run.n_prompts:,} prompts" if run.n_prompts != 1 else "One prompt"
    start = f"{subject} through {model_name(run, rule)}"
    parts = clauses_of(given, rule, drift)
    if not parts:
        return f"{start}: {run.n_rows:,} hidden states at {len(run.taps)} {'tap' if len(run.taps) == 1 else 'taps'}."
    return f"{start}: {'; '.join(parts)}."


def floor_words(comparisons: Sequence[Comparison]) -> str:
    """Say in the provenance how the floor was measured."""
    floors = [comparison.floor for comparison in comparisons if comparison.floor is not None]
    return f"measured, {len(floors[0].repeats)} repeats ({', '.join(floors[0].kinds)})" if floors else NO_FLOOR
