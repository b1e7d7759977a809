"""Run a plan: passes through the engine, rows back into prompt order, windows into a sink."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from workbench.engine.sink import Sink
from workbench.runtime.passes import Window


class Reader(Protocol):
    """Whatever turns token ids into rows; an `Engine` is one."""

    def run(self, prompts: list[NDArray[np.int32]]) -> dict[str, NDArray[np.float32]]:
        """Run one pass and give the rows of each tap in prompt order."""
        ...


def run_plan(
    engine: Reader,
    ids: NDArray[np.int32],
    offsets: NDArray[np.int64],
    row_offsets: NDArray[np.int64],
    windows: Iterable[Window],
    sink: Sink,
    *,
    progress: Callable[[int], None] | None = None,
) -> None:
    """Run every window and hand its rows to the sink, in prompt order.

    Parameters
    ----------
    engine : Reader
        Runs a pass.
    ids : int32 [token]
        Tokens of all prompts, one after another.
    offsets : int64 [prompt + 1]
        Where each prompt begins in `ids`.
    row_offsets : int64 [prompt + 1]
        Where each prompt's rows begin in the run.
    windows : iterable of Window
        From `plan_batches`.
    sink : Sink
        Takes the rows; it may write while the next window is computed.
    progress : callable, optional
        Called with the number of real tokens after each pass.
    """
    for window in windows:
        rows: dict[str, NDArray[np.float32]] = {}
        base = row_offsets[window.first]
        count = int(row_offsets[window.stop] - base)
        for members in window.passes:
            states = engine.run([ids[offsets[p] : offsets[p + 1]] for p in members])
            place = _places(row_offsets, members) - base
            for tap, array in states.items():
                if tap not in rows:
                    rows[tap] = np.empty((count, array.shape[1]), dtype=array.dtype)
                rows[tap][place] = array
            if progress:
                progress(int((offsets[members + 1] - offsets[members]).sum()))
        sink.commit(window.first, window.stop, rows)


def _places(row_offsets: NDArray[np.int64], members: NDArray[np.int64]) -> NDArray[np.int64]:
    """Row ids of the given prompts, prompt after prompt: int64 [row]."""
    starts = row_offsets[members]
    counts = row_offsets[members + 1] - starts
    ends = np.cumsum(counts)
    return np.arange(int(ends[-1])) + np.repeat(starts - (ends - counts), counts)
