"""Joining the rows of two runs: by prompt hash and token index, never by place in the file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from workbench.errors import AnalysisError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from workbench.index.blocks import I64
    from workbench.store import Run


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Joined:
    """Rows that two runs have in common.

    Attributes
    ----------
    rows_a, rows_b : int64 [row]
        Row ids in each run; entry i of both is the same token of the same prompt. In the order of the first run.
    only_a, only_b : int
        Rows of one run that the other lacks.
    """

    rows_a: I64
    rows_b: I64
    only_a: int
    only_b: int

    def __len__(self) -> int:
        return len(self.rows_a)


def join_rows(a: Run, b: Run) -> Joined:
    """Find the rows of the same prompt and token index in two runs.

    A prompt that stands several times in a run is paired by its occurrence: first with first, second with second.

    Raises
    ------
    AnalysisError
        If nothing is common, or a common prompt has other token ids.
    """
    pairs = _paired_prompts(a.prompts.hashes, b.prompts.hashes)
    if len(pairs) == 0:
        do = "Extract the same prompts with both engines."
        raise AnalysisError("two runs are joined by their prompts", "no prompt that is in both", do)
    _refuse_other_tokens(a, b, pairs)
    number_b = np.full(b.n_prompts, -1, np.int64)
    number_b[pairs[:, 1]] = pairs[:, 0]
    place_a, place_b = np.asarray(a.token_index(), np.int64), np.asarray(b.token_index(), np.int64)
    span = int(max(place_a.max(initial=0), place_b.max(initial=0))) + 2
    number_a = np.full(a.n_prompts, -1, np.int64)
    number_a[pairs[:, 0]] = pairs[:, 0]
    of_a, of_b = number_a[a.prompt_of_rows()], number_b[b.prompt_of_rows()]
    in_a, in_b = np.flatnonzero(of_a >= 0), np.flatnonzero(of_b >= 0)
    key_a = of_a[in_a] * span + place_a[in_a] + 1  # a mean has place -1
    key_b = of_b[in_b] * span + place_b[in_b] + 1
    _, at_a, at_b = np.intersect1d(key_a, key_b, assume_unique=True, return_indices=True)
    if len(at_a) == 0:
        got = f"positions {a.positions!r} and {b.positions!r}"
        raise AnalysisError("two runs are joined by token index", got, "Extract both with the same positions.")
    order = np.argsort(in_a[at_a], kind="stable")
    rows_a, rows_b = in_a[at_a][order], in_b[at_b][order]
    return Joined(rows_a=rows_a, rows_b=rows_b, only_a=a.n_rows - len(rows_a), only_b=b.n_rows - len(rows_b))


def _paired_prompts(a: Sequence[str], b: Sequence[str]) -> I64:
    """Pair prompts of equal hash, each occurrence once: int64 [pair, 2]."""
    places: dict[str, list[int]] = {}
    for number, name in enumerate(b):
        places.setdefault(name, []).append(number)
    used: dict[str, int] = {}
    pairs = []
    for number, name in enumerate(a):
        turn = used.get(name, 0)
        if turn < len(places.get(name, ())):
            pairs.append((number, places[name][turn]))
            used[name] = turn + 1
    return np.array(pairs, dtype=np.int64).reshape(-1, 2)


def _refuse_other_tokens(a: Run, b: Run, pairs: I64) -> None:
    off_a, off_b = np.asarray(a.offsets, np.int64), np.asarray(b.offsets, np.int64)
    len_a, len_b = np.diff(off_a)[pairs[:, 0]], np.diff(off_b)[pairs[:, 1]]
    wrong = np.flatnonzero(len_a != len_b)
    if len(wrong) == 0:
        inside = np.arange(len_a.sum()) - np.repeat(np.cumsum(len_a) - len_a, len_a)
        ids_a = np.asarray(a.tokens)[np.repeat(off_a[pairs[:, 0]], len_a) + inside]
        ids_b = np.asarray(b.tokens)[np.repeat(off_b[pairs[:, 1]], len_b) + inside]
        wrong = np.unique(np.repeat(np.arange(len(pairs)), len_a)[ids_a != ids_b])
    if len(wrong):
        got = f"{len(wrong)} prompts with other ids, first prompt {pairs[wrong[0], 0]} of the first run"
        do = "Extract both runs with one tokenizer and template."
        raise AnalysisError("the same prompts must have the same token ids in both runs", got, do)
