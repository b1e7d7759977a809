"""Progress of long work: rate and time left, on standard error, once two seconds have passed."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

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
    ) as shown:
        yield shown.update


@contextmanager
def steps(what: str, *, show: bool = True) -> Iterator[Callable[[str, float], None]]:
    """Show named steps of a build; `callback(step, share)` says which step runs and how much of it is done."""
    from tqdm.auto import tqdm

    shape = "{desc}: {elapsed}{postfix}"
    with tqdm(total=1.0, desc=what, delay=_DELAY_S, disable=not show, bar_format=shape, leave=True) as shown:

        def say(step: str, share: float) -> None:
            shown.set_postfix_str(f"{step} {share:.0%}" if share else step)

        yield say
