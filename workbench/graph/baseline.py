"""Baseline: the decoder as a generator's first pass runs it, with its key-value cache and one greedy token."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from workbench.graph.artefact import Graph, TensorSpec
from workbench.graph.emitter import Emitter
from workbench.graph.fused import Packed
from workbench.graph.linear import Linear
from workbench.graph.lowering import Opset23
from workbench.graph.rows import Rows
from workbench.graph.taps import check_taps
from workbench.graph.writing import Writer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from workbench.checkpoint.config import DecoderConfig, Layer, Rope
    from workbench.checkpoint.weights import Weights

NEXT_OUTPUT = "next_token"
LOGITS = "logits"


class Remembering(Opset23):
    """Writes the parts of a decoder, and notes keys and values of every layer: keys as they are after rotation."""

    name: ClassVar[str] = "opset23"

    def __init__(self, emitter: Emitter, config: DecoderConfig, weights: Weights, max_tokens: int) -> None:
        super().__init__(emitter, config, weights, max_tokens)
        self.cache: list[tuple[str, str]] = []
        self._turned = ""

    def turn(self, x: str, n_heads: int, rope: Rope, at: str | None) -> str:
        """Apply rotary positions, and note the last value that they were applied to."""
        self._turned = super().turn(x, n_heads, rope, at)
        return self._turned

    def attend(self, q: str, k: str, v: str, layer: Layer, at: str | None) -> str:
        """Attend, and note keys and values."""
        mixed = super().attend(q, k, v, layer, at)
        self.cache.append((self._turned if layer.rope is not None else k, v))  # queries are turned before keys
        return mixed


class RememberingPacked(Remembering, Packed):
    """The same in primitive operators, with queries, keys and values as one product."""

    name: ClassVar[str] = Packed.name

    def attend(self, q: str, k: str, v: str, layer: Layer, at: str | None) -> str:
        """Cut packed values apart before anything is noted."""
        parts = (q, k, v) if k else self.parts(q)
        return super().attend(*parts, layer, at)


LOWERINGS = {low.name: low for low in (Remembering, RememberingPacked)}


def build_baseline(
    config: DecoderConfig, weights: Weights, *, taps: Sequence[str], max_tokens: int, lowering: str = Remembering.name
) -> tuple[Graph, tuple[str, ...]]:
    """Write a decoder whose cache leaves, for the last position of each prompt.

    Parameters
    ----------
    config : DecoderConfig
        What to write.
    weights : Weights
        Canonical weights.
    taps : sequence of str
        Hidden states that leave besides.
    max_tokens : int
        Longest prompt.
    lowering : str
        `opset23`, or `packed` for a runtime that has none of its operators.

    Returns
    -------
    Graph
        Its outputs are the taps, `cache.{i}.key` and `cache.{i}.value` [prompt, token, kv], and `next_token`
        [prompt], the id with the largest logit.
    tuple of str
        Names of the outputs that are the cache.
    """
    taps = check_taps(config, taps)
    writes = LOWERINGS[lowering]
    emitter = Emitter(opset=writes.opset, ir_version=writes.ir_version)
    rows = Rows(emitter, "last")
    inputs = rows.inputs()
    low = writes(emitter, config, weights, max_tokens)
    linear = Linear(emitter=emitter, weights=weights, precision="fp32", keep=())
    writer = Writer(config=config, low=low, linear=linear, rows=rows.bind(low))
    both = taps if LOGITS in taps else (*taps, LOGITS)
    specs = {spec.name: spec for spec in writer.write(both)}
    width = config.n_kv_heads * config.head_dim
    added = []
    for layer, pair in enumerate(low.cache):
        for kind, value in zip(("key", "value"), pair, strict=True):
            spec = TensorSpec(name=f"cache.{layer}.{kind}", dtype="float32", axes=("prompt", "token", width))
            emitter.output(value, spec)
            added.append(spec)
    best = emitter.op("ArgMax", emitter.output_value(LOGITS), axis=-1, keepdims=0)
    token = TensorSpec(name=NEXT_OUTPUT, dtype="int64", axes=("prompt",))
    emitter.output(best, token)
    if LOGITS not in taps:
        emitter.drop_output(LOGITS)
    model, lazy = emitter.finish(config.family)
    graph = Graph(
        model=model,
        initialisers=lazy,
        inputs=inputs,
        outputs=(*(specs[tap] for tap in taps), *added, token),
        config=config,
        taps=taps,
        positions="last",
        precision="fp32",
        lowering=lowering,
        policy=dict(linear.used),
        n_layers=writer.n_blocks,
        max_tokens=max_tokens,
    )
    return graph, tuple(spec.name for spec in added)
