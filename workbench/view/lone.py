"""A view of results alone, without the runs that they were made of: sections, and the map of a projection by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.view.cluster_section import cluster_section
from workbench.view.columns import ViewColumn, number_column
from workbench.view.comparison_section import comparison_section, drift_clause
from workbench.view.document import Heading, column_documents, headed
from workbench.view.facts import result_title
from workbench.view.maps import MapFrame, Pane, axes_of, map_documents, trust_note
from workbench.view.probe_section import probe_sections
from workbench.view.provenance import provenance_section, result_facts
from workbench.view.result_sections import result_section
from workbench.view.transfer_section import transfer_sections
from workbench.view.wording import clauses_of, floor_words

if TYPE_CHECKING:
    from workbench.analysis import Projection
    from workbench.view.blocks import Blocks
    from workbench.view.given import Given
    from workbench.view.redaction import Redaction


def lone_view(given: Given, rule: Redaction, blocks: Blocks, *, date: str) -> dict[str, Any]:
    """Describe results as sections with their provenance; the first projection also becomes a map of row ids."""
    sections = probe_sections(given, rule, None)
    sections += transfer_sections(given.transfers, (), rule, None)
    sections += [comparison_section(one, (), None, rule, given.transfers) for one in given.comparisons]
    sections += [cluster_section(one, -1, rule) for one in given.clusters]
    sections += [result_section(one, rule, None) for one in given.others]
    results = (*given.projections, *given.results)
    made = [(result_title(result), result_facts(result, rule, alone=True)) for result in results]
    sections.append(provenance_section((), None, made, rule, floor=floor_words(given.comparisons), date=date))
    drift = drift_clause(given.comparisons[0], ()) if given.comparisons else None
    found = clauses_of(given, rule, drift)
    said = [section.pop("said", None) for section in sections]
    found += [words for words in said if words and not found]
    words = "; ".join(found) + "." if found else _first_words(given, sections)
    headline = words[:1].upper() + words[1:]
    heading = Heading(title=sections[0].get("title") or "Map", headline=headline, facts=(), date=date)
    return {
        **headed(heading, sections),
        **(_map_alone(given.projections[0], rule, blocks) if given.projections else {}),
    }


def _first_words(given: Given, sections: list[dict[str, Any]]) -> str:
    if given.projections:
        return str(given.projections[0]).split(";")[0] + "."
    return f"{sections[0]['title']}."


def _map_alone(projection: Projection, rule: Redaction, blocks: Blocks) -> dict[str, Any]:
    """Place every row of the projection in one pane; without its run a row has an id and no text."""
    n = len(projection.rows)
    several = len(projection.provenance.runs) > 1
    made_by = ViewColumn(
        name="engine",
        per="row",
        values=projection.run_of_row.astype(np.uint16),
        labels=tuple(f"{k + 1}: {engine[:8]}" for k, engine in enumerate(projection.provenance.engines)),
        free=True,
    )
    frame = MapFrame(
        method=projection.method,
        tap=projection.tap,
        badge=projection.badge,
        axes=axes_of(projection),
        panes=(Pane(title=projection.tap, coordinates=projection.coordinates),),
        note=trust_note(projection),
    )
    return {
        "run": projection.provenance.runs[0],
        "rows": {
            "count": n,
            "prompt": blocks.array(np.arange(n, dtype=np.int32)),
            "token": None,
            "ids": None if several else blocks.array(projection.rows.astype(np.int32)),
            "pieces": None,
        },
        "prompts": {"count": n, "texts": blocks.json([None] * n), "ids": None},
        "columns": column_documents(
            [made_by, number_column("row of its run", projection.rows)] if several else [], rule, blocks
        ),
        "colour": 0 if several else -1,
        "maps": map_documents([frame], blocks),
        "mapTitle": f"Map of {n:,} rows",
        "mapLead": "Rows by their ids: texts and columns are shown where the run is given beside the map.",
        "selections": [],
    }
