"""From runs and results to the document of a page."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from workbench.errors import ViewError
from workbench.view.blocks import Blocks
from workbench.view.cluster_section import cluster_column, cluster_section
from workbench.view.columns import ViewColumn, column_of
from workbench.view.comparison_section import comparison_columns, comparison_section, drift_clause
from workbench.view.document import Heading, Pieces, build_document
from workbench.view.facts import facts_of, view_facts
from workbench.view.framing import frames_of, projections_for
from workbench.view.probe_section import prediction_columns, probe_sections
from workbench.view.provenance import engine_name, provenance_section, run_id
from workbench.view.redaction import Redaction, redaction
from workbench.view.rows import DrawnRows, drawn_rows, row_pieces
from workbench.view.wording import NO_FLOOR, headline

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from workbench.analysis import Clusters, Comparison, Probe, Projection
    from workbench.store import Run

MAX_RUNS = 2


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Given:
    """What a report was given, by kind."""

    runs: tuple[Run, ...]
    projections: tuple[Projection, ...]
    clusters: tuple[Clusters, ...]
    probes: tuple[Probe, ...]
    comparisons: tuple[Comparison, ...]


def sort_given(run: Run, more: Sequence[Any], projections: Sequence[Projection] = ()) -> Given:
    """Sort runs and results.

    Raises
    ------
    ViewError
        If something is neither, there are too many runs, or a result is of another run.
    """
    from workbench.store import Run as StoredRun

    runs: list[Run] = [run]
    found: dict[str, list[Any]] = {"projection": list(projections), "clusters": [], "probe": [], "comparison": []}
    for item in more:
        kind = getattr(item, "kind", None)
        if isinstance(item, StoredRun):
            runs.append(item)
        elif isinstance(kind, str) and kind in found:
            found[kind].append(item)
        else:
            do = f"Pass runs and results: {', '.join(found)}."
            raise ViewError("a report is made of runs and results", f"{type(item).__name__}", do)
    if len(runs) > MAX_RUNS:
        raise ViewError("a report shows one or two runs", f"{len(runs)}", "Make one report for each pair.")
    _check_owner(runs, [result for results in found.values() for result in results])
    return Given(
        runs=tuple(runs),
        projections=tuple(found["projection"]),
        clusters=tuple(found["clusters"]),
        probes=tuple(found["probe"]),
        comparisons=tuple(found["comparison"]),
    )


def _check_owner(runs: Sequence[Run], results: Sequence[Any]) -> None:
    known = {run_id(run) for run in runs}
    for result in results:
        strange = set(result.provenance.runs) - known - {""}
        if strange:
            got = f"a {result.kind} of run {min(strange)[:12]}"
            raise ViewError("results must belong to the runs of the report", got, "Pass that run too, or leave it out.")


def assemble(
    given: Given,
    *,
    color: str | None,
    title: str | None,
    redact: int | str | None,
    keep_columns: Collection[str],
    token_text: Callable[[int], str] | None,
    date: str,
    limit: int,
    seed: int,
    compress: bool,
    selections: Mapping[str, Sequence[int]] | None = None,
) -> tuple[dict[str, Any], bytes]:
    """Build document and buffer; see `report` for the options."""
    run = given.runs[0]
    rule = redaction(redact, columns=keep_columns, prompts=run.prompts)
    rows = drawn_rows(run, limit=limit, seed=seed)
    projections = projections_for(given.runs, given.projections)
    columns, sections = contents_of(given, rows, rule)
    frames = frames_of(projections, given.runs, rows)
    floor = _floor(given.comparisons)
    views = view_facts(given, projections, frames, rule)
    sections.append(provenance_section(given.runs, rows, views, rule, floor=floor, date=date))
    blocks = Blocks(compress=compress)
    clause = drift_clause(given.comparisons[0], given.runs) if given.comparisons else None
    doc = build_document(
        rows,
        heading=Heading(
            title=(title if rule.keep != 0 else None) or "Hidden-state report",
            headline=headline(run, given.probes, given.comparisons, rule, clause),
            facts=facts_of(given, rule),
            date=date,
        ),
        run=run_id(run),
        columns=columns,
        frames=frames,
        sections=sections,
        rule=rule,
        blocks=blocks,
        colour=first_colour(columns, color, run),
        pieces=pieces_of(rows, token_text),
        selections=selections,
        map_title=map_title(rows),
        map_lead=map_lead(given, frames),
    )
    return doc, blocks.joined()


def contents_of(given: Given, rows: DrawnRows, rule: Redaction) -> tuple[list[ViewColumn], list[dict[str, Any]]]:
    """Columns of the page, and its sections but the last."""
    prompts = rows.run.prompts
    columns = [column_of(name, [values[int(p)] for p in rows.prompts]) for name, values in prompts.columns.items()]
    several = len({probe.engine_id for probe in given.probes}) > 1
    engines = [_engine_of(probe.engine_id, given.runs) if several else "" for probe in given.probes]
    sections = probe_sections(given.probes, rule, engines, rows)
    for comparison in given.comparisons:
        columns += comparison_columns(comparison, rows)
        sections.append(comparison_section(comparison, given.runs, rows, rule))
    for clusters in given.clusters:
        columns.append(cluster_column(clusters, rows, rule))
        sections.append(cluster_section(clusters, len(columns) - 1, rule))
    here = [probe for probe in given.probes if run_id(rows.run) in probe.provenance.runs]
    for labels in dict.fromkeys(probe.labels for probe in here):  # one column a target: of the tap that reads it best
        same = [probe for probe in here if probe.labels == labels]
        columns += prediction_columns(max(same, key=lambda probe: probe.score), rows, rule)
    return columns, sections


def _engine_of(engine_id: str, runs: Sequence[Run]) -> str:
    return next((engine_name(run) for run in runs if run.engine_id == engine_id), str(engine_id)[:8])


def map_title(rows: DrawnRows) -> str:
    """Say what the map shows, and that it is a sample where it is one."""
    return f"Map of {rows.sentence()}" if rows.sampled else f"Map of all {len(rows):,} rows"


def pieces_of(rows: DrawnRows, token_text: Callable[[int], str] | None) -> Pieces | None:
    """Give the token texts of the drawn rows, where there is a tokenizer and a prompt has several rows."""
    if token_text is None or rows.position is None:
        return None
    found = row_pieces(rows, token_text)
    return None if found is None else Pieces(codes=found[0], texts=found[1])


def first_colour(columns: Sequence[ViewColumn], color: str | None, run: Run) -> str | None:
    """Choose the column that colours the maps at first: the asked one, else a metadata column of few classes."""
    names = [column.name for column in columns]
    if color is not None:
        if color not in names:
            raise ViewError(
                f"color must be one of {', '.join(map(repr, names)) or 'no column'}", repr(color)[:60], "Name one."
            )
        return color
    few = [c.name for c in columns if c.labels is not None and 2 <= len(c.labels) <= 12]
    return next(iter([n for n in few if n in run.prompts.columns] or few or names), None)


def _floor(comparisons: Sequence[Comparison]) -> str:
    floors = [comparison.floor for comparison in comparisons if comparison.floor is not None]
    return f"measured, {len(floors[0].repeats)} repeats ({', '.join(floors[0].kinds)})" if floors else NO_FLOOR


_LEADS: Mapping[str, str] = {
    "joint": "Both engines were fitted together: places can be compared from map to map.",
    "transformed": "Fitted on the first engine; the second is placed into the same frame, so places can be compared.",
    "aligned": "Both maps were fitted side by side and aligned: look for groups, not for small moves.",
    "independent": "Each engine was fitted by itself: the maps are linked by row, but places cannot be compared.",
}


def map_lead(given: Given, frames: Sequence[Any]) -> str | None:
    """Say how the two maps relate."""
    if len(given.runs) < MAX_RUNS:
        return None
    badges = {frame.badge for frame in frames if len(frame.panes) > 1}
    return _LEADS.get(badges.pop()) if len(badges) == 1 else None
