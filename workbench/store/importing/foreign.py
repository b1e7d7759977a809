"""What every import shares: opening what came from elsewhere, and a run that says what is unknown about it."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.errors import ContractError, StoreError
from workbench.store.creating import create_run
from workbench.store.opening import open_inside
from workbench.store.positions import cut_prompts
from workbench.store.reader import Run, open_run

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from workbench.prompts import PromptSet
    from workbench.store.manifest import TapSpec
    from workbench.store.writer import RunWriter
    from workbench.tokens import TokenTable

UNKNOWN_TOKEN = -1
_BLOCK_ROWS = 1 << 14


def open_source(path: Path) -> tuple[int, int]:
    """Open a file to import; its descriptor and size."""
    try:
        return open_inside(path)
    except FileNotFoundError:
        raise StoreError(f"{str(path)!r} must be a file", "none", "Check the path.") from None


def unknowns(**notes: str) -> dict[str, str]:
    """Say what nobody recorded, with more of it or better words in `notes`."""
    told = {
        "norm_point": "not recorded by the source", "padding_side": "not recorded by the source",
        "position_ids": "not recorded by the source", "tokenizer": "not recorded by the source",
        "precision": "not recorded by the source",
    }  # fmt: skip
    return told | notes


def token_table(ids: Sequence[NDArray[np.int32]]) -> TokenTable:
    """Build a token table from the ids of each prompt."""
    from workbench.tokens import TokenTable

    lengths = np.array([len(row) for row in ids], dtype=np.int64)
    offsets = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(lengths)])
    flat = np.concatenate([np.asarray(row, dtype=np.int32) for row in ids]) if len(ids) else np.empty(0, np.int32)
    no = np.zeros(len(ids), dtype=np.bool_)
    return TokenTable(ids=flat, offsets=offsets, truncated=no, original_lengths=lengths, lossy=no)


def labelled(ids: Sequence[NDArray[np.int32]], prompts: PromptSet | None) -> PromptSet:
    """Make prompts of token ids, with the texts, columns and ids of `prompts` where there are some."""
    from workbench.prompts import PromptSet

    if prompts is None:
        return PromptSet(texts=(None,) * len(ids), token_ids=tuple(ids))
    if len(prompts) != len(ids):
        raise ContractError(f"there must be {len(ids)} prompts", str(len(prompts)), "Give them in file order.")
    return PromptSet(texts=prompts.texts, token_ids=tuple(ids), columns=prompts.columns, ids=prompts.ids)


def create_foreign(
    out: str | Path, source: str, unknown: Mapping[str, str], *, prompts: PromptSet, tokens: TokenTable,
    taps: Sequence[TapSpec], positions: str,
) -> RunWriter:  # fmt: skip
    """Begin a run of rows that no engine of ours made."""
    contract = {"engine_id": None, "source": source, "taps": [tap.name for tap in taps]}
    provenance = {"imported_from": source, "unknown": dict(unknown)}
    return create_run(
        out, prompts=prompts, tokens=tokens, taps=taps, positions=positions, contract=contract, provenance=provenance
    )


def fill(writer: RunWriter, rows: Mapping[str, NDArray[Any]]) -> Run:
    """Write arrays of rows, tap by tap [row, d_model], into a new run and close it."""
    with writer:
        for first, stop in pairwise(cut_prompts(writer.row_offsets, _BLOCK_ROWS)):
            part = slice(int(writer.row_offsets[first]), int(writer.row_offsets[stop]))
            writer.commit(first, stop, {name: _float(values[part]) for name, values in rows.items()})
    return open_run(writer.path)


def _float(values: NDArray[Any]) -> NDArray[Any]:
    return np.asarray(values) if values.dtype in (np.float16, np.float32) else np.asarray(values, dtype=np.float32)
