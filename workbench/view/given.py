"""What a view was given: one or two runs, and results by kind. A report of several views is given several of these."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from workbench.errors import ViewError
from workbench.view.provenance import run_id

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from workbench.analysis import Clusters, Comparison, Probe, Projection, Sweep, Transfer
    from workbench.analysis.results import Result
    from workbench.store import Run

MAX_RUNS = 2
# kind of a result -> field of `Given`
FIELDS = {
    "projection": "projections",
    "clusters": "clusters",
    "probe": "probes",
    "sweep": "sweeps",
    "transfer": "transfers",
    "comparison": "comparisons",
    "error split": "others",
    "lens": "others",
    "neighbours": "others",
    "prompt pair": "others",
    "churn": "others",
    "learning curve": "others",
}


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Given:
    """What a view was given, by kind.

    Attributes
    ----------
    runs : tuple of Run
        None, where results stand for themselves; else one, or two side by side.
    projections, clusters, probes, sweeps, transfers, comparisons : tuple of results
    others : tuple of results
        Of the remaining kinds, in the order given.
    colour : str or None
        Column that colours the maps at first.
    selections : mapping of str to row ids
        Offered by name.
    """

    runs: tuple[Run, ...]
    projections: tuple[Projection, ...] = ()
    clusters: tuple[Clusters, ...] = ()
    probes: tuple[Probe, ...] = ()
    sweeps: tuple[Sweep, ...] = ()
    transfers: tuple[Transfer, ...] = ()
    comparisons: tuple[Comparison, ...] = ()
    others: tuple[Result, ...] = ()
    colour: str | None = None
    selections: Mapping[str, Sequence[int]] = field(default_factory=dict)

    @property
    def results(self) -> tuple[Result, ...]:
        """All results but the maps, in the order in which a page shows them."""
        return (*self.sweeps, *self.probes, *self.transfers, *self.comparisons, *self.clusters, *self.others)

    @property
    def all_probes(self) -> tuple[Probe, ...]:
        """Probes, those of sweeps among them."""
        return (*self.probes, *(probe for sweep in self.sweeps for probe in sweep.probes))


@runtime_checkable
class GivesView(Protocol):
    """A live view: it says what it shows, so that a report can hold the same."""

    def given(self) -> Given:
        """Runs, results, colour and selections."""


def sort_given(*parts: Any, projections: Sequence[Projection] = ()) -> Given:
    """Sort runs and results into one view.

    Raises
    ------
    ViewError
        If something is neither, there are too many runs, or a result is of another run.
    """
    from workbench.store import Run as StoredRun

    runs: list[Run] = []
    found: dict[str, list[Any]] = {name: [] for name in FIELDS.values()} | {"projections": list(projections)}
    for part in parts:
        kind = getattr(part, "kind", None)
        if isinstance(part, StoredRun):
            runs.append(part)
        elif isinstance(kind, str) and kind in FIELDS:
            found[FIELDS[kind]].append(part)
        else:
            do = f"Pass runs, views, and results: {', '.join(FIELDS)}."
            raise ViewError("a report is made of runs and results", f"{type(part).__name__}", do)
    if len(runs) > MAX_RUNS:
        do = "Put each pair into a list of its own: report([a, b], [a, c])."
        raise ViewError("a report shows one or two runs side by side", f"{len(runs)}", do)
    if runs:
        _check_owner(runs, [result for results in found.values() for result in results])
    sorted_by_kind: dict[str, Any] = {name: tuple(results) for name, results in found.items()}
    return Given(runs=tuple(runs), **sorted_by_kind)


def views_of(parts: Sequence[Any], projections: Sequence[Projection] = ()) -> list[Given]:
    """Sort the parts of a report into views.

    Runs and results that stand by themselves make one view; a live view makes one, and so does each list of runs and
    results. One list alone is what it holds.

    Raises
    ------
    ViewError
        As `sort_given` does, or if there is nothing.
    """
    if len(parts) == 1 and isinstance(parts[0], list | tuple):
        parts = parts[0]
    loose = [part for part in parts if not isinstance(part, list | tuple | GivesView)]
    views, taken = [], False
    for part in parts:
        if isinstance(part, GivesView):
            views.append(part.given())
        elif isinstance(part, list | tuple):
            views.append(sort_given(*part))
        elif not taken:
            views.append(sort_given(*loose, projections=projections))
            taken = True
    if projections and not taken:
        raise ViewError("projections= adds maps to the runs of a report", "no run beside it", "Put them into a list.")
    if not views or all(not view.runs and not view.results and not view.projections for view in views):
        raise ViewError("a report is made of runs and results", "none", "Pass at least one.")
    return views


def _check_owner(runs: Sequence[Run], results: Sequence[Result]) -> None:
    known = {run_id(run) for run in runs}
    for result in results:
        strange = [name for name in result.provenance.runs if name and name not in known]
        # a transfer also names its repeat, and an error split has three runs: the first is the one whose rows are shown
        own = set(result.provenance.runs[:1]) if result.kind in ("transfer", "error split") else set()
        if strange and not (own and own <= known):
            got = f"a {result.kind} of run {min(strange)[:12]}"
            raise ViewError("results must belong to the runs of the report", got, "Pass that run too, or leave it out.")
