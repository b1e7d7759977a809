"""Maps of a view: coordinates of the drawn rows, one pane a run, with the badge that says how the panes relate."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Sequence

    from workbench.analysis import Projection
    from workbench.view.blocks import Blocks

# Badges under which the panes of a map share one frame; elsewhere each pane is its own picture and no distance between
# panes means anything.
SHARED = ("joint", "transformed", "aligned")

F32 = npt.NDArray[np.float32]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Pane:
    """One picture.

    Attributes
    ----------
    title : str
    coordinates : float32 [row, 2]
        NaN where a row has no place.
    missing : int
        Drawn rows that this pane's run does not have.
    """

    title: str
    coordinates: F32
    missing: int = 0


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class MapFrame:
    """Panes at one tap.

    Attributes
    ----------
    method : str
        As in `Projection.method`.
    tap : str
    badge : str
        How the panes were fitted: single, joint, transformed, aligned or independent.
    axes : (str, str)
        Axis labels.
    panes : tuple of Pane
    note : str
        How far the map can be trusted.
    facts : list of [str, str]
        For the provenance.
    """

    method: str
    tap: str
    badge: str
    axes: tuple[str, str]
    panes: tuple[Pane, ...]
    note: str = ""
    facts: Sequence[Sequence[str]] = ()


def turned_to(frame: MapFrame, reference: MapFrame) -> MapFrame:
    """Turn, mirror and scale a map to lie over another one of the same rows, so that a slider over taps does not jump.

    All panes move together, so what they say of each other stays; the axes are no longer the components themselves.
    """
    here, there = frame.panes[0].coordinates.astype(np.float64), reference.panes[0].coordinates.astype(np.float64)
    known = np.isfinite(here).all(axis=1) & np.isfinite(there).all(axis=1)
    if known.sum() < 2:
        return frame
    middle, goal = here[known].mean(axis=0), there[known].mean(axis=0)
    a, b = here[known] - middle, there[known] - goal
    left, _, right = np.linalg.svd(a.T @ b)
    scale = float(np.linalg.norm(b) / np.linalg.norm(a)) if np.linalg.norm(a) else 1.0
    panes = tuple(
        replace(pane, coordinates=((pane.coordinates - middle) @ (left @ right) * scale + goal).astype(np.float32))
        for pane in frame.panes
    )
    note = f"{frame.note}; turned and scaled to lie over {reference.tap}"
    return replace(frame, panes=panes, axes=("component plane, turned", "component plane, turned"), note=note)


_NAMES = {"pca": "PCA", "umap": "UMAP", "tsne": "t-SNE"}


def method_name(method: str) -> str:
    """Write a projection method as its authors do."""
    return _NAMES.get(method.lower(), method)


def axes_of(projection: Projection) -> tuple[str, str]:
    """Label the axes of a map."""
    if projection.method != "pca":
        name = method_name(projection.method)
        return f"{name} 1", f"{name} 2"
    shares = [float(share) for share in projection.explained[:2]] + [0.0, 0.0]
    return f"PC 1 ({100 * shares[0]:.1f} % of variance)", f"PC 2 ({100 * shares[1]:.1f} %)"


def trust_note(projection: Projection) -> str:
    """Say how far a map can be trusted."""
    trust = projection.trust
    measured = f"k = {trust.k}, {trust.n:,} rows"
    return f"trustworthiness {trust.trustworthiness:.2f}, continuity {trust.continuity:.2f} ({measured})"


def map_documents(frames: Sequence[MapFrame], blocks: Blocks) -> list[dict[str, Any]]:
    """Group frames by method, in the order given: one tab each, with a slider over taps where there are several."""
    tabs: dict[str, list[MapFrame]] = {}
    for frame in frames:
        tabs.setdefault(frame.method, []).append(frame)
    return [
        {
            "method": method,
            "name": method_name(method),
            "fixed": all(f.badge in ("joint", "aligned") for f in group) and len(group) > 1,
            "frames": [_frame(f, blocks) for f in group],
        }
        for method, group in tabs.items()
    ]


def _frame(frame: MapFrame, blocks: Blocks) -> dict[str, Any]:
    several = len(frame.panes) > 1
    return {
        "tap": frame.tap,
        "note": frame.note,
        "joint": several and frame.badge in SHARED,
        "panes": [
            {
                "title": pane.title,
                "badge": frame.badge if several or frame.badge != "single" else "",
                "xlabel": frame.axes[0],
                "ylabel": frame.axes[1],
                "missing": pane.missing,
                "xy": blocks.array(np.ascontiguousarray(pane.coordinates, np.float32)),
            }
            for pane in frame.panes
        ],
    }
