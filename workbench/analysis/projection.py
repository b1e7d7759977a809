"""Maps: rows of a tap, or of several runs, in two dimensions, with how far the map can be trusted.

Principal components come first and always (`pca.py`, all rows, in blocks). UMAP and t-SNE are fitted on the first 50 of
them, on a stated sample where there are many rows, in the worker process.

Maps of two runs are comparable only where one fit serves both: `joint` (fitted on both, the default), `transformed`
(fitted on the first, the others placed into it). `independent` fits stand side by side, but no displacement may be
drawn between them: two UMAP fits of the same rows differ by more than the radius of the map.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from workbench.analysis.filing import load_arrays, provenance_from, save_arrays
from workbench.analysis.pca import Pca, fit_pca
from workbench.analysis.results import Figures, Provenance, Result, plain, provenance
from workbench.analysis.sampling import FirstTokens, asked_rows, said_of_first, sample_rows
from workbench.analysis.trust import Trust, map_trust
from workbench.analysis.worker import Fit, worker
from workbench.errors import AnalysisError
from workbench.index.blocks import F32, I64, Rows, as_rows, rows_of
from workbench.progress import Progress, Show, shown

if TYPE_CHECKING:
    import threading
    from pathlib import Path

    from workbench.store import Run

Together = Literal["joint", "transformed", "independent"]
METHODS = ("pca", "umap", "tsne")
FIRST_COMPONENTS = 50
FIT_ROWS = 50_000
TRUST_ROWS = 2_000
DEFAULTS: dict[str, dict[str, Any]] = {
    "pca": {},
    "umap": {"n_neighbors": 15, "min_dist": 0.1, "metric": "euclidean"},
    "tsne": {"perplexity": 30.0},
}


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Projection(Result):
    """A map of rows.

    Attributes
    ----------
    coordinates : float32 [row, 2]
    rows : int64 [row]
        Row ids, each in its own run.
    run_of_row : int32 [row]
        Which run (0 for the first) each row is of.
    badge : str
        "single", "joint", "transformed" or "independent"; a view must show it, and draw displacements for the middle
        two only.
    trust : Trust
        Trustworthiness and continuity against the states in full width, on a sample.
    explained : float64 [component]
        Share of the variance along each principal component that was kept; the first two are a PCA map's own.
    residual : float
        How exact the components are, see `Pca`.
    fitted_rows : int
        Rows that the fit saw; the others were placed into it.
    left_out : int
        Rows with inf or NaN, in no map.
    dropped_first : int
        Rows of first tokens that were left out.
    """

    kind: ClassVar[str] = "projection"
    tap: str
    method: str
    badge: str
    seed: int
    parameters: Mapping[str, Any]
    coordinates: F32
    rows: I64
    run_of_row: npt.NDArray[np.int32]
    trust: Trust
    explained: npt.NDArray[np.float64]
    residual: float
    fitted_rows: int
    left_out: int
    provenance: Provenance
    dropped_first: int = 0

    def of_run(self, run: int) -> F32:
        """Coordinates of one run's rows, float32 [row, 2]."""
        return np.asarray(self.coordinates[self.run_of_row == run])

    def displacement(self) -> npt.NDArray[np.float64]:
        """Distance on the map between the same row of two runs, as a share of the map's radius: float64 [row].

        Raises
        ------
        AnalysisError
            If the runs have maps of their own, or not the same rows.
        """
        if self.badge not in {"joint", "transformed"}:
            do = 'Project with together="joint", or compare the states themselves.'
            raise AnalysisError("a displacement needs one fit for both runs", f"an {self.badge} map", do)
        parts = [self.rows[self.run_of_row == run] for run in np.unique(self.run_of_row)]
        if len(parts) != 2 or not np.array_equal(parts[0], parts[1]):
            raise AnalysisError("a displacement needs two runs with the same rows", f"{len(parts)} runs", "Give two.")
        radius = float(np.linalg.norm(self.coordinates - self.coordinates.mean(axis=0), axis=1).max()) or 1.0
        return np.asarray(np.linalg.norm(self.of_run(0) - self.of_run(1), axis=1) / radius, np.float64)

    def columns(self) -> dict[str, npt.NDArray[Any]]:
        """Row id, run and coordinates of each row."""
        x, y = self.coordinates.T
        return {"run": self.run_of_row, "row": self.rows, "x": x, "y": y}

    def __str__(self) -> str:
        size = f"{len(self.rows):,} rows" + (
            f", fitted on {self.fitted_rows:,}" if self.fitted_rows < len(self.rows) else ""
        )
        text = (
            f"{self.method.upper()} map of {self.tap} ({self.badge}): {size}; trustworthiness "
            f"{self.trust.trustworthiness:.3f}, continuity {self.trust.continuity:.3f} (k={self.trust.k}, "
            f"{self.trust.n:,} rows)"
        )
        if self.method == "pca":
            text += f"; two components hold {self.explained[:2].sum():.1%} of the variance"
        text += f"; {self.left_out} rows with inf or NaN left out" if self.left_out else ""
        return text + said_of_first(self.dropped_first)

    def figures(self) -> Figures:
        """The map, and for principal components the share of the variance of each."""
        from workbench.analysis.charts import bars

        title = f"Variance of {self.tap} by component"
        names = [f"component {at + 1}" for at in range(len(self.explained))]
        drawn: dict[str, Any] = {"map": self.draw}
        return drawn | ({"variance": lambda: bars(names, self.explained, title, "share")} if names else {})

    def draw(self, colours: Sequence[Any] | None = None, text: Sequence[str] | None = None) -> Any:
        """Draw the map; `colours` and `text` hold one value a row. A plotly figure."""
        from workbench.analysis.charts import scatter

        values = self.run_of_row.tolist() if colours is None else list(colours)
        names, codes = np.unique([str(value) for value in values], return_inverse=True)
        x, y = self.coordinates.T
        return scatter(
            x, y, str(self), f"{self.method} 1", f"{self.method} 2",
            codes=codes.astype(np.int32), names=dict(enumerate(names)), text=text,
        )  # fmt: skip

    def save(self, path: str | Path) -> Path:
        """Write the map as `<path>.safetensors` and `<path>.json`; views read it and never fit again."""
        arrays: dict[str, npt.NDArray[Any]] = {
            "coordinates": self.coordinates,
            "rows": self.rows,
            "run_of_row": self.run_of_row,
        }
        return save_arrays(path, self.kind, arrays | {"explained": self.explained}, self.as_dict())


def load_projection(path: str | Path) -> Projection:
    """Read a map that `Projection.save` wrote."""
    arrays, header = load_arrays(path, Projection.kind)
    names = ("tap", "method", "badge", "seed", "parameters", "residual", "fitted_rows", "left_out")
    fields: dict[str, Any] = {name: header[name] for name in names}
    return Projection(
        **fields | arrays,
        trust=Trust(**header["trust"]),
        dropped_first=header.get("dropped_first", 0),
        provenance=provenance_from(header["provenance"]),
    )


def project(
    run: Run | Sequence[Run],
    tap: str,
    method: str = "pca",
    *,
    seed: int = 0,
    rows: npt.ArrayLike | None = None,
    first_tokens: FirstTokens = "drop",
    together: Together = "joint",
    fit_rows: int = FIT_ROWS,
    progress: Show = True,
    cancel: threading.Event | None = None,
    **parameters: Any,
) -> Projection:
    """Map the rows of a tap to two dimensions.

    Parameters
    ----------
    run : Run, or several
        Several runs of one model share a map, see `together`.
    tap : str
    method : {"pca", "umap", "tsne"}
    seed : int
    rows : row ids or mask, optional
        The same rows of every run; all by default.
    first_tokens : {"drop", "keep"}
        Whether first tokens, where a prompt has several rows, are left out of the map, which they would rule.
    together : {"joint", "transformed", "independent"}
        Of several runs: one fit on all; a fit on the first with the others placed into it; a fit each.
    fit_rows : int
        UMAP and t-SNE are fitted on at most so many rows, spread over prompts; UMAP places the rest, t-SNE refuses it.
    progress : bool or callable (done, total)
    cancel : threading.Event, optional
        Ends the fit once set.
    **parameters
        `n_neighbors`, `min_dist`, `metric` of UMAP; `perplexity` of t-SNE.

    Returns
    -------
    Projection

    Raises
    ------
    AnalysisError
        If a method or parameter is unknown, or there are fewer than five rows.
    """
    runs = list(run) if isinstance(run, Sequence) else [run]
    options = _options(method, parameters, together)
    asked = [asked_rows(one, rows, first_tokens) for one in runs]
    taken = [finite_rows(one, tap, wanted) for one, (wanted, _) in zip(runs, asked, strict=True)]
    dropped = sum(count for _, count in asked)
    sources = [
        rows_of(one.tap(tap), rows=None if len(keep) == one.n_rows else keep)
        for one, keep in zip(runs, taken, strict=True)
    ]
    total = sum(len(source) for source in sources)
    if min(len(source) for source in sources) < 5:
        raise AnalysisError("a map needs at least five rows", f"{total}", "Give more rows.")
    badge = together if len(runs) > 1 else "single"
    prompts = [one.prompt_of_rows()[keep] for one, keep in zip(runs, taken, strict=True)]
    with shown(f"{method} of {tap}", progress) as report:
        plan = _Plan(method, options, seed, fit_rows, report, cancel)
        if badge == "independent":
            made = [
                _fit([source], [prompt], plan, first_only=False)
                for source, prompt in zip(sources, prompts, strict=True)
            ]
        else:
            made = [_fit(sources, prompts, plan, first_only=badge == "transformed")]
        coordinates = np.concatenate([one.coordinates for one in made])
        trust = _trust(sources, coordinates, np.concatenate(prompts), seed)
    fitted = sum(one.fitted for one in made)
    libraries = {"pca": ["scipy"], "umap": ["scipy", "umap-learn", "numba"], "tsne": ["scipy", "scikit-learn"]}[method]
    origin = provenance(
        runs, taps=[tap], seed=seed, n_rows=total, libraries=libraries,
        parameters={"method": method, "together": badge, "components": made[0].pca.components.shape[0],
                    "first_tokens": first_tokens, **options},
        sampling=("all rows" if fitted == total else f"fitted on {fitted:,} of {total:,} rows, seed {seed}")
        + said_of_first(dropped),
    )  # fmt: skip
    return Projection(
        tap=tap, method=method, badge=badge, seed=seed, parameters=plain(options), coordinates=coordinates,
        rows=np.concatenate(taken),
        run_of_row=np.repeat(np.arange(len(runs), dtype=np.int32), [len(source) for source in sources]),
        trust=trust, explained=made[0].pca.explained, residual=max(one.pca.residual for one in made),
        fitted_rows=fitted, left_out=sum(len(wanted) for wanted, _ in asked) - total, dropped_first=dropped,
        provenance=origin,
    )  # fmt: skip


def start_project(run: Run | Sequence[Run], tap: str, method: str = "umap", **options: Any) -> Fit[Projection]:
    """Start `project` in the background; the answer has `progress`, `cancel()`, `done()` and `result()`."""
    return Fit(lambda progress, cancel: project(run, tap, method, progress=progress, cancel=cancel, **options))


@dataclass(frozen=True, slots=True, eq=False)
class _Plan:
    method: str
    options: Mapping[str, Any]
    seed: int
    fit_rows: int
    progress: Progress
    cancel: threading.Event | None


@dataclass(frozen=True, slots=True, eq=False)
class _Made:
    coordinates: F32
    pca: Pca
    fitted: int


def _options(method: str, parameters: Mapping[str, Any], together: str) -> dict[str, Any]:
    if method not in METHODS:
        raise AnalysisError(f"method must be one of {', '.join(METHODS)}", repr(method), "Choose one of them.")
    unknown = set(parameters) - set(DEFAULTS[method])
    if unknown:
        known = ", ".join(DEFAULTS[method]) or "no further parameters"
        raise AnalysisError(f"{method} takes {known}", ", ".join(sorted(unknown)), "Leave it out.")
    if together not in ("joint", "transformed", "independent"):
        raise AnalysisError("together must be joint, transformed or independent", repr(together), "Choose one of them.")
    if method == "tsne" and together == "transformed":
        raise AnalysisError("t-SNE places only the rows it was fitted on", "together='transformed'", "Fit jointly.")
    return DEFAULTS[method] | dict(parameters)


def finite_rows(run: Run, tap: str, rows: npt.ArrayLike | None) -> I64:
    """Rows asked for, without those that hold inf or NaN at this tap."""
    wanted = np.arange(run.n_rows, dtype=np.int64) if rows is None else as_rows(rows, run.n_rows)
    flagged = np.asarray(run.flagged_rows)
    if len(flagged) == 0:
        return wanted
    bad = flagged[~np.isfinite(run.tap(tap)[flagged]).all(axis=1)]
    return wanted[~np.isin(wanted, bad)]


def _fit(sources: list[Rows], prompts: list[I64], plan: _Plan, *, first_only: bool) -> _Made:
    learn = sources[:1] if first_only else sources
    stacked = Rows(parts=sum((s.parts for s in learn), ()), picks=sum((s.picks for s in learn), ()))
    keep = 2 if plan.method == "pca" else FIRST_COMPONENTS
    pca = fit_pca(stacked, max(keep, FIRST_COMPONENTS), seed=plan.seed, progress=plan.progress)
    placed = np.concatenate([pca.transform(source) for source in sources])
    if plan.method == "pca":
        if placed.shape[1] < 2:
            placed = np.hstack([placed, np.zeros((len(placed), 1), np.float32)])
        return _Made(np.ascontiguousarray(placed[:, :2]), pca, len(stacked))
    # a row keeps its number in every run, so the same prompts are sampled from each
    chosen, start = [], 0
    for source, prompt in zip(sources, prompts, strict=True):
        if not first_only or start == 0:
            chosen.append(start + sample_rows(prompt, plan.fit_rows // len(learn), seed=plan.seed))
        start += len(source)
    fit = np.concatenate(chosen)
    rest = np.setdiff1d(np.arange(len(placed)), fit)
    arrays = {"fit": placed[fit]} | ({"more": placed[rest]} if len(rest) else {})
    made = worker().run(
        plan.method, arrays, {**plan.options, "seed": plan.seed}, progress=plan.progress, cancel=plan.cancel
    )
    out = np.empty((len(placed), 2), np.float32)
    out[fit] = made["fit"]
    if len(rest):
        out[rest] = made["more"]
    return _Made(out, pca, len(fit))


def _trust(sources: list[Rows], coordinates: F32, prompts: I64, seed: int) -> Trust:
    """Measure trust on a sample of the first run's rows, the same for every method."""
    first = len(sources[0])
    sample = sample_rows(prompts[:first], TRUST_ROWS, seed=seed)
    return map_trust(sources[0].take(sample), coordinates[:first][sample])
