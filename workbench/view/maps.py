"""Maps of a view: coordinates of the drawn rows, one pane a run, with the badge that says how the panes relate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Sequence

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


_NAMES = {"pca": "PCA", "umap": "UMAP", "tsne": "t-SNE"}


def method_name(method: str) -> str:
    """Write a projection method as its authors do."""
    return _NAMES.get(method.lower(), method)


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
