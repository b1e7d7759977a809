"""Lowering to ONNX Runtime's own operators: the fastest on its CPU provider, equal to opset 23 up to rounding."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from workbench.graph.emitter import CONTRIB
from workbench.graph.lowering import Opset23

if TYPE_CHECKING:
    from workbench.checkpoint.config import Layer

INT32 = 6


class OnnxRuntime(Opset23):
    """Writes the parts of a decoder in fused operators of ONNX Runtime."""

    name: ClassVar[str] = "onnxruntime"

    def packs(self, layer: Layer) -> bool:
        """Whether one product may give queries, keys and values side by side."""
        return self.config.qk_norm is None and self._grouped(layer)

    def _grouped(self, layer: Layer) -> bool:
        whole = layer.rope is None or layer.rope.dims == self.config.head_dim
        return self.config.alibi is None and self.config.head_dim % 16 == 0 and whole

    def silu(self, x: str) -> str:
        """Emit x * sigmoid(x) in one pass over the values."""
        return self.emitter.op("QuickGelu", x, domain=CONTRIB, alpha=1.0)

    def add_norm(self, x: str, delta: str, name: str) -> tuple[str, str]:
        """Add and normalise in one pass over the values."""
        config = self.config
        scale = self.vector(f"{name}.weight") if config.norm_weight else self.ones(config.d_model)
        biased = "norm" in config.biases and config.norm_weight
        kind = "SkipSimplifiedLayerNormalization" if config.norm == "rms" else "SkipLayerNormalization"
        if biased and config.norm == "rms":
            return super().add_norm(x, delta, name)
        inputs = (x, delta, scale, self.vector(f"{name}.bias")) if biased else (x, delta, scale)
        y = self.emitter.ops(kind, *inputs, n=4, used=(0, 3), domain=CONTRIB, epsilon=config.norm_eps)
        return y[3], y[0]

    def attend(self, q: str, k: str, v: str, layer: Layer, at: str | None) -> str:
        """Turn and attend in one operator, without copies between the two."""
        if at is not None or not self._grouped(layer):
            return super().attend(q, k, v, layer, at)
        em, config = self.emitter, self.config
        options: dict[str, Any] = {"num_heads": config.n_heads, "kv_num_heads": config.n_kv_heads}
        options["scale"] = layer.attn_scale
        if config.attn_softcap is not None:
            options["softcap"] = config.attn_softcap
        if layer.window is not None and layer.window < self.max_tokens:
            options["local_window_size"] = layer.window
        tables: tuple[str, ...] = ()
        if layer.rope is not None:
            options.update(do_rotary=1, rotary_interleaved=int(layer.rope.interleaved))
            tables = self.tables(layer.rope)
        last, total = em.memo("lengths", self._lengths)
        return em.ops("GroupQueryAttention", q, k, v, "", "", last, total, *tables, n=3, domain=CONTRIB, **options)[0]

    def _lengths(self) -> tuple[str, str]:
        """Int32 [prompt], index of the last token of each prompt; int32 [], tokens of the pass. Pads count."""
        em = self.emitter
        total = em.op("Cast", em.op("Squeeze", self.n_tokens(), em.integers(0)), to=INT32)
        last = em.op("Cast", em.op("Sub", self.n_tokens(), em.integers(1)), to=INT32)
        return em.op("Expand", last, self.n_prompts()), total
