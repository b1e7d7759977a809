"""Contract: what an engine accepts and emits, and what it was proven to do.

Every field that can be measured is measured at build. `digest` is the sha256 of the contract's own canonical JSON
without that field, so that an edited contract does not pass.
"""

from __future__ import annotations

import json
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from workbench.canonical import canonical_json, digest_of
from workbench.errors import EngineRefused

CONTRACT_SCHEMA = "1.1"
CONTRACT_FILE = "contract.json"
MAX_CONTRACT_BYTES = 16 << 20


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="allow")  # unknown fields of a newer minor version are kept


class TensorRow(_Part):
    """One input or output of the engine."""

    name: str
    dtype: str
    axes: tuple[str, ...]
    place: Literal["host", "device"] = "host"


class CheckpointPart(_Part):
    """Which weights the engine was made of."""

    digest: str
    name: str
    format: str
    family: str
    n_layers: int
    d_model: int
    d_vocab: int
    source_quantization: str | None = None


class BackendPart(_Part):
    """What runs the engine, and on what it was built."""

    name: str
    version: str
    target: str
    machine: str
    options: dict[str, Any] = {}
    runs: str | None = None
    card: dict[str, Any] | None = None


class PrecisionPart(_Part):
    """Numbers of the engine."""

    name: str
    weights: str
    activations: str
    accumulators: str
    kept_layers: tuple[str, ...] = ()
    scales_digest: str | None = None


class LimitsPart(_Part):
    """What one pass may hold."""

    max_tokens: int
    tokens_per_pass: int
    prompts_per_pass: int | None = None


class TapVerdict(_Part):
    """Distance of one tap from the float32 reference, over every row of the reference prompts."""

    mean_relative_error: float
    worst_relative_error: float
    worst_prompt: int
    worst_token: int
    max_abs: float
    non_finite: int


class SplitVerdict(_Part):
    """Where the error of one tap comes from: from the numbers, or from the engine that computes with them.

    `numbers` is the float32 reference against the same low precision on the reference backend; `engine` is that
    against this engine. Mean and worst relative error a row.
    """

    numbers_mean: float
    numbers_worst: float
    engine_mean: float
    engine_worst: float


class Repeat(_Part):
    """How far a repetition lies from the first time; 0 with `bit_equal` means the same bits."""

    bit_equal: bool
    max_relative_error: float


class Rebuild(_Part):
    """The same recipe built a second time: whether the plan has the same bytes, and how far its numbers lie apart."""

    plan_bytes_equal: bool
    differing_files: tuple[str, ...] = ()
    numbers: Repeat | None = None


class VerificationPart(_Part):
    """What was measured at build against the reference."""

    reference: str
    reference_rows: int
    tolerance_mean: float
    tolerance_worst: float
    taps: dict[str, TapVerdict]
    same_engine_twice: Repeat
    batch_of_one: Repeat
    twin: str | None = None
    split: dict[str, SplitVerdict] | None = None
    rebuild: Rebuild | None = None
    engine_ran: bool = True
    note: str | None = None


class SelfTestPart(_Part):
    """Rows that the engine must give again at load."""

    file: str
    prompts: int
    rtol: float


class TrialPart(_Part):
    """What a fresh process measured that loaded the engine and ran one pass of full-length prompts."""

    load_seconds: float
    loaded_bytes: int
    peak_bytes: int
    pass_tokens: int
    output_bytes: dict[str, int]


class CachePart(_Part):
    """The key-value cache that an engine writes as outputs: measured on the arrays of one pass."""

    bytes_per_token: float
    pass_bytes: int
    pass_tokens: int
    outputs: tuple[str, ...]
    next_token: str


class BuildPart(_Part):
    """How the build went."""

    seconds: float
    plan_bytes: int
    peak_memory_bytes: int
    tokens_per_second: float | None
    emulated: bool = False
    trial: TrialPart | None = None
    tools: dict[str, str]
    created: str


class Contract(_Part):
    """What an engine accepts and emits, and what it was proven to do."""

    schema_version: str = CONTRACT_SCHEMA
    engine_id: str
    recipe_digest: str
    parent: str | None = None
    checkpoint: CheckpointPart
    backend: BackendPart
    precision: PrecisionPart
    inputs: tuple[TensorRow, ...]
    outputs: tuple[TensorRow, ...]
    taps: tuple[str, ...]
    positions: str | tuple[int, ...]
    padding_side: Literal["right"] = "right"
    norm_point: str = "final_norm is after the final norm and before the head"
    limits: LimitsPart
    tokenizer_digest: str | None
    files: dict[str, str]
    verification: VerificationPart
    self_test: SelfTestPart
    build: BuildPart
    cache: CachePart | None = None
    name: str | None = None
    digest: str = ""

    def to_json(self) -> dict[str, Any]:
        """Give the contract as plain data: the fields that it was made or read with, unknown ones included."""
        return dict(json.loads(self.model_dump_json(exclude_unset=True)))

    def sealed(self) -> Contract:
        """Return this contract with every field written out and its own digest filled in."""
        plain = json.loads(self.model_dump_json())
        return Contract.model_validate(plain | {"digest": _digest_without(plain)})

    def own_digest(self) -> str:
        """Compute the sha256 over every field but `digest`."""
        return _digest_without(self.to_json())

    def to_bytes(self) -> bytes:
        """Write the contract as it stands in its file."""
        return canonical_json(self.to_json())


def engine_id_of(recipe_digest: str, plan_files: dict[str, str]) -> str:
    """Name an engine by recipe and plan, so that measurements are no part of its identity.

    Parameters
    ----------
    recipe_digest : str
        From `Recipe.digest`.
    plan_files : dict of str to str
        The sha256 of each file that the backend runs.
    """
    return digest_of({"recipe": recipe_digest, "plan": plan_files})


def parse_contract(data: bytes, *, where: str) -> Contract:
    """Read a contract that may come from anywhere.

    Parameters
    ----------
    data : bytes
        Content of `contract.json`.
    where : str
        Name for messages.

    Raises
    ------
    EngineRefused
        If it is no contract, of a newer major version, or was edited after it was sealed.
    """
    rebuild = "Build the engine again with `workbench build`."
    try:
        plain = json.loads(data, object_pairs_hook=_no_twins)
        major = str(plain["schema_version"]).split(".", maxsplit=1)[0]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise EngineRefused(f"{where} must be a contract in JSON", f"{type(error).__name__}", rebuild) from error
    if data != _canonical(plain):
        raise EngineRefused(f"{where} must be in canonical JSON", "the same content in another form", rebuild)
    if major != CONTRACT_SCHEMA.split(".", maxsplit=1)[0]:
        raise EngineRefused(
            f"{where} must be of schema {CONTRACT_SCHEMA}", repr(plain["schema_version"])[:40], "Update the workbench."
        )
    try:
        contract = Contract.model_validate(plain)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"]))
        raise EngineRefused(f"field {field!r} of {where} must be valid", first["msg"], rebuild) from error
    if contract.digest != _digest_without(plain):  # over what was read, so that fields of another version count
        raise EngineRefused(f"the digest of {where} must match its content", contract.digest[:80] or "none", rebuild)
    return contract


def contract_schema() -> dict[str, Any]:
    """Give the JSON Schema of the contract, as it is published in `contract.schema.json` of this package."""
    return Contract.model_json_schema()


def _canonical(plain: object) -> bytes:
    try:
        return canonical_json(plain)
    except ValueError:  # not a finite number
        return b""


def _digest_without(plain: dict[str, Any]) -> str:
    return digest_of({key: value for key, value in plain.items() if key != "digest"})


def _no_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    keys = [key for key, _ in pairs]
    if len(set(keys)) != len(keys):
        raise ValueError("duplicate keys")
    return dict(pairs)
