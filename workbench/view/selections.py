"""Selections as text and as files: row ids of a run, under a name."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from workbench.canonical import canonical_json
from workbench.errors import ViewError
from workbench.writing import write_whole

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

SELECTION_VERSION = 1
_STATE_ENDING = ".views.json"
_COPY = "Copy it again from the page."


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Selection:
    """Rows of one run.

    Attributes
    ----------
    rows : int64 [selected row]
        Row ids, ascending.
    run : str
        Id of the run; empty where the text did not say.
    named : mapping of str to int64 [selected row]
        Selections that were kept under a name.
    made : mapping
        How it was made, if by one gesture: tool, pane, and the polygon in map units.
    """

    rows: npt.NDArray[np.int64]
    run: str = ""
    named: Mapping[str, npt.NDArray[np.int64]] = field(default_factory=dict)
    made: Mapping[str, Any] = field(default_factory=dict)

    def mask(self, n_rows: int) -> npt.NDArray[np.bool_]:
        """Give the selection as a mask over the rows of the run.

        Raises
        ------
        ViewError
            If a row id is not below `n_rows`.
        """
        if len(self.rows) and self.rows[-1] >= n_rows:
            raise ViewError(
                f"row ids must be below {n_rows:,}", str(int(self.rows[-1])), "Use it with the run it was made on."
            )
        mask = np.zeros(n_rows, np.bool_)
        mask[self.rows] = True
        return mask

    def to_json(self) -> str:
        """Write the text that a page and `read_selection` read."""
        named = {name: [int(row) for row in rows] for name, rows in self.named.items()}
        value: dict[str, Any] = {
            "workbench": "selection",
            "version": SELECTION_VERSION,
            "run": self.run,
            "rows": [int(row) for row in self.rows],
        }
        if named:
            value["named"] = named
        return json.dumps(value, ensure_ascii=True)


def read_selection(text: str, *, run: str | None = None) -> Selection:
    """Read the text of a selection that was copied from a page.

    Parameters
    ----------
    text : str
        JSON: what the page shows under "Selections", or a list of row ids.
    run : str, optional
        Id of the run that it must belong to.

    Raises
    ------
    ViewError
        If it is not a selection, of a newer version, or of another run.
    """
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ViewError("a selection is JSON", f"{len(text)} characters that are not", _COPY) from error
    if isinstance(value, list):
        value = {"workbench": "selection", "version": SELECTION_VERSION, "run": "", "rows": value}
    if not isinstance(value, dict) or value.get("workbench") != "selection":
        raise ViewError("a selection is an object with row ids", type(value).__name__, _COPY)
    version = value.get("version")
    if not isinstance(version, int) or version > SELECTION_VERSION:
        raise ViewError(f"a selection is of version {SELECTION_VERSION}", repr(version)[:40], "Update the workbench.")
    found = str(value.get("run") or "")
    if run is not None and found and found != run:
        raise ViewError(
            f"the selection must belong to run {run}", found[:80], "Open the run that the page was made of."
        )
    named = value.get("named") or {}
    if not isinstance(named, dict):
        raise ViewError("named selections are an object", type(named).__name__, _COPY)
    made = value.get("made")
    return Selection(
        rows=_row_ids(value.get("rows")),
        run=found,
        named={str(name): _row_ids(rows) for name, rows in named.items()},
        made=made if isinstance(made, dict) else {},
    )


def _row_ids(rows: Any) -> npt.NDArray[np.int64]:
    if not isinstance(rows, list) or not all(
        isinstance(r, int) and not isinstance(r, bool) and 0 <= r < 2**53 for r in rows
    ):
        raise ViewError("row ids are whole numbers from 0", repr(rows)[:60], _COPY)
    return np.unique(np.array(rows, np.int64))


def pack_mask(mask: npt.NDArray[np.bool_]) -> bytes:
    """Pack a mask [row] to bits, the first row in the lowest bit."""
    return np.packbits(mask, bitorder="little").tobytes()


def unpack_mask(data: bytes, n: int) -> npt.NDArray[np.bool_]:
    """Unpack a mask of n rows."""
    return np.unpackbits(np.frombuffer(data, np.uint8), count=n, bitorder="little").astype(np.bool_)


def keep_whole(path: Path, data: bytes) -> None:
    """Write a file so that nobody ever sees half of it, and make its folder where there is none.

    Raises
    ------
    ViewError
        If the folder cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ViewError(
            f"{path.parent.name or path.parent}/ must be a folder that can be written",
            str(error),
            "Give another place.",
        ) from error
    try:
        write_whole(path, data)
    except OSError as error:
        raise ViewError(f"{path.name} must be writable", str(error), "Free some room or give another place.") from error


def state_path(run: Path) -> Path:
    """Name the file that views keep beside a run folder, not inside it: a run is sealed."""
    return run.with_name(run.name + _STATE_ENDING)


def load_state(run: Path) -> dict[str, Any]:
    """Read the state that views keep beside a run; empty where there is none.

    Raises
    ------
    ViewError
        If it is of a newer version or not an object.
    """
    path = state_path(run)
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ViewError(f"{path.name} must be JSON", str(error)[:80], "Move it away; views then start anew.") from error
    if not isinstance(value, dict) or not isinstance(value.get("version"), int) or value["version"] > SELECTION_VERSION:
        raise ViewError(
            f"{path.name} must be of version {SELECTION_VERSION} or older", repr(value)[:60], "Update the workbench."
        )
    return value


def save_state(run: Path, state: Mapping[str, Any]) -> None:
    """Write the state of views beside a run; fields that this version does not know are kept."""
    keep_whole(state_path(run), canonical_json({**load_state(run), **state, "version": SELECTION_VERSION}))
