"""Progress of long work: rate and time left, on standard error, once two seconds have passed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Steps = Callable[[str, float], None]
Progress = Callable[[int, int], None]
Show = bool | Progress

_DELAY_S = 2.0


@contextmanager
def bar(what: str, total: float, unit: str, *, show: bool = True) -> Iterator[Callable[[float], None]]:
    """Show a progress bar for as long as the block runs.

    Parameters
    ----------
    what : str
        What is being done, a word or two.
    total : float
        Amount of work.
    unit : str
        Unit of it, such as "tok".
    show : bool
        False shows nothing.

    Yields
    ------
    callable
        To be called with the amount done since the last call.
    """
    from tqdm.auto import tqdm

    with tqdm(
        total=total,
        desc=what,
        unit=unit,
        unit_scale=True,
        delay=_DELAY_S,
        disable=not show,
        dynamic_ncols=True,
        leave=True,
    ) as meter:
        yield meter.update


@contextmanager
def steps(what: str, *, show: bool | Steps = True) -> Iterator[Steps]:
    """Give a function (step, share of it) that shows the step (True), nothing (False), or is the caller's."""
    if callable(show):
        yield show
        return
    from tqdm.auto import tqdm

    shape = "{desc}: {elapsed}{postfix}"
    with tqdm(total=1.0, desc=what, delay=_DELAY_S, disable=not show, bar_format=shape, leave=True) as meter:
        began, now = time.monotonic(), ""

        def say(step: str, share: float) -> None:
            nonlocal now
            late = time.monotonic() >= began + _DELAY_S
            meter.set_postfix_str(f"{step} {share:.0%}" if share else step, refresh=late and step != now)
            meter.update(0)  # draws when the delay is over and the last drawing is old enough
            now = step

        yield say


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
