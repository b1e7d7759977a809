"""Inputs of an engine of TensorRT-LLM without a cache, prepared and checked tensor by tensor.

The attention plugin reads tensors named `host_*` on the CPU while it is enqueued: their pointers must be host memory,
and the buffers must live until enqueue returns. A captured graph freezes them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from workbench.engine.trtllm.input_table import input_table, place_of
from workbench.errors import ContractError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from workbench.engine.trtllm.engine_config import TensorRtLlmPart

Arrays = dict[str, NDArray[Any]]
N_PERF_KNOBS = 16
DO = "Take all inputs from prepare_inputs."


def prepare_inputs(ids: NDArray[np.int32], lengths: NDArray[Any], *, part: TensorRtLlmPart) -> Arrays:
    """Make every input tensor of one pass.

    Parameters
    ----------
    ids : int32 [token]
        Token ids of all prompts, one after another.
    lengths : int [prompt]
        Tokens of each prompt.
    part : TensorRtLlmPart
        The engine's part of the contract.

    Returns
    -------
    dict of str to array
        Every input by name, C-contiguous; `place_of` says where each must be copied to.

    Raises
    ------
    ContractError
        If ids or lengths are out of the engine's limits.
    """
    lengths = np.ascontiguousarray(lengths, np.int32)
    check_pass(ids, lengths, part=part)
    values = _packed(ids, lengths) if part.layout == "packed" else _padded(ids, lengths)
    values |= {
        "context_lengths": lengths,
        "host_context_lengths": lengths.copy(),
        "host_request_types": np.zeros_like(lengths),
        "host_max_attention_window_sizes": np.full(part.n_layers, part.max_seq_len, np.int32),
        "host_sink_token_length": np.zeros(1, np.int32),
        "host_runtime_perf_knobs": np.array([1, 1] + [-1] * (N_PERF_KNOBS - 2), np.int64),
        "host_context_progress": np.zeros(1, np.int64),
    }
    return {spec.name: values[spec.name] for spec in input_table(part)}


def _packed(ids: NDArray[np.int32], lengths: NDArray[np.int32]) -> Arrays:
    ends = np.cumsum(lengths, dtype=np.int32)
    starts = np.repeat(ends - lengths, lengths)
    positions = np.arange(len(ids), dtype=np.int32) - starts
    return {"input_ids": np.ascontiguousarray(ids, np.int32), "position_ids": positions, "last_token_ids": ends}


def _padded(ids: NDArray[np.int32], lengths: NDArray[np.int32]) -> Arrays:
    columns = np.arange(lengths.max(), dtype=np.int32)
    real = columns < lengths[:, None]
    table = np.zeros(real.shape, np.int32)
    table[real] = ids
    return {
        "input_ids": table,
        "position_ids": np.ascontiguousarray(np.broadcast_to(columns, real.shape)),
        "last_token_ids": lengths.copy(),
        "attention_mask": real.astype(np.int32),
    }


def check_pass(ids: NDArray[Any], lengths: NDArray[Any], *, part: TensorRtLlmPart) -> None:
    """Check one pass against the limits that the engine was built with.

    Raises
    ------
    ContractError
        If a limit is passed; the message names it.
    """
    n_tokens, n_prompts = int(lengths.sum()), len(lengths)
    limit = part.max_num_tokens
    rules = (
        (ids.ndim == 1 and ids.dtype == np.int32, "ids must be int32 [token]", f"{ids.dtype} {list(ids.shape)}"),
        (1 <= n_prompts <= part.max_batch_size, f"a pass must hold 1 to {part.max_batch_size} prompts", str(n_prompts)),
        (n_tokens == len(ids), "the lengths must sum to the number of ids", f"{n_tokens} and {len(ids)}"),
        (bool((lengths > 0).all()), "every prompt must have a token", "an empty prompt"),
        (
            bool((lengths <= part.max_input_len).all()),
            f"a prompt must have at most {part.max_input_len} tokens",
            str(int(lengths.max(initial=0))),
        ),
        (limit is None or n_tokens <= limit, f"a pass must hold at most {limit} tokens", str(n_tokens)),
        (
            bool(((ids >= 0) & (ids < part.d_vocab)).all()),
            f"token ids must lie between 0 and {part.d_vocab - 1}",
            f"{ids.min(initial=0)} to {ids.max(initial=0)}",
        ),
    )
    for holds, what, got in rules:
        if not holds:
            raise ContractError(what, got, "Cut the batch to the engine's limits, or build an engine for more.")


def check_inputs(
    arrays: Mapping[str, NDArray[Any]],
    ids: NDArray[np.int32],
    lengths: NDArray[Any],
    *,
    part: TensorRtLlmPart,
    places: Mapping[str, str] | None = None,
) -> None:
    """Check tensors that are about to be handed to the engine, value by value.

    Parameters
    ----------
    arrays : mapping of str to array
        What would be handed over.
    ids, lengths : int32 [token], int [prompt]
        The prompts that they must say.
    part : TensorRtLlmPart
        The engine's part of the contract.
    places : mapping of str to str, optional
        Where each pointer lives, `host` or `device`.

    Raises
    ------
    ContractError
        If a tensor is missing, too many, or has another dtype, shape, order, value or place.
    """
    want = prepare_inputs(ids, lengths, part=part)
    if set(arrays) != set(want):
        raise ContractError(f"the inputs must be {', '.join(want)}", ", ".join(arrays), DO)
    for name, expected in want.items():
        _check_array(name, arrays[name], expected)
        place = (places or {}).get(name, place_of(name))
        if place != place_of(name):
            raise ContractError(f"{name} must live on the {place_of(name)}", f"a pointer of the {place}", DO)


def _check_array(name: str, array: NDArray[Any], expected: NDArray[Any]) -> None:
    want, got = (f"{a.dtype} {list(a.shape)}" for a in (expected, array))
    if want != got:
        raise ContractError(f"{name} must be {want}", got, DO)
    if not array.flags.c_contiguous:
        raise ContractError(f"{name} must be C-contiguous", f"strides {array.strides}", DO)
    differing = np.flatnonzero(array.ravel() != expected.ravel())
    if len(differing):
        at = int(differing[0])
        raise ContractError(f"{name}[{at}] must be {expected.flat[at]}", str(array.flat[at]), DO)


def output_shapes(lengths: NDArray[Any], *, part: TensorRtLlmPart) -> dict[str, tuple[int, ...]]:
    """Give the shape of every output of one pass.

    Parameters
    ----------
    lengths : int [prompt]
        Tokens of each prompt.
    part : TensorRtLlmPart
        The engine's part of the contract.

    Returns
    -------
    dict of str to tuple of int
        `logits` [prompt, d_vocab] and `final_hidden_states` [token, d_model], or [prompt, column, d_model] if padded.
    """
    rows = (int(lengths.sum()),) if part.layout == "packed" else (len(lengths), int(lengths.max()))
    return {"logits": (len(lengths), part.d_vocab), "final_hidden_states": (*rows, part.d_model)}


def real_rows(states: NDArray[Any], lengths: NDArray[Any], *, part: TensorRtLlmPart) -> NDArray[Any]:
    """Take the rows of real tokens, in prompt order.

    Parameters
    ----------
    states : [token, d_model] or [prompt, column, d_model]
        `final_hidden_states` as the engine gave it.
    lengths : int [prompt]
        Tokens of each prompt.
    part : TensorRtLlmPart
        The engine's part of the contract.

    Returns
    -------
    array [token, d_model]
        One row a real token.
    """
    if part.layout == "packed":
        return states
    rows: NDArray[Any] = states[np.arange(states.shape[1]) < np.asarray(lengths)[:, None]]
    return rows
