"""Table of the inputs of an engine of TensorRT-LLM without a cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from workbench.engine.trtllm.releases import CONTEXT_PROGRESS_SINCE, PERF_KNOBS_SINCE, has
from workbench.errors import ContractError

if TYPE_CHECKING:
    from workbench.engine.trtllm.engine_config import TensorRtLlmPart

Place = Literal["host", "device"]
HOST_PREFIX = "host_"


@dataclass(frozen=True, kw_only=True, slots=True)
class InputSpec:
    """One input tensor.

    Parameters
    ----------
    name : str
        As the engine names it.
    dtype : str
        Of NumPy.
    axes : tuple of str
        Names of the axes: `prompt`, `token` (real tokens of all prompts), `column` (tokens of the longest prompt), and
        fixed ones.
    meaning : str
        What the values say.
    layouts : tuple of str
        Layouts that have it: `packed`, `padded`, `plain`.
    since : str
        First version of TensorRT-LLM that wants it; empty for all.
    """

    name: str
    dtype: str
    axes: tuple[str, ...]
    meaning: str
    layouts: tuple[str, ...]
    since: str = ""

    @property
    def place(self) -> Place:
        """Where the pointer must live."""
        return place_of(self.name)


PLUGIN, PADDED, ALL = ("packed", "padded"), ("padded", "plain"), ("packed", "padded", "plain")
INPUTS = (
    InputSpec(
        name="input_ids",
        dtype="int32",
        axes=("token",),
        meaning="token ids of all prompts, one after another",
        layouts=("packed",),
    ),
    InputSpec(
        name="input_ids",
        dtype="int32",
        axes=("prompt", "column"),
        meaning="token ids, 0 on the right",
        layouts=PADDED,
    ),
    InputSpec(
        name="position_ids",
        dtype="int32",
        axes=("token",),
        meaning="place of each token in its prompt, from 0",
        layouts=("packed",),
    ),
    InputSpec(
        name="position_ids",
        dtype="int32",
        axes=("prompt", "column"),
        meaning="0, 1, 2 and so on in every row",
        layouts=PADDED,
    ),
    InputSpec(
        name="last_token_ids",
        dtype="int32",
        axes=("prompt",),
        meaning="packed: inclusive prefix sums of the lengths; padded: the lengths, no indices",
        layouts=ALL,
    ),
    InputSpec(
        name="attention_mask",
        dtype="int32",
        axes=("prompt", "column"),
        meaning="1 on real tokens",
        layouts=("plain",),
    ),
    InputSpec(name="context_lengths", dtype="int32", axes=("prompt",), meaning="the lengths", layouts=PLUGIN),
    InputSpec(
        name="host_context_lengths",
        dtype="int32",
        axes=("prompt",),
        meaning="the lengths, on the host",
        layouts=("packed",),
    ),
    InputSpec(
        name="host_request_types",
        dtype="int32",
        axes=("prompt",),
        meaning="0: every prompt is in its context phase",
        layouts=PLUGIN,
    ),
    InputSpec(
        name="host_max_attention_window_sizes",
        dtype="int32",
        axes=("layer",),
        meaning="max_seq_len; less than a prompt's length would cut its attention silently",
        layouts=PLUGIN,
    ),
    InputSpec(name="host_sink_token_length", dtype="int32", axes=("one",), meaning="0", layouts=PLUGIN),
    InputSpec(
        name="host_runtime_perf_knobs",
        dtype="int64",
        axes=("knob",),
        meaning="1 (several blocks a head), 1 (float32 sums of attention), then -1",
        layouts=PLUGIN,
        since=PERF_KNOBS_SINCE,
    ),
    InputSpec(
        name="host_context_progress",
        dtype="int64",
        axes=("one",),
        meaning="0: no one is told of progress",
        layouts=PLUGIN,
        since=CONTEXT_PROGRESS_SINCE,
    ),
)


def place_of(name: str) -> Place:
    """Where the pointer of a tensor must live, by its name's prefix."""
    return "host" if name.startswith(HOST_PREFIX) else "device"


def input_table(part: TensorRtLlmPart) -> tuple[InputSpec, ...]:
    """List the inputs of an engine.

    Parameters
    ----------
    part : TensorRtLlmPart
        The engine's part of the contract.

    Returns
    -------
    tuple of InputSpec
        The inputs that the engine's layout and version have.

    Raises
    ------
    ContractError
        If the engine has a cache, whose inputs only a generator can fill.
    """
    if part.kv_cache_type != "DISABLED":
        raise ContractError(
            "the raw runtime must be given an engine without a cache",
            f"kv_cache_type {part.kv_cache_type}",
            "Build with --kv_cache_type disabled, or run this engine through the executor of TensorRT-LLM.",
        )
    return inputs_for(part.layout, part.version)


def inputs_for(layout: str, version: str) -> tuple[InputSpec, ...]:
    """List the inputs of a layout in a version of TensorRT-LLM, without a cache."""
    specs = (spec for spec in INPUTS if layout in spec.layouts)
    return tuple(spec for spec in specs if not spec.since or has(version, spec.since))
