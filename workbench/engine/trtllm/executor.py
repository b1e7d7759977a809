"""Reading the tap through TensorRT-LLM's own executor, where that runs the engine.

The executor reads its requests on the CPU, so the doorbell stays off. A reused cache block or a chunk of a prompt would
leave rows out, so both are switched off: every prompt passes whole.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.engine.trtllm.finder import TAP_OUTPUT
from workbench.engine.trtllm.releases import EXECUTOR_OUTPUTS_SINCE, has
from workbench.errors import ContractError, EngineError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from workbench.engine.trtllm.engine_config import TensorRtLlmPart

CONTEXT_PREFIX = "context_"  # the executor names the prompt's rows so, and those of generated tokens otherwise


def executor_settings(part: TensorRtLlmPart) -> dict[str, Any]:
    """Give the settings of `tensorrt_llm.bindings.executor` with which the tap comes back, as plain data.

    Parameters
    ----------
    part : TensorRtLlmPart
        The engine's part of the contract.

    Returns
    -------
    dict
        `executor_config`, `kv_cache_config`, `output_config` and `request`: keyword arguments of the classes of these
        names. `outputs`: those of each `AdditionalModelOutput`, which `OutputConfig` and `ExecutorConfig` must both be
        given. `doorbell`: False. `executor_configs` makes the objects.

    Raises
    ------
    ContractError
        If this version's executor gives no outputs but its own, or the engine packs no prompts.
    """
    if not has(part.version, EXECUTOR_OUTPUTS_SINCE):
        raise ContractError(
            f"the executor must be of TensorRT-LLM {EXECUTOR_OUTPUTS_SINCE} or newer to read other outputs",
            part.version,
            "Run an engine without a cache through the raw runtime.",
        )
    if part.layout != "packed":
        raise ContractError(
            "the executor must be given an engine with the attention plugin and without padding",
            f"layout {part.layout}",
            "Build with --gpt_attention_plugin auto --remove_input_padding enable.",
        )
    return {
        "executor_config": {"max_beam_width": 1, "enable_chunked_context": False},
        "kv_cache_config": {"enable_block_reuse": False},
        "output_config": {"exclude_input_from_output": True},
        "outputs": [{"name": TAP_OUTPUT, "gather_context": True}],
        "request": {"max_tokens": 1, "streaming": False},
        "doorbell": False,
    }


def executor_configs(settings: Mapping[str, Any], executor: Any) -> tuple[Any, Any]:
    """Make the objects that TensorRT-LLM's executor and each of its requests are given.

    Parameters
    ----------
    settings : mapping
        From `executor_settings`, or `executor` of a contract.
    executor : module
        `tensorrt_llm.bindings.executor`.

    Returns
    -------
    ExecutorConfig, OutputConfig
        With the tap among the outputs. The first versions of `ExecutorConfig` are given its name alone.

    Raises
    ------
    ContractError
        If this executor knows no additional outputs.

    Examples
    --------
    >>> import tensorrt_llm.bindings.executor as trtllm  # doctest: +SKIP
    >>> config, output = executor_configs(read_contract("engine").executor, trtllm)  # doctest: +SKIP
    >>> runner = trtllm.Executor("engine", trtllm.ModelType.DECODER_ONLY, config)  # doctest: +SKIP
    """
    kind = executor.ExecutorConfig
    accepted = [name for name in ("additional_model_outputs", "additional_output_names") if hasattr(kind, name)]
    if not accepted:
        raise ContractError(
            "ExecutorConfig must take additional_model_outputs or additional_output_names",
            "neither",
            f"Use TensorRT-LLM {EXECUTOR_OUTPUTS_SINCE} or newer.",
        )
    outputs = [executor.AdditionalModelOutput(**row) for row in settings["outputs"]]
    names = [row["name"] for row in settings["outputs"]]
    config = kind(
        **settings["executor_config"],
        kv_cache_config=executor.KvCacheConfig(**settings["kv_cache_config"]),
        **{accepted[0]: names if accepted[0] == "additional_output_names" else outputs},
    )
    return config, executor.OutputConfig(**settings["output_config"], additional_model_outputs=outputs)


def prompt_rows(outputs: Mapping[str, NDArray[Any]], *, length: int, part: TensorRtLlmPart) -> NDArray[Any]:
    """Take the rows of one prompt from the additional outputs of its response.

    Parameters
    ----------
    outputs : mapping of str to array
        Additional outputs of one result by name.
    length : int
        Tokens of the prompt.
    part : TensorRtLlmPart
        The engine's part of the contract.

    Returns
    -------
    array [token, d_model]
        The tap's rows.

    Raises
    ------
    EngineError
        If the rows are missing, of another shape, or all zero, as versions with a broken copy give them.
    """
    name = CONTEXT_PREFIX + TAP_OUTPUT
    do = "Run an engine without a cache through the raw runtime, or use another version of TensorRT-LLM."
    rows = outputs.get(name)
    if rows is None:
        raise EngineError(f"the response must hold {name}", ", ".join(outputs) or "no additional output", do)
    if rows.shape != (length, part.d_model):
        raise EngineError(f"{name} must be [token={length}, d_model={part.d_model}]", str(list(rows.shape)), do)
    if not np.any(rows):
        raise EngineError(f"{name} must hold states", "zeros only", do)
    return rows
