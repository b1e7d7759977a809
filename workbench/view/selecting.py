"""The rows selected in a live view: read and set from Python, kept under names, told to whoever asked.

The page knows the drawn rows only, as a bitmask; rows that are out of view stay selected here.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import anywidget
import numpy as np
import numpy.typing as npt
import traitlets

from workbench.errors import ViewError
from workbench.view.selections import Selection, pack_mask, unpack_mask

if TYPE_CHECKING:
    from collections.abc import Callable

    from workbench.store import Run
    from workbench.view.rows import DrawnRows

Ids = npt.NDArray[np.int64]
FROM_JSON = {"from_json": lambda value, _widget: bytes(value)}  # buffers arrive as memory views


class Selecting(anywidget.AnyWidget):
    """A widget over the rows of a run, some of them drawn, some of them selected.

    Attributes
    ----------
    selected : int64 [selected row]
        Row ids; set it to select from Python.
    mask : bool [row]
        The same as a mask over the rows of the run.
    selections : dict of str to int64 [selected row]
        Selections kept under a name.
    """

    bits = traitlets.Bytes().tag(sync=True, **FROM_JSON)
    beyond = traitlets.Int(0).tag(sync=True)
    names = traitlets.Dict().tag(sync=True)

    def __init__(self, rows: DrawnRows, **traits: Any) -> None:
        self.rows = rows
        self.run: Run = rows.run
        self._lock = threading.RLock()
        self._out_of_view = np.empty(0, np.int64)
        self._callbacks: list[Callable[[Ids], None]] = []
        self._ours = False
        super().__init__(bits=pack_mask(np.zeros(len(rows), np.bool_)), **traits)

    @property
    def selected(self) -> Ids:
        """Ids of the selected rows, ascending."""
        with self._lock:
            drawn = self.rows.ids[unpack_mask(self.bits, len(self.rows))]
            return np.union1d(drawn, self._out_of_view)

    @selected.setter
    def selected(self, rows: npt.ArrayLike) -> None:
        self.select(rows)

    @property
    def mask(self) -> npt.NDArray[np.bool_]:
        """The selection as a mask, bool [row]."""
        mask = np.zeros(self.run.n_rows, np.bool_)
        mask[self.selected] = True
        return mask

    def select(self, rows: npt.ArrayLike, how: str = "set") -> None:
        """Select rows, in every linked map and the table.

        Parameters
        ----------
        rows : row ids, or a mask over the rows of the run
        how : {"set", "add", "subtract"}

        Raises
        ------
        ViewError
            If a row does not exist or `how` is unknown.
        """
        wanted = self._row_ids(rows)
        with self._lock:
            if how == "add":
                wanted = np.union1d(self.selected, wanted)
            elif how == "subtract":
                wanted = np.setdiff1d(self.selected, wanted)
            elif how != "set":
                raise ViewError('how must be "set", "add" or "subtract"', repr(how)[:40], "Choose one.")
            drawn = np.isin(self.rows.ids, wanted)
            self._out_of_view = np.setdiff1d(wanted, self.rows.ids)
            bits = pack_mask(drawn)
            self._ours = True
            try:
                with self.hold_sync():
                    self.beyond = len(self._out_of_view)
                    self.bits = bits
            finally:
                self._ours = False

    def invert(self) -> None:
        """Select what is not selected."""
        self.select(~self.mask)

    def clear(self) -> None:
        """Select nothing."""
        self.select(np.empty(0, np.int64))

    def on_select(self, call: Callable[[Ids], None]) -> None:
        """Call a function with the row ids whenever the selection changed; calls never overlap."""
        self._callbacks.append(call)

    @property
    def selections(self) -> dict[str, Ids]:
        """Selections kept under a name."""
        return {name: np.unique(np.array(rows, np.int64)) for name, rows in self.names.items()}

    def keep(self, name: str, rows: npt.ArrayLike | None = None) -> None:
        """Keep the current selection, or the given rows, under a name."""
        chosen = self.selected if rows is None else self._row_ids(rows)
        self.names = {**self.names, str(name): [int(row) for row in chosen]}

    def selection(self) -> Selection:
        """Give the selection with its run and the named ones."""
        return Selection(rows=self.selected, run=self.run.manifest.run_id, named=self.selections)

    def table(self) -> dict[str, list[Any]]:
        """Give the selected rows as columns: row, prompt id, text, position, metadata; `pandas.DataFrame` takes it."""
        rows = self.selected
        prompt = np.asarray(self.run.prompt_of_rows(), np.int64)[rows]
        prompts = self.run.prompts
        table: dict[str, list[Any]] = {
            "row": rows.tolist(),
            "id": [prompts.ids[p] for p in prompt],
            "text": [prompts.texts[p] for p in prompt],
            "position": np.asarray(self.run.token_index(), np.int64)[rows].tolist(),
        }
        return table | {name: [values[p] for p in prompt] for name, values in prompts.columns.items()}

    def two_classes(self, first: str, second: str) -> tuple[list[str], Ids]:
        """Give two kept selections as classes: a label for every row of the run, and the rows that are in either.

        Raises
        ------
        ViewError
            If there is no selection of a name, or the two share rows.
        """
        parts = [self._named(name) for name in (first, second)]
        both = np.intersect1d(parts[0], parts[1])
        if len(both):
            raise ViewError(
                "the two selections must share no row", f"{len(both):,} common rows", "Subtract one from the other."
            )
        labels = np.full(self.run.n_rows, "", dtype=object)
        labels[parts[0]], labels[parts[1]] = first, second
        return list(labels), np.sort(np.concatenate(parts))

    def _selected_anew(self) -> None:
        """Tell whoever asked; what the reader selects on the page leaves out the rows out of view."""
        if not self._ours:
            self._out_of_view = np.empty(0, np.int64)
            self.beyond = 0
        for call in list(self._callbacks):
            call(self.selected)

    def _row_ids(self, rows: npt.ArrayLike) -> Ids:
        given = np.asarray(rows)
        if given.dtype == np.bool_:
            if given.shape != (self.run.n_rows,):
                raise ViewError(
                    f"a mask must be [row={self.run.n_rows}]", str(given.shape), "Make it over the run's rows."
                )
            return np.flatnonzero(given).astype(np.int64)
        ids = np.unique(given.astype(np.int64)) if given.size else np.empty(0, np.int64)
        if len(ids) and (given.dtype.kind not in "iu" or ids[0] < 0 or ids[-1] >= self.run.n_rows):
            raise ViewError(
                f"row ids must be whole numbers from 0 to {self.run.n_rows - 1}", repr(rows)[:60], "See run.rows_of."
            )
        return ids

    def _named(self, name: str) -> Ids:
        if name not in self.names:
            known = ", ".join(map(repr, self.names)) or "none yet"
            raise ViewError(f"a kept selection is one of {known}", repr(name)[:60], "Keep it first: view.keep(name).")
        return self.selections[name]
