"""`explore`: a run, or two side by side, as a live view in a notebook.

1. Principal components of one tap are on screen when the call returns.
2. In the background: the other taps, UMAP, the comparison of two runs; each appears when it is done.
3. Maps are stored beside the run and read again, never fitted twice.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.errors import ViewError
from workbench.view.assembly import contents_of, first_colour, map_lead, map_title, pieces_of
from workbench.view.blocks import Blocks
from workbench.view.document import Heading, build_view
from workbench.view.given import Given, sort_given
from workbench.view.growing import beside_step, first_maps, growth, probe_step
from workbench.view.live_content import Content
from workbench.view.provenance import run_id
from workbench.view.redaction import redaction
from workbench.view.rows import MAX_ROWS, drawn_rows
from workbench.view.twin import map_pixels, row_colours, twin_bundle

if TYPE_CHECKING:
    from collections.abc import Sequence

    from workbench.store import Run
    from workbench.view.live import View

_NUMBERS = itertools.count()


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
    rule = redaction(None, columns=(), prompts=[run.prompts])
    columns, sections = contents_of(given, rows, rule)
    content = Content(given, rows, rule, columns, sections, [], [], _tap_of(given, tap), seed)
    first_maps(content, quick=background)
    view = _make_view(content, color, tokenizer)
    if background:
        view.attach(growth(content, view, taps, umap=umap))
    return view


def _tap_of(given: Given, tap: str | None) -> str:
    run = given.runs[0]
    if tap is not None and any(tap not in one.taps for one in given.runs):
        raise ViewError(f"tap must be one of {', '.join(run.taps)}", repr(tap)[:60], "Choose one that every run holds.")
    if given.projections and tap is None:
        return given.projections[0].tap
    common = [name for name in run.taps if all(name in one.taps for one in given.runs)]
    return tap or (common or list(run.taps))[-1]


def _make_view(content: Content, color: str | None, tokenizer: Any) -> View:
    from workbench.view.live import View

    run = content.runs[0]
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
    doc |= {
        "blocks": blocks.table,
        "view": str(next(_NUMBERS)),
        "colour": names.index(colour) if colour in names else -1,
    }
    traits = {"doc": doc, "buffer": blocks.joined(), **content.map_traits()}
    if color is not None:
        traits["place"] = {"colour": color}
    steps = {"probe": partial(probe_step, content), "beside": partial(beside_step, content)}
    return View(content.rows, steps=steps, twin=partial(_twin, content), given=partial(_shown, content), **traits)


def _twin(content: Content, view: View) -> dict[str, str]:
    frames = content.frames
    place = view.place
    frame = next(
        (f for f in frames if f.method == place.get("method") and f.tap == place.get("tap")),
        frames[0] if frames else None,
    )
    shown = content.all_columns
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


def _shown(content: Content, view: View) -> Given:
    color = view.place.get("colour")
    names = {column.name for column in content.all_columns}
    return replace(
        content.given,
        projections=tuple(content.projections),
        colour=color if color in names else None,
        selections={name: rows.tolist() for name, rows in view.selections.items()},
    )
