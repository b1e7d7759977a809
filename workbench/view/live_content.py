"""What a live view shows: it begins with one map and grows as background work is done."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from workbench.view.assembly import contents_of, map_lead
from workbench.view.blocks import Blocks
from workbench.view.document import column_documents
from workbench.view.given import Given
from workbench.view.maps import map_documents

if TYPE_CHECKING:
    from workbench.analysis import Projection
    from workbench.store import Run
    from workbench.view.columns import ViewColumn
    from workbench.view.maps import MapFrame
    from workbench.view.redaction import Redaction
    from workbench.view.rows import DrawnRows


@dataclass(slots=True)
class Content:
    """What a live view shows.

    Attributes
    ----------
    given : Given
        Runs, and the results that a report of this view would hold.
    rows : DrawnRows
        Of the first run; they stay while everything else may change.
    columns, late_columns : list of ViewColumn
        Those at the start, and those of results that came later.
    tap : str
        The first on screen.
    """

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

    @property
    def runs(self) -> tuple[Run, ...]:
        """One run, or two side by side."""
        return self.given.runs

    @property
    def all_columns(self) -> list[ViewColumn]:
        """Every column, in the order in which the page numbers them."""
        return [*self.columns, *self.late_columns]

    def map_traits(self) -> dict[str, Any]:
        """Describe maps and later columns for the widget."""
        blocks = Blocks()
        maps = map_documents(self.frames, blocks)
        columns = column_documents(self.late_columns, self.rule, blocks)
        lead = map_lead(self.given, self.frames)
        return {
            "maps": {"maps": maps, "columns": columns, "blocks": blocks.table, "lead": lead},
            "map_buffer": blocks.joined(),
            "sections": list(self.sections),
        }

    def add(self, **results: Any) -> None:
        """Take a result, with its columns and sections, the newest section first; `comparisons=one`, `probes=one`."""
        only: dict[str, Any] = {name: (result,) for name, result in results.items()}
        alone = Given(runs=self.runs, **only)
        columns, sections = contents_of(alone, self.rows, self.rule)
        for section in sections:
            if "column" in section:  # numbered among the columns of this view
                section["column"] += len(self.all_columns) - len(self.rows.run.prompts.columns)
        taken = {column.name for column in self.all_columns}
        self.late_columns += [c for c in columns[len(self.rows.run.prompts.columns) :] if c.name not in taken]
        self.sections = [*sections, *self.sections]
        more: dict[str, Any] = {name: (*getattr(self.given, name), result) for name, result in results.items()}
        self.given = replace(self.given, **more)
