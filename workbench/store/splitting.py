"""Cutting a run into several by prompts; rows are copied, and checked on the way."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from workbench.errors import ContractError, StoreError
from workbench.store.creating import create_run
from workbench.store.positions import cut_prompts
from workbench.store.reader import Run, open_run

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from workbench.tokens import TokenTable

_COPY_ROWS = 1 << 14


def split_run(path: str | Path, outs: Sequence[str | Path], bounds: Iterable[int]) -> list[Run]:
    """Copy a run into several, by prompts.

    Parameters
    ----------
    path : str or Path
        A complete run.
    outs : sequence of str or Path
        Run folders to make.
    bounds : iterable of int
        Prompts at which the second and later ones begin, rising; one fewer than `outs`.

    Returns
    -------
    list of Run

    Raises
    ------
    ContractError
        If the bounds do not cut the run into that many pieces with prompts.
    RunExists, StoreError, ChecksumMismatch
        If a place is taken, the run is unfinished, or stored bytes changed.
    """
    run = open_run(path)
    if run.status != "complete":
        raise StoreError("only a complete run is split", run.status, "Finish it with resume=True.")
    edges = [0, *bounds, run.n_prompts]
    if len(edges) != len(outs) + 1 or any(a >= b for a, b in pairwise(edges)):
        must = f"bounds must cut {run.n_prompts} prompts into {len(outs)} pieces"
        raise ContractError(must, f"{edges[1:-1]}", "Give rising prompt numbers, one fewer than folders.")
    tokens = run.token_table()
    return [_copy_prompts(run, tokens, Path(out), a, b) for out, (a, b) in zip(outs, pairwise(edges), strict=True)]


def _copy_prompts(run: Run, tokens: TokenTable, out: Path, first: int, stop: int) -> Run:
    from workbench.tokens import TokenTable

    span = slice(first, stop)
    offsets = tokens.offsets[first : stop + 1]
    piece = TokenTable(
        ids=tokens.ids[int(offsets[0]) : int(offsets[-1])], offsets=offsets - offsets[0],
        truncated=tokens.truncated[span], lossy=tokens.lossy[span], original_lengths=tokens.original_lengths[span],
    )  # fmt: skip
    note = {"split": {"run": run.manifest.run_id, "prompts": [first, stop]}}
    writer = create_run(
        out, prompts=run.prompts.select(np.arange(first, stop)), tokens=piece, taps=run.manifest.taps,
        positions=run.positions, contract=run.contract, provenance=run.provenance | {"notes": note},
        durability=run.durability, head=run.head,
    )  # fmt: skip
    arrays = {name: run.tap(name, checked=True) for name in run.taps}
    begin = int(run.row_offsets[first])
    with writer:
        for at, end in pairwise(cut_prompts(writer.row_offsets, _COPY_ROWS)):
            rows = begin + int(writer.row_offsets[at]), begin + int(writer.row_offsets[end])
            for array in arrays.values():
                _ = array[rows[0] : rows[1]]  # checks the batches that hold them
            raw = {name: array.raw(*rows).view(array.kind.array) for name, array in arrays.items()}
            writer.commit(at, end, raw)
    return open_run(out)
