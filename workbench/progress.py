"""Progress of long work: rate and time left, on standard error or under the cell, once two seconds have passed.

It is text in a notebook too: a widget would be dead for whoever reads the notebook without its kernel.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tqdm import tqdm

Steps = Callable[[str, float], None]
Progress = Callable[[int, int], None]
Show = bool | Progress

_DELAY_S = 2.0
_WIDTH = 100  # characters, in a notebook


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
    with _meter(what, show, total=total, unit=unit, unit_scale=True) as meter:
        yield meter.update


@contextmanager
def steps(what: str, *, show: bool | Steps = True) -> Iterator[Steps]:
    """Give a function (step, share of it) that shows the step (True), nothing (False), or is the caller's."""
    if callable(show):
        yield show
        return
    with _meter(what, show, total=1.0, bar_format="{desc}: {elapsed}{postfix}") as meter:
        now = ""

        def say(step: str, share: float) -> None:
            nonlocal now
            fresh = step != now and not _wait_s(meter)
            meter.set_postfix_str(f"{step} {share:.0%}" if share else step, refresh=fresh)  # which heeds no delay
            meter.update(0)  # draws when the delay is over and the last drawing is old enough
            now = step

        yield say


@contextmanager
def shown(what: str, show: Show, unit: str = "row") -> Iterator[Progress]:
    """Give a function (done, total) that drives a bar (True), nothing (False), or the caller's function."""
    if callable(show):
        yield show
        return
    with _meter(what, show, total=1, unit=unit, unit_scale=True) as meter:
        last = [0, 1]

        def report(done: int, total: int) -> None:
            if total != last[1] or done < last[0]:  # the next part of the work counts anew
                _begin_anew(meter, total)
                last[:] = [0, total]
            meter.update(done - last[0])
            last[0] = done

        yield report


def _meter(what: str, show: bool, **shape: Any) -> tqdm[Any]:
    from tqdm import tqdm

    place = {"file": _Line(), "ncols": _WIDTH} if show and _in_notebook() else {"dynamic_ncols": True}
    return tqdm(desc=what, delay=_DELAY_S, disable=not show, leave=True, **place, **shape)


def _wait_s(meter: tqdm[Any]) -> float:
    """Seconds until a bar may be drawn."""
    return 0.0 if meter.disable else max(0.0, float(meter.start_t + meter.delay - time.time()))


def _begin_anew(meter: tqdm[Any], total: float) -> None:
    """Count anew; `reset` of the bar itself would draw it at once, and then wait for the whole delay again."""
    if meter.disable:
        return
    meter.delay = _wait_s(meter)
    if not meter.delay:
        meter.reset(total=total)
        return
    meter.n, meter.last_print_n, meter.total = 0, 0, total
    meter.start_t = meter.last_print_t = time.time()


class _Line:
    """One line under the cell of a notebook, written over and over; to `tqdm` it is a file."""

    encoding = "utf-8"

    def __init__(self) -> None:
        self._handle: Any = None

    def write(self, text: str) -> None:
        from IPython import display

        line = {"text/plain": text.strip("\r\n ")}
        if self._handle is not None and line["text/plain"]:
            self._handle.update(line, raw=True)
        elif line["text/plain"]:
            make: Any = display.DisplayHandle
            self._handle = make()
            self._handle.display(line, raw=True)

    def flush(self) -> None:
        """Do nothing: every line is sent at once."""


def _in_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    find = getattr(sys.modules.get("IPython"), "get_ipython", None)
    shell = None if find is None else find()
    return "IPKernelApp" in getattr(shell, "config", {})
