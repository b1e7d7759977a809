"""Inspect: what a checkpoint, an engine or a run holds, as text or JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.engine.contract import CONTRACT_FILE
from workbench.engine.names import resolve_folder
from workbench.escaping import visible

if TYPE_CHECKING:
    from workbench.checkpoint import Checkpoint
    from workbench.engine.contract import Contract
    from workbench.store import Run

MANIFEST_FILE = "manifest.json"


def inspect(path: str, *, as_json: bool = False) -> str:
    """Describe whatever lies at a path.

    Parameters
    ----------
    path : str
        Run folder, engine folder or a name in its place, checkpoint, or package:NAME.
    as_json : bool
        Give everything that is recorded.

    Returns
    -------
    str
    """
    folder = Path(path)
    if (folder / MANIFEST_FILE).is_file():
        from workbench.store import open_run

        run = open_run(folder)
        return _json(run.manifest) if as_json else describe_run(run)
    folder = resolve_folder(folder)
    if (folder / CONTRACT_FILE).is_file():
        from workbench.engine.opening import read_contract

        contract = read_contract(folder)
        return _json(contract.to_json()) if as_json else describe_engine(folder, contract)
    from workbench.checkpoint import open_checkpoint

    checkpoint = open_checkpoint(path)
    return _json(_checkpoint_facts(checkpoint)) if as_json else describe_checkpoint(checkpoint)


def describe_engine(path: Path, contract: Contract) -> str:
    """Describe an engine in a few lines."""
    c = contract
    worst = max(c.verification.taps.items(), key=lambda item: item[1].worst_relative_error)
    return _lines(
        engine=f"{path}  (id {c.engine_id[:20]})",
        checkpoint=f"{c.checkpoint.name}, {c.checkpoint.family}",
        precision=f"{c.precision.name}: weights {c.precision.weights}, activations {c.precision.activations}",
        backend=f"{c.backend.name} {c.backend.version} on {c.backend.machine}",
        reads=f"up to {c.limits.max_tokens} tokens a prompt, padding on the {c.padding_side}",
        emits=f"{', '.join(c.taps)}; positions {c.positions}",
        error=f"worst row {worst[1].worst_relative_error:.2g}, mean {worst[1].mean_relative_error:.2g} at {worst[0]}",
        speed=f"{_speed(c.build.tokens_per_second)}, plan {c.build.plan_bytes / 1e6:,.0f} MB",
    )


def _speed(tokens_per_second: float | None) -> str:
    return "speed not measured" if tokens_per_second is None else f"{tokens_per_second:,.0f} tokens per second"


def describe_run(run: Run) -> str:
    """Describe a run in a few lines."""
    return _lines(
        run=f"{run.path}  ({run.status})",
        rows=f"{run.n_rows:,} a tap, of {run.n_prompts:,} prompts and {len(run.tokens):,} tokens",
        taps=", ".join(run.taps),
        positions=str(run.positions),
        engine=(run.engine_id or "unknown")[:20],
        columns=", ".join(run.prompts.columns) or "none",
        head="travels with the run" if "head.safetensors" in run.manifest.files else "none",
    )


def describe_checkpoint(checkpoint: Checkpoint) -> str:
    """Describe a checkpoint in a few lines."""
    facts = _checkpoint_facts(checkpoint)
    last = facts["n_layers"] - 1
    return _lines(
        checkpoint=f"{facts['name']} ({facts['format']}, {facts['source_quantization'] or 'not quantised'})",
        family=f"{facts['family']}, {facts['n_layers']} layers of {facts['d_model']}, vocabulary {facts['d_vocab']}",
        digest=facts["digest"],
        tokenizer="in the checkpoint"
        if facts["tokenizer"]
        else f"token ids only: {checkpoint.tokenizer_problem or 'none'}",
        taps=f"embed, blocks.0 to blocks.{last} with resid_pre, attn_out, mlp_out, resid_post, final_norm, logits",
    )


def _checkpoint_facts(checkpoint: Checkpoint) -> dict[str, Any]:
    config = checkpoint.config
    return {
        "name": checkpoint.name,
        "format": checkpoint.format,
        "source_quantization": checkpoint.source_quantization,
        "family": config.family,
        "n_layers": config.n_layers,
        "d_model": config.d_model,
        "d_vocab": config.d_vocab,
        "digest": checkpoint.digest,
        "tokenizer": checkpoint.tokenizer.digest if checkpoint.tokenizer else None,
    }


def _lines(**facts: str) -> str:
    return "\n".join(f"{name:<11} {visible(text)}" for name, text in facts.items())


def _json(value: object) -> str:
    return json.dumps(value, indent=2, sort_keys=True, ensure_ascii=True)
