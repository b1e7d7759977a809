"""Progress of long measures: a bar by default, or the caller's own function (done, total)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from workbench.progress import bar

Progress = Callable[[int, int], None]
Show = bool | Progress


@contextmanager
def shown(what: str, show: Show, unit: str = "row") -> Iterator[Progress]:
    """Give a function (done, total) that drives a bar (True), nothing (False), or the caller's function."""
    if callable(show):
        yield show
        return
    with bar(what, 1, unit, show=show) as step:
        meter = getattr(step, "__self__", None)
        last = [0]

        def report(done: int, total: int) -> None:
            if hasattr(meter, "total"):
                meter.total = total
            step(max(0, done - last[0]))
            last[0] = max(done, last[0])

        yield report
