"""The decoder definition: a config and its weights become an ONNX graph that ends at the deepest tap."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workbench.errors import ContractError, UnsupportedError
from workbench.graph.artefact import Graph
from workbench.graph.contrib import OnnxRuntime
from workbench.graph.emitter import Emitter
from workbench.graph.fused import Fused, FusedGate, FusedNorm, Packed
from workbench.graph.linear import Linear, check_precision
from workbench.graph.lowering import Opset23
from workbench.graph.primitive import Primitive
from workbench.graph.rows import Rows, check_positions
from workbench.graph.taps import check_taps
from workbench.graph.writing import Writer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from workbench.checkpoint.config import DecoderConfig
    from workbench.checkpoint.weights import Weights

KINDS: tuple[type[Opset23], ...] = (Opset23, Primitive, OnnxRuntime, Packed, Fused, FusedGate, FusedNorm)
LOWERINGS: dict[str, type[Opset23]] = {kind.name: kind for kind in KINDS}


def build_graph(
    config: DecoderConfig,
    weights: Weights,
    *,
    taps: Sequence[str],
    positions: str | tuple[int, ...],
    precision: str = "fp32",
    lowering: str = "opset23",
    max_tokens: int = 128,
    keep: Sequence[str] = (),
) -> Graph:
    """Write a decoder as an ONNX graph that ends at the deepest tap.

    Inputs are `input_ids` int32 [prompt, token], padded on the right with any valid id, and

    ========= ==================================================== ==================================
    positions second input                                         a tap's output
    ========= ==================================================== ==================================
    "all"     `rows` int64 [row], `prompt * tokens + token`         [row, d_model]
    "last"    `rows` int64 [prompt], index within the prompt        [prompt, d_model]
    "mean"    `lengths` int64 [prompt]                              [prompt, d_model]
    offsets   `rows` int64 [prompt, offset], index within it        [prompt, offset, d_model]
    ========= ==================================================== ==================================

    Parameters
    ----------
    config : DecoderConfig
        What to write.
    weights : Weights
        Canonical weights; none is read before a backend asks for it.
    taps : sequence of str
        Outputs, as in `tap_names`.
    positions : str or tuple of int
        Which rows leave; offsets count from the end where negative (the caller turns them into indices).
    precision : str
        Of products with weights: "fp32", or "int8" for block-wise 8-bit weights with float32 activations.
    lowering : str
        "opset23", the reference; "primitive" (opset 19); "onnxruntime" with that runtime's own operators.
    max_tokens : int
        Longest prompt of a pass, pads included.
    keep : sequence of str
        Modules whose weights stay in float32, such as "blocks.11.down" or "*.down".

    Returns
    -------
    Graph
        Model, lazy weights and tables of inputs and outputs.

    Raises
    ------
    TapError
        If a tap does not exist.
    ContractError
        If positions, precision or lowering are not known.
    UnsupportedError
        If `max_tokens` is beyond what the checkpoint's positions give.
    CheckpointError
        If "logits" is asked of a checkpoint without a head.
    """
    taps = check_taps(config, taps)
    check_positions(positions)
    check_precision(precision)
    check_length(config, weights, max_tokens)
    if lowering not in LOWERINGS:
        raise ContractError(f"lowering must be one of {', '.join(LOWERINGS)}", repr(lowering), "Use one of these.")
    kind = LOWERINGS[lowering]
    emitter = Emitter(opset=kind.opset, ir_version=kind.ir_version)
    rows = Rows(emitter, positions)
    inputs = rows.inputs()
    low = kind(emitter, config, weights, max_tokens)
    linear = Linear(emitter=emitter, weights=weights, precision=precision, keep=tuple(keep))
    writer = Writer(config=config, low=low, linear=linear, rows=rows.bind(low))
    outputs = writer.write(taps)
    model, lazy = emitter.finish(config.family)
    return Graph(
        model=model,
        initialisers=lazy,
        inputs=inputs,
        outputs=outputs,
        config=config,
        taps=taps,
        positions=positions,
        precision=precision,
        lowering=lowering,
        policy=dict(linear.used),
        n_layers=writer.n_blocks,
        max_tokens=max_tokens,
    )


def check_length(config: DecoderConfig, weights: Weights, max_tokens: int) -> None:
    """Check that the checkpoint has positions for prompts of this length.

    Raises
    ------
    ContractError
        If the length is no whole number above 0.
    UnsupportedError
        If learned positions, or the rope rule, end before it.
    """
    if isinstance(max_tokens, bool) or not isinstance(max_tokens, int) or max_tokens < 1:
        raise ContractError("max_tokens must be a whole number above 0", repr(max_tokens), "Use 128, for example.")
    limits = [layer.rope.max_tokens for layer in config.layers if layer.rope and layer.rope.max_tokens is not None]
    if config.positions:
        limits.append(weights.shape("positions.weight")[0])
    if limits and max_tokens > min(limits):
        raise UnsupportedError(
            f"max_tokens must be at most {min(limits)}, where this checkpoint's positions end or change their rule",
            f"{max_tokens}",
            f"Use max_tokens={min(limits)} or less.",
        )
