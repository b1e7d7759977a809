"""Prompts and tokens of a stored run, and which rows are theirs."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.errors import ChecksumMismatch, ContractError, StoreError
from workbench.store.contents import prompts_from, prompts_table
from workbench.store.layout import PROMPTS, TOKENS
from workbench.store.opening import TensorFile
from workbench.store.positions import prompt_of_rows, row_offsets, token_index

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from numpy.typing import NDArray

    from workbench.prompts import PromptSet
    from workbench.store.manifest import Manifest
    from workbench.tokens import TokenTable


class Inputs:
    """What went into a run; each file is read when it is first asked for.

    Attributes
    ----------
    path : Path
        Run folder.
    manifest : Manifest
        Everything about the run but its rows.
    n_prompts : int
        Prompts whose rows are stored.
    """

    path: Path
    manifest: Manifest
    n_prompts: int

    @cached_property
    def _tokens(self) -> TensorFile:
        return TensorFile(self.path / TOKENS, self.manifest.files.get(TOKENS))

    @cached_property
    def all_offsets(self) -> NDArray[np.int64]:
        """Where the tokens of each prompt begin, for all prompts that the run is meant to hold."""
        offsets: NDArray[np.int64] = self._tokens.array("offsets", "I64")
        n_tokens = len(self._tokens.array("ids", "I32"))
        fits = len(offsets) == self.manifest.counts.prompts + 1 and offsets[0] == 0 and offsets[-1] == n_tokens
        if not fits or (np.diff(offsets) < 0).any():
            raise StoreError(f"{TOKENS} must have rising offsets over its ids", "others", "Restore it from a copy.")
        return offsets

    @property
    def offsets(self) -> NDArray[np.int64]:
        """Where the tokens of each stored prompt begin in `tokens`; int64 [prompt + 1]."""
        return self.all_offsets[: self.n_prompts + 1]

    @property
    def all_tokens(self) -> NDArray[np.int32]:
        """Token ids of all prompts that the run is meant to hold, flat; int32 [token]."""
        return np.asarray(self._tokens.array("ids", "I32"))

    @property
    def tokens(self) -> NDArray[np.int32]:
        """Token ids of the stored prompts, flat; int32 [token]."""
        return self.all_tokens[: int(self.offsets[-1])]

    @cached_property
    def row_offsets(self) -> NDArray[np.int64]:
        """Where the rows of each stored prompt begin; int64 [prompt + 1]."""
        return row_offsets(np.diff(self.offsets), self.manifest.positions)

    @cached_property
    def _table(self) -> Any:
        return prompts_table(self.path, self.manifest.files.get(PROMPTS, ""))

    @cached_property
    def all_prompts(self) -> PromptSet:
        """The prompt set that the run is meant to hold."""
        prompts = prompts_from(self._table)
        if prompts.content_hash != self.manifest.prompts_hash:
            must = f"the prompts must have hash {self.manifest.prompts_hash}"
            raise ChecksumMismatch(must, prompts.content_hash, "Restore prompts.parquet from a copy.")
        return prompts

    @cached_property
    def prompts(self) -> PromptSet:
        """The stored prompts, with their metadata columns."""
        if self.n_prompts == self.manifest.counts.prompts:
            return self.all_prompts
        return self.all_prompts.select(np.arange(self.n_prompts))

    def flag(self, name: str) -> NDArray[np.bool_]:
        """Give a flag of every stored prompt: `truncated` or `lossy`; bool [prompt]."""
        if name not in ("truncated", "lossy"):
            raise ContractError("a flag must be 'truncated' or 'lossy'", repr(name), "Choose one.")
        return np.asarray(self._table.column(name).to_numpy())[: self.n_prompts]

    def original_lengths(self) -> NDArray[np.int64]:
        """Give the number of tokens of every stored prompt before any were left out; int64 [prompt]."""
        return np.asarray(self._table.column("original_length").to_numpy())[: self.n_prompts]

    def rows_of(self, prompt_ids: Iterable[Any]) -> NDArray[np.int64]:
        """List the rows of prompts, in the order asked.

        Parameters
        ----------
        prompt_ids : iterable of str or int
            Ids of prompts (the `id` column, or row numbers).

        Returns
        -------
        int64 [row]

        Raises
        ------
        ContractError
            If an id is not stored.
        """
        places = self._places
        wanted = [getattr(one, "item", lambda one=one: one)() for one in prompt_ids]
        unknown = [one for one in wanted if one not in places]
        if unknown:
            raise ContractError("prompt ids must be stored in the run", repr(unknown[:3])[:120], "See run.prompts.ids.")
        pieces = [np.arange(self.row_offsets[places[one]], self.row_offsets[places[one] + 1]) for one in wanted]
        return np.concatenate(pieces).astype(np.int64) if pieces else np.empty(0, dtype=np.int64)

    @cached_property
    def _places(self) -> dict[Any, int]:
        return {one: at for at, one in enumerate(self.prompts.ids)}

    def prompt_of_rows(self) -> NDArray[np.int64]:
        """Give the prompt (its number) of every row; int64 [row]."""
        return prompt_of_rows(self.row_offsets)

    def token_index(self) -> NDArray[np.int64]:
        """Give the place of every row within its prompt, from 0, or -1 for means; int64 [row]."""
        return token_index(np.diff(self.offsets), self.manifest.positions)

    def token_table(self) -> TokenTable:
        """Give the tokens of the stored prompts as the table that a run is created with."""
        from workbench.tokens import TokenTable

        return TokenTable(
            ids=self.tokens, offsets=self.offsets, truncated=self.flag("truncated"), lossy=self.flag("lossy"),
            original_lengths=self.original_lengths(),
        )  # fmt: skip
