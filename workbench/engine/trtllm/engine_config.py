"""The contract's part on an engine of TensorRT-LLM, made from the `config.json` that `trtllm-build` writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from workbench.engine.trtllm.build_command import Layout  # noqa: TC001 - read by pydantic
from workbench.engine.trtllm.releases import version_order
from workbench.errors import EngineRefused

MAX_CONFIG_BYTES = 4 << 20
NORM_POINT = "final_hidden_states is after the final norm and before the head, for every token"
UNCOVERED = ("mamba", "recurrentgemma", "medusa", "eagle", "redrafter", "drafter", "encoder", "decilm", "nemotronnas")
ROPE_TABLE_FLAG = "rope_table_in_checkpoint"
PLAIN_ROPE_BASE = 10000.0


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", populate_by_name=True)


class _Mapping(_Part):
    tp_size: int = 1
    pp_size: int = 1
    cp_size: int = 1


class _Quantization(_Part):
    quant_algo: str | None = None
    kv_cache_quant_algo: str | None = None


class _Pretrained(_Part):
    architecture: str
    dtype: Literal["float16", "bfloat16", "float32"]
    logits_dtype: Literal["float16", "bfloat16", "float32"] = "float32"
    vocab_size: int = Field(gt=0)
    hidden_size: int = Field(gt=0)
    num_hidden_layers: int = Field(gt=0)
    position_embedding_type: str = "learned_absolute"
    max_position_embeddings: int | None = None
    rotary_base: float = PLAIN_ROPE_BASE
    rotary_scaling: dict[str, Any] | None = None
    rope_table_in_checkpoint: bool = False
    expose_final_hidden: bool = True
    mapping: _Mapping = _Mapping()
    quantization: _Quantization = _Quantization()


class _Plugins(_Part):
    gpt_attention_plugin: str | None = None
    gemm_plugin: str | None = None
    lora_plugin: str | None = None
    manage_weights: bool = False
    remove_input_padding: bool = False
    context_fmha: bool | int = False
    paged_kv_cache: bool | None = None


class _Build(_Part):
    max_batch_size: int = Field(gt=0)
    max_input_len: int = Field(gt=0)
    max_seq_len: int = Field(gt=0)
    max_beam_width: int = 1
    max_num_tokens: int | None = None
    opt_num_tokens: int | None = None
    kv_cache_type: Literal["DISABLED", "PAGED", "CONTINUOUS"] | None = None
    gather_context_logits: bool | int = False
    gather_generation_logits: bool | int = False
    strongly_typed: bool = False
    max_draft_len: int = 0
    speculative_decoding_mode: int = 1
    max_prompt_embedding_table_size: int = 0
    weight_streaming: bool = False
    use_strip_plan: bool = False
    plugin_config: _Plugins


class _Config(_Part):
    version: str
    pretrained_config: _Pretrained
    build_config: _Build


class TensorRtLlmPart(_Part):
    """What an engine of TensorRT-LLM accepts and emits.

    Attributes are plain data. `layout` says how prompts lie in the inputs: `packed` (attention plugin, no padding),
    `padded` (attention plugin, padded on the right) or `plain` (no plugin, padded on the right). Lengths count tokens.
    """

    version: str
    architecture: str
    dtype: str
    logits_dtype: str
    n_layers: int
    d_model: int
    d_vocab: int
    layout: Layout
    kv_cache_type: Literal["DISABLED", "PAGED", "CONTINUOUS"]
    max_batch_size: int
    max_input_len: int
    max_seq_len: int
    max_num_tokens: int | None
    opt_num_tokens: int | None
    gpt_attention_plugin: str | None
    gemm_plugin: str | None
    context_fmha: bool
    quant_algo: str | None
    kv_cache_quant_algo: str | None
    tp_size: int
    strongly_typed: bool
    norm_point: str = NORM_POINT


def read_engine_config(folder: Path | str) -> TensorRtLlmPart:
    """Read and judge the `config.json` of a finished engine.

    Parameters
    ----------
    folder : path
        The folder that `trtllm-build --output_dir` wrote.

    Returns
    -------
    TensorRtLlmPart
        The contract's part.

    Raises
    ------
    EngineRefused
        If the file is no such config, or the engine cannot serve extraction; field, value and remedy are named.
    """
    file = Path(folder) / "config.json"
    do = "Build the engine again with the command that the workbench prints."
    try:
        if file.stat().st_size > MAX_CONFIG_BYTES:
            raise EngineRefused(f"{file.name} must be at most {MAX_CONFIG_BYTES} bytes", str(file.stat().st_size), do)
        config = _Config.model_validate(json.loads(file.read_text("utf-8")))
    except (OSError, ValueError) as error:  # ValidationError and JSONDecodeError are ValueErrors
        raise EngineRefused(f"{file} must be the config of an engine of TensorRT-LLM", _first(error), do) from error
    return contract_part(config)


def contract_part(config: _Config) -> TensorRtLlmPart:
    """Judge a parsed config and make the contract's part of it.

    Raises
    ------
    EngineRefused
        If a field has a value with which the hidden states would be missing, wrong or out of reach.
    """
    model, build, plugins = config.pretrained_config, config.build_config, config.build_config.plugin_config
    version_order(config.version)
    for holds, what, got, do in _rules(config):
        if not holds:
            raise EngineRefused(what, got, do)
    layout: Layout = "plain"
    if plugins.gpt_attention_plugin:
        layout = "packed" if plugins.remove_input_padding else "padded"
    return TensorRtLlmPart(
        version=config.version,
        architecture=model.architecture,
        dtype=model.dtype,
        logits_dtype=model.logits_dtype,
        n_layers=model.num_hidden_layers,
        d_model=model.hidden_size,
        d_vocab=model.vocab_size,
        layout=layout,
        kv_cache_type=build.kv_cache_type or ("PAGED" if plugins.paged_kv_cache else "CONTINUOUS"),
        max_batch_size=build.max_batch_size,
        max_input_len=build.max_input_len,
        max_seq_len=build.max_seq_len,
        max_num_tokens=build.max_num_tokens if layout == "packed" else None,
        opt_num_tokens=build.opt_num_tokens if layout == "packed" else None,
        gpt_attention_plugin=plugins.gpt_attention_plugin,
        gemm_plugin=plugins.gemm_plugin,
        context_fmha=bool(plugins.context_fmha),
        quant_algo=model.quantization.quant_algo,
        kv_cache_quant_algo=model.quantization.kv_cache_quant_algo,
        tp_size=model.mapping.tp_size,
        strongly_typed=build.strongly_typed,
    )


def _rules(config: _Config) -> list[tuple[bool, str, str, str]]:
    """List every rule: whether it holds, what must hold, what was got, what to do."""
    model, build, plugins = config.pretrained_config, config.build_config, config.build_config.plugin_config
    again = "Build the engine again with the command that the workbench prints."
    name = model.architecture.lower()
    turned = model.position_embedding_type.startswith("rope")
    base = turned and (model.rotary_base != PLAIN_ROPE_BASE or model.rotary_scaling is not None)
    gathered = bool(build.gather_context_logits or build.gather_generation_logits)
    return [
        (
            not any(word in name for word in UNCOVERED),
            "the architecture must be a dense decoder that shares DecoderModelForCausalLM.forward",
            model.architecture,
            "Use the tensorrt backend, which has its own decoder definition.",
        ),
        (
            model.expose_final_hidden,
            "pretrained_config.expose_final_hidden must not be false",
            "false",
            "Remove it from the checkpoint's config.json and build again.",
        ),
        (
            model.mapping.pp_size == model.mapping.cp_size == 1,
            "pp_size and cp_size must be 1",
            f"{model.mapping.pp_size} and {model.mapping.cp_size}",
            "Convert the checkpoint without pipeline and context parallelism.",
        ),
        (build.max_beam_width == 1, "max_beam_width must be 1", str(build.max_beam_width), again),
        (not gathered, "no logits may be gathered, since last_token_ids would be missing", "gathered logits", again),
        (not build.weight_streaming, "weight_streaming must be off: it makes every pass synchronous", "on", again),
        (not build.use_strip_plan, "the plan must hold its weights", "a stripped plan", again),
        (
            build.max_draft_len == 0 and build.speculative_decoding_mode == 1,
            "speculative decoding must be off",
            f"max_draft_len {build.max_draft_len}, mode {build.speculative_decoding_mode}",
            again,
        ),
        (build.max_prompt_embedding_table_size == 0, "prompt tuning must be off", "a prompt embedding table", again),
        (not plugins.manage_weights, "the plan must hold its weights", "manage_weights", again),
        (plugins.lora_plugin is None, "lora_plugin must be off", str(plugins.lora_plugin), again),
        (
            build.max_input_len <= build.max_seq_len,
            f"max_input_len must be at most max_seq_len, {build.max_seq_len}",
            str(build.max_input_len),
            again,
        ),
        (
            bool(plugins.gpt_attention_plugin) or not base or model.rope_table_in_checkpoint,
            f"without the attention plugin the rotary base is ignored and must be {PLAIN_ROPE_BASE:g}, unscaled",
            f"base {model.rotary_base:g}, scaling {model.rotary_scaling}",
            "Export the checkpoint with the workbench, which stores the table, or build with the attention plugin.",
        ),
    ]


def _first(error: Exception) -> str:
    if isinstance(error, ValidationError):
        problem = error.errors()[0]
        return f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}"
    return str(error)
