"""Lowerings for a runtime with own kernels: rope and attention over packed q, k, v; gate of the MLP; sum and norm.

Everything else is as in the primitive lowering, and so is a block that a kernel does not cover. `narrow` tells
operators of types: `half` is 1 for float16, `step` above 0 for FP8 codes, `wide` 1 for a stream in float32.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from workbench.graph.primitive import Primitive

if TYPE_CHECKING:
    from workbench.checkpoint.config import Layer

DOMAIN = "workbench"
ATTENTION, GATE, ADD_NORM = "RopeAttention", "SiluGate", "AddRmsNorm"
GATED_PRODUCT = "GatedProduct"  # stands for a product and its gate, see joined.py
OWN = (ATTENTION, GATE, ADD_NORM)
LONGEST = 128  # one tile of queries and keys
HEAD_DIMS = (64, 128)


def attribute(node: Any, name: str) -> Any:
    """Find an attribute of an own operator, to be read or set."""
    return next(a for a in node.attribute if a.name == name)


class Packed(Primitive):
    """Writes queries, keys and values as one product, so that a builder does not pull transpositions in front of it."""

    name: ClassVar[str] = "packed"

    def packs(self, layer: Layer) -> bool:
        """Whether one product may give all three."""
        del layer
        return self.config.qk_norm is None

    def attend(self, q: str, k: str, v: str, layer: Layer, at: str | None) -> str:
        """Cut packed values apart, and attend."""
        parts = (q, k, v) if k else self.parts(q)
        return super().attend(*parts, layer, at)

    def parts(self, qkv: str) -> tuple[str, str, str]:
        """Cut queries, keys and values, each [prompt, token, head * head_dim], out of one value."""
        config = self.config
        sizes = [heads * config.head_dim for heads in (config.n_heads, config.n_kv_heads, config.n_kv_heads)]
        q, k, v = self.emitter.ops("Split", qkv, self.emitter.integers(*sizes), n=3, axis=-1)
        return q, k, v


class Fused(Primitive):
    """Writes attention as one operator of this project's own."""

    name: ClassVar[str] = "fused"

    def packs(self, layer: Layer) -> bool:
        """Whether the kernel covers this layer."""
        config, rope = self.config, layer.rope
        if config.attn_softcap is not None or config.alibi is not None or config.qk_norm is not None:
            return False
        if rope is None or rope.dims != config.head_dim or config.head_dim not in HEAD_DIMS:
            return False
        narrow = layer.window is not None and layer.window < self.max_tokens
        return not narrow and self.max_tokens <= LONGEST and config.clip_qkv is None

    def attend(self, q: str, k: str, v: str, layer: Layer, at: str | None) -> str:
        """Turn and attend: [prompt, token, head * head_dim] from packed values."""
        if k:
            return super().attend(q, k, v, layer, at)
        assert layer.rope is not None
        cos, sin = self.tables(layer.rope)
        return self.emitter.op(
            ATTENTION,
            q,
            cos,
            sin,
            domain=DOMAIN,
            heads=self.config.n_heads,
            kv_heads=self.config.n_kv_heads,
            head_dim=self.config.head_dim,
            interleaved=int(layer.rope.interleaved),
            half=0,
            scale=layer.attn_scale,
            step=0.0,
        )


class FusedGate(Fused):
    """Writes the gate of the MLP as an own operator too, over gate and up as one product."""

    name: ClassVar[str] = "fused_gate"

    def packs_gate(self) -> bool:
        """Whether the kernel covers the activation."""
        return self.config.gated and self.config.activation == "silu"

    def gated_packed(self, both: str) -> str:
        """Multiply the activated gate with the other half: [prompt, token, d_ff] from [prompt, token, 2 * d_ff]."""
        return self.emitter.op(GATE, both, domain=DOMAIN, width=self.config.d_ff, half=0, step=0.0)


class FusedNorm(FusedGate):
    """Writes a sum of the residual stream and its norm as one own operator too."""

    name: ClassVar[str] = "fused_norm"

    def add_norm(self, x: str, delta: str, name: str) -> tuple[str, str]:
        """Add to the residual stream, and apply a norm to the sum."""
        config = self.config
        if config.norm != "rms" or "norm" in config.biases or not config.norm_weight:
            return super().add_norm(x, delta, name)
        scale = self.vector(f"{name}.weight")
        attributes: dict[str, Any] = {"width": config.d_model, "wide": 1, "half": 0}
        attributes |= {"eps": config.norm_eps, "step": 0.0}
        total, normed = self.emitter.ops(ADD_NORM, x, delta, scale, n=2, domain=DOMAIN, **attributes)
        return total, normed
