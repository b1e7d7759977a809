"""One description of a decoder: families differ by these fields, never by code."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Norm = Literal["rms", "layer"]
Activation = Literal["silu", "gelu", "gelu_tanh", "relu", "relu2"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Rope:
    """Rotary positions of one layer.

    Parameters
    ----------
    dims : int
        Leading components of each head that are turned; the others pass unchanged.
    inv_freq : tuple of float
        Angle per position of each pair, in radians, `dims / 2` values; every scaling rule is already in them.
    interleaved : bool
        Whether a pair is two neighbours, as in GPT-J and llama.cpp's llama; else component `j` and `j + dims / 2`.
    magnitude : float
        Factor on sine and cosine (yarn and longrope).
    max_tokens : int or None
        Length up to which these frequencies hold, where the rule depends on the length of the prompt.
    """

    dims: int
    inv_freq: tuple[float, ...]
    interleaved: bool = False
    magnitude: float = 1.0
    max_tokens: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Experts:
    """Mixture of experts in place of the MLP of a layer.

    Parameters
    ----------
    n_experts, top_k : int
        How many there are, and how many a token uses.
    d_ff : int
        Width of one expert.
    renormalise : bool
        Whether the weights of the chosen experts are divided by their sum.
    shared_d_ff : int
        Width of the expert that every token uses; 0 for none.
    shared_gate : bool
        Whether a sigmoid gate scales the shared expert.
    """

    n_experts: int
    top_k: int
    d_ff: int
    renormalise: bool
    shared_d_ff: int = 0
    shared_gate: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Layer:
    """What may differ from layer to layer.

    Parameters
    ----------
    rope : Rope or None
        None where the layer turns nothing.
    window : int or None
        A token sees itself and the `window - 1` tokens before it; None: all tokens before it.
    experts : Experts or None
        None for a plain MLP.
    attn_scale : float
        Factor on the dot products of queries and keys.
    """

    rope: Rope | None
    window: int | None = None
    experts: Experts | None = None
    attn_scale: float


@dataclass(frozen=True, kw_only=True, slots=True)
class DecoderConfig:
    """A decoder as the graph sees it.

    Parameters
    ----------
    family : str
        Name in the table of families.
    n_layers, d_model, n_heads, n_kv_heads, head_dim, d_ff, d_vocab : int
        Sizes; `d_ff` is that of the plain MLP.
    max_positions : int
        Longest prompt that the checkpoint declares.
    layers : tuple of Layer
        One a block.
    norm : str
        "rms" or "layer" (mean removed).
    norm_weight : bool
        Whether norms have weights (olmo has none).
    norm_eps : float
        Added to the mean square.
    attn_norm, mlp_norm : bool
        Norms in front of attention and MLP; with `parallel` and no `mlp_norm` the MLP reads what attention reads.
    attn_post_norm, mlp_post_norm : bool
        Norms behind them, before the sum.
    parallel : bool
        Whether attention and MLP read the same residual stream and are added together.
    qk_norm : str or None
        Norm of queries and keys: "head" (one vector of weights for all heads), "heads" (one a head), "full" (over all
        heads at once), None.
    qk_norm_kind : str
        "rms" or "layer".
    biases : frozenset of str
        Which modules have one: of q, k, v, o, gate, up, down, norm, qk_norm, head.
    gated : bool
        Whether the MLP is `down(act(gate(x)) * up(x))`; else `down(act(up(x)))`.
    activation : str
        In the MLP.
    attn_softcap, final_softcap : float or None
        Bound `c` of `c * tanh(x / c)` on attention scores and logits.
    clip_qkv : float or None
        Bound on queries, keys and values.
    embed_scale, residual_scale, logit_scale : float
        Factors on the embedding, on what attention and MLP add, and on the logits.
    positions : bool
        Whether learned positions are added to the embedding.
    embed_norm : bool
        Whether a norm follows the embedding.
    alibi : tuple of float or None
        Slope a head of the bias `slope * (key - query)`.
    tied : bool
        Whether the head is the embedding.
    """

    family: str
    n_layers: int
    d_model: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    d_ff: int
    d_vocab: int
    max_positions: int
    layers: tuple[Layer, ...]
    norm: Norm = "rms"
    norm_weight: bool = True
    norm_eps: float
    attn_norm: bool = True
    mlp_norm: bool = True
    attn_post_norm: bool = False
    mlp_post_norm: bool = False
    parallel: bool = False
    qk_norm: Literal["head", "heads", "full"] | None = None
    qk_norm_kind: Norm = "rms"
    biases: frozenset[str] = frozenset()
    gated: bool = True
    activation: Activation
    attn_softcap: float | None = None
    final_softcap: float | None = None
    clip_qkv: float | None = None
    embed_scale: float = 1.0
    residual_scale: float = 1.0
    logit_scale: float = 1.0
    positions: bool = False
    embed_norm: bool = False
    alibi: tuple[float, ...] | None = None
    tied: bool = False
