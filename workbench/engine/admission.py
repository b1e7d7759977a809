"""Admission: what a pass may hold, checked before anything is launched."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.engine.batch import check_offsets
from workbench.errors import ContractError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from workbench.engine.contract import Contract, LimitsPart


def check_prompts(prompts: Sequence[NDArray[Any]], contract: Contract) -> None:
    """Refuse prompts that the contract does not admit, however they are spread over passes.

    Raises
    ------
    ContractError
        If there is no prompt, one is empty or too long, an id lies outside the vocabulary, or an offset is missing.
    """
    if not prompts:
        raise ContractError("a pass must hold at least one prompt", "none", "Give at least one.")
    lengths = np.array([len(prompt) for prompt in prompts], dtype=np.int64)
    if lengths.min() < 1:
        raise ContractError("every prompt must have a token", f"none in prompt {lengths.argmin()}", "Leave it out.")
    if lengths.max() > contract.limits.max_tokens:
        raise ContractError(
            f"a prompt may have {contract.limits.max_tokens} tokens",
            f"{lengths.max()} in prompt {lengths.argmax()}",
            "Shorten it, or build an engine with a larger max_tokens.",
        )
    flat = np.concatenate([np.asarray(prompt) for prompt in prompts])
    check_ids(flat, contract.checkpoint.d_vocab)
    check_offsets(lengths, contract.positions)


def check_pass(prompts: Sequence[NDArray[Any]], limits: LimitsPart) -> None:
    """Refuse more prompts than one pass may hold.

    Raises
    ------
    ContractError
        With the limits of the contract.
    """
    width = max(len(prompt) for prompt in prompts)
    if len(prompts) > _most(width, limits):
        many = f"{limits.prompts_per_pass} prompts and " if limits.prompts_per_pass else ""
        raise ContractError(
            f"a pass may hold {many}{limits.tokens_per_pass} tokens, pads included",
            f"{len(prompts)} prompts of up to {width} tokens",
            "Run them in several passes, as `Engine.run` does.",
        )


def split_passes(prompts: Sequence[NDArray[Any]], limits: LimitsPart) -> Iterator[Sequence[NDArray[Any]]]:
    """Give the prompts in their order, as many at a time as one pass may hold."""
    start = width = 0
    for stop, prompt in enumerate(prompts):
        wider = max(width, len(prompt))
        if stop > start and stop + 1 - start > _most(wider, limits):
            yield prompts[start:stop]
            start, wider = stop, len(prompt)
        width = wider
    yield prompts[start:]


def _most(width: int, limits: LimitsPart) -> int:
    """How many prompts of a padded length fit into a pass."""
    return min(max(1, limits.tokens_per_pass // width), limits.prompts_per_pass or limits.tokens_per_pass)


def check_ids(flat: NDArray[Any], d_vocab: int) -> None:
    """Refuse token ids outside the vocabulary, at both ends.

    Raises
    ------
    ContractError
        With the first bad id and its place.
    """
    bad = np.flatnonzero((flat < 0) | (flat >= d_vocab))
    if len(bad):
        raise ContractError(
            f"token ids must lie between 0 and {d_vocab - 1}",
            f"{flat[bad[0]]} at token {bad[0]} of the batch",
            "Check that the ids come from the tokenizer of this checkpoint.",
        )
