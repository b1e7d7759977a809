"""Embedding, blocks, final norm and head, in the order in which a decoder computes them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from workbench.graph.artefact import LazyTensor, TensorSpec
from workbench.graph.mixture import mixture
from workbench.graph.taps import tap_width, where

if TYPE_CHECKING:
    from workbench.checkpoint.config import DecoderConfig
    from workbench.graph.linear import Linear
    from workbench.graph.lowering import Opset23
    from workbench.graph.rows import Rows


@dataclass(kw_only=True)
class Stream:
    """The residual stream: its value, what still has to be added, and which taps wait for the sum."""

    low: Opset23
    value: str
    pending: str | None = None
    waiting: list[tuple[int, str]] = field(default_factory=list)
    taps: dict[tuple[int, str], str] = field(default_factory=dict)

    def read(self) -> str:
        """Add what is pending, and give the sum."""
        if self.pending is not None:
            self._settle(self.low.emitter.op("Add", self.value, self.pending))
        return self.value

    def norm(self, name: str) -> str:
        """Add what is pending, and give the norm of the sum."""
        if self.pending is None:
            return self.low.norm(self.value, name)
        total, normed = self.low.add_norm(self.value, self.pending, name)
        self._settle(total)
        return normed

    def add(self, delta: str, tap: tuple[int, str] | None = None) -> None:
        """Add to the stream; the sum is also the value of a tap."""
        self.read()
        self.pending = delta
        self.waiting = [tap] if tap else []

    def _settle(self, total: str) -> None:
        self.value, self.pending = total, None
        self.taps.update(dict.fromkeys(self.waiting, total))
        self.waiting = []


@dataclass(kw_only=True)
class Writer:
    """Writes one decoder.

    Parameters
    ----------
    config : DecoderConfig
        What to write.
    low : Opset23
        How its parts are written.
    linear : Linear
        How products with weights are written.
    rows : Rows
        Which rows leave.
    """

    config: DecoderConfig
    low: Opset23
    linear: Linear
    rows: Rows
    n_blocks: int = 0

    def write(self, taps: tuple[str, ...]) -> tuple[TensorSpec, ...]:
        """Write everything up to the deepest tap, and let the taps leave."""
        places = {tap: where(self.config, tap) for tap in taps}
        self.n_blocks = min(1 + max(block for block, _ in places.values()), self.config.n_layers)
        stream = Stream(low=self.low, value=self._embed())
        stream.taps[-1, "embed"] = stream.value
        for block in range(self.n_blocks):
            self._block(block, stream, narrow=block == self.n_blocks - 1 and self.rows.narrows)
        if any(block == self.config.n_layers for block, _ in places.values()):
            self.low.emitter.scope("final_norm")
            stream.taps[self.config.n_layers, "final_norm"] = stream.norm("final_norm")
        stream.read()
        return tuple(self._output(tap, place, stream) for tap, place in places.items())

    def _output(self, tap: str, place: tuple[int, str], stream: Stream) -> TensorSpec:
        emitter, width = self.low.emitter, tap_width(self.config, tap)
        emitter.scope("rows")
        full = place[0] < self.n_blocks - 1 or not self.n_blocks
        if tap == "logits":
            value = self._logits(stream.taps[self.config.n_layers, "final_norm"], full=full)
        else:
            value = self.rows.select(stream.taps[place], full=full, width=width)
        spec = TensorSpec(name=tap, dtype="float32", axes=(*self.rows.axes, width))
        emitter.output(value, spec)
        return spec

    def _embed(self) -> str:
        emitter, config, weights = self.low.emitter, self.config, self.linear.weights
        emitter.scope("embed")
        x = emitter.op("Gather", self._table("embed.weight"), "input_ids")
        if config.embed_scale != 1.0:
            x = emitter.op("Mul", x, emitter.scalar(config.embed_scale))
        if config.positions:
            shape = weights.shape("positions.weight")
            n = min(shape[0], self.low.max_tokens)
            table = LazyTensor(
                dtype=np.dtype(np.float32), shape=(n, shape[1]), make=lambda: weights["positions.weight"][:n]
            )
            name = emitter.weight("positions.weight", table)
            x = emitter.op(
                "Add", x, emitter.op("Slice", name, emitter.integers(0), self.low.n_tokens(), emitter.integers(0))
            )
        return self.low.norm(x, "embed_norm") if config.embed_norm else x

    def _table(self, name: str) -> str:
        weights = self.linear.weights
        make = LazyTensor(dtype=np.dtype(np.float32), shape=weights.shape(name), make=lambda: weights[name])
        return self.low.emitter.weight(name, make)

    def _block(self, i: int, stream: Stream, *, narrow: bool) -> None:
        config, prefix = self.config, f"blocks.{i}"
        self.low.emitter.scope(prefix)
        read = stream.norm(f"{prefix}.attn_norm") if config.attn_norm else stream.read()
        asked = self.rows.narrow(read) if narrow else read
        attn = self._attention(i, asked, read, at=self.rows.at if narrow else None)
        stream.taps[i, "attn_out"] = attn
        attn = self._behind(attn, f"{prefix}.attn_post_norm", normed=config.attn_post_norm)
        if narrow:
            stream.value = self.rows.narrow(stream.read())
        if config.parallel:
            x = stream.norm(f"{prefix}.mlp_norm") if config.mlp_norm else asked
        else:
            stream.add(attn)
            x = stream.norm(f"{prefix}.mlp_norm") if config.mlp_norm else stream.read()
        mlp = self._mlp(i, x)
        stream.taps[i, "mlp_out"] = mlp
        mlp = self._behind(mlp, f"{prefix}.mlp_post_norm", normed=config.mlp_post_norm)
        both = self.low.emitter.op("Add", attn, mlp) if config.parallel else mlp
        stream.add(both, (i, "resid_post"))

    def _behind(self, x: str, name: str, *, normed: bool) -> str:
        """Apply what stands between a part of the block and the sum."""
        x = self.low.norm(x, name) if normed else x
        scale = self.config.residual_scale
        return x if scale == 1.0 else self.low.emitter.op("Mul", x, self.low.emitter.scalar(scale))

    def _attention(self, i: int, asked: str, read: str, *, at: str | None) -> str:
        config, low, layer, prefix = self.config, self.low, self.config.layers[i], f"blocks.{i}"
        if at is None and low.packs(layer):
            parts = [f"{prefix}.{name}" for name in ("q", "k", "v")]
            biased = bool(config.biases & {"q", "k", "v"})
            q, k, v = self._clip(self.linear(read, *parts, biased=biased, name=f"{prefix}.qkv")), "", ""
        else:
            q, k, v = self._qkv(prefix, asked, read)
        return self.linear(low.attend(q, k, v, layer, at), f"{prefix}.o", biased="o" in config.biases)

    def _qkv(self, prefix: str, asked: str, read: str) -> tuple[str, str, str]:
        config, low = self.config, self.low
        q = self.linear(asked, f"{prefix}.q", biased="q" in config.biases)
        k = self.linear(read, f"{prefix}.k", biased="k" in config.biases)
        v = self.linear(read, f"{prefix}.v", biased="v" in config.biases)
        if config.qk_norm is not None:
            q = low.head_norm(q, f"{prefix}.q_norm", config.n_heads)
            k = low.head_norm(k, f"{prefix}.k_norm", config.n_kv_heads)
        return self._clip(q), self._clip(k), self._clip(v)

    def _clip(self, x: str) -> str:
        bound = self.config.clip_qkv
        if bound is None:
            return x
        return self.low.emitter.op("Clip", x, self.low.emitter.scalar(-bound), self.low.emitter.scalar(bound))

    def _mlp(self, i: int, x: str) -> str:
        prefix, experts = f"blocks.{i}", self.config.layers[i].experts
        if experts is not None:
            return mixture(self.low, self.linear, x, prefix, experts=experts, mlp=self.plain_mlp)
        if self.low.packs_gate():
            return self._packed_mlp(x, prefix)
        return self.plain_mlp(x, prefix)

    def _packed_mlp(self, x: str, prefix: str) -> str:
        biases, parts = self.config.biases, (f"{prefix}.gate", f"{prefix}.up")
        both = self.linear(x, *parts, biased=bool(biases & {"gate", "up"}), name=f"{prefix}.gate_up")
        return self.linear(self.low.gated_packed(both), f"{prefix}.down", biased="down" in biases)

    def plain_mlp(self, x: str, prefix: str) -> str:
        """Emit gate, up, activation and down of the modules under `prefix`."""
        biases, linear = self.config.biases, self.linear
        up = linear(x, f"{prefix}.up", biased="up" in biases)
        if self.config.gated:
            inner = self.low.gated(linear(x, f"{prefix}.gate", biased="gate" in biases), up)
        else:
            inner = self.low.activate(up)
        return linear(inner, f"{prefix}.down", biased="down" in biases)

    def _logits(self, x: str, *, full: bool) -> str:
        """Apply the head to the rows that leave; means are taken of logits where a cap bends them."""
        config, emitter = self.config, self.low.emitter
        late = self.rows.positions == "mean" and config.final_softcap is not None
        if not late:
            x = self.rows.select(x, full=full, width=config.d_model)
        flat = emitter.op("Reshape", x, emitter.integers(-1, config.d_model))
        emitter.scope("head")
        name = "embed.weight" if config.tied else "head.weight"
        inputs = [flat, self._table(name)]
        if "head" in config.biases:
            inputs.append(self.low.vector("head.bias"))
        y = emitter.op("Gemm", *inputs, transB=1)
        if config.logit_scale != 1.0:
            y = emitter.op("Mul", y, emitter.scalar(config.logit_scale))
        if config.final_softcap is not None:
            cap = emitter.scalar(config.final_softcap)
            y = emitter.op("Mul", emitter.op("Tanh", emitter.op("Div", y, cap)), cap)
        if late:
            shape = emitter.op("Concat", emitter.op("Shape", "input_ids"), emitter.integers(config.d_vocab), axis=0)
            return self.rows.select(emitter.op("Reshape", y, shape), full=True, width=config.d_vocab)
        return self.rows.shaped(y, config.d_vocab)
