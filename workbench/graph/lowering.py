"""Lowering to the operators of opset 23: the reference definition of every part of a decoder."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from workbench.graph.artefact import LazyTensor

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from workbench.checkpoint.config import DecoderConfig, Layer, Rope
    from workbench.checkpoint.weights import Weights
    from workbench.graph.emitter import Emitter

NEGATIVE = -1e9  # in place of minus infinity, so that no row can turn into NaN


class Opset23:
    """Writes the parts of a decoder; values are [prompt, token, width] unless said otherwise.

    Parameters
    ----------
    emitter : Emitter
        Of the graph; it has the input `input_ids`.
    config : DecoderConfig
        The decoder.
    weights : Weights
        Where small weights (norms) come from.
    max_tokens : int
        Longest prompt.
    """

    name: ClassVar[str] = "opset23"
    opset: ClassVar[int] = 23
    ir_version: ClassVar[int] = 11

    def __init__(self, emitter: Emitter, config: DecoderConfig, weights: Weights, max_tokens: int) -> None:
        self.emitter = emitter
        self.config = config
        self.weights = weights
        self.max_tokens = max_tokens

    def packs(self, layer: Layer) -> bool:
        """Whether `attend` takes queries, keys and values of this layer as one value, the first of three."""
        del layer
        return False

    def packs_gate(self) -> bool:
        """Whether `gated_packed` takes gate and up as one value."""
        return False

    def gated_packed(self, both: str) -> str:
        """Multiply the activated first half with the second."""
        raise NotImplementedError

    # Shapes and positions -----------------------------------------------------------------------------------------

    def n_prompts(self) -> str:
        """Int64 [1]."""
        return str(self.emitter.memo("n_prompts", lambda: self.emitter.op("Shape", "input_ids", start=0, end=1)))

    def n_tokens(self) -> str:
        """Int64 [1]."""
        return str(self.emitter.memo("n_tokens", lambda: self.emitter.op("Shape", "input_ids", start=1, end=2)))

    def counting(self, size: str) -> str:
        """Int64 [size]: 0, 1, 2 and so on."""
        em = self.emitter

        def make() -> str:
            stop = em.op("Squeeze", size, em.integers(0))
            zero, one = (em.constant(np.array(value, dtype=np.int64), "int64") for value in (0, 1))
            return em.op("Range", zero, stop, one)

        return str(em.memo(("counting", size), make))

    def positions(self, at: str | None) -> str:
        """Int64 [prompt, token]: position of every token, or of the asked ones."""
        em = self.emitter
        if at is not None:
            return at

        def make() -> str:
            return em.op("Expand", self.counting(self.n_tokens()), em.op("Shape", "input_ids"))

        return str(em.memo("positions", make))

    # Norms --------------------------------------------------------------------------------------------------------

    def norm(self, x: str, name: str) -> str:
        """Apply the norm `name` over the last axis."""
        scale = self.vector(f"{name}.weight") if self.config.norm_weight else self.ones(self.config.d_model)
        bias = self.vector(f"{name}.bias") if "norm" in self.config.biases and self.config.norm_weight else ""
        return self.normalised(x, scale, bias, kind=self.config.norm)

    def add_norm(self, x: str, delta: str, name: str) -> tuple[str, str]:
        """Add to the residual stream, and apply a norm to the sum; both leave."""
        total = self.emitter.op("Add", x, delta)
        return total, self.norm(total, name)

    def normalised(self, x: str, scale: str, bias: str, *, kind: str) -> str:
        """Emit one norm: RMS, or LayerNorm with the mean removed."""
        if kind == "rms":
            y = self.rms(x, scale)
            return self.emitter.op("Add", y, bias) if bias else y
        inputs = (x, scale, bias) if bias else (x, scale)
        return self.emitter.op("LayerNormalization", *inputs, axis=-1, epsilon=self.config.norm_eps)

    def rms(self, x: str, scale: str) -> str:
        """Divide by the root of the mean square, in float32, and scale."""
        return self.emitter.op("RMSNormalization", x, scale, axis=-1, epsilon=self.config.norm_eps)

    def head_norm(self, x: str, name: str, n_heads: int) -> str:
        """Apply the norm of queries or keys to [prompt, token, head * head_dim]."""
        em, config = self.emitter, self.config
        biased = "qk_norm" in config.biases
        bias = self.vector(f"{name}.bias") if biased else ""
        if config.qk_norm == "full":
            return self.normalised(x, self.vector(f"{name}.weight"), bias, kind=config.qk_norm_kind)
        heads = em.op("Reshape", x, em.integers(0, 0, n_heads, config.head_dim))
        if config.qk_norm == "head":
            y = self.normalised(heads, self.vector(f"{name}.weight"), bias, kind=config.qk_norm_kind)
        else:
            y = self.normalised(heads, self.ones(config.head_dim), "", kind=config.qk_norm_kind)
            y = em.op("Mul", y, self.vector(f"{name}.weight"))
            y = em.op("Add", y, bias) if biased else y
        return em.op("Reshape", y, em.integers(0, 0, n_heads * config.head_dim))

    def vector(self, name: str) -> str:
        """Declare small weights as they are."""
        shape = self.weights.shape(name)
        make = LazyTensor(dtype=np.dtype(np.float32), shape=shape, make=lambda: self.weights[name])
        return self.emitter.weight(name, make)

    def ones(self, size: int) -> str:
        """Weights of a norm that has none."""
        return self.emitter.constant(np.ones(size, dtype=np.float32), "ones")

    # MLP ----------------------------------------------------------------------------------------------------------

    def activate(self, x: str) -> str:
        """Apply the activation of the MLP."""
        return getattr(self, self.config.activation)(x)  # type: ignore[no-any-return]

    def gated(self, gate: str, up: str) -> str:
        """Multiply the activated gate with the other half."""
        return self.emitter.op("Mul", self.activate(gate), up)

    def silu(self, x: str) -> str:
        """Emit x * sigmoid(x)."""
        return self.emitter.op("Mul", x, self.emitter.op("Sigmoid", x))

    def gelu(self, x: str) -> str:
        """Emit the exact GELU."""
        return self.emitter.op("Gelu", x)

    def gelu_tanh(self, x: str) -> str:
        """Emit the GELU by tanh."""
        return self.emitter.op("Gelu", x, approximate="tanh")

    def relu(self, x: str) -> str:
        """Emit max(x, 0)."""
        return self.emitter.op("Relu", x)

    def relu2(self, x: str) -> str:
        """Emit the square of max(x, 0)."""
        y = self.emitter.op("Relu", x)
        return self.emitter.op("Mul", y, y)

    # Attention ----------------------------------------------------------------------------------------------------

    def attend(self, q: str, k: str, v: str, layer: Layer, at: str | None) -> str:
        """Turn queries and keys, and let every query see the keys that it may.

        Parameters
        ----------
        q, k, v : str
            Values [prompt, token, head * head_dim]; queries only of the asked tokens where `at` is given.
        layer : Layer
            Rope, window and scale.
        at : str or None
            Int64 [prompt, query], position of each query; None for all tokens.

        Returns
        -------
        str
            Value of the shape of `q`.
        """
        config = self.config
        if layer.rope is not None:
            q = self.turn(q, config.n_heads, layer.rope, at)
            k = self.turn(k, config.n_kv_heads, layer.rope, None)
        mask = self.mask(layer, at)
        options: dict[str, Any] = {"q_num_heads": config.n_heads, "kv_num_heads": config.n_kv_heads}
        options["scale"] = layer.attn_scale
        if config.attn_softcap is not None:
            options["softcap"] = config.attn_softcap
        if mask is None:
            return self.emitter.op("Attention", q, k, v, is_causal=1, **options)
        return self.emitter.op("Attention", q, k, v, mask, **options)

    def turn(self, x: str, n_heads: int, rope: Rope, at: str | None) -> str:
        """Apply rotary positions to [prompt, token, head * head_dim]."""
        cos, sin = self.tables(rope)
        partial: dict[str, Any] = {} if rope.dims == self.config.head_dim else {"rotary_embedding_dim": rope.dims}
        return self.emitter.op(
            "RotaryEmbedding",
            x,
            cos,
            sin,
            self.positions(at),
            num_heads=n_heads,
            interleaved=int(rope.interleaved),
            **partial,
        )

    def tables(self, rope: Rope) -> tuple[str, str]:
        """Write cosine and sine, float32 [token, dims / 2]."""
        cos, sin = angles(rope, self.max_tokens)
        return self.emitter.constant(cos, "cos"), self.emitter.constant(sin, "sin")

    def mask(self, layer: Layer, at: str | None) -> str | None:
        """Say which keys a query sees: true or 0 where it does; None where all keys up to its own position count."""
        em = self.emitter
        window = layer.window if layer.window is not None and layer.window < self.max_tokens else None
        if window is None and at is None and self.config.alibi is None:
            return None
        seen = str(em.memo(("seen", window, at), lambda: self.seen(window, at)))
        if self.config.alibi is None:
            return seen
        return str(em.memo(("bias", window, at), lambda: self.bias(seen)))

    def seen(self, window: int | None, at: str | None) -> str:
        """Bool [query, key], or [prompt, 1, query, key] for asked queries."""
        em = self.emitter
        key = self.counting(self.n_tokens())
        query = em.op("Unsqueeze", key, em.integers(1)) if at is None else em.op("Unsqueeze", at, em.integers(1, 3))
        seen = em.op("LessOrEqual", key, query)
        if window is None:
            return seen
        first = em.op("Sub", query, em.integers(window))
        return em.op("And", seen, em.op("Greater", key, first))

    def bias(self, seen: str) -> str:
        """Float32 [..., head, query, key]: linear biases, and a large negative number where nothing is seen."""
        em = self.emitter
        slopes = np.asarray(self.config.alibi, dtype=np.float32)[:, None, None]
        key = em.op("Cast", self.counting(self.n_tokens()), to=1)
        hidden = em.op("Where", seen, em.scalar(0.0), em.scalar(NEGATIVE))
        return em.op("Add", em.op("Mul", em.constant(slopes, "slopes"), key), hidden)


def angles(rope: Rope, n_tokens: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Cosine and sine of every position and pair, float32 [token, dims / 2], times the rope's magnitude."""
    inv_freq = np.asarray(rope.inv_freq, dtype=np.float32)
    angle = np.arange(n_tokens, dtype=np.float32)[:, None] * inv_freq[None, :]
    magnitude = np.float32(rope.magnitude)
    cos, sin = np.cos(angle.astype(np.float64)), np.sin(angle.astype(np.float64))
    return cos.astype(np.float32) * magnitude, sin.astype(np.float32) * magnitude
