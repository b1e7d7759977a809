"""What every result of the analysis room has in common: provenance, JSON, a table, and arrays on disk.

A result is a frozen dataclass with a `provenance` field. `columns()` is its table as plain arrays; `to_frame()` the
same as a pandas frame; `to_json()` everything but large arrays, which stand there as shape and hash.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from workbench.errors import AnalysisError
from workbench.escaping import escape

if TYPE_CHECKING:
    from pathlib import Path

    import pandas as pd

    from workbench.store import Run

INLINE_VALUES = 4096  # larger arrays appear in JSON as shape and hash
SHOWN_LINES = 8  # of a result's table in a notebook
Figures = Mapping[str, Callable[[], Any]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Provenance:
    """Where a result comes from: everything needed to make it again, and no machine path.

    Attributes
    ----------
    runs, engines, prompts : tuple of str
        Run ids, engine ids and prompt-set hashes, one of each a run.
    taps : tuple of str
    seed : int
    parameters : mapping
        Every option that changes numbers, as plain JSON values.
    n_rows : int
        Rows that the result speaks of.
    sampling : str
        Which rows were measured, in words, such as "4,000 of 812,000 rows, seed 0, spread over prompts".
    versions : mapping of str to str
        The workbench and the libraries that computed it.
    created : str
        UTC, ISO 8601.
    """

    runs: tuple[str, ...]
    engines: tuple[str, ...]
    prompts: tuple[str, ...]
    taps: tuple[str, ...]
    seed: int
    parameters: Mapping[str, Any]
    n_rows: int
    sampling: str
    versions: Mapping[str, str]
    created: str


def provenance(
    runs: Sequence[Run],
    *,
    taps: Sequence[str],
    seed: int,
    n_rows: int,
    parameters: Mapping[str, Any],
    sampling: str = "all rows",
    libraries: Sequence[str] = (),
) -> Provenance:
    """Collect the provenance of a result from its runs and options; `libraries` are distributions that computed it."""
    from workbench import __version__

    versions = {"workbench": __version__, "numpy": np.__version__}
    versions |= {name: metadata.version(name) for name in libraries}
    return Provenance(
        runs=tuple(run_id(run) for run in runs),
        engines=tuple(str(run.engine_id) for run in runs),
        prompts=tuple(str(run.prompts.content_hash) for run in runs),
        taps=tuple(taps),
        seed=seed,
        parameters=plain(parameters),
        n_rows=n_rows,
        sampling=sampling,
        versions=versions,
        created=dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
    )


def joined_provenance(parts: Sequence[Provenance], n_rows: int) -> Provenance:
    """Provenance of a result that was made of other results rather than of runs; empty where these are plain arrays."""
    from workbench import __version__

    def each(name: str) -> tuple[str, ...]:
        return tuple(dict.fromkeys(value for part in parts for value in getattr(part, name)))

    versions = {"workbench": __version__, "numpy": np.__version__}
    parameters: dict[str, Any] = {}
    for number, part in enumerate(parts, start=1):
        versions |= part.versions
        parameters |= {f"{name} ({number})": value for name, value in part.parameters.items()}
    return Provenance(
        runs=each("runs"), engines=each("engines"), prompts=each("prompts"), taps=each("taps"),
        seed=parts[0].seed if parts else 0, parameters=parameters,
        n_rows=n_rows, sampling=parts[0].sampling if parts else "labels given as arrays", versions=versions,
        created=dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
    )  # fmt: skip


def run_id(run: Run) -> str:
    """Read the id of a run from its manifest."""
    manifest: Any = run.manifest
    found = manifest.get("run_id") if isinstance(manifest, Mapping) else getattr(manifest, "run_id", None)
    return str(found or "")


class Result:
    """Behaviour shared by all results; subclasses are frozen dataclasses with a `provenance`."""

    __slots__ = ()
    kind: ClassVar[str] = "result"
    provenance: Provenance

    def columns(self) -> dict[str, npt.NDArray[Any]]:
        """Give the result's table: one array a column, all of one length."""
        raise NotImplementedError

    def to_frame(self) -> pd.DataFrame:
        """Give the table as a pandas frame.

        Raises
        ------
        AnalysisError
            If pandas is not installed.
        """
        try:
            import pandas as pd
        except ImportError as error:
            do = "Install pandas, or use columns()."
            raise AnalysisError("to_frame() needs pandas", "no pandas", do) from error
        return pd.DataFrame(
            {name: list(values) if values.ndim > 1 else values for name, values in self.columns().items()}
        )

    def figures(self) -> Figures:
        """Name the figures that `plot` draws; the first is the one to see first."""
        raise NotImplementedError

    def plot(self, which: str | None = None) -> Any:
        """Draw one of `figures()`, the first by default; a plotly `FigureWidget`.

        Raises
        ------
        AnalysisError
            If there is no figure of that name.
        """
        offered = self.figures()
        name = next(iter(offered)) if which is None else which
        if name not in offered:
            raise AnalysisError(f"a figure is one of {', '.join(offered)}", repr(which)[:60], "Choose one of them.")
        return offered[name]()

    def controls(self) -> Any:
        """Show all `figures()`, one at a time, with a menu; an ipywidgets box."""
        from workbench.analysis.charts import with_controls

        return with_controls(self.figures())

    def to_html(self, out: str | Path | None = None, *runs: Run, **options: Any) -> Path:
        """Write the result as one offline page.

        Parameters
        ----------
        out : path, optional
            By default the kind of the result, in the current folder.
        *runs : Run
            The runs that it was made of: they bring prompts, maps and the contracts of the engines onto the page.
        **options
            As for `workbench.report`.

        Returns
        -------
        Path
            The file.
        """
        from workbench import report  # by the front door: pages are made further right, and know every kind of result

        return report(*runs, self, out=out or f"{self.kind.replace(' ', '-')}.html", **options)

    def _repr_html_(self) -> str:
        """Summary and first lines as escaped markup; what a notebook shows, also without a kernel."""
        table = self.columns()
        n = min((len(values) for values in table.values()), default=0)
        heads = "".join(f"<th>{escape(name[:60])}</th>" for name in table)
        shown = (
            "".join(f"<td>{_cell(values[i])}</td>" for values in table.values()) for i in range(min(n, SHOWN_LINES))
        )
        body = "".join(f"<tr>{line}</tr>" for line in shown)
        more = f"<p>{n - SHOWN_LINES:,} more in columns()</p>" if n > SHOWN_LINES else ""
        grid = f"<table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>{more}" if n else ""
        text = "<br>".join(escape(line[:300]) for line in str(self).splitlines())
        return f"<div><p>{text}</p>{grid}</div>"

    def as_dict(self) -> dict[str, Any]:
        """Give all fields as plain JSON values; arrays above `INLINE_VALUES` values as shape, dtype and sha256."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}  # type: ignore[arg-type]
        found = plain(fields)
        assert isinstance(found, dict)
        return {"kind": self.kind, **found}

    def to_json(self, *, indent: int | None = None) -> str:
        """Write the result as JSON; NaN and infinity become null."""
        return json.dumps(self.as_dict(), indent=indent, sort_keys=True, allow_nan=False)


def _cell(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return escape(str(value.shape))
    return escape(f"{value:.4g}" if isinstance(value, float | np.floating) else str(value)[:80])


def plain(value: Any) -> Any:  # noqa: PLR0911 - a table of cases
    """Turn a value into what JSON can hold: arrays to lists or a digest, dataclasses to objects, NaN to null."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, np.ndarray):
        if value.size > INLINE_VALUES:
            return {"dtype": str(value.dtype), "shape": list(value.shape), "sha256": array_hash(value)}
        return plain(value.tolist())
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, bool | int | str):
        return value
    return str(value)


def array_hash(value: npt.NDArray[Any]) -> str:
    """Hash the bytes of an array (C order): sha256, hex."""
    return hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()
