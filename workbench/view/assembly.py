"""From runs and results to the document of a page."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from workbench.errors import ViewError
from workbench.view.blocks import Blocks
from workbench.view.cluster_section import cluster_column, cluster_section
from workbench.view.columns import column_of
from workbench.view.comparison_section import comparison_columns, comparison_section, drift_clause
from workbench.view.document import Heading, Pieces, build_page, build_view
from workbench.view.facts import facts_of, view_facts
from workbench.view.framing import frames_of, projections_for
from workbench.view.given import MAX_RUNS, Given
from workbench.view.lone import lone_view
from workbench.view.probe_section import prediction_columns, probe_sections
from workbench.view.provenance import provenance_section, run_id
from workbench.view.redaction import Redaction, redaction
from workbench.view.result_sections import result_section
from workbench.view.rows import DrawnRows, drawn_rows, row_pieces
from workbench.view.transfer_section import transfer_columns, transfer_sections
from workbench.view.wording import floor_words, headline

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from workbench.store import Run
    from workbench.view.columns import ViewColumn

TITLE = "Hidden-state report"


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """Options of `report` that the document depends on; see there."""

    date: str
    color: str | None
    title: str | None
    redact: int | str | None
    keep_columns: Collection[str]
    token_text: Callable[[int], str] | None
    limit: int
    seed: int
    compress: bool


def assemble(views: Sequence[Given], options: Options) -> tuple[dict[str, Any], bytes]:
    """Build the document and its buffer."""
    prompts = [run.prompts for view in views for run in view.runs[:1]]
    results = [result for view in views for result in (*view.results, *view.projections)]
    salt = [] if prompts else [text for result in results for text in result.provenance.prompts]
    rule = redaction(options.redact, columns=options.keep_columns, prompts=prompts, salt=salt)
    blocks = Blocks(compress=options.compress)
    parts = [_view(view, options, rule, blocks, only=len(views) == 1) for view in views]
    if len(parts) > 1 and options.color is not None and not rule.active:
        _check_colour(parts, options.color)
    own = options.title if rule.keep != 0 else None
    title = own or TITLE
    one: dict[str, Any] = parts[0] if len(parts) == 1 else {"headline": own or _count(parts), "facts": ()}
    heading = Heading(title=title, headline=one["headline"], facts=one["facts"], date=options.date)
    return build_page(heading, parts, rule, blocks), blocks.joined()


def _count(parts: Sequence[dict[str, Any]]) -> str:
    maps = sum(bool(part["maps"]) for part in parts)
    return f"{len(parts)} views, {maps} with {'a map' if maps == 1 else 'maps'}."


def _check_colour(parts: Sequence[dict[str, Any]], color: str) -> None:
    """Refuse a colour that no view has."""
    names = [column["name"] for part in parts for column in part.get("columns", ())]
    if color not in names:
        known = ", ".join(map(repr, dict.fromkeys(names))) or "no column"
        raise ViewError(f"color must be one of {known}", repr(color)[:60], "Name one.")


def _view(given: Given, options: Options, rule: Redaction, blocks: Blocks, *, only: bool) -> dict[str, Any]:
    if not given.runs:
        if only and options.color is not None:
            raise ViewError(
                "color names a column of a run", repr(options.color)[:60], "Give the run beside the result."
            )
        return lone_view(given, rule, blocks, date=options.date)
    run = given.runs[0]
    rows = drawn_rows(run, limit=options.limit, seed=options.seed)
    projections = projections_for(given.runs, given.projections)
    columns, sections = contents_of(given, rows, rule)
    frames = frames_of(projections, given.runs, rows)
    facts = view_facts(given, projections, frames, rule)
    made = provenance_section(given.runs, rows, facts, rule, floor=floor_words(given.comparisons), date=options.date)
    wanted = given.colour or options.color
    if not only and wanted not in [column.name for column in columns]:
        wanted = None
    clause = drift_clause(given.comparisons[0], given.runs) if given.comparisons else None
    return build_view(
        rows,
        heading=Heading(
            title=map_title(rows),
            headline=headline(run, given, rule, clause),
            facts=facts_of(given, rule),
            date=options.date,
        ),
        run=run_id(run),
        columns=columns,
        frames=frames,
        sections=[*sections, made],
        rule=rule,
        blocks=blocks,
        colour=first_colour(columns, wanted, run),
        pieces=pieces_of(rows, options.token_text),
        selections=given.selections,
        map_title=map_title(rows),
        map_lead=map_lead(given, frames),
    )


def contents_of(given: Given, rows: DrawnRows, rule: Redaction) -> tuple[list[ViewColumn], list[dict[str, Any]]]:
    """Columns of a view of runs, and its sections but the last."""
    prompts = rows.run.prompts
    columns = [column_of(name, [values[int(p)] for p in rows.prompts]) for name, values in prompts.columns.items()]
    sections = probe_sections(given, rule, rows)
    sections += transfer_sections(given.transfers, given.runs, rule, rows)
    for comparison in given.comparisons:
        columns += comparison_columns(comparison, rows)
        sections.append(comparison_section(comparison, given.runs, rows, rule, given.transfers))
    for clusters in given.clusters:
        columns.append(cluster_column(clusters, rows, rule))
        sections.append(cluster_section(clusters, len(columns) - 1, rule))
    others = [result_section(result, rule, rows) for result in given.others]
    sections += [{name: value for name, value in section.items() if name != "said"} for section in others]
    here = [probe for probe in given.all_probes if run_id(rows.run) in probe.provenance.runs]
    for labels in dict.fromkeys(probe.labels for probe in here):  # one column a target: of the tap that reads it best
        same = [probe for probe in here if probe.labels == labels]
        columns += prediction_columns(max(same, key=lambda probe: probe.score), rows, rule)
    return columns + transfer_columns(given.transfers, rows, rule), sections


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
