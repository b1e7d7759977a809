"""Families as the metadata and tensor names of GGUF files describe them.

A key stands below without the name of the architecture in front. Biases and the head are where the file has them.
llama.cpp's converter turns the query and key rows of some families so that pairs of rope are neighbours; here that is
only `interleaved`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.checkpoint.config import Experts, Rope
from workbench.checkpoint.rope import rope_from
from workbench.checkpoint.rules import every, number, window
from workbench.checkpoint.table import CHECK, Facts, Family, Key, Part, Row, Stack
from workbench.errors import CheckpointError, UnsupportedError, shown

if TYPE_CHECKING:
    from workbench.checkpoint.source import TensorFile
    from workbench.checkpoint.table import Rule

_IGNORED = frozenset({"vocab_size", "attention.causal", "pooling_type", "tensor_data_layout"})


def _same(value: Any) -> Any:
    """Take one number for all layers, stated once or once a layer."""
    if isinstance(value, Sequence | np.ndarray) and not isinstance(value, str):
        values = set(map(int, value))
        if len(values) != 1:
            raise UnsupportedError("a size must be the same in every layer", shown(sorted(values)), CHECK)
        return values.pop()
    return int(value)


def _head_dim(facts: Facts) -> int:
    width = facts.get("attention.key_length", facts.d_model // facts.n_heads)
    values = facts.get("attention.value_length", width)
    if values != width:
        raise UnsupportedError("keys and values must be of one width", f"{width} and {values}", CHECK)
    return int(width)


_SIZES: dict[str, Rule] = {
    "n_layers": Key("block_count"),
    "d_model": Key("embedding_length"),
    "n_heads": Key("attention.head_count", convert=_same),
    "n_kv_heads": Key("attention.head_count_kv", lambda facts: facts.n_heads, _same),
    "head_dim": _head_dim,
    "d_ff": Key("feed_forward_length", lambda facts: facts.get("expert_feed_forward_length"), _same),
    "d_vocab": lambda facts: facts.shape_of("token_embd.weight")[0],
    "max_positions": Key("context_length"),
}
_RMS: dict[str, Rule] = {"norm": "rms", "norm_eps": Key("attention.layer_norm_rms_epsilon", convert=number)}
_LAYER: dict[str, Rule] = {"norm": "layer", "norm_eps": Key("attention.layer_norm_epsilon", convert=number)}
_COMMON: dict[str, Rule] = {
    "gated": True,
    "activation": "silu",
    "tied": lambda facts: not facts.has_tensor("output.weight"),
}
_BIASED = {
    "q": "blk.0.attn_q blk.0.attn_qkv",
    "k": "blk.0.attn_k blk.0.attn_qkv",
    "v": "blk.0.attn_v blk.0.attn_qkv",
    "o": "blk.0.attn_output",
    "gate": "blk.0.ffn_gate",
    "up": "blk.0.ffn_up",
    "down": "blk.0.ffn_down",
    "norm": "output_norm",
    "qk_norm": "blk.0.attn_q_norm",
    "head": "output",
}


def _biased(modules: str) -> Rule:
    return lambda facts: any(facts.has_tensor(f"{module}.bias") for module in modules.split())


_BIASES: dict[str, Rule] = {name: _biased(modules) for name, modules in _BIASED.items()}


def _places(**changes: Any) -> dict[str, Any]:
    layer: dict[str, Any] = {
        "attn_norm": "blk.{i}.attn_norm",
        "q": ("blk.{i}.attn_q", Part("blk.{i}.attn_qkv", "q")),
        "k": ("blk.{i}.attn_k", Part("blk.{i}.attn_qkv", "k")),
        "v": ("blk.{i}.attn_v", Part("blk.{i}.attn_qkv", "v")),
        "o": "blk.{i}.attn_output",
        "q_norm": "blk.{i}.attn_q_norm",
        "k_norm": "blk.{i}.attn_k_norm",
        "attn_post_norm": "blk.{i}.post_attention_norm",
        "mlp_norm": "blk.{i}.ffn_norm",
        "mlp_post_norm": "blk.{i}.post_ffw_norm",
        "gate": "blk.{i}.ffn_gate",
        "up": "blk.{i}.ffn_up",
        "down": "blk.{i}.ffn_down",
        "router": "blk.{i}.ffn_gate_inp",
        **{f"experts.{{e}}.{part}": Stack(f"blk.{{i}}.ffn_{part}_exps.weight") for part in ("gate", "up", "down")},
        **{f"shared.{part}": f"blk.{{i}}.ffn_{part}_shexp" for part in ("gate", "up", "down")},
        "shared_gate": Row("blk.{i}.ffn_gate_inp_shexp.weight"),
        **changes,
    }
    top = {"embed": "token_embd", "positions": "position_embd", "final_norm": "output_norm", "head": "output"}
    return {**top, **{f"blocks.{{i}}.{name}": place for name, place in layer.items()}}


# Rotary positions -------------------------------------------------------------------------------------------------


def _rope(*, interleaved: bool = False, theta: float = 10_000.0, scaled: bool = True) -> Callable[[Facts], Rope]:
    """Read base, turned part and scaling; frequency factors may lie in tensors."""

    def rule(facts: Facts) -> Rope:
        stated = number(facts.get("rope.freq_base", 10_000.0))
        dims = int(facts.get("rope.dimension_count", facts.head_dim))
        parameters = _scaling(facts) if scaled else {}
        rope = rope_from(
            parameters,
            head_dim=facts.head_dim,
            dims=dims,
            theta=stated if scaled else theta,
            max_positions=facts.max_positions,
            interleaved=interleaved,
        )
        return _divided(facts, rope) if scaled else rope

    return rule


def _scaling(facts: Facts) -> dict[str, Any]:
    factor = facts.get("rope.scaling.factor", facts.get("rope.scale_linear", 0.0))
    kind = str(facts.get("rope.scaling.type", "linear" if factor else "none"))
    magnitude = facts.get("rope.scaling.attn_factor")
    original = facts.get("rope.scaling.original_context_length", facts.max_positions)
    facts.get("rope.scaling.finetuned")
    if facts.has_tensor("rope_factors_short.weight"):
        short, long = (facts.read_tensor(f"rope_factors_{name}.weight") for name in ("short", "long"))
        return {
            "rope_type": "longrope",
            "short_factor": [float(value) for value in short],
            "long_factor": [float(value) for value in long],
            "attention_factor": number(magnitude if magnitude is not None else 1.0),
            "original_max_position_embeddings": int(original),
        }
    if magnitude not in (None, 1.0):
        raise UnsupportedError("rope must have no magnitude of its own", f"attn_factor {magnitude}", CHECK)
    if kind == "yarn":
        return {"rope_type": "yarn", "factor": number(factor), "original_max_position_embeddings": int(original)}
    if kind not in ("none", "linear"):
        raise UnsupportedError("rope.scaling.type must be none, linear, yarn or longrope", shown(kind), CHECK)
    return {"rope_type": "linear", "factor": number(factor)} if factor and kind == "linear" else {}


def _divided(facts: Facts, rope: Rope) -> Rope:
    """Divide the frequencies by the factors of `rope_freqs.weight` (Llama 3.1)."""
    if not facts.has_tensor("rope_freqs.weight"):
        return rope
    factors = np.asarray(facts.read_tensor("rope_freqs.weight"), dtype=np.float32)
    if factors.shape != (rope.dims // 2,) or not np.all(np.isfinite(factors)) or not np.all(factors > 0):
        raise CheckpointError("rope_freqs.weight must hold one factor a pair", f"{factors.shape}", CHECK)
    inv_freq = np.asarray(rope.inv_freq, dtype=np.float32) / factors
    return Rope(dims=rope.dims, inv_freq=tuple(map(float, inv_freq)), interleaved=rope.interleaved)


def _sliding(n: int, default: int) -> Callable[[Facts], tuple[int | None, ...]]:
    def rule(facts: Facts) -> tuple[int | None, ...]:
        size = window(facts.get("attention.sliding_window", default))
        return tuple(size if kind == "sliding_attention" else None for kind in every("", n)(facts))

    return rule


def _gemma3_rope(facts: Facts) -> tuple[Rope, ...]:
    full, local = _rope()(facts), _rope(scaled=False)(facts)
    return tuple(local if kind == "sliding_attention" else full for kind in every("", 6)(facts))


def _experts(*, renormalise: bool, shared: bool = False) -> Callable[[Facts], Experts | None]:
    def rule(facts: Facts) -> Experts | None:
        n = int(facts.get("expert_count", 0))
        if not n:
            return None
        width = facts.get("expert_feed_forward_length", facts.d_ff)
        shared_width = facts.shape_of("blk.0.ffn_up_shexp.weight")[0] if shared else 0
        facts.get("expert_shared_feed_forward_length")
        return Experts(
            n_experts=n,
            top_k=facts.number(Key("expert_used_count"), "the experts per token"),
            d_ff=int(width),
            renormalise=renormalise,
            shared_d_ff=shared_width,
            shared_gate=shared,
        )

    return rule


# Table ------------------------------------------------------------------------------------------------------------


def _family(name: str, *traits: Mapping[str, Rule], places: Mapping[str, Any] | None = None, **options: Any) -> Family:
    merged: dict[str, Rule] = {**_COMMON}
    for each in traits:
        merged.update(each)
    return Family(
        name=name,
        sizes=_SIZES,
        traits=merged,
        biases=_BIASES,
        places=_places(**(places or {})),
        harmless=_IGNORED | options.pop("harmless", frozenset()),
        ignored=r"rope_(freqs|factors_long|factors_short)\.weight",
        **options,
    )


def _scale_by_size(layers_of_largest: int) -> Callable[[Facts], float]:
    """Gemma's largest size divides by the width of a head that is not the one it uses."""

    def rule(facts: Facts) -> float:
        width = facts.d_model / facts.n_heads if facts.n_layers == layers_of_largest else facts.head_dim
        return float(width**-0.5)

    return rule


_GEMMA = {**_RMS, "activation": "gelu_tanh", "embed_scale": lambda facts: math.sqrt(facts.d_model)}
_SANDWICH = {"attn_post_norm": True, "mlp_post_norm": True}
_PLAIN_MLP = {"gated": False, "activation": "gelu_tanh"}
_FUSED_GATE = {"gate": Part("blk.{i}.ffn_up", "gate"), "up": Part("blk.{i}.ffn_up", "up")}
_POST_FFN_NAME = {"attn_post_norm": "blk.{i}.post_attention_norm", "mlp_post_norm": "blk.{i}.post_ffw_norm"}


def _has_qk_norm(kind: str) -> Rule:
    return lambda facts: kind if facts.has_tensor("blk.0.attn_q_norm.weight") else None


def _smollm3_rope(facts: Facts) -> tuple[Rope | None, ...]:
    rope = _rope(interleaved=True)(facts)
    return tuple(rope if (i + 1) % 4 else None for i in range(facts.n_layers))


def _cohere2_rope(facts: Facts) -> tuple[Rope | None, ...]:
    rope = _rope(interleaved=True)(facts)
    return tuple(rope if kind == "sliding_attention" else None for kind in every("", 4)(facts))


_COHERE = {**_LAYER, "parallel": True, "mlp_norm": False, "logit_scale": Key("logit_scale", 1.0, number)}
_CAPS = {
    "attn_softcap": Key("attn_logit_softcapping", 50.0, number),
    "final_softcap": Key("final_logit_softcapping", 30.0, number),
}
_FULL_NORMS = {**_RMS, "qk_norm": "full"}

GGUF_FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        _family("llama", _RMS, rope=_rope(interleaved=True), experts=_experts(renormalise=True)),
        _family("arcee", _RMS, {"gated": False, "activation": "relu2"}, rope=_rope(interleaved=True)),
        _family("qwen2", _RMS, rope=_rope()),
        _family("qwen3", _RMS, {"qk_norm": "head"}, rope=_rope()),
        _family("qwen2moe", _RMS, rope=_rope(), experts=_experts(renormalise=False, shared=True)),
        _family("qwen3moe", _RMS, {"qk_norm": "head"}, rope=_rope(), experts=_experts(renormalise=True)),
        _family("gemma", _GEMMA, rope=_rope()),
        _family("gemma2", _GEMMA, _SANDWICH, _CAPS, rope=_rope(), windows=_sliding(2, 4096), scales=_scale_by_size(46)),
        _family(
            "gemma3",
            _GEMMA,
            _SANDWICH,
            {"qk_norm": "head", "final_softcap": Key("final_logit_softcapping", None, number)},
            rope=_gemma3_rope,
            windows=_sliding(6, 1024),
            scales=_scale_by_size(62),
        ),
        _family("phi2", _LAYER, _PLAIN_MLP, {"parallel": True, "mlp_norm": False}, rope=_rope()),
        _family("phi3", _RMS, rope=_rope(), places=_FUSED_GATE, harmless=frozenset({"attention.sliding_window"})),
        _family(
            "stablelm",
            _LAYER,
            {
                "qk_norm": _has_qk_norm("heads"),
                "qk_norm_kind": "layer",
                "parallel": lambda facts: not facts.has_tensor("blk.0.ffn_norm.weight"),
                "mlp_norm": lambda facts: facts.has_tensor("blk.0.ffn_norm.weight"),
            },
            rope=_rope(),
            harmless=frozenset({"use_parallel_residual"}),
        ),
        _family("starcoder2", _LAYER, _PLAIN_MLP, rope=_rope()),
        _family("gpt2", _LAYER, _PLAIN_MLP, {"positions": True}),
        _family(
            "olmo",
            {
                "norm": "layer",
                "norm_weight": False,
                "norm_eps": Key("attention.layer_norm_epsilon", 1e-5, number),
                "clip_qkv": Key("attention.clamp_kqv", None, number),
            },
            rope=_rope(interleaved=True),
        ),
        _family("olmo2", _FULL_NORMS, _SANDWICH, {"attn_norm": False, "mlp_norm": False}, rope=_rope()),
        _family("olmoe", _FULL_NORMS, rope=_rope(), experts=_experts(renormalise=False)),
        _family(
            "granite",
            _RMS,
            {
                "embed_scale": Key("embedding_scale", 1.0, number),
                "residual_scale": Key("residual_scale", 1.0, number),
                "logit_scale": Key("logit_scale", 1.0, lambda value: 1.0 / number(value)),
            },
            rope=_rope(interleaved=True),
            scales=Key("attention.scale", lambda facts: facts.head_dim**-0.5, number),
        ),
        _family(
            "command-r",
            _COHERE,
            {"qk_norm": _has_qk_norm("heads"), "qk_norm_kind": "layer"},
            rope=_rope(interleaved=True),
        ),
        _family("cohere2", _COHERE, rope=_cohere2_rope, windows=_sliding(4, 4096)),
        _family("smollm3", _RMS, rope=_smollm3_rope),
        _family("nemotron", _LAYER, {"gated": False, "activation": "relu2"}, rope=_rope()),
    )
}


def resolve_gguf(source: TensorFile, config: Mapping[str, Any]) -> tuple[Family, Facts]:
    """Find the entry of a GGUF file, and its metadata without the architecture's name.

    Raises
    ------
    UnsupportedError
        If the architecture is not in the table, or the file holds no whole decoder.
    """
    name = config["general.architecture"]
    if not isinstance(name, str) or name not in GGUF_FAMILIES:
        raise UnsupportedError(
            "general.architecture must be a supported family",
            shown(name),
            f"Supported in GGUF: {', '.join(sorted(GGUF_FAMILIES))}.",
        )
    if config.get("general.type", "model") != "model":
        raise UnsupportedError("the file must hold a model", f"general.type {shown(config['general.type'])}", CHECK)
    inside = {key.removeprefix(f"{name}."): value for key, value in config.items() if key.startswith(f"{name}.")}
    facts = Facts(
        inside,
        label="the GGUF metadata",
        has=lambda tensor: tensor in source,
        read=source.read,
        shape=source.shape,
    )
    if inside.get("attention.causal") is False:
        raise UnsupportedError("attention must be causal", "attention.causal false", CHECK)
    return GGUF_FAMILIES[name], facts
