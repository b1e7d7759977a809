"""One pass as arrays: right-padded ids, and which rows leave the graph."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.errors import ContractError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from workbench.engine.recipe import Positions


def rows_per_prompt(lengths: NDArray[np.int64], positions: Positions) -> NDArray[np.int64]:
    """Count the rows that each prompt gives.

    Parameters
    ----------
    lengths : int64 [prompt]
        Tokens of each prompt.
    positions : str or tuple of int
        As in the recipe.

    Returns
    -------
    int64 [prompt]
    """
    if positions == "all":
        return lengths.astype(np.int64)
    return np.full(lengths.shape, len(positions) if isinstance(positions, tuple) else 1, dtype=np.int64)


def check_offsets(lengths: NDArray[np.int64], positions: Positions, ids: Sequence[object] | None = None) -> None:
    """Refuse prompts that are too short for the asked token offsets.

    Raises
    ------
    ContractError
        With the id of the first prompt that lacks a position.
    """
    if not isinstance(positions, tuple):
        return
    need = max(p + 1 if p >= 0 else -p for p in positions)
    short = np.flatnonzero(lengths < need)
    if len(short):
        name = ids[short[0]] if ids is not None else int(short[0])
        raise ContractError(
            f"every prompt must have the token offsets {positions}, so at least {need} tokens",
            f"{lengths[short[0]]} in prompt {name!r} ({len(short)} prompts are too short)",
            "Leave the short prompts out, or ask for other positions.",
        )


def make_feeds(prompts: Sequence[NDArray[Any]], positions: Positions, id_dtype: str) -> dict[str, NDArray[Any]]:
    """Lay prompts out as the graph reads them.

    Parameters
    ----------
    prompts : sequence of int array [token]
        Token ids, one array a prompt, none empty.
    positions : str or tuple of int
        As in the recipe.
    id_dtype : str
        Dtype of `input_ids`, from the contract.

    Returns
    -------
    dict of str to array
        `input_ids` [prompt, token], padded on the right with 0, and `rows` or `lengths`.
    """
    lengths = np.array([len(p) for p in prompts], dtype=np.int64)
    width = int(lengths.max())
    ids = np.zeros((len(prompts), width), dtype=id_dtype)
    for slot, prompt in zip(ids, prompts, strict=True):
        slot[: len(prompt)] = prompt
    feeds: dict[str, NDArray[Any]] = {"input_ids": ids}
    if positions == "mean":
        feeds["lengths"] = lengths
    elif positions == "all":
        feeds["rows"] = np.flatnonzero((np.arange(width) < lengths[:, None]).ravel()).astype(np.int64)
    elif positions == "last":
        feeds["rows"] = lengths - 1
    else:
        offsets = np.array(positions, dtype=np.int64)
        feeds["rows"] = np.where(offsets < 0, lengths[:, None] + offsets, offsets)
    return feeds


def flat_rows(outputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Give each output as [row, d_model], in the order of the prompts of the pass."""
    return {name: array.reshape(-1, array.shape[-1]) for name, array in outputs.items()}
