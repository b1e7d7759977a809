"""Small real runs for the tests of the analysis room."""

from __future__ import annotations

from typing import Any

import numpy as np

from workbench.prompts import PromptSet
from workbench.store import TapSpec, create_run
from workbench.tokens import TokenTable

CONTRACT: dict[str, Any] = {"engine_id": "a1" * 32, "digest": "d1" * 32, "checkpoint": {"digest": "c1" * 32}}


def contract(letter="a", **changes):
    return {**CONTRACT, "engine_id": letter * 64, "digest": (letter + "0") * 32, **changes}


def make_run(
    path, states, *, texts=None, columns=None, lengths=None, positions="last", ids=None, tokens=None,
    letter="a", dtype="F32", **changes,
):  # fmt: skip
    """A sealed run; `states` is float32 [row, width], or these by tap; one row a prompt unless `lengths` are given."""
    states = states if isinstance(states, dict) else {"final_norm": states}
    n_rows = len(next(iter(states.values())))
    if lengths is None:
        lengths = np.full(n_rows, 3 if positions == "last" else 1)
    lengths = np.asarray(lengths)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    texts = tuple(texts or (f"prompt {at}" for at in range(len(lengths))))
    prompts = PromptSet(texts=texts, columns=dict(columns or {}), ids=tuple(ids or ()))
    token_ids = (np.arange(offsets[-1]) % 50).astype(np.int32) if tokens is None else np.asarray(tokens, np.int32)
    table = TokenTable(
        ids=token_ids, offsets=offsets, truncated=np.zeros(len(lengths), bool),
        original_lengths=lengths.astype(np.int64), lossy=np.zeros(len(lengths), bool),
    )  # fmt: skip
    specs = [TapSpec(tap, dtype, rows.shape[1]) for tap, rows in states.items()]
    with create_run(
        path, prompts=prompts, tokens=table, taps=specs, positions=positions, contract=contract(letter, **changes),
        provenance={}, durability="process-crash-only",
    ) as writer:  # fmt: skip
        writer.commit(0, len(lengths), {tap: np.asarray(rows, np.float32) for tap, rows in states.items()})
        return writer.close()
