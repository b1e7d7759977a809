"""Run a plan: passes through the engine, rows back into prompt order, windows into a sink."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from numpy.typing import NDArray

    from workbench.engine.sink import Sink
    from workbench.runtime.passes import Window
    from workbench.tokens import TokenTable


IN_FLIGHT = 2


class Reader(Protocol):
    """Whatever turns token ids into rows; an `Engine` is one."""

    def submit(self, prompts: list[NDArray[np.int32]]) -> Callable[[], dict[str, NDArray[Any]]]:
        """Launch a pass; the answer waits and gives the rows of each tap in prompt order."""
        ...


def run_plan(
    engine: Reader,
    tokens: TokenTable,
    windows: Iterable[Window],
    sink: Sink,
    *,
    row_offsets: NDArray[np.int64],
    progress: Callable[[int], None] | None = None,
) -> None:
    """Run every window and hand its rows to the sink, in prompt order.

    Parameters
    ----------
    engine : Reader
        Runs a pass.
    tokens : TokenTable
        Tokens of all prompts.
    windows : iterable of Window
        From `plan_batches`.
    sink : Sink
        Takes the rows; it may write while the next window is computed.
    row_offsets : int64 [prompt + 1]
        Where each prompt's rows begin in the run.
    progress : callable, optional
        Called with the number of real tokens after each pass.
    """
    offsets = tokens.offsets
    rows: dict[str, NDArray[Any]] = {}
    for window, members, states in _passes(engine, tokens, windows):
        base = row_offsets[window.first]
        count = int(row_offsets[window.stop] - base)
        place = _places(row_offsets, members) - base
        for tap, array in states.items():
            if tap not in rows:
                rows[tap] = np.empty((count, array.shape[1]), dtype=array.dtype)
            rows[tap][place] = array
        if progress:
            progress(int((offsets[members + 1] - offsets[members]).sum()))
        if members is window.passes[-1]:
            sink.commit(window.first, window.stop, rows)
            rows = {}


def _passes(
    engine: Reader, tokens: TokenTable, windows: Iterable[Window]
) -> Iterator[tuple[Window, NDArray[np.int64], dict[str, NDArray[Any]]]]:
    """Give the rows of each pass, with the next pass already launched: computing and copying overlap."""
    ids, offsets = tokens.ids, tokens.offsets
    flight: deque[tuple[Window, NDArray[np.int64], Callable[[], dict[str, NDArray[Any]]]]] = deque()
    for window in windows:
        for members in window.passes:
            flight.append((window, members, engine.submit([ids[offsets[p] : offsets[p + 1]] for p in members])))
            if len(flight) == IN_FLIGHT:
                before, done, take = flight.popleft()
                yield before, done, take()
    for before, done, take in flight:
        yield before, done, take()


def _places(row_offsets: NDArray[np.int64], members: NDArray[np.int64]) -> NDArray[np.int64]:
    """Row ids of the given prompts, prompt after prompt: int64 [row]."""
    starts = row_offsets[members]
    counts = row_offsets[members + 1] - starts
    ends = np.cumsum(counts)
    places: NDArray[np.int64] = np.arange(int(ends[-1])) + np.repeat(starts - (ends - counts), counts)
    return places
