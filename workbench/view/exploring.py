"""`explore`: a run, or two side by side, as a live view in a notebook.

1. Principal components of one tap are on screen when the call returns.
2. In the background: the other taps, UMAP, the comparison of two runs; each appears when it is done.
3. Maps are stored beside the run and read again, never fitted twice.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.errors import ViewError, WorkbenchError
from workbench.view.assembly import contents_of, first_colour, map_lead, map_title, pieces_of
from workbench.view.background import Jobs, Step
from workbench.view.blocks import Blocks
from workbench.view.comparison_section import comparison_columns, comparison_section
from workbench.view.document import Heading, build_view, column_documents
from workbench.view.framing import frames_of, projections_for, quick_frame
from workbench.view.given import Given, sort_given
from workbench.view.maps import MapFrame, map_documents, turned_to
from workbench.view.provenance import run_id
from workbench.view.redaction import Redaction, redaction
from workbench.view.rows import MAX_ROWS, DrawnRows, drawn_rows
from workbench.view.twin import map_pixels, row_colours, twin_bundle

if TYPE_CHECKING:
    from pathlib import Path

    from workbench.analysis import Comparison, Projection
    from workbench.store import Run
    from workbench.view.columns import ViewColumn
    from workbench.view.live import View

MAX_TAPS = 12  # more are computed only when asked for with `taps`
_NUMBERS = itertools.count()


@dataclass(slots=True)
class _Content:
    """What a view shows; grows as background work is done."""

    given: Given
    rows: DrawnRows
    rule: Redaction
    columns: list[ViewColumn]
    sections: list[dict[str, Any]]
    frames: list[MapFrame]
    projections: list[Projection]
    tap: str
    seed: int
    late_columns: list[ViewColumn] = field(default_factory=list)


def explore(
    run: Run,
    *more: Any,
    tap: str | None = None,
    taps: Sequence[str] | None = None,
    color: str | None = None,
    umap: bool = True,
    tokenizer: Any = None,
    limit: int = MAX_ROWS,
    seed: int = 0,
    background: bool = True,
) -> View:
    """Show a run, or two side by side, as a live view.

    Parameters
    ----------
    run : Run
    *more : Run, Projection, Clusters, Probe, Comparison
        As for `report`. Two runs are compared in the background unless a comparison is given.
    tap : str, optional
        Tap on screen at first; the last of the run by default.
    taps : sequence of str, optional
        Taps of the slider; all (at most twelve, spread evenly) by default.
    color : str, optional
        Column that colours the maps at first.
    umap : bool
        Also fit UMAP at the first tap, in the background.
    tokenizer : optional
        Anything with `token_text(id)`.
    limit, seed
        Rows drawn at most, and the seed of their sample and of the maps.
    background : bool
        False fits nothing after the first map.

    Returns
    -------
    View
        Show it as the last line of a cell. `view.selected` are row ids, in both directions.

    Raises
    ------
    ViewError
        If something given is neither run nor result, or a tap or column does not exist.
    """
    given = sort_given(run, *more)
    rows = drawn_rows(run, limit=limit, seed=seed)
    first = _tap_of(given, tap)
    kept = given.projections or _stored(given.runs, first, "pca", seed)
    quick = quick_frame(given.runs, rows, first, seed=seed) if background and not kept else None
    projections = [] if quick else projections_for(given.runs, kept, tap=first, seed=seed)
    if not kept and projections:
        _store(given.runs, projections[0], seed)
    rule = redaction(None, columns=(), prompts=[run.prompts])
    columns, sections = contents_of(given, rows, rule)
    frames = [quick] if quick else frames_of(projections, given.runs, rows)
    content = _Content(given, rows, rule, columns, sections, frames, list(projections), first, seed)
    view = _make_view(content, color, tokenizer)
    if background and (projections or quick):
        steps = _steps(content, taps, umap=umap)
        view.attach([Step(text, partial(work, view)) for text, work in steps], Jobs)
    return view


def _tap_of(given: Given, tap: str | None) -> str:
    run = given.runs[0]
    if tap is not None and any(tap not in one.taps for one in given.runs):
        raise ViewError(f"tap must be one of {', '.join(run.taps)}", repr(tap)[:60], "Choose one that every run holds.")
    if given.projections and tap is None:
        return given.projections[0].tap
    common = [name for name in run.taps if all(name in one.taps for one in given.runs)]
    return tap or (common or list(run.taps))[-1]


def _make_view(content: _Content, color: str | None, tokenizer: Any) -> View:
    from workbench.view.live import View

    run = content.given.runs[0]
    blocks = Blocks()
    doc = build_view(
        content.rows,
        heading=Heading(title="", headline="", facts=(), date=""),
        run=run_id(run),
        columns=content.columns,
        frames=(),
        sections=(),
        rule=content.rule,
        blocks=blocks,
        pieces=pieces_of(content.rows, getattr(tokenizer, "token_text", None)),
        map_title=map_title(content.rows),
        map_lead=map_lead(content.given, content.frames),
    )
    colour = first_colour(content.columns, color, run)
    names = [column.name for column in content.columns]
    doc |= {"blocks": blocks.table, "view": str(next(_NUMBERS))}
    doc["colour"] = names.index(colour) if colour in names else -1
    traits = {"doc": doc, "buffer": blocks.joined(), "sections": content.sections, **_map_traits(content)}
    if color is not None:
        traits["place"] = {"colour": color}
    return View(content.rows, twin=partial(_twin, content), given=partial(_shown, content), **traits)


def _map_traits(content: _Content) -> dict[str, Any]:
    blocks = Blocks()
    maps = map_documents(content.frames, blocks)
    columns = column_documents(content.late_columns, content.rule, blocks)
    return {"maps": {"maps": maps, "columns": columns, "blocks": blocks.table}, "map_buffer": blocks.joined()}


Work = Callable[..., None]


def _steps(content: _Content, taps: Sequence[str] | None, *, umap: bool) -> list[tuple[str, Work]]:
    runs = content.given.runs
    steps: list[tuple[str, Work]] = []
    if not content.projections:
        steps.append((f"quality of the map of {content.tap}", partial(_fit_first, content)))
    if not content.given.projections:
        common = [name for name in runs[0].taps if all(name in run.taps for run in runs)]
        if len(common) > MAX_TAPS:
            common = [common[i] for i in np.unique(np.linspace(0, len(common) - 1, MAX_TAPS).astype(int))]
        others = [name for name in (taps or common) if name != content.tap]
        if others:
            steps.append(("maps of the other taps", partial(_fit_taps, content, others)))
    if len(runs) > 1 and not content.given.comparisons:
        steps.append(("comparison of the two engines", partial(_compare, content)))
    if umap and all(one.method != "umap" for one in content.projections):
        steps.append((f"UMAP of {content.tap}", partial(_fit_umap, content)))
    return steps


def _fit_first(content: _Content, view: View, progress: Any, cancel: Any) -> None:
    """Take the place of a quick first map: the same components, exact, with their quality measured."""
    from workbench.analysis import project

    runs = list(content.given.runs)
    subject: Any = runs if len(runs) > 1 else runs[0]
    found = [project(subject, content.tap, "pca", seed=content.seed, progress=progress)]
    if cancel.is_set():
        return
    _store(runs, found[0], content.seed)
    content.projections = found
    content.frames = frames_of(found, runs, content.rows)
    view.show_maps(_map_traits(content))


def _fit_taps(content: _Content, others: Sequence[str], view: View, progress: Any, cancel: Any) -> None:
    from workbench.analysis import project

    runs, seed = list(content.given.runs), content.seed
    reference = next(frame for frame in content.frames if frame.tap == content.tap and frame.method == "pca")
    made = []
    for number, tap in enumerate(others):
        if cancel.is_set():
            return
        told = lambda done, total, number=number: progress(number * total + done, len(others) * total)  # noqa: E731
        found = _stored(runs, tap, "pca", seed) or [
            project(runs if len(runs) > 1 else runs[0], tap, "pca", seed=seed, progress=told)
        ]
        _store(runs, found[0], seed)
        made += frames_of(found, runs, content.rows)
    order = {name: place for place, name in enumerate(runs[0].taps)}
    slider = sorted([reference, *(turned_to(frame, reference) for frame in made)], key=lambda frame: order[frame.tap])
    content.frames = slider + [frame for frame in content.frames if frame is not reference]
    view.show_maps(_map_traits(content))


def _fit_umap(content: _Content, view: View, progress: Any, cancel: Any) -> None:
    from workbench.analysis import project

    runs, tap, seed = list(content.given.runs), content.tap, content.seed
    found = _stored(runs, tap, "umap", seed)
    if not found:
        subject: Any = runs if len(runs) > 1 else runs[0]
        found = [project(subject, tap, "umap", seed=seed, progress=progress, cancel=cancel)]
        _store(runs, found[0], seed)
    content.projections += found
    content.frames = [*content.frames, *frames_of(found, runs, content.rows)]
    view.show_maps(_map_traits(content))


def _compare(content: _Content, view: View, progress: Any, cancel: Any) -> None:
    from workbench.analysis import compare

    given = content.given
    comparison: Comparison = compare(given.runs[0], given.runs[1], progress=progress)
    if cancel.is_set():
        return
    content.given = replace(given, comparisons=(comparison,))
    content.late_columns = comparison_columns(comparison, content.rows)
    made = comparison_section(comparison, given.runs, content.rows, content.rule, given.transfers)
    content.sections = [made, *content.sections]
    view.show_maps({**_map_traits(content), "sections": content.sections})


# --- maps are kept beside the run


def _map_path(runs: Sequence[Run], tap: str, method: str, seed: int) -> Path:
    ids = hashlib.sha256(" ".join(run_id(run) for run in runs).encode()).hexdigest()[:12]
    folder = runs[0].path.with_name(runs[0].path.name + ".maps")
    return folder / f"{method}-{tap}-{seed}-{ids}"


def _stored(runs: Sequence[Run], tap: str, method: str, seed: int) -> list[Projection]:
    from workbench.analysis import load_projection

    path = _map_path(runs, tap, method, seed)
    if not path.with_name(path.name + ".json").is_file():
        return []
    try:
        found = load_projection(path)
    except (WorkbenchError, OSError, ValueError, KeyError, TypeError):
        return []  # it is only a copy: fit again
    return [found] if found.provenance.runs == tuple(run_id(run) for run in runs) else []


def _store(runs: Sequence[Run], projection: Projection, seed: int) -> None:
    path = _map_path(runs, projection.tap, projection.method, seed)
    try:
        path.parent.mkdir(exist_ok=True)
        projection.save(path)
    except (WorkbenchError, OSError):
        return  # a run on a read-only disk is viewed all the same


# --- what others see


def _twin(content: _Content, view: View) -> dict[str, str]:
    frames = content.frames
    place = view.place
    frame = next(
        (f for f in frames if f.method == place.get("method") and f.tap == place.get("tap")),
        frames[0] if frames else None,
    )
    shown = [*content.columns, *content.late_columns]
    number = view.doc["colour"]
    column = next((c for c in shown if c.name == place.get("colour")), shown[number] if number >= 0 else None)
    colours, legend = row_colours(column, content.rows)
    coordinates = (
        [pane.coordinates for pane in frame.panes] if frame else [np.full((len(content.rows), 2), np.nan, np.float32)]
    )
    note = f"{frame.method} of {frame.tap}, {frame.badge}; {frame.note}" if frame else "no rows"
    if len(view.selected):
        note += f"; {len(view.selected):,} rows selected"
    return twin_bundle(
        map_pixels(coordinates, colours),
        legend,
        title=map_title(content.rows),
        note=note,
        rows=content.rows,
        view=view.doc["view"],
    )


def _shown(content: _Content, view: View) -> Given:
    color = view.place.get("colour")
    names = {column.name for column in [*content.columns, *content.late_columns]}
    return replace(
        content.given,
        projections=tuple(content.projections),
        colour=color if color in names else None,
        selections={name: rows.tolist() for name, rows in view.selections.items()},
    )
