"""From projections to the frames of a map: the drawn rows of each run, in one frame where that is honest."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from workbench.view.maps import MapFrame, Pane, axes_of, trust_note
from workbench.view.pairing import partners, take
from workbench.view.provenance import engine_name, run_id

if TYPE_CHECKING:
    from collections.abc import Sequence

    from workbench.analysis import Projection
    from workbench.store import Run
    from workbench.view.rows import DrawnRows

LEAST_ROWS = 5  # `project` refuses fewer; so small a map is drawn here, without a claim to be trusted
LARGE = 20_000_000  # values of a tap; beyond it a measured map takes seconds, and a view shows a quick one first
F32 = npt.NDArray[np.float32]


def projections_for(
    runs: Sequence[Run], given: Sequence[Projection], *, tap: str | None = None, seed: int = 0
) -> list[Projection]:
    """Choose the maps of a page.

    Without any, the principal components of the last tap, fitted on both runs together. A PCA of the first run alone
    is extended to the second run: it costs one pass over its rows, and puts both into one frame.
    """
    from workbench.analysis import project

    if min(run.n_rows for run in runs) < LEAST_ROWS:
        return []
    shared = next((name for name in reversed(runs[0].taps) if all(_has(run, name, runs[0]) for run in runs)), None)
    if not given:
        name = tap or shared or runs[0].taps[-1]
        both = len(runs) > 1 and all(_has(run, name, runs[0]) for run in runs)
        return [project(list(runs) if both else runs[0], name, "pca", seed=seed, progress=False)]
    return [_extended(one, runs) for one in given]


def _has(run: Run, tap: str, first: Run) -> bool:
    return tap in run.taps and run.tap(tap).shape[1] == first.tap(tap).shape[1]


def _extended(projection: Projection, runs: Sequence[Run]) -> Projection:
    from workbench.analysis import project

    whole = len(projection.rows) + projection.left_out + projection.dropped_first == runs[0].n_rows
    one = projection.method == "pca" and projection.badge == "single" and whole
    if (
        not one
        or len(runs) < 2
        or projection.provenance.runs[0] != run_id(runs[0])
        or not _has(runs[1], projection.tap, runs[0])
    ):
        return projection
    return project(list(runs), projection.tap, "pca", seed=projection.seed, together="transformed", progress=False)


def quick_frame(runs: Sequence[Run], rows: DrawnRows, tap: str, *, seed: int = 0) -> MapFrame | None:
    """Give a first map of a large tap: two components in one pass; None where `project` is quick enough."""
    from workbench.analysis.pca import quick_pca
    from workbench.analysis.projection import finite_rows
    from workbench.analysis.sampling import asked_rows
    from workbench.index.blocks import Rows, rows_of

    size = sum(run.n_rows for run in runs) * runs[0].tap(tap).shape[1]
    if size < LARGE or any(not _has(run, tap, runs[0]) for run in runs):
        return None
    sound = [finite_rows(run, tap, asked_rows(run, None, "drop")[0]) for run in runs]
    parts = [rows_of(run.tap(tap), rows=None if len(ids) == run.n_rows else ids)
             for run, ids in zip(runs, sound, strict=True)]  # fmt: skip
    both = Rows(parts=sum((part.parts for part in parts), ()), picks=sum((part.picks for part in parts), ()))
    pca = quick_pca(both, 2, seed=seed)
    twins = [rows.ids, *(partners(rows, run) for run in runs[1:])]
    panes = []
    for run, part, ids, wanted in zip(runs, parts, sound, twins, strict=True):
        placed = np.full((run.n_rows, 2), np.nan, np.float32)
        placed[ids] = pca.transform(part)
        panes.append(Pane(title=engine_name(run), coordinates=take(placed, wanted), missing=int((wanted < 0).sum())))
    first, second = (float(share) for share in pca.explained[:2])
    return MapFrame(
        method="pca",
        tap=tap,
        badge="joint" if len(runs) > 1 else "single",
        axes=(f"PC 1 ({100 * first:.1f} % of variance)", f"PC 2 ({100 * second:.1f} %)"),
        panes=tuple(panes),
        note=f"first look, components within {pca.residual:.1g} of exact; quality not yet measured",
    )


def frames_of(projections: Sequence[Projection], runs: Sequence[Run], rows: DrawnRows) -> list[MapFrame]:
    """Give the frame of each projection; a tiny run gets a frame without one."""
    if not projections:
        return [_tiny(rows)] if len(rows) else []
    twins = partners(rows, runs[1]) if len(runs) > 1 else None
    return [_frame(projection, runs, rows, twins) for projection in projections]


def _frame(
    projection: Projection, runs: Sequence[Run], rows: DrawnRows, twins: npt.NDArray[np.int64] | None
) -> MapFrame:
    panes = []
    ids = [run_id(run) for run in runs]
    for number, owner in enumerate(projection.provenance.runs):
        place = ids.index(owner) if owner in ids else number
        wanted = rows.ids if place == 0 or twins is None else twins
        panes.append(_pane(projection, number, runs[place], wanted, place))
    note = trust_note(projection)
    facts = [
        ["map quality", note],
        ["rows fitted", f"{projection.fitted_rows:,}"],
        ["rows left out (inf or NaN)", f"{projection.left_out:,}"],
        ["first tokens left out", f"{projection.dropped_first:,}"],
    ]
    return MapFrame(
        method=projection.method,
        tap=projection.tap,
        badge=projection.badge,
        axes=axes_of(projection),
        panes=tuple(panes),
        note=note,
        facts=facts,
    )


def _pane(projection: Projection, number: int, run: Run, wanted: npt.NDArray[np.int64], place: int) -> Pane:
    there = projection.run_of_row == number
    all_rows = np.full((run.n_rows, 2), np.nan, np.float32)
    all_rows[projection.rows[there]] = projection.coordinates[there]
    title = f"{engine_name(run)}"
    return Pane(title=title, coordinates=take(all_rows, wanted), missing=int((wanted < 0).sum()) if place else 0)


def _tiny(rows: DrawnRows) -> MapFrame:
    """Draw a handful of rows in the plane of their differences."""
    run = rows.run
    states = np.asarray(run.tap(run.taps[-1])[rows.ids], np.float64)
    coordinates = np.zeros((len(rows), 2), np.float32)
    fine = np.isfinite(states).all(axis=1)
    coordinates[~fine] = np.nan
    if fine.any():
        centred = states[fine] - states[fine].mean(axis=0)
        left, size, _ = np.linalg.svd(centred, full_matrices=False)
        components = (left * size)[:, :2]
        coordinates[fine, : components.shape[1]] = components
    note = f"{len(rows)} rows: too few for a map that could be trusted"
    return MapFrame(
        method="pca",
        tap=run.taps[-1],
        badge="single",
        axes=("PC 1", "PC 2"),
        panes=(Pane(title=engine_name(run), coordinates=coordinates),),
        note=note,
        facts=[["map quality", note]],
    )
