"""Small runs for the tests of the store: canary rows that say which prompt, tap and token they belong to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.prompts import PromptSet
from workbench.store import RunWriter, TapSpec, WriterOptions, create_run
from workbench.tokens import TokenTable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

CONTRACT: dict[str, Any] = {"engine_id": "e" * 64, "taps": ["final_norm", "blocks.0.resid_post"]}
PROVENANCE: dict[str, Any] = {"tokenizer": "t" * 64, "template": None, "plan": {"window": 8}, "host": "here"}
TAPS = (TapSpec("final_norm", "F32", 8), TapSpec("blocks.0.resid_post", "BF16", 16))
SMALL = WriterOptions(group_bytes=1 << 12, group_s=0.05, reserve_bytes=1 << 16)


def make_prompts(n: int = 40) -> PromptSet:
    return PromptSet(
        texts=tuple(f"prompt number {at} <b>" for at in range(n)), token_ids=None,
        columns={"latitude": [at / 7 for at in range(n)], "note": [None if at % 3 else f"é{at}" for at in range(n)]},
        ids=tuple(f"p{at:05d}" for at in range(n)),
    )  # fmt: skip


def make_tokens(n: int = 40, longest: int = 5, seed: int = 0) -> TokenTable:
    generator = np.random.default_rng(seed)
    lengths = generator.integers(0, longest + 1, n)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return TokenTable(
        ids=generator.integers(0, 1000, int(offsets[-1])).astype(np.int32), offsets=offsets,
        truncated=np.arange(n) % 11 == 3, original_lengths=lengths.astype(np.int64), lossy=np.arange(n) % 13 == 5,
    )  # fmt: skip


def canary(tap: TapSpec, first_row: int, stop_row: int) -> NDArray[np.float32]:
    """Rows whose values encode the row, the tap and the column, exactly in every storage type."""
    rows = np.arange(first_row, stop_row)[:, None]
    shift = sum(tap.name.encode()) % 16
    digits = (rows >> (4 * (np.arange(tap.width) % 6))) & 15
    return ((digits + 16 * ((np.arange(tap.width) + shift) % 2)) * 1.0).astype(np.float32)


def rows_of_batch(writer: RunWriter, taps: Sequence[TapSpec], first: int, stop: int) -> Mapping[str, NDArray[Any]]:
    start, end = int(writer.row_offsets[first]), int(writer.row_offsets[stop])
    return {tap.name: canary(tap, start, end) for tap in taps}


def windows(n_prompts: int, first: int = 0, step: int = 7) -> Iterator[tuple[int, int]]:
    for start in range(0, n_prompts, step):
        if start >= first:
            yield start, min(start + step, n_prompts)


def new_run(path: Path, n: int = 40, taps: Sequence[TapSpec] = TAPS, **changes: Any) -> RunWriter:
    asked: dict[str, Any] = {
        "prompts": make_prompts(n), "tokens": make_tokens(n), "taps": taps, "positions": "all",
        "contract": CONTRACT, "provenance": PROVENANCE, "options": SMALL,
    } | changes  # fmt: skip
    return create_run(path, **asked)


def fill(writer: RunWriter, taps: Sequence[TapSpec] = TAPS, *, step: int = 7, until: int | None = None) -> None:
    for first, stop in windows(writer.n_prompts, writer.next_prompt, step):
        if until is not None and first >= until:
            return
        writer.commit(first, stop, rows_of_batch(writer, taps, first, stop))
