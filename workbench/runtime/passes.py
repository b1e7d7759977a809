"""Passes: which prompts share an enqueue, so that almost no padding is computed.

Prompts are taken in windows of consecutive prompts; a window is what one commit adds to the run. Inside a window they
are sorted by length and cut into passes by a token budget. The plan follows from the lengths and the numbers of
`BatchPlan` alone, so that a resumed run makes the same passes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from workbench.canonical import digest_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

PLAN_VERSION = 1


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Window:
    """Consecutive prompts that are committed together.

    Attributes
    ----------
    first, stop : int
        Range of prompts.
    passes : tuple of int64 [prompt]
        Prompt indices of each pass, longest first; together each prompt of the range once.
    """

    first: int
    stop: int
    passes: tuple[NDArray[np.int64], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchPlan:
    """Numbers that decide how prompts are cut into windows and passes.

    Attributes
    ----------
    tokens_per_pass : int
        Budget of a pass, padding included.
    tokens_per_window : int
        Real tokens of a window at which it ends; a crash costs at most the window that was being computed.
    rows_per_window : int
        Rows at which it ends before that, so that one commit stays small.
    padding : float
        Share of a pass that may be padding, unless it would fall below `least_tokens`.
    least_tokens : int
        Below this a pass takes shorter prompts too: a tiny pass costs more than its padding.
    prompts_per_pass : int or None
        Most prompts of a pass, where the engine sets a limit.
    """

    tokens_per_pass: int = 2048
    tokens_per_window: int = 4096
    rows_per_window: int = 1 << 16
    padding: float = 0.02
    least_tokens: int = 256
    prompts_per_pass: int | None = None

    @property
    def digest(self) -> str:
        """Names the plan in the run's manifest."""
        numbers = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return digest_of({"version": PLAN_VERSION, **numbers})


def plan_batches(
    lengths: NDArray[np.int64], row_counts: NDArray[np.int64], plan: BatchPlan, *, start: int = 0
) -> Iterator[Window]:
    """Cut prompts into windows and passes.

    Parameters
    ----------
    lengths : int64 [prompt]
        Tokens of each prompt, all positive.
    row_counts : int64 [prompt]
        Rows that each prompt gives.
    plan : BatchPlan
        Budgets.
    start : int
        First prompt that is wanted; it must be the first of a window, as it is after a resume.

    Yields
    ------
    Window
        In prompt order.
    """
    tokens = np.concatenate([[0], np.cumsum(lengths)])
    rows = np.concatenate([[0], np.cumsum(row_counts)])
    first = start
    while first < len(lengths):
        by_tokens = int(np.searchsorted(tokens, tokens[first] + plan.tokens_per_window, side="left"))
        by_rows = int(np.searchsorted(rows, rows[first] + plan.rows_per_window, side="right")) - 1
        stop = max(first + 1, min(by_tokens, by_rows, len(lengths)))
        yield Window(first=first, stop=stop, passes=tuple(_passes(lengths, first, stop, plan)))
        first = stop


def _passes(lengths: NDArray[np.int64], first: int, stop: int, plan: BatchPlan) -> Iterator[NDArray[np.int64]]:
    order = first + np.argsort(-lengths[first:stop], kind="stable")
    sizes = lengths[order]
    start = 0
    while start < len(order):
        width = int(sizes[start])
        most = start + max(1, min(plan.tokens_per_pass // width, plan.prompts_per_pass or len(order)))
        real = np.cumsum(sizes[start:most])
        padded = width * np.arange(1, len(real) + 1)
        tight = (padded - real) <= plan.padding * padded  # lengths fall, so the share of padding only grows
        needed = real <= plan.least_tokens
        count = max(1, int(np.count_nonzero(tight | needed)))
        yield order[start : start + count]
        start += count
