"""The contract of an engine that `trtllm-build` made, held against the recipe that it was built from.

The workbench does not run it here, so nothing of its numbers is proven: the contract says what the engine is, what it
reads and emits, and how it must be run. `digest` is the sha256 of its own canonical JSON without that field.
"""

from __future__ import annotations

import json
import mmap
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from workbench.canonical import canonical_json, digest_of
from workbench.engine.contract import TensorRow
from workbench.engine.hashing import sha256_of
from workbench.engine.trtllm.build_command import DTYPES
from workbench.engine.trtllm.engine_config import TensorRtLlmPart, read_engine_config
from workbench.engine.trtllm.executor import executor_settings
from workbench.engine.trtllm.finder import TAP_OUTPUT
from workbench.engine.trtllm.input_table import input_table
from workbench.engine.trtllm.recipes import settings_of
from workbench.errors import EngineRefused
from workbench.writing import write_whole

if TYPE_CHECKING:
    from workbench.engine.recipe import Recipe

CONTRACT_FILE = "contract.tensorrt_llm.json"
MAX_BYTES = 1 << 20
_AGAIN = "Build the engine again with `workbench trtllm command`."


class TrtLlmContract(BaseModel):
    """What an engine of TensorRT-LLM is.

    Attributes are plain data. `recipe` is the recipe's own JSON; `engine` what `config.json` says; `runner` is `raw` or
    `executor`, and only a raw runtime may wait for a doorbell; `executor` holds the settings for the latter;
    `tap_named` whether every plan holds the output's name in plain letters; `files` are the sha256 of what lies in the
    engine's folder.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: Literal["1.0"] = "1.0"
    recipe: dict[str, Any]
    recipe_digest: str
    engine: TensorRtLlmPart
    runner: Literal["raw", "executor"]
    doorbell: bool
    executor: dict[str, Any] | None
    inputs: tuple[TensorRow, ...]
    outputs: tuple[TensorRow, ...]
    tap_named: bool
    files: dict[str, str]
    proven: Literal["nothing: the engine was not run"] = "nothing: the engine was not run"
    digest: str = ""

    def sealed(self) -> TrtLlmContract:
        """Return this contract with its digest."""
        return self.model_copy(update={"digest": self.own_digest()})

    def own_digest(self) -> str:
        """Compute the sha256 over every field but `digest`."""
        return digest_of(self.model_dump(mode="json", exclude={"digest"}))

    def to_bytes(self) -> bytes:
        """Write the contract as it stands in its file."""
        return canonical_json(self.model_dump(mode="json"))


def make_contract(recipe: Recipe, folder: Path | str) -> TrtLlmContract:
    """Hold a finished engine against its recipe, and say what it is.

    Parameters
    ----------
    recipe : Recipe
        With backend `tensorrt_llm`.
    folder : path
        The folder that `trtllm-build --output_dir` wrote.

    Returns
    -------
    TrtLlmContract
        Sealed.

    Raises
    ------
    EngineRefused
        If the engine cannot serve extraction, is not what the recipe says, or has no engine file.
    ContractError
        If the recipe is not one of this backend.
    """
    folder, settings = Path(folder), settings_of(recipe)
    part = read_engine_config(folder)
    _check_agreement(recipe, settings, part)
    plans = sorted(path.name for path in folder.glob("rank*.engine"))
    if plans != [f"rank{rank}.engine" for rank in range(part.tp_size)]:
        found = ", ".join(plans) or "none"
        raise EngineRefused(f"the folder must hold an engine file for each of {part.tp_size} ranks", found, _AGAIN)
    raw = settings["runner"] == "raw"
    named = [_names_tap(folder / plan) for plan in plans]
    return TrtLlmContract(
        recipe=recipe.to_json(),
        recipe_digest=recipe.digest,
        engine=part,
        runner=settings["runner"],
        doorbell=raw,
        executor=None if raw else executor_settings(part),
        inputs=_inputs(part) if raw else (),
        outputs=_outputs(part),
        tap_named=all(named),
        files={name: sha256_of(folder / name) for name in ("config.json", *plans)},
    ).sealed()


def _names_tap(plan: Path) -> bool:
    """Look for the output's name in a plan; one that names the logits alone was built from an unpatched tree."""
    if not plan.stat().st_size:
        raise EngineRefused("an engine file must hold a plan", f"{plan.name} of 0 bytes", _AGAIN)
    with plan.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        there = data.find(TAP_OUTPUT.encode()) >= 0
        if not there and data.find(b"logits") >= 0:
            raise EngineRefused(
                f"the plan must name the output {TAP_OUTPUT}",
                f"none in {plan.name}, which names its logits",
                "Patch the tree with `workbench patch SOURCE_TREE`, and build again.",
            )
    return there


def _inputs(part: TensorRtLlmPart) -> tuple[TensorRow, ...]:
    rows = input_table(part)
    return tuple(TensorRow(name=row.name, dtype=row.dtype, axes=row.axes, place=row.place) for row in rows)


def _outputs(part: TensorRtLlmPart) -> tuple[TensorRow, ...]:
    axes = ("token",) if part.layout == "packed" else ("prompt", "column")
    return (
        TensorRow(name="logits", dtype=part.logits_dtype, axes=("prompt", "vocab"), place="device"),
        TensorRow(name=TAP_OUTPUT, dtype=part.dtype, axes=(*axes, "d_model"), place="device"),
    )


def _check_agreement(recipe: Recipe, settings: dict[str, Any], part: TensorRtLlmPart) -> None:
    config = recipe.checkpoint.config
    quantised = "FP8" if recipe.precision == "fp8" else None
    checks = (
        ("version", settings["version"], part.version),
        ("number of layers", config.n_layers, part.n_layers),
        ("d_model", config.d_model, part.d_model),
        ("dtype", DTYPES[recipe.precision], part.dtype),
        ("quantisation", quantised, part.quant_algo),
        ("layout", settings["layout"], part.layout),
        ("kv_cache_type", settings["cache"].upper(), part.kv_cache_type),
        ("max_input_len", recipe.max_tokens, part.max_input_len),
        ("max_batch_size", settings["prompts_per_pass"], part.max_batch_size),
        ("gemm_plugin", bool(settings["gemm_plugin"]), part.gemm_plugin is not None),
    )
    for field, wanted, found in checks:
        if wanted != found:
            raise EngineRefused(f"{field} of the engine must be {wanted}, as the recipe says", str(found), _AGAIN)
    if part.d_vocab < config.d_vocab:  # it may be padded
        raise EngineRefused(f"the engine must know {config.d_vocab} tokens or more", str(part.d_vocab), _AGAIN)


def write_contract(contract: TrtLlmContract, folder: Path | str) -> Path:
    """Write a contract beside the engine; an older one is replaced."""
    path = Path(folder) / CONTRACT_FILE
    write_whole(path, contract.to_bytes())
    return path


def read_contract(folder: Path | str) -> TrtLlmContract:
    """Read the contract of an engine folder, and hold the folder against it.

    Raises
    ------
    EngineRefused
        If it is no contract, was edited, or the engine's files are others.
    """
    folder = Path(folder)
    path = folder / CONTRACT_FILE
    try:
        if path.stat().st_size > MAX_BYTES:
            raise EngineRefused(f"{path.name} must be at most {MAX_BYTES} bytes", str(path.stat().st_size), _AGAIN)
        contract = TrtLlmContract.model_validate(json.loads(path.read_bytes()))
    except (OSError, ValueError) as error:  # ValidationError and JSONDecodeError are ValueErrors
        got = error.errors()[0]["msg"] if isinstance(error, ValidationError) else type(error).__name__
        raise EngineRefused(f"{path} must be a contract", got, "Write it with `workbench trtllm contract`.") from error
    if contract.digest != contract.own_digest():
        raise EngineRefused(f"the digest of {path.name} must match its content", contract.digest[:80], _AGAIN)
    for name, expected in contract.files.items():
        plain = Path(name).name == name and (folder / name).is_file()
        found = sha256_of(folder / name) if plain else "no such file"
        if found != expected:
            raise EngineRefused(f"{name} must have the sha256 {expected}", found, _AGAIN)
    return contract
