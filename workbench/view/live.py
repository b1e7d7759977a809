"""The widget: one explorer in a notebook, its selection in step with Python in both directions.

Geometry and texts go once, as one buffer each; a selection is a bitmask. The browser links hover and selection by
itself and tells Python afterwards. What the reader did is kept as JSON beside the run, never in the notebook.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anywidget
import numpy as np
import numpy.typing as npt
import traitlets

from workbench.errors import ViewError, WorkbenchError
from workbench.view.background import Jobs
from workbench.view.selections import Selection, load_state, pack_mask, save_state, unpack_mask
from workbench.view.siblings import sibling_choices, sibling_run
from workbench.view.static_files import script, style

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from workbench.analysis import Probe
    from workbench.store import Run
    from workbench.view.background import Step
    from workbench.view.given import Given
    from workbench.view.rows import DrawnRows

Ids = npt.NDArray[np.int64]
_FROM_JSON = {"from_json": lambda value, _widget: bytes(value)}  # buffers arrive as memory views
_PLACE = ("method", "tap", "colour", "size", "camera", "filters")
IDLE: dict[str, Any] = {"text": "", "done": 0, "total": 0, "running": False}


class View(anywidget.AnyWidget):
    """A live view of one run, or of two side by side.

    Attributes
    ----------
    selected : int64 [selected row]
        Row ids; set it to select from Python.
    mask : bool [row]
        The same as a mask over the rows of the run.
    selections : dict of str to int64 [selected row]
        Selections kept under a name.
    """

    _esm = script()
    _css = style()
    doc = traitlets.Dict().tag(sync=True)
    buffer = traitlets.Bytes().tag(sync=True, **_FROM_JSON)
    maps = traitlets.Dict().tag(sync=True)
    map_buffer = traitlets.Bytes().tag(sync=True, **_FROM_JSON)
    bits = traitlets.Bytes().tag(sync=True, **_FROM_JSON)
    beyond = traitlets.Int(0).tag(sync=True)
    place = traitlets.Dict().tag(sync=True)
    names = traitlets.Dict().tag(sync=True)
    status = traitlets.Dict(IDLE).tag(sync=True)
    sections: Any = traitlets.List().tag(sync=True)

    def __init__(
        self,
        rows: DrawnRows,
        *,
        steps: Mapping[str, Callable[..., Step]],
        twin: Callable[[View], dict[str, str]],
        given: Callable[[View], Given],
        **traits: Any,
    ) -> None:
        self.rows = rows
        self.run: Run = rows.run
        self._steps = steps
        self._twin = twin
        self._given = given
        self._lock = threading.RLock()
        self._out_of_view = np.empty(0, np.int64)
        self._callbacks: list[Callable[[Ids], None]] = []
        self._jobs = Jobs(self._say)
        self._ours = False
        self._kept = True
        super().__init__(bits=pack_mask(np.zeros(len(rows), np.bool_)), **traits)
        self._take_state()
        self.observe(self._changed, names=["bits", "names", "place"])
        self.on_msg(self._message)

    # --- selection

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

    def neighbours(self, row: int, k: int = 20, *, metric: str = "cosine") -> Ids:
        """Find the nearest rows in full width at the tap on screen, the row itself first, int64 [k]."""
        from workbench.index.exact import nearest_rows

        states = self.run.tap(self.tap)
        [row_id] = self._row_ids([row])
        found = nearest_rows(states, states[np.array([row_id])], min(k, self.run.n_rows), metric=metric)  # type: ignore[arg-type]
        return np.asarray(found.rows[0], np.int64)

    def probe(self, first: str, second: str, *, tap: str | None = None, **options: Any) -> Probe:
        """Fit a probe that tells one named selection from another, at the tap on screen unless one is named.

        Raises
        ------
        ViewError
            If there is no selection of a name, or the two share rows.
        """
        from workbench.analysis import fit_probe

        labels, rows = self.two_classes(first, second)
        made = fit_probe(self.run, tap or self.tap, labels, rows=rows, task="classification", **options)
        name = f"{first} or {second}"
        return replace(made, labels=(name,), scores={name: made.score})

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

    def compare(self, other: Run, *, umap: bool = False) -> None:
        """Open the compare view in place: the other run's map beside this one, with selection and place kept.

        The second map, the other taps and the comparison are computed in the background.

        Raises
        ------
        ViewError
            If the view shows two runs already, or the other run shares no tap.
        """
        self.attach([self._steps["beside"](self, other, umap=umap)])

    @property
    def tap(self) -> str:
        """Tap on screen."""
        shown = self.place.get("tap")
        first: str = self.maps["maps"][0]["frames"][0]["tap"] if self.maps.get("maps") else self.run.taps[-1]
        return shown if shown in self.run.taps else first

    # --- background work

    def attach(self, steps: Sequence[Step]) -> None:
        """Run steps in the background, after those that wait already."""
        self._jobs.add(steps)

    def _say(self, state: dict[str, Any]) -> None:
        self.status = state

    def show_maps(self, traits: dict[str, Any]) -> None:
        """Take new maps, columns and sections, all at once."""
        with self.hold_sync():
            for name in sorted(traits, reverse=True):  # maps after the buffer that they name
                setattr(self, name, traits[name])

    def cancel(self) -> None:
        """Stop the fit that runs in the background; what is on screen stays."""
        self._jobs.cancel()

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait until nothing runs in the background.

        Raises
        ------
        TimeoutError
            If that takes longer.
        """
        self._jobs.wait(timeout_s)

    # --- export

    def to_html(self, out: str | Path | None = None) -> Path:
        """Write what is on screen as one offline file, with the selections that were kept."""
        target = Path(out) if out is not None else self.run.path.with_name(self.run.path.name + ".html")
        from workbench.view.reporting import report

        return report(self, out=target, limit=max(1, len(self.rows)), quiet=True)

    def given(self) -> Given:
        """Say what is on screen, so that `report` can show the same."""
        return self._given(self)

    def _ipython_display_(self) -> None:
        """Show the live view, and below it a picture for readers without a kernel; the live view hides the picture."""
        from IPython.display import display

        bundle = self._repr_mimebundle_()
        data, metadata = bundle if isinstance(bundle, tuple) else (bundle, {})
        display(data, metadata=metadata, raw=True)  # type: ignore[no-untyped-call]
        display(self._twin(self), raw=True)  # type: ignore[no-untyped-call]

    # --- inside

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

    def _changed(self, change: Any) -> None:
        with self._lock:
            if change["name"] == "bits":
                if not self._ours:  # the reader selected anew: rows out of view are no longer meant
                    self._out_of_view = np.empty(0, np.int64)
                    self.beyond = 0
                for call in list(self._callbacks):
                    call(self.selected)
            self._keep_state()

    def _keep_state(self) -> None:
        if not self._kept:
            return
        named = {str(name): [int(row) for row in rows] for name, rows in self.names.items()}
        place = {key: value for key, value in self.place.items() if key in _PLACE}
        state = {"run": self.run.manifest.run_id, "place": place, "selection": self.selected.tolist(), "named": named}
        try:
            save_state(self.run.path, state)
        except (WorkbenchError, ValueError) as error:
            self._kept = False  # said once; the view itself goes on
            self.status = {**IDLE, "text": f"Selections are not kept: {error}"}

    def _take_state(self) -> None:
        try:
            state = load_state(self.run.path)
        except WorkbenchError as error:
            self._kept = False
            self.status = {**IDLE, "text": f"Kept selections could not be read: {error}"}
            return
        if state.get("run") != self.run.manifest.run_id:
            return
        self.names = dict(state.get("named", {}))
        self.place = {**dict(state.get("place", {})), **self.place}
        rows = np.array(state.get("selection", []), np.int64)
        self.select(rows[(rows >= 0) & (rows < self.run.n_rows)])

    def _message(self, _widget: Any, content: Any, _buffers: Any) -> None:
        kind = content.get("kind") if isinstance(content, dict) else None
        try:
            if kind == "cancel":
                self.cancel()
            elif kind == "neighbours":
                self.select(self.neighbours(int(content["row"])))
            elif kind == "export":
                self.send({"kind": "note", "text": f"Report written: {self.to_html().name}, beside the run."})
            elif kind == "drawn":
                self._jobs.begin()
            elif kind == "probe":
                self.attach([self._steps["probe"](self, str(content["first"]), str(content["second"]))])
            elif kind == "siblings":
                self.send({"kind": "siblings", "runs": sibling_choices(self.run)})
            elif kind == "beside":
                self.compare(sibling_run(self.run, str(content["name"])))
        except (WorkbenchError, ValueError, KeyError, TypeError) as error:
            self.send({"kind": "error", "text": str(error)})
