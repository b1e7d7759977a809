"""The document of a view: plain JSON that names blocks, the same for a report and for a notebook widget."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from workbench.view.columns import ViewColumn, colour_range
from workbench.view.maps import MapFrame, map_documents
from workbench.view.rows import DrawnRows, plain_ids

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from workbench.view.blocks import Blocks
    from workbench.view.redaction import Redaction

DOCUMENT_VERSION = 2


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Heading:
    """What stands above everything else on a page.

    Attributes
    ----------
    title : str
        A few words, also the title of the window.
    headline : str
        The finding in one sentence, with its numbers.
    facts : list of {"label", "value", "note"}
    date : str
        ISO date.
    """

    title: str
    headline: str
    facts: Sequence[Mapping[str, str | None]]
    date: str


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Pieces:
    """Token texts: `codes` uint32 [row] into `texts`."""

    codes: npt.NDArray[np.uint32]
    texts: Sequence[str]


def build_view(
    rows: DrawnRows,
    *,
    heading: Heading,
    run: str,
    columns: Sequence[ViewColumn],
    frames: Sequence[MapFrame],
    sections: Sequence[Mapping[str, Any]],
    rule: Redaction,
    blocks: Blocks,
    colour: str | None = None,
    pieces: Pieces | None = None,
    selections: Mapping[str, Sequence[int]] | None = None,
    map_title: str = "Map",
    map_lead: str | None = None,
) -> dict[str, Any]:
    """Describe a view of runs as plain JSON; arrays and texts go to `blocks`."""
    texts = [rows.run.prompts.texts[int(prompt)] for prompt in rows.prompts]
    shown = column_documents(columns, rule, blocks)
    return {
        **headed(heading, sections),
        "run": run,
        "rows": {
            "count": len(rows),
            "prompt": blocks.array(rows.prompt),
            "token": None if rows.position is None else blocks.array(rows.position),
            "ids": blocks.array(rows.ids.astype(np.int32)) if rows.sampled else None,
            "pieces": _pieces(pieces, rule, blocks),
        },
        "prompts": {"count": len(texts), "texts": blocks.json(rule.texts(texts)), "ids": _ids(rows, rule, blocks)},
        "columns": shown,
        "colour": _colour(columns, colour),
        "maps": map_documents(frames, blocks),
        "mapTitle": map_title,
        "mapLead": map_lead,
        "selections": _selections(selections, rule),
    }


def headed(heading: Heading, sections: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Describe a view that holds sections alone."""
    return {
        "title": heading.title,
        "headline": heading.headline,
        "facts": [dict(fact) for fact in heading.facts],
        "maps": [],
        "sections": [dict(section) for section in sections],
    }


def build_page(heading: Heading, views: Sequence[Mapping[str, Any]], rule: Redaction, blocks: Blocks) -> dict[str, Any]:
    """Describe a page of one or several views; nothing may be added to `blocks` afterwards."""
    return {
        "workbench": "report",
        "version": DOCUMENT_VERSION,
        "title": heading.title,
        "headline": heading.headline,
        "facts": [dict(fact) for fact in heading.facts],
        "date": heading.date,
        "redacted": rule.sentence(),
        "views": [dict(view) for view in views],
        "blocks": blocks.table,
    }


def column_documents(columns: Sequence[ViewColumn], rule: Redaction, blocks: Blocks) -> list[dict[str, Any]]:
    """Describe columns; their values go to `blocks`."""
    return [_column(column, number, rule, blocks) for number, column in enumerate(columns)]


def _column(column: ViewColumn, number: int, rule: Redaction, blocks: Blocks) -> dict[str, Any]:
    made = {"name": rule.column(column.name, number) if not column.free else column.name, "per": column.per}
    if column.labels is None:
        return (
            made
            | {"kind": "number", "values": blocks.array(column.values), "scale": column.scale}
            | colour_range(column.values, column.scale)
        )
    labels = rule.labels("" if column.free else column.name, column.labels)
    return made | {"kind": "category", "values": blocks.array(column.values), "labels": blocks.json(labels)}


def _colour(columns: Sequence[ViewColumn], colour: str | None) -> int:
    names = [column.name for column in columns]
    return names.index(colour) if colour in names else -1


def _pieces(pieces: Pieces | None, rule: Redaction, blocks: Blocks) -> dict[str, int] | None:
    if pieces is None or rule.active:
        return None
    return {"codes": blocks.array(pieces.codes), "texts": blocks.json(list(pieces.texts))}


def _ids(rows: DrawnRows, rule: Redaction, blocks: Blocks) -> int | None:
    ids = plain_ids(rows)
    return None if ids is None else blocks.json([rule.token(str(i)) if rule.active else i for i in ids])


def _selections(selections: Mapping[str, Sequence[int]] | None, rule: Redaction) -> list[dict[str, Any]]:
    named = enumerate((selections or {}).items(), start=1)
    return [
        {"name": rule.word(name) or f"selection {k}", "rows": [int(row) for row in ids]} for k, (name, ids) in named
    ]
