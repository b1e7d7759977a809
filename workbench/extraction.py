"""Extraction: prompts through an engine into a run folder, each row where it belongs.

1. Read and tokenise every prompt, so that all sizes are known.
2. Cut them into windows and passes (`runtime.passes`).
3. Run pass after pass; rows return to prompt order and are committed window by window (`store.writer`).
4. Close: rows in = rows out, each prompt once.
"""

from __future__ import annotations

import os
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench import __version__
from workbench.engine.batch import check_offsets, rows_per_prompt
from workbench.engine.opening import Engine, open_engine
from workbench.errors import ContractError, ContractMismatch, RunExists
from workbench.progress import Show, shown
from workbench.runtime import BatchPlan, plan_batches, run_plan
from workbench.store import Run, RunWriter, TapSpec, create_run
from workbench.store.files import explain
from workbench.store.filesystem import check_place
from workbench.tokens import TokenTable, tokenize

if TYPE_CHECKING:
    from workbench.analysis.floors import Floor
    from workbench.checkpoint import Checkpoint
    from workbench.engine.contract import Contract
    from workbench.prompts import PromptSet
    from workbench.tokens import Tokenizer

_PASSES_PER_WINDOW = 16
DTYPES = {"float32": "F32", "bfloat16": "BF16", "float16": "F16", "float8_e4m3": "F8_E4M3"}


def extract(
    prompts: PromptSet,
    engine: Engine | str | Path,
    *,
    out: str | Path,
    truncate: bool = False,
    template: str | None = None,
    dtype: str = "float32",
    resume: bool = False,
    durability: str = "full",
    keep_head: bool | Checkpoint | str | Path = False,
    plan: BatchPlan | None = None,
    progress: Show = True,
) -> Run:
    """Read the hidden states of every prompt into a run folder.

    Parameters
    ----------
    prompts : PromptSet
        From `load_prompts`.
    engine : Engine or path
        From `build` or `open_engine`; it decides taps and positions.
    out : str or Path
        The run folder; it must not exist, unless `resume`.
    truncate : bool
        Cut prompts that are too long, and record it for each row; by default they are refused.
    template : str, optional
        Name of a chat template of the tokenizer, put around each text.
    dtype : str
        How states are kept: `float32`, `bfloat16`, `float16` or `float8_e4m3`.
    resume : bool
        Go on after the last stored batch of an interrupted run.
    durability : str
        `full` survives power loss; `process-crash-only` is faster and says so in the manifest.
    keep_head : bool, Checkpoint or path
        Whether the output head travels with the run, so that `logit_lens` needs no checkpoint. True takes it from the
        checkpoint that `build` was given in this process; otherwise name the checkpoint of the engine.
    plan : BatchPlan, optional
        Budgets of windows and passes.
    progress : bool or callable
        Show tokens per second and time left, or call this with the tokens read and their total.

    Returns
    -------
    Run
        Opened and complete.

    Raises
    ------
    RunExists
        If `out` exists and `resume` is not set.
    PromptError, TokenError, ContractError
        If a prompt cannot be read by this engine; nothing was computed then.
    ContractMismatch
        If `keep_head` names another checkpoint than the engine's.
    StoreError
        If the folder cannot be written.
    """
    folder = Path(out)
    if not resume:
        _refuse_existing(folder)
    check_place(folder)
    loaded = engine if isinstance(engine, Engine) else open_engine(engine)
    contract = loaded.contract
    tokens = tokens_for(prompts, contract, loaded.tokenizer, truncate=truncate, template=template)
    batches = plan or plan_for(contract)
    head = _head_of(keep_head, loaded)
    _make_parents(folder)
    writer = create_run(
        folder,
        prompts=prompts,
        tokens=tokens,
        taps=tap_specs(contract, dtype),
        positions=contract.positions,
        contract=contract.to_json(),
        provenance=_provenance(tokens, batches, truncate=truncate),
        durability=durability,
        resume=resume,
        head=head,
    )
    with writer:
        _run_all(loaded, tokens, batches, writer, show=progress)
        return writer.close()


def plan_for(contract: Contract) -> BatchPlan:
    """Choose passes as large as the engine takes, and windows of a few passes."""
    limits = contract.limits
    usual = BatchPlan()
    if limits.prompts_per_pass is None:
        return usual
    # a GPU needs full passes: windows hold several, so that their last ones, which are small, cost little
    return BatchPlan(
        tokens_per_pass=limits.tokens_per_pass,
        prompts_per_pass=limits.prompts_per_pass,
        tokens_per_window=_PASSES_PER_WINDOW * limits.tokens_per_pass,
        rows_per_window=max(usual.rows_per_window, _PASSES_PER_WINDOW * limits.tokens_per_pass),
        least_tokens=limits.tokens_per_pass // 8,
    )


def tokens_for(
    prompts: PromptSet,
    contract: Contract,
    tokenizer: Tokenizer | None,
    *,
    truncate: bool = False,
    template: str | None = None,
) -> TokenTable:
    """Turn prompts into token ids as an engine reads them.

    Raises
    ------
    TokenError, ContractError
        If a prompt is empty, too long, outside the vocabulary, or lacks an asked position.
    """
    tokens = tokenize(
        prompts,
        tokenizer,
        max_tokens=contract.limits.max_tokens,
        truncate=truncate,
        template=template,
        vocab_size=contract.checkpoint.d_vocab,
    )
    check_offsets(np.diff(tokens.offsets), contract.positions, prompts.ids)
    return tokens


def _head_of(source: bool | Checkpoint | str | Path, engine: Engine) -> dict[str, Any] | None:
    """Take the output head of the checkpoint that an engine was built from."""
    if source is False:
        return None
    from workbench.analysis.lens import head_from
    from workbench.checkpoint import open_checkpoint

    checkpoint = engine.checkpoint if source is True else source
    if checkpoint is None:
        got = "True, with an engine that was opened from its folder"
        raise ContractError("keep_head must name the engine's checkpoint", got, "Pass the checkpoint or its path.")
    if isinstance(checkpoint, str | Path):
        checkpoint = open_checkpoint(checkpoint)
    want = engine.contract.checkpoint.digest
    if checkpoint.digest != want:
        must = f"keep_head must name the engine's checkpoint, {want}"
        raise ContractMismatch(must, f"{checkpoint.name}, {checkpoint.digest}", "Pass the one it was built from.")
    head = head_from(checkpoint)
    return {field.name: getattr(head, field.name) for field in fields(head)} | {"checkpoint": want}


def _make_parents(folder: Path) -> None:
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise explain(error, folder.parent, "the folder above the run must be made") from error


def _refuse_existing(folder: Path) -> None:
    if os.path.lexists(folder):
        raise RunExists(
            "the run folder must not exist yet",
            f"{folder.name!r}, which does",
            "Choose another name, or pass resume=True to go on with an interrupted run.",
        )


def tap_specs(contract: Contract, dtype: str) -> tuple[TapSpec, ...]:
    """Say how each tap of an engine is kept.

    Raises
    ------
    ContractError
        If the dtype is not one of `DTYPES`.
    """
    if dtype not in DTYPES:
        raise ContractError(
            f"the dtype of a run must be one of {', '.join(DTYPES)}", repr(dtype), "Choose one of these."
        )
    checkpoint = contract.checkpoint
    widths = {tap: checkpoint.d_vocab if tap == "logits" else checkpoint.d_model for tap in contract.taps}
    return tuple(TapSpec(name=tap, dtype=DTYPES[dtype], width=width) for tap, width in widths.items())


def _run_all(engine: Engine, tokens: TokenTable, plan: BatchPlan, writer: RunWriter, *, show: Show) -> None:
    lengths = np.diff(tokens.offsets)
    counts = rows_per_prompt(lengths, engine.contract.positions)
    start = writer.next_prompt
    windows = plan_batches(lengths, counts, plan, start=start)
    left = int(tokens.offsets[-1] - tokens.offsets[start])
    done = 0
    with shown("extract", show, "tok") as report:

        def step(read: int) -> None:
            nonlocal done
            done += read
            report(done, left)

        run_plan(engine, tokens, windows, writer, row_offsets=writer.row_offsets, progress=step)


def _provenance(tokens: TokenTable, plan: BatchPlan, *, truncate: bool) -> dict[str, Any]:
    made = {"code_version": __version__, "truncate": truncate, "batch_plan": plan.digest}
    return {**tokens.provenance, **made}


def measure_floor(
    prompts: PromptSet,
    engine: Engine | str | Path,
    *,
    out: str | Path,
    sample: int = 500,
    seed: int = 0,
    progress: Show = True,
) -> Floor:
    """Measure what repeating the same extraction already changes, for every tap.

    The prompts are read again with the same passes, in the reverse order (another slot of the same batches), in a
    random order (other neighbours), and in small batches; `compare(..., floor=)` gives every drift as a multiple of the
    largest difference.

    Parameters
    ----------
    prompts : PromptSet
        What the runs to be compared hold.
    engine : Engine or path
        The reference engine.
    out : str or Path
        Folder for the repeat runs and `floor.json`; it must not exist.
    sample : int
        Most prompts to repeat, drawn with `seed`; the floor says how many rows it speaks of.
    seed : int
        Of the sample and the random order.
    progress : bool or callable
        Show tokens per second and time left, or call this with the tokens read and their total.

    Returns
    -------
    Floor
        Saved as `floor.json` too.

    Raises
    ------
    RunExists
        If `out` exists.
    """
    from workbench.analysis.repeating import make_floor

    folder = Path(out)
    _refuse_existing(folder)
    loaded = engine if isinstance(engine, Engine) else open_engine(engine)
    random = np.random.default_rng(seed)
    chosen = prompts
    if len(prompts) > sample:
        chosen = prompts.select(np.sort(random.choice(len(prompts), size=sample, replace=False)))
    small = BatchPlan(tokens_per_pass=loaded.contract.limits.max_tokens, least_tokens=0)
    ways = {
        "reference": (chosen, None),
        "same engine": (chosen, None),
        "batch slot": (chosen.select(np.arange(len(chosen))[::-1]), None),
        "order": (chosen.select(random.permutation(len(chosen))), None),
        "batch size": (chosen, small),
    }
    folder.mkdir(parents=True)
    runs = {
        kind: extract(some, loaded, out=folder / kind.replace(" ", "-"), plan=plan, truncate=True, progress=progress)
        for kind, (some, plan) in ways.items()
    }
    floor = make_floor(runs.pop("reference"), list(runs.items()))
    floor.save(folder)
    return floor
