"""Which rows a view draws, and the prompt, position and token of each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from workbench.errors import ViewError

if TYPE_CHECKING:
    from collections.abc import Callable

    from workbench.store import Run

MAX_ROWS = 50_000  # a map beyond it is slow to draw and to lasso in a browser without a GPU

Ids = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class DrawnRows:
    """The rows of a view.

    Attributes
    ----------
    run : Run
    ids : int64 [row]
        Row ids in the run, ascending.
    prompt : int32 [row]
        Index into `prompts`.
    prompts : int64 [prompt]
        Prompts of the run that have a drawn row, ascending.
    position : int32 [row] or None
        Position of the token in its prompt; None where a run has one row a prompt.
    token : int32 [row] or None
        Token id; None where a row is a mean.
    sampled : bool
        Whether rows were left out.
    """

    run: Run
    ids: Ids
    prompt: npt.NDArray[np.int32]
    prompts: Ids
    position: npt.NDArray[np.int32] | None
    token: npt.NDArray[np.int32] | None
    sampled: bool

    def __len__(self) -> int:
        return len(self.ids)

    def sentence(self) -> str:
        """Say which rows are drawn."""
        total = self.run.n_rows
        return (
            f"{len(self):,} of {total:,} rows, seeded sample, spread over prompts"
            if self.sampled
            else f"all {total:,} rows"
        )


def drawn_rows(run: Run, *, limit: int = MAX_ROWS, seed: int = 0) -> DrawnRows:
    """Choose the rows to draw: all of them, or a seeded sample that takes about the same share of every prompt.

    Raises
    ------
    ViewError
        If `limit` is below one.
    """
    if limit < 1:
        raise ViewError("a view draws at least one row", f"limit={limit}", f"Give a limit from 1 to {MAX_ROWS}.")
    prompt_of_row = np.asarray(run.prompt_of_rows(), np.int64)
    ids = np.arange(run.n_rows, dtype=np.int64) if run.n_rows <= limit else _spread(prompt_of_row, limit, seed)
    prompts, prompt = np.unique(prompt_of_row[ids], return_inverse=True)
    index = np.asarray(run.token_index(), np.int64)[ids]
    one_each = run.n_rows <= run.n_prompts
    token = None
    if len(index) and index.min() >= 0:
        token = np.asarray(run.tokens[np.asarray(run.offsets)[prompt_of_row[ids]] + index], np.int32)
    return DrawnRows(
        run=run,
        ids=ids,
        prompt=prompt.astype(np.int32),
        prompts=prompts,
        position=None if one_each or token is None else index.astype(np.int32),
        token=token,
        sampled=len(ids) < run.n_rows,
    )


def _spread(prompt_of_row: Ids, limit: int, seed: int) -> Ids:
    # a random place within each prompt's rows, scaled to its share: taking the smallest spreads the sample over prompts
    n = len(prompt_of_row)
    shuffled = np.random.default_rng(seed).permutation(n)
    order = shuffled[np.argsort(prompt_of_row[shuffled], kind="stable")]
    size = np.bincount(prompt_of_row)
    first = np.concatenate(([0], np.cumsum(size)))[:-1]
    place = (np.arange(n) - first[prompt_of_row[order]] + 0.5) / size[prompt_of_row[order]]
    return np.sort(order[np.argsort(place, kind="stable")[:limit]])


def row_pieces(rows: DrawnRows, text_of: Callable[[int], str]) -> tuple[npt.NDArray[np.uint32], list[str]] | None:
    """Give the text of each row's token as codes [row] into a list of different texts, or None without tokens."""
    if rows.token is None:
        return None
    ids, codes = np.unique(rows.token, return_inverse=True)
    return codes.astype(np.uint32), [text_of(int(token)) for token in ids]


def rows_by_id(rows: DrawnRows) -> dict[int, int]:
    """Give the place of each run row among the drawn ones."""
    return {int(row): place for place, row in enumerate(rows.ids)}


def plain_ids(rows: DrawnRows) -> list[Any] | None:
    """Give the ids of the drawn prompts, or None where they are row numbers anyway."""
    ids = [rows.run.prompts.ids[int(prompt)] for prompt in rows.prompts]
    return None if all(isinstance(i, int) and i == int(p) for i, p in zip(ids, rows.prompts, strict=True)) else ids
