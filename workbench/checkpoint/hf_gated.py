"""Families like llama, as config.json and safetensors files describe them: each is the difference from another."""

from __future__ import annotations

import math

from workbench.checkpoint.hf_keys import ACT, QKVO, SIZES, TIED, UNTIED, like, llama_places
from workbench.checkpoint.rules import (
    activation,
    every,
    from_layer,
    layer_types,
    number,
    rope_by_type,
    rope_everywhere,
    rope_where,
    sliding_by_type,
    sliding_everywhere,
)
from workbench.checkpoint.table import Facts, Family, Key, Part

_POST = {"attn_post_norm": "post_attention_layernorm", "mlp_post_norm": "post_feedforward_layernorm"}

LLAMA = Family(
    name="llama",
    sizes=SIZES,
    traits={"norm": "rms", "norm_eps": Key("rms_norm_eps", 1e-6), "gated": True, "activation": ACT, "tied": UNTIED},
    rope=rope_everywhere(),
    biases={"q k v o": QKVO, "gate up down": Key("mlp_bias", False, bool)},
    places=llama_places(),
    base="model.",
    ignored=r".*\.rotary_emb\.inv_freq",
)


MISTRAL = like(LLAMA, "mistral", biases={"q k v o": False, "gate up down": False}, windows=sliding_everywhere(4096))
QWEN2 = like(
    LLAMA,
    "qwen2",
    biases={"q k v o": False, "q k v": True, "gate up down": False},
    windows=sliding_by_type(from_layer, switch="use_sliding_window"),
)
QWEN3 = like(QWEN2, "qwen3", traits={"qk_norm": "head"}, biases={"q k v": False, "q k v o": QKVO})
_GEMMA_NORMS = "attn_norm attn_post_norm mlp_norm mlp_post_norm q_norm k_norm"
_PLUS_ONE = {"final_norm": 1.0, **{f"blocks.{{i}}.{name}": 1.0 for name in _GEMMA_NORMS.split()}}


def _gemma_activation(facts: Facts) -> str:
    """Read the newer key first: the older one says "gelu" and has always meant the tanh form."""
    name = facts.get("hidden_activation", facts.get("hidden_act", "gelu_pytorch_tanh"))
    facts.get("hidden_act")
    return "gelu_tanh" if name == "gelu" else activation(name)


GEMMA = like(
    LLAMA,
    "gemma",
    sizes={"head_dim": Key("head_dim", 256)},
    traits={"activation": _gemma_activation, "embed_scale": lambda facts: math.sqrt(facts.d_model), "tied": TIED},
    biases={"gate up down": False},
    plus=_PLUS_ONE,
)
_QUERY_SCALE = Key("query_pre_attn_scalar", 256, number)
_CAPS = {
    "attn_softcap": Key("attn_logit_softcapping", None, number),
    "final_softcap": Key("final_logit_softcapping", None, number),
}
GEMMA2 = like(
    GEMMA,
    "gemma2",
    traits={"attn_post_norm": True, "mlp_post_norm": True, **_CAPS},
    windows=sliding_by_type(every("", 2)),
    scales=lambda facts: facts.value(_QUERY_SCALE) ** -0.5,
    places=llama_places(**_POST, mlp_norm="pre_feedforward_layernorm"),
)
_GEMMA3_TYPES = every("sliding_window_pattern", 6)
GEMMA3 = like(
    GEMMA2,
    "gemma3_text",
    traits={"qk_norm": "head"},
    windows=sliding_by_type(_GEMMA3_TYPES),
    rope=rope_by_type(_GEMMA3_TYPES, theta=1e6, local=Key("rope_local_base_freq", 10_000.0)),
)
PHI3 = like(
    LLAMA,
    "phi3",
    rope=rope_everywhere(part=Key("partial_rotary_factor", 1.0)),
    windows=sliding_everywhere(None),
    traits={"norm_eps": Key("rms_norm_eps", 1e-5)},
    biases={"q k v o": QKVO, "gate up down": False},
    must={"attention_bias": (False,)},
    places=llama_places(
        q=Part("self_attn.qkv_proj", "q"),
        k=Part("self_attn.qkv_proj", "k"),
        v=Part("self_attn.qkv_proj", "v"),
        gate=Part("mlp.gate_up_proj", "gate"),
        up=Part("mlp.gate_up_proj", "up"),
    ),
)
OLMO2 = like(
    LLAMA,
    "olmo2",
    traits={
        "norm_eps": Key("rms_norm_eps", 1e-5),
        "attn_norm": False,
        "mlp_norm": False,
        "attn_post_norm": True,
        "mlp_post_norm": True,
        "qk_norm": "full",
    },
    biases={"gate up down": False},
    places=llama_places(**_POST),
)
_OLMO3_TYPES = every("", 4)
OLMO3 = like(
    OLMO2,
    "olmo3",
    windows=sliding_by_type(_OLMO3_TYPES),
    rope=rope_by_type(_OLMO3_TYPES, theta=500_000.0, local=None),
)


def _smollm3_turns(facts: Facts) -> list[bool]:
    step = int(facts.get("no_rope_layer_interval", 4))
    default = [(i + 1) % step != 0 for i in range(facts.n_layers)]
    return [bool(turn) for turn in facts.get("no_rope_layers", default)]


def _smollm3_types(facts: Facts) -> list[str]:
    slides = bool(facts.get("use_sliding_window", False)) and facts.get("sliding_window") is not None
    return ["sliding_attention" if slides and not turn else "full_attention" for turn in _smollm3_turns(facts)]


SMOLLM3 = like(
    LLAMA,
    "smollm3",
    traits={"tied": TIED},
    rope=rope_where(_smollm3_turns, theta=2_000_000.0),
    windows=sliding_by_type(_smollm3_types, default=None, switch="use_sliding_window"),
)
GRANITE = like(
    LLAMA,
    "granite",
    traits={
        "embed_scale": Key("embedding_multiplier", 1.0, number),
        "residual_scale": Key("residual_multiplier", 1.0, number),
        "logit_scale": Key("logits_scaling", 1.0, lambda value: 1.0 / number(value)),
    },
    scales=Key("attention_multiplier", 1.0, number),
)
OLMO = like(
    LLAMA,
    "olmo",
    traits={
        "norm": "layer",
        "norm_weight": False,
        "norm_eps": 1e-5,
        "clip_qkv": Key("clip_qkv", None, number),
    },
    biases={"gate up down": False},
)
STABLELM = like(
    LLAMA,
    "stablelm",
    traits={
        "norm": "layer",
        "norm_eps": Key("layer_norm_eps", 1e-5),
        "parallel": Key("use_parallel_residual", False, bool),
        "mlp_norm": lambda facts: not facts.get("use_parallel_residual", False),
        "qk_norm": lambda facts: "heads" if facts.get("qk_layernorm", False) else None,
        "qk_norm_kind": "layer",
    },
    rope=rope_everywhere(part=Key("partial_rotary_factor rope_pct", 0.25)),
    biases={"q k v o": False, "q k v": Key("use_qkv_bias", False, bool), "norm": True, "gate up down": False},
    places=llama_places(q_norm="self_attn.q_layernorm.norms.{h}", k_norm="self_attn.k_layernorm.norms.{h}"),
)
STARCODER2 = like(
    LLAMA,
    "starcoder2",
    traits={
        "norm": "layer",
        "norm_eps": Key("norm_epsilon", 1e-5),
        "gated": False,
        "activation": Key("hidden_act", "gelu_pytorch_tanh", activation),
        "tied": TIED,
    },
    windows=sliding_everywhere(None),
    biases={
        "q k v o": Key("use_bias", True, bool),
        "gate up down": False,
        "up down": Key("use_bias", True, bool),
        "norm": True,
    },
    places=llama_places(up="mlp.c_fc", down="mlp.c_proj"),
    harmless=frozenset({"mlp_type", "norm_type"}),
    must={"mlp_type": ("default",), "norm_type": ("layer_norm",)},
)
COHERE = like(
    LLAMA,
    "cohere",
    traits={
        "norm": "layer",
        "norm_eps": Key("layer_norm_eps", 1e-5),
        "parallel": True,
        "mlp_norm": False,
        "qk_norm": lambda facts: "heads" if facts.get("use_qk_norm", False) else None,
        "qk_norm_kind": "layer",
        "logit_scale": Key("logit_scale", 0.0625, number),
        "tied": TIED,
    },
    rope=rope_everywhere(theta=500_000.0, interleaved=True),
    biases={"gate up down": False},
)
_COHERE2_TYPES = every("sliding_window_pattern", 4)
COHERE2 = like(
    COHERE,
    "cohere2",
    traits={"qk_norm": None},
    windows=sliding_by_type(_COHERE2_TYPES),
    rope=rope_where(
        lambda facts: [kind == "sliding_attention" for kind in layer_types(facts, _COHERE2_TYPES)], interleaved=True
    ),
    must={"use_qk_norm": (False,), "use_parallel_block": (True,), "use_gated_activation": (True,)},
    harmless=frozenset({"rotary_pct", "order_of_interleaved_layers", "position_embedding_type", "layer_switch"}),
)
NEMOTRON = like(
    LLAMA,
    "nemotron",
    traits={
        "norm": "layer",
        "norm_eps": Key("norm_eps", 1e-5),
        "gated": False,
        "activation": Key("hidden_act", "relu2", activation),
    },
    rope=rope_everywhere(part=Key("partial_rotary_factor rope_percent", 0.5)),
    biases={"norm": True, "gate up down": False, "up down": Key("mlp_bias", False, bool)},
    plus=_PLUS_ONE,
)
ARCEE = like(
    LLAMA,
    "arcee",
    traits={
        "norm_eps": Key("rms_norm_eps", 1e-5),
        "gated": False,
        "activation": Key("hidden_act", "relu2", activation),
    },
    biases={"gate up down": False, "up down": Key("mlp_bias", False, bool)},
)
