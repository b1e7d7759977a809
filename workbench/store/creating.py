"""Creating a run, and taking up an interrupted one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.errors import ContractError, WorkbenchError
from workbench.store.files import DISKS, Disk, explain
from workbench.store.positions import check_positions
from workbench.store.preparing import Work
from workbench.store.resuming import resume_run
from workbench.store.writer import RunWriter, WriterOptions

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from workbench.prompts import PromptSet
    from workbench.store.manifest import TapSpec
    from workbench.tokens import TokenTable


def create_run(
    path: str | Path, *, prompts: PromptSet, tokens: TokenTable, taps: Sequence[TapSpec],
    positions: str | tuple[int, ...], contract: Mapping[str, Any], provenance: Mapping[str, Any],
    durability: str = "full", resume: bool = False, head: Mapping[str, Any] | None = None,
    options: WriterOptions | None = None, disk: Disk | None = None,
) -> RunWriter:  # fmt: skip
    """Create a run folder, with all its room reserved, or go on with an interrupted one.

    Parameters
    ----------
    path : str or Path
        Folder to make; its parent must exist.
    prompts : PromptSet
        All prompts.
    tokens : TokenTable
        Their tokens.
    taps : sequence of TapSpec
        What is stored: name, dtype and width.
    positions : str or tuple of int
        "all", "last", "mean" or offsets; decides the rows of each prompt.
    contract : mapping
        Contract of the engine, plain JSON data.
    provenance : mapping
        Tokenizer digest, template, batch plan, code version, policies, plain JSON data. The fields created, host,
        command, machine, timings and notes may differ on resume, all others may not.
    durability : str
        `full`, or `process-crash-only` without any sync.
    resume : bool
        Go on after the last acknowledged batch if the folder is there.
    head : mapping, optional
        Output head that travels with the rows, see `store.head.head_bytes`.
    options : WriterOptions, optional
        Sizes of groups and shards, and policies.
    disk : Disk, optional
        File operations; for tests.

    Returns
    -------
    RunWriter

    Raises
    ------
    RunExists
        If the folder is there and `resume` is false.
    ContractMismatch
        If anything differs from the interrupted run; the message lists each difference.
    StoreLocked
        If another process writes the run.
    StoreFull
        If the run does not fit; the message says how many bytes it needs.
    StoreError
        If the folder cannot be written.
    """
    if durability not in DISKS:
        raise ContractError(f"durability must be one of {', '.join(DISKS)}", repr(durability), "Choose one.")
    work = Work(
        folder=Path(path), disk=disk or DISKS[durability](), prompts=prompts, tokens=tokens, taps=tuple(taps),
        positions=check_positions(positions), contract=dict(contract), provenance=dict(provenance),
        durability=durability, head=head, options=options or WriterOptions(),
    )  # fmt: skip
    try:
        if resume and os.path.lexists(work.folder):
            return resume_run(work)
        return work.create()
    except WorkbenchError:
        raise  # RunExists is an OSError too
    except OSError as error:
        raise explain(error, Path(str(error.filename or work.folder)), "the run must be created") from error
