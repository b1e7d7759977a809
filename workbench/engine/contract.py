"""Contract: what an engine accepts and emits, and what it was proven to do.

Every field that can be measured is measured at build. `digest` is the sha256 of the contract's own canonical JSON
without that field, so that an edited contract does not pass.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from workbench.canonical import canonical_json, digest_of
from workbench.engine.names import check_name
from workbench.errors import EngineRefused, EngineUnknown, WorkbenchError, shown

if TYPE_CHECKING:
    from collections.abc import Callable

CONTRACT_SCHEMA = "1.2"
CONTRACT_FILE = "contract.json"
MAX_CONTRACT_BYTES = 16 << 20
_ID_DTYPES = ("int32", "int64")

Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
Count = Annotated[int, Field(ge=0, lt=1 << 63)]
Size = Annotated[int, Field(ge=1, lt=1 << 63)]
Measure = Annotated[float, Field(ge=0, allow_inf_nan=False)]


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

    digest: Sha256
    name: str
    format: str
    family: str
    n_layers: Size
    d_model: Size
    d_vocab: Size
    source_quantization: str | None = None


class BackendPart(_Part):
    """What runs the engine, and on what it was built and its speed measured."""

    name: str
    version: str
    target: str
    machine: str
    processor: str | None = None
    options: dict[str, Any] = {}
    runs: str | None = None
    card: dict[str, Any] | None = None


class PrecisionPart(_Part):
    """Numbers of the engine; `method` is the version of how they were made, where the recipe states one."""

    name: str
    weights: str
    activations: str
    accumulators: str
    kept_layers: tuple[str, ...] = ()
    method: Size | None = None
    scales_digest: Sha256 | None = None


class LimitsPart(_Part):
    """What one pass may hold."""

    max_tokens: Size
    tokens_per_pass: Size
    prompts_per_pass: Size | None = None


class TapVerdict(_Part):
    """Distance of one tap from the float32 reference, over every row of the reference prompts."""

    mean_relative_error: Measure
    worst_relative_error: Measure
    worst_prompt: Count
    worst_token: Count
    max_abs: Measure
    non_finite: Count


class SplitVerdict(_Part):
    """Where the error of one tap comes from: from the numbers, or from the engine that computes with them.

    `numbers` is the float32 reference against the same low precision on the reference backend; `engine` is that
    against this engine. Mean and worst relative error a row.
    """

    numbers_mean: Measure
    numbers_worst: Measure
    engine_mean: Measure
    engine_worst: Measure


class Repeat(_Part):
    """How far a repetition lies from the first time; 0 with `bit_equal` means the same bits."""

    bit_equal: bool
    max_relative_error: Measure


class Rebuild(_Part):
    """The same recipe built a second time: whether the plan has the same bytes, and how far its numbers lie apart."""

    plan_bytes_equal: bool
    differing_files: tuple[str, ...] = ()
    numbers: Repeat | None = None


class VerificationPart(_Part):
    """What was measured at build against the reference."""

    reference: str
    reference_rows: Count
    tolerance_mean: Measure
    tolerance_worst: Measure
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
    prompts: Size
    rtol: Measure


class TrialPart(_Part):
    """What a fresh process measured that loaded the engine and ran one pass of full-length prompts."""

    load_seconds: Measure
    loaded_bytes: int
    peak_bytes: int
    pass_tokens: Count
    output_bytes: dict[str, Count]


class CachePart(_Part):
    """The key-value cache that an engine writes as outputs: the size of its tensors in one pass."""

    bytes_per_token: Measure
    pass_bytes: Count
    pass_tokens: Count
    outputs: tuple[str, ...]
    next_token: str


class BuildPart(_Part):
    """How the build went."""

    seconds: Measure
    plan_bytes: Count
    peak_memory_bytes: Count
    tokens_per_second: Measure | None
    emulated: bool = False
    trial: TrialPart | None = None
    tools: dict[str, str]
    created: str


class Contract(_Part):
    """What an engine accepts and emits, and what it was proven to do."""

    schema_version: str = CONTRACT_SCHEMA
    engine_id: Sha256
    recipe_digest: Sha256
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
    tokenizer_digest: Sha256 | None
    files: dict[str, Sha256]
    verification: VerificationPart
    self_test: SelfTestPart
    build: BuildPart
    cache: CachePart | None = None
    name: str | None = None
    digest: str = ""

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> Contract:
        """Refuse parts that speak of different things, so that no reader of a contract need expect it."""
        names = [row.name for row in self.outputs]
        _must(len(set(names)) == len(names), "outputs must have different names")
        _must(bool(self.taps) and len(set(self.taps)) == len(self.taps), "taps must be one or more different names")
        _must(set(self.taps) <= set(names), "every tap must be an output")
        _must(set(self.verification.taps) == set(self.taps), "verification must speak of every tap and no other")
        _must(set(self.verification.split or ()) <= set(self.taps), "the split must be one of taps")
        _must(all(row.dtype in _ID_DTYPES for row in self.inputs), "inputs must be int32 or int64")
        _must(len(self.inputs) > 0, "there must be inputs")
        _must(self.self_test.file in self.files, "the file of the self-test must be listed")
        _must(not (self.build.emulated and self.build.tokens_per_second), "an emulated build must state no speed")
        for name in self.files:
            _accept(check_name, name)
        _accept(_check_positions, self.positions)
        return self

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


def _must(holds: bool, what: str) -> None:
    if not holds:
        raise ValueError(what)


def _accept(check: Callable[[Any], object], value: object) -> None:
    try:
        check(value)
    except WorkbenchError as error:
        raise ValueError(f"{error.what}; got {error.got}") from None


def _check_positions(positions: object) -> object:
    from workbench.engine.recipe import check_positions

    return check_positions(positions)


def engine_id_of(recipe_digest: Sha256, plan_files: dict[str, Sha256]) -> str:
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
        raise EngineUnknown(
            f"{where} must be of schema {CONTRACT_SCHEMA}", repr(plain["schema_version"])[:40], "Update the workbench."
        )
    try:
        contract = Contract.model_validate_json(data, strict=True)  # strict: a number is no text, and true is no number
    except ValidationError as error:
        first = error.errors(include_context=False)[0]
        field = shown(".".join(map(str, first["loc"]))) + " of " if first["loc"] else ""
        raise EngineRefused(f"{field}{where} must be valid", shown(first["msg"], 300), rebuild) from error
    if contract.digest != _digest_without(plain):  # over what was read, so that fields of another version count
        raise EngineRefused(f"the digest of {where} must match its content", contract.digest[:80] or "none", rebuild)
    return contract


def contract_schema() -> dict[str, Any]:
    """Give the JSON Schema of the contract, as it is published in `contract.schema.json` of this package."""
    schema = Contract.model_json_schema()
    schema["properties"]["schema_version"] = {
        "pattern": rf"^{CONTRACT_SCHEMA.split('.', maxsplit=1)[0]}\.",
        "type": "string",
    }
    schema["properties"]["digest"] = schema["properties"]["engine_id"] | {"title": "Digest"}
    schema["required"] = ["schema_version", *schema["required"], "digest"]  # filled in where a contract is sealed
    return schema | {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:contract:{CONTRACT_SCHEMA}",
    }


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
