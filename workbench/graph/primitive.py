"""Lowering to primitive operators (opset 19, IR 9), for runtimes that have none of opset 23.

The forms are those that TensorRT's builder recognises: RMS norm in float32, rope by split and concatenation before the
transposition, the heads of a group folded into the rows of queries, and an added mask.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from workbench.graph.lowering import NEGATIVE, Opset23, angles

if TYPE_CHECKING:
    from workbench.checkpoint.config import Layer, Rope


class Primitive(Opset23):
    """Writes the parts of a decoder in operators that every runtime has."""

    name: ClassVar[str] = "primitive"
    opset: ClassVar[int] = 19
    ir_version: ClassVar[int] = 9

    def counting(self, size: str) -> str:
        """Cut 0, 1, 2 and so on from a constant: parsers want more of the inputs of Range than a shape gives."""
        em = self.emitter
        if size != self.n_tokens():
            return super().counting(size)
        table = em.constant(np.arange(self.max_tokens, dtype=np.int64), "counting")
        return str(em.memo(("counting", size), lambda: em.op("Slice", table, em.integers(0), size, em.integers(0))))

    def rms(self, x: str, scale: str) -> str:
        """Divide by the root of the mean square, and scale."""
        em = self.emitter
        mean = em.op("ReduceMean", em.op("Mul", x, x), em.integers(-1), keepdims=1)
        root = em.op("Sqrt", em.op("Add", mean, em.scalar(self.config.norm_eps)))
        return em.op("Mul", em.op("Div", x, root), scale)

    def gelu(self, x: str) -> str:
        """Emit x / 2 * (1 + erf(x / sqrt 2))."""
        em = self.emitter
        erf = em.op("Erf", em.op("Mul", x, em.scalar(1 / math.sqrt(2))))
        return em.op("Mul", em.op("Mul", x, em.scalar(0.5)), em.op("Add", erf, em.scalar(1.0)))

    def gelu_tanh(self, x: str) -> str:
        """Emit x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3)))."""
        em = self.emitter
        cube = em.op("Mul", em.op("Mul", x, x), x)
        inner = em.op("Add", x, em.op("Mul", cube, em.scalar(0.044715)))
        tanh = em.op("Tanh", em.op("Mul", inner, em.scalar(math.sqrt(2 / math.pi))))
        return em.op("Mul", em.op("Mul", x, em.scalar(0.5)), em.op("Add", tanh, em.scalar(1.0)))

    def turn(self, x: str, n_heads: int, rope: Rope, at: str | None) -> str:
        """Apply rotary positions, before any transposition."""
        em, dim = self.emitter, self.config.head_dim
        heads = em.op("Reshape", x, em.integers(0, 0, n_heads, dim))
        rest = ""
        if rope.dims < dim:
            heads, rest = em.ops("Split", heads, em.integers(rope.dims, dim - rope.dims), n=2, axis=-1)
        cos, sin = self.angles_at(rope, at)
        turned = em.op("Add", em.op("Mul", heads, cos), em.op("Mul", self.quarter(heads, n_heads, rope), sin))
        if rest:
            turned = em.op("Concat", turned, rest, axis=-1)
        return em.op("Reshape", turned, em.integers(0, 0, n_heads * dim))

    def quarter(self, heads: str, n_heads: int, rope: Rope) -> str:
        """Turn every pair by a right angle: (a, b) becomes (-b, a)."""
        em, half = self.emitter, rope.dims // 2
        if not rope.interleaved:
            first, second = em.ops("Split", heads, em.integers(half, half), n=2, axis=3)
            return em.op("Concat", em.op("Neg", second), first, axis=-1)
        pairs = em.op("Reshape", heads, em.integers(0, 0, n_heads * half, 2))
        first, second = em.ops("Split", pairs, em.integers(1, 1), n=2, axis=-1)
        return em.op(
            "Reshape", em.op("Concat", em.op("Neg", second), first, axis=-1), em.integers(0, 0, n_heads, rope.dims)
        )

    def angles_at(self, rope: Rope, at: str | None) -> tuple[str, str]:
        """Cosine and sine, float32 [1 or prompt, token, 1, dims]."""
        em = self.emitter

        def make() -> tuple[str, ...]:
            tables = angles(rope, self.max_tokens)
            wide = (np.repeat(t, 2, axis=1) if rope.interleaved else np.concatenate([t, t], axis=1) for t in tables)
            if at is None:
                constants = [em.constant(table[None, :, None, :], "angle") for table in wide]
                return tuple(
                    em.op("Slice", table, em.integers(0), self.n_tokens(), em.integers(1)) for table in constants
                )
            constants = [em.constant(table[:, None, :], "angle") for table in wide]
            return tuple(em.op("Gather", table, at, axis=0) for table in constants)

        cos, sin = em.memo(("angles", rope, at), make)
        return cos, sin

    def attend(self, q: str, k: str, v: str, layer: Layer, at: str | None) -> str:
        """Attend with products, a mask that is added, and softmax."""
        em, config = self.emitter, self.config
        if layer.rope is not None:
            q = self.turn(q, config.n_heads, layer.rope, at)
            k = self.turn(k, config.n_kv_heads, layer.rope, None)
        group, kv, dim = config.n_heads // config.n_kv_heads, config.n_kv_heads, config.head_dim
        q = em.op("Reshape", q, em.integers(0, 0, kv, group, dim))
        q = em.op("Reshape", em.op("Transpose", q, perm=[0, 2, 3, 1, 4]), em.integers(0, kv, -1, dim))
        k = em.op("Transpose", em.op("Reshape", k, em.integers(0, 0, kv, dim)), perm=[0, 2, 3, 1])
        v = em.op("Transpose", em.op("Reshape", v, em.integers(0, 0, kv, dim)), perm=[0, 2, 1, 3])
        scores = em.op("MatMul", em.op("Mul", q, em.scalar(layer.attn_scale)), k)
        if config.attn_softcap is not None:
            capped = em.op("Tanh", em.op("Div", scores, em.scalar(config.attn_softcap)))
            scores = em.op("Mul", capped, em.scalar(config.attn_softcap))
        shares = em.op("Softmax", em.op("Add", scores, self.added(layer, at, group)), axis=-1)
        mixed = em.op("MatMul", shares, v)
        n_queries = self.n_tokens() if at is None else em.memo(("n_at", at), lambda: em.op("Shape", at, start=1, end=2))
        shape = em.memo(
            ("ungrouped", at), lambda: em.op("Concat", em.integers(0, kv, group), n_queries, em.integers(dim), axis=0)
        )
        mixed = em.op("Transpose", em.op("Reshape", mixed, shape), perm=[0, 3, 1, 2, 4])
        return em.op("Reshape", mixed, em.integers(0, 0, config.n_heads * dim))

    def added(self, layer: Layer, at: str | None, group: int) -> str:
        """Float32 [..., head of group * query, key]: 0 where a key is seen."""
        em = self.emitter
        window = layer.window if layer.window is not None and layer.window < self.max_tokens else None

        def make() -> str:
            hidden = self.hidden(window) if at is None else self._hidden_at(window, at)
            if self.config.alibi is not None:
                return self._with_slopes(hidden, group)
            if group == 1:
                return hidden
            if at is None:
                return em.op("Concat", *[hidden] * group, axis=0)
            return em.op("Concat", *[hidden] * group, axis=2)

        return str(em.memo(("added", window, at), make))

    def hidden(self, window: int | None) -> str:
        """Float32 [query, key], cut from a constant of `max_tokens` in both directions."""
        em = self.emitter
        gap = np.arange(self.max_tokens)[:, None] - np.arange(self.max_tokens)[None, :]
        seen = (gap >= 0) & (gap < (window or self.max_tokens))
        mask = em.constant(np.where(seen, np.float32(0), np.float32(NEGATIVE)), "mask")
        size = em.op("Concat", self.n_tokens(), self.n_tokens(), axis=0)
        return em.op("Slice", mask, em.integers(0, 0), size, em.integers(0, 1))

    def _hidden_at(self, window: int | None, at: str) -> str:
        em = self.emitter
        return em.op("Where", self.seen(window, at), em.scalar(0.0), em.scalar(NEGATIVE))

    def _with_slopes(self, hidden: str, group: int) -> str:
        """Linear biases a head: [..., kv head, head of group * query, key]."""
        em, kv = self.emitter, self.config.n_kv_heads
        slopes = np.asarray(self.config.alibi, dtype=np.float32).reshape(kv, group, 1, 1)
        key = em.op("Cast", self.counting(self.n_tokens()), to=1)
        both = em.op(
            "Add", em.op("Mul", em.constant(slopes, "slopes"), key), em.op("Unsqueeze", hidden, em.integers(-3))
        )
        size = em.op("Concat", em.integers(-1, kv), em.integers(-1), self.n_tokens(), axis=0)
        if group == 1:
            return em.op("Squeeze", both, em.integers(-3))
        del size
        return em.op(
            "Reshape", both, em.op("Concat", em.integers(-1, kv), self._rows(hidden, group), self.n_tokens(), axis=0)
        )

    def _rows(self, hidden: str, group: int) -> str:
        em = self.emitter
        return em.op("Mul", em.op("Shape", hidden, start=-2, end=-1), em.integers(group))


__all__ = ["Primitive"]
