"""Repair: damaged batches of a run are computed again by the engine that made them, and only those."""

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.engine.batch import rows_per_prompt
from workbench.engine.opening import Engine, open_engine
from workbench.errors import ContractMismatch
from workbench.extraction import plan_for
from workbench.runtime import BatchPlan, plan_batches, run_plan
from workbench.store import Verification, open_run, verify_run
from workbench.store.verifying import repair_batch
from workbench.tokens import TokenTable

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from workbench.store import Run


def repair(path: str | Path, engine: Engine | str | Path, *, plan: BatchPlan | None = None) -> Verification:
    """Compute the damaged batches of a run again and write them where their checksums agree.

    Parameters
    ----------
    path : str or Path
        Run folder.
    engine : Engine or path
        The engine that made the run.
    plan : BatchPlan, optional
        The plan of the extraction, where it was not the default.

    Returns
    -------
    Verification
        Of the run after the repair.

    Raises
    ------
    ContractMismatch
        If engine or batch plan are not those of the run: other kernels give other bits.
    ChecksumMismatch
        If the computed rows are not bit for bit those that were stored; that batch is left as it is.
    """
    found = verify_run(path)
    if not found.bad:
        return found
    run = open_run(path)
    loaded = engine if isinstance(engine, Engine) else open_engine(engine)
    batches = plan or plan_for(loaded.contract)
    _refuse_others(run, loaded, batches)
    taps_of: dict[int, list[str]] = {}
    for bad in found.bad:
        taps_of.setdefault(bad.batch, []).append(bad.tap)
    for bad in {bad.batch: bad for bad in found.bad}.values():
        rows = _rows_again(run, loaded, batches, bad.first_prompt, bad.stop_prompt)
        repair_batch(path, bad.batch, {tap: rows[tap] for tap in taps_of[bad.batch]})
    return verify_run(path)


def _refuse_others(run: Run, engine: Engine, plan: BatchPlan) -> None:
    pairs = {
        "engine": (run.engine_id, engine.id),
        "batch plan": (run.provenance.get("batch_plan"), plan.digest),
    }
    for what, (ours, given) in pairs.items():
        if ours != given:
            raise ContractMismatch(
                f"the {what} of a repair must be that of the run, {ours}",
                str(given),
                "Use the engine that made the run.",
            )


def _rows_again(run: Run, engine: Engine, plan: BatchPlan, first: int, stop: int) -> Mapping[str, NDArray[Any]]:
    lengths = np.diff(run.all_offsets)
    counts = rows_per_prompt(lengths, engine.contract.positions)
    tokens = TokenTable(
        ids=np.asarray(run.all_tokens),
        offsets=run.all_offsets,
        truncated=np.zeros(len(lengths), dtype=np.bool_),
        original_lengths=lengths,
        lossy=np.zeros(len(lengths), dtype=np.bool_),
    )
    windows = takewhile(lambda window: window.first < stop, plan_batches(lengths, counts, plan, start=first))
    sink = _Collect()
    run_plan(engine, tokens, windows, sink, row_offsets=np.concatenate([[0], np.cumsum(counts)]))
    return {tap: np.concatenate(parts) for tap, parts in sink.rows.items()}


class _Collect:
    """A sink that keeps rows in memory; a batch is a few windows."""

    def __init__(self) -> None:
        self.rows: dict[str, list[NDArray[Any]]] = {}

    def commit(self, first: int, stop: int, rows: Mapping[str, NDArray[Any]]) -> None:  # noqa: ARG002 - Sink
        for tap, array in rows.items():
            self.rows.setdefault(tap, []).append(array)
