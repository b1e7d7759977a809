"""The widget: one explorer in a notebook, its selection in step with Python in both directions.

Geometry and texts go once, as one buffer each; a selection is a bitmask. The browser links hover and selection by
itself and tells Python afterwards. What the reader did is kept as JSON beside the run, never in the notebook.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import traitlets

from workbench.errors import WorkbenchError
from workbench.view.background import Jobs
from workbench.view.selecting import FROM_JSON, Ids, Selecting
from workbench.view.selections import load_state, save_state
from workbench.view.siblings import sibling_choices, sibling_run
from workbench.view.static_files import script, style

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from workbench.analysis import Probe
    from workbench.store import Run
    from workbench.view.background import Step
    from workbench.view.given import Given
    from workbench.view.rows import DrawnRows

_PLACE = ("method", "tap", "colour", "size", "camera", "filters")
IDLE: dict[str, Any] = {"text": "", "done": 0, "total": 0, "running": False}


class View(Selecting):
    """A live view of one run, or of two side by side; what is selected is said by `Selecting`.

    Attributes
    ----------
    tap : str
        Tap on screen.
    """

    _esm = script()
    _css = style()
    doc = traitlets.Dict().tag(sync=True)
    buffer = traitlets.Bytes().tag(sync=True, **FROM_JSON)
    maps = traitlets.Dict().tag(sync=True)
    map_buffer = traitlets.Bytes().tag(sync=True, **FROM_JSON)
    place = traitlets.Dict().tag(sync=True)
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
        self._steps = steps
        self._twin = twin
        self._given = given
        self._jobs = Jobs(self._say)
        self._kept = True
        super().__init__(rows, **traits)
        self._take_state()
        self.observe(self._changed, names=["bits", "names", "place"])
        self.on_msg(self._message)

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

    def _changed(self, change: Any) -> None:
        with self._lock:
            if change["name"] == "bits":
                self._selected_anew()
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
