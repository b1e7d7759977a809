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
        meter = getattr(step, "__self__", None)  # the tqdm bar: its total is known only once work has begun
        last = [0, 1]

        def report(done: int, total: int) -> None:
            if total != last[1] or done < last[0]:  # the next part of the work counts anew
                if meter is not None:
                    meter.reset(total=total)
                last[:] = [0, total]
            step(done - last[0])
            last[0] = done

        yield report
