"""What a live view does after its first map: steps that run one after the other in the background.

Each step computes, changes the content and shows it. Fits that can be cancelled run in the worker process.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.errors import ViewError
from workbench.view.background import Step
from workbench.view.framing import LEAST_ROWS, frames_of, projections_for, quick_frame
from workbench.view.kept_maps import keep_map, load_map
from workbench.view.maps import turned_to

if TYPE_CHECKING:
    import threading
    from collections.abc import Sequence

    from workbench.analysis import Projection
    from workbench.store import Run
    from workbench.view.background import Progress
    from workbench.view.live import View
    from workbench.view.live_content import Content

MAX_TAPS = 12  # more are computed only when asked for with `taps`


def first_maps(content: Content, *, quick: bool = True) -> None:
    """Find the first map: as given, as kept, a quick one of a large tap, or the measured one."""
    runs, tap, seed = content.runs, content.tap, content.seed
    kept = load_map(runs, tap, "pca", seed)
    given = content.given.projections or ((kept,) if kept else ())
    first = quick_frame(runs, content.rows, tap, seed=seed) if quick and not given else None
    if first is not None:
        content.projections, content.frames = [], [first]
        return
    content.projections = list(projections_for(runs, given, tap=tap, seed=seed))
    content.frames = frames_of(content.projections, runs, content.rows)
    if not given and content.projections:
        keep_map(runs, content.projections[0], seed)


def growth(content: Content, view: View, taps: Sequence[str] | None = None, *, umap: bool = True) -> list[Step]:
    """List what is still to be computed: quality of the first map, other taps, comparison, UMAP."""
    runs = content.runs
    if min(run.n_rows for run in runs) < LEAST_ROWS:
        return []
    steps: list[tuple[str, Any]] = []
    if not content.projections:
        steps.append((f"quality of the map of {content.tap}", partial(_measure_first, content, view)))
    others = _other_taps(content, taps)
    if others:
        steps.append(("maps of the other taps", partial(_fit_taps, content, view, others)))
    if len(runs) > 1 and not content.given.comparisons:
        steps.append(("comparison of the two engines", partial(_compare, content, view)))
    if umap and all(one.method != "umap" for one in content.projections):
        steps.append((f"UMAP of {content.tap}", partial(_fit_umap, content, view)))
    return [Step(text, work) for text, work in steps]


def _other_taps(content: Content, taps: Sequence[str] | None) -> list[str]:
    if content.given.projections:
        return []
    common = [name for name in content.runs[0].taps if all(name in run.taps for run in content.runs)]
    if len(common) > MAX_TAPS:
        common = [common[i] for i in np.unique(np.linspace(0, len(common) - 1, MAX_TAPS).astype(int))]
    return [name for name in (taps or common) if name != content.tap]


def _subject(content: Content) -> Any:
    return list(content.runs) if len(content.runs) > 1 else content.runs[0]


def _measure_first(content: Content, view: View, progress: Progress, cancel: threading.Event) -> None:
    """Take the place of a quick first map: the same components, exact, with their quality measured."""
    from workbench.analysis import project

    found = project(_subject(content), content.tap, "pca", seed=content.seed, progress=progress)
    if cancel.is_set():
        return
    keep_map(content.runs, found, content.seed)
    content.projections = [found]
    content.frames = frames_of([found], content.runs, content.rows)
    view.show_maps(content.map_traits())


def _fit_taps(content: Content, view: View, others: Sequence[str], progress: Progress, cancel: threading.Event) -> None:
    from workbench.analysis import project

    runs, seed = content.runs, content.seed
    reference = next(frame for frame in content.frames if frame.tap == content.tap and frame.method == "pca")
    made = []
    for number, tap in enumerate(others):
        if cancel.is_set():
            return
        told = lambda done, total, number=number: progress(number * total + done, len(others) * total)  # noqa: E731
        found = load_map(runs, tap, "pca", seed) or project(_subject(content), tap, "pca", seed=seed, progress=told)
        keep_map(runs, found, seed)
        made += frames_of([found], runs, content.rows)
    order = {name: place for place, name in enumerate(runs[0].taps)}
    slider = sorted([reference, *(turned_to(frame, reference) for frame in made)], key=lambda frame: order[frame.tap])
    content.frames = slider + [frame for frame in content.frames if frame is not reference]
    view.show_maps(content.map_traits())


def _fit_umap(content: Content, view: View, progress: Progress, cancel: threading.Event) -> None:
    from workbench.analysis import project

    runs, tap, seed = content.runs, content.tap, content.seed
    found: Projection | None = load_map(runs, tap, "umap", seed)
    if found is None:
        found = project(_subject(content), tap, "umap", seed=seed, progress=progress, cancel=cancel)
        keep_map(runs, found, seed)
    content.projections.append(found)
    content.frames = [*content.frames, *frames_of([found], runs, content.rows)]
    view.show_maps(content.map_traits())


def _compare(content: Content, view: View, progress: Progress, cancel: threading.Event) -> None:
    from workbench.analysis import compare

    comparison = compare(content.runs[0], content.runs[1], progress=progress)
    if cancel.is_set():
        return
    content.add(comparisons=comparison)
    view.show_maps(content.map_traits())


def probe_step(content: Content, view: View, first: str, second: str) -> Step:
    """Fit a probe that tells one kept selection from another, and show it.

    Raises
    ------
    ViewError
        If there is no selection of a name, or the two share rows.
    """
    view.two_classes(first, second)  # refused now rather than when its turn comes
    tap = view.tap

    def work(progress: Progress, cancel: threading.Event) -> None:
        found = view.probe(first, second, tap=tap, progress=progress)
        if not cancel.is_set():
            content.add(probes=found)
            view.show_maps(content.map_traits())

    return Step(f"probe at {tap}", work)


def beside_step(content: Content, view: View, other: Run, *, umap: bool = False) -> Step:
    """Open the compare view in place: the second map beside the first, then taps and comparison.

    Raises
    ------
    ViewError
        If the view shows two runs already, or the other run shares no tap.
    """
    if len(content.runs) > 1:
        raise ViewError("a view shows two runs at most", "a third", "Open a new view: explore(run, other).")
    common = [name for name in content.runs[0].taps if name in other.taps]
    if not common:
        got = ", ".join(other.taps)[:80]
        raise ViewError(f"the other run must have one of the taps {', '.join(content.runs[0].taps)}"[:160], got,
                        "Extract the same taps.")  # fmt: skip

    def work(_progress: Progress, _cancel: threading.Event) -> None:
        from dataclasses import replace

        before = content.given, content.tap
        content.given = replace(content.given, runs=(content.runs[0], other), projections=(), comparisons=())
        content.tap = view.tap if view.tap in common else common[-1]
        try:
            first_maps(content)
        except BaseException:
            content.given, content.tap = before
            raise
        view.show_maps(content.map_traits())
        view.attach(growth(content, view, umap=umap))

    return Step("two maps side by side", work)
