"""Families as Hugging Face's config.json and safetensors files describe them.

Keys and defaults are those of transformers 5.24.0; each entry is data, and a family that is much like another is
written as the difference from it.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from workbench.checkpoint.rules import (
    activation,
    alibi_slopes,
    all_full,
    every,
    experts,
    from_layer,
    layer_types,
    number,
    rope_by_type,
    rope_everywhere,
    rope_where,
    sliding_by_type,
    sliding_everywhere,
    sparse_steps,
)
from workbench.checkpoint.table import CHECK, Facts, Family, Key, Part, Stack
from workbench.errors import UnsupportedError, shown

# Keys of every config that change no number of a forward pass: generation, training, bookkeeping.
_HARMLESS = """
    architectures model_type transformers_version _name_or_path name_or_path torch_dtype dtype auto_map
    attn_implementation _attn_implementation _attn_implementation_autoset _attn_implementation_internal _commit_hash
    attention_dropout attn_pdrop embd_pdrop emb_pdrop resid_pdrop hidden_dropout hidden_dropout_prob dropout
    residual_dropout embedding_dropout classifier_dropout classifier_dropout_prob summary_first_dropout layerdrop
    initializer_range initializer_factor init_std init_device init_config init_method use_cache bos_token_id
    eos_token_id pad_token_id unk_token_id sep_token_id decoder_start_token_id output_attentions
    output_hidden_states return_dict return_dict_in_generate output_scores use_return_dict torchscript use_bfloat16
    tf_legacy_loss task_specific_params finetuning_task problem_type id2label label2id num_labels tokenizer_class
    prefix pretraining_tp gradient_checkpointing keys_to_ignore_at_inference max_length min_length do_sample
    temperature top_k top_p typical_p num_beams num_beam_groups diversity_penalty repetition_penalty length_penalty
    no_repeat_ngram_size encoder_no_repeat_ngram_size bad_words_ids early_stopping num_return_sequences
    remove_invalid_values exponential_decay_length_penalty suppress_tokens begin_suppress_tokens forced_bos_token_id
    forced_eos_token_id chunk_size_feed_forward output_router_logits router_aux_loss_coef router_jitter_noise
    aux_loss_alpha summary_type summary_use_proj summary_activation summary_proj_to_labels cache_implementation
    unsloth_version unsloth_fixed transformers.js_config bos_token eos_token pad_token use_flash_attn description
    license
"""
HARMLESS = frozenset(_HARMLESS.split())

# Keys that are understood only with these values, whatever the family.
MUST: dict[str, tuple[object, ...]] = {
    "is_encoder_decoder": (False,),
    "is_decoder": (False, True),
    "add_cross_attention": (False,),
    "cross_attention_hidden_size": (),
    "tie_encoder_decoder": (False,),
    "pruned_heads": ({},),
    "use_bidirectional_attention": (False,),
    "is_causal": (True,),
    "quantization_config": (),
    "compression_config": (),
}

SIZES: dict[str, Any] = {
    "n_layers": Key("num_hidden_layers"),
    "d_model": Key("hidden_size"),
    "n_heads": Key("num_attention_heads"),
    "n_kv_heads": Key("num_key_value_heads", lambda facts: facts.n_heads),
    "head_dim": Key("head_dim", lambda facts: facts.d_model // facts.n_heads),
    "d_ff": Key("intermediate_size"),
    "d_vocab": Key("vocab_size"),
    "max_positions": Key("max_position_embeddings"),
}
_GPT2_SIZES = {
    **SIZES,
    "n_layers": Key("n_layer num_hidden_layers"),
    "d_model": Key("n_embd hidden_size"),
    "n_heads": Key("n_head num_attention_heads"),
    "n_kv_heads": lambda facts: facts.n_heads,
    "head_dim": lambda facts: facts.d_model // facts.n_heads,
    "d_ff": Key("n_inner", lambda facts: 4 * facts.d_model),
    "max_positions": Key("n_positions n_ctx max_position_embeddings"),
}


def _places(layer: str, names: dict[str, Any], **top: Any) -> dict[str, Any]:
    """Spell the places of one family: `names` are relative to its layer."""

    def below(place: Any) -> Any:
        if isinstance(place, tuple):
            return tuple(below(one) for one in place)
        if isinstance(place, Part):
            return replace(place, module=f"{layer}.{place.module}")
        if isinstance(place, Stack):
            return replace(place, name=f"{layer}.{place.name}")
        return f"{layer}.{place}"

    return {**top, **{f"blocks.{{i}}.{name}": below(place) for name, place in names.items()}}


_LLAMA_LAYER: dict[str, Any] = {
    "attn_norm": "input_layernorm",
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "o": "self_attn.o_proj",
    "q_norm": "self_attn.q_norm",
    "k_norm": "self_attn.k_norm",
    "mlp_norm": "post_attention_layernorm",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}


def _llama_places(**changes: Any) -> dict[str, Any]:
    return _places(
        "model.layers.{i}",
        {**_LLAMA_LAYER, **changes},
        embed="model.embed_tokens",
        final_norm="model.norm",
        head="lm_head",
    )


_POST = {"attn_post_norm": "post_attention_layernorm", "mlp_post_norm": "post_feedforward_layernorm"}
_TIED, _UNTIED = Key("tie_word_embeddings", True, bool), Key("tie_word_embeddings", False, bool)
_ACT = Key("hidden_act", "silu", activation)
_QKVO = Key("attention_bias", False, bool)

LLAMA = Family(
    name="llama",
    sizes=SIZES,
    traits={"norm": "rms", "norm_eps": Key("rms_norm_eps", 1e-6), "gated": True, "activation": _ACT, "tied": _UNTIED},
    rope=rope_everywhere(),
    biases={"q k v o": _QKVO, "gate up down": Key("mlp_bias", False, bool)},
    places=_llama_places(),
    base="model.",
    ignored=r".*\.rotary_emb\.inv_freq",
)


def _like(parent: Family, name: str, **changes: Any) -> Family:
    """Copy an entry: mappings named here are laid over the parent's, everything else replaces it."""
    laid = ("sizes", "traits", "biases", "must")
    merged: dict[str, Any] = {
        key: {**getattr(parent, key), **value} if key in laid and value is not None else value
        for key, value in changes.items()
    }
    return replace(parent, name=name, **merged)


MISTRAL = _like(LLAMA, "mistral", biases={"q k v o": False, "gate up down": False}, windows=sliding_everywhere(4096))
QWEN2 = _like(
    LLAMA,
    "qwen2",
    biases={"q k v o": False, "q k v": True, "gate up down": False},
    windows=sliding_by_type(from_layer, switch="use_sliding_window"),
)
QWEN3 = _like(QWEN2, "qwen3", traits={"qk_norm": "head"}, biases={"q k v": False, "q k v o": _QKVO})
_GEMMA_NORMS = "attn_norm attn_post_norm mlp_norm mlp_post_norm q_norm k_norm"
_PLUS_ONE = {"final_norm": 1.0, **{f"blocks.{{i}}.{name}": 1.0 for name in _GEMMA_NORMS.split()}}


def _gemma_activation(facts: Facts) -> str:
    """Read the newer key first: the older one says "gelu" and has always meant the tanh form."""
    name = facts.get("hidden_activation", facts.get("hidden_act", "gelu_pytorch_tanh"))
    facts.get("hidden_act")
    return "gelu_tanh" if name == "gelu" else activation(name)


GEMMA = _like(
    LLAMA,
    "gemma",
    sizes={"head_dim": Key("head_dim", 256)},
    traits={"activation": _gemma_activation, "embed_scale": lambda facts: math.sqrt(facts.d_model), "tied": _TIED},
    biases={"gate up down": False},
    plus=_PLUS_ONE,
)
_QUERY_SCALE = Key("query_pre_attn_scalar", 256, number)
_CAPS = {
    "attn_softcap": Key("attn_logit_softcapping", None, number),
    "final_softcap": Key("final_logit_softcapping", None, number),
}
GEMMA2 = _like(
    GEMMA,
    "gemma2",
    traits={"attn_post_norm": True, "mlp_post_norm": True, **_CAPS},
    windows=sliding_by_type(every("", 2)),
    scales=lambda facts: facts.value(_QUERY_SCALE) ** -0.5,
    places=_llama_places(**_POST, mlp_norm="pre_feedforward_layernorm"),
)
_GEMMA3_TYPES = every("sliding_window_pattern", 6)
GEMMA3 = _like(
    GEMMA2,
    "gemma3_text",
    traits={"qk_norm": "head"},
    windows=sliding_by_type(_GEMMA3_TYPES),
    rope=rope_by_type(_GEMMA3_TYPES, theta=1e6, local=Key("rope_local_base_freq", 10_000.0)),
)
PHI3 = _like(
    LLAMA,
    "phi3",
    rope=rope_everywhere(part=Key("partial_rotary_factor", 1.0)),
    windows=sliding_everywhere(None),
    traits={"norm_eps": Key("rms_norm_eps", 1e-5)},
    biases={"q k v o": _QKVO, "gate up down": False},
    must={"attention_bias": (False,)},
    places=_llama_places(
        q=Part("self_attn.qkv_proj", "q"),
        k=Part("self_attn.qkv_proj", "k"),
        v=Part("self_attn.qkv_proj", "v"),
        gate=Part("mlp.gate_up_proj", "gate"),
        up=Part("mlp.gate_up_proj", "up"),
    ),
)
OLMO2 = _like(
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
    places=_llama_places(**_POST),
)
_OLMO3_TYPES = every("", 4)
OLMO3 = _like(
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


SMOLLM3 = _like(
    LLAMA,
    "smollm3",
    traits={"tied": _TIED},
    rope=rope_where(_smollm3_turns, theta=2_000_000.0),
    windows=sliding_by_type(_smollm3_types, default=None, switch="use_sliding_window"),
)
GRANITE = _like(
    LLAMA,
    "granite",
    traits={
        "embed_scale": Key("embedding_multiplier", 1.0, number),
        "residual_scale": Key("residual_multiplier", 1.0, number),
        "logit_scale": Key("logits_scaling", 1.0, lambda value: 1.0 / number(value)),
    },
    scales=Key("attention_multiplier", 1.0, number),
)
OLMO = _like(
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
STABLELM = _like(
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
    places=_llama_places(q_norm="self_attn.q_layernorm.norms.{h}", k_norm="self_attn.k_layernorm.norms.{h}"),
)
STARCODER2 = _like(
    LLAMA,
    "starcoder2",
    traits={
        "norm": "layer",
        "norm_eps": Key("norm_epsilon", 1e-5),
        "gated": False,
        "activation": Key("hidden_act", "gelu_pytorch_tanh", activation),
        "tied": _TIED,
    },
    windows=sliding_everywhere(None),
    biases={
        "q k v o": Key("use_bias", True, bool),
        "gate up down": False,
        "up down": Key("use_bias", True, bool),
        "norm": True,
    },
    places=_llama_places(up="mlp.c_fc", down="mlp.c_proj"),
    harmless=frozenset({"mlp_type", "norm_type"}),
    must={"mlp_type": ("default",), "norm_type": ("layer_norm",)},
)
COHERE = _like(
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
        "tied": _TIED,
    },
    rope=rope_everywhere(theta=500_000.0, interleaved=True),
    biases={"gate up down": False},
)
_COHERE2_TYPES = every("sliding_window_pattern", 4)
COHERE2 = _like(
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
NEMOTRON = _like(
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
ARCEE = _like(
    LLAMA,
    "arcee",
    traits={
        "norm_eps": Key("rms_norm_eps", 1e-5),
        "gated": False,
        "activation": Key("hidden_act", "relu2", activation),
    },
    biases={"gate up down": False, "up down": Key("mlp_bias", False, bool)},
)
_EXPERT_PLACES = {
    "experts.{e}.gate": ("mlp.experts.{e}.gate_proj", Stack("mlp.experts.gate_up_proj", "gate")),
    "experts.{e}.up": ("mlp.experts.{e}.up_proj", Stack("mlp.experts.gate_up_proj", "up")),
    "experts.{e}.down": ("mlp.experts.{e}.down_proj", Stack("mlp.experts.down_proj")),
    "router": "mlp.gate",
}
MIXTRAL = _like(
    MISTRAL,
    "mixtral",
    traits={"norm_eps": Key("rms_norm_eps", 1e-5)},
    rope=rope_everywhere(theta=1e6),
    windows=sliding_everywhere(None),
    experts=experts(n="num_local_experts num_experts", d_ff="intermediate_size", renormalise=True),
    places=_llama_places(
        **{
            "experts.{e}.gate": ("block_sparse_moe.experts.{e}.w1", *_EXPERT_PLACES["experts.{e}.gate"]),
            "experts.{e}.up": ("block_sparse_moe.experts.{e}.w3", *_EXPERT_PLACES["experts.{e}.up"]),
            "experts.{e}.down": ("block_sparse_moe.experts.{e}.w2", *_EXPERT_PLACES["experts.{e}.down"]),
            "router": ("block_sparse_moe.gate", "mlp.gate"),
        }
    ),
)


def _qwen2_moe_types(facts: Facts) -> list[str]:
    last = facts.get("max_window_layers", 28)
    return ["sliding_attention" if (i + 1) % 2 and i < last else "full_attention" for i in range(facts.n_layers)]


QWEN2_MOE = _like(
    QWEN2,
    "qwen2_moe",
    biases={"q k v": Key("qkv_bias", True, bool)},
    windows=sliding_by_type(_qwen2_moe_types, switch="use_sliding_window"),
    experts=experts(
        n="num_experts",
        d_ff="moe_intermediate_size",
        renormalise=Key("norm_topk_prob", False, bool),
        shared=Key("shared_expert_intermediate_size"),
        gate=True,
        sparse=sparse_steps,
    ),
    places=_llama_places(
        **_EXPERT_PLACES,
        **{f"shared.{part}": f"mlp.shared_expert.{part}_proj" for part in ("gate", "up", "down")},
        shared_gate="mlp.shared_expert_gate",
    ),
)
QWEN3_MOE = _like(
    QWEN3,
    "qwen3_moe",
    windows=sliding_by_type(all_full, switch="use_sliding_window"),
    experts=experts(
        n="num_experts num_local_experts",
        d_ff="moe_intermediate_size",
        renormalise=Key("norm_topk_prob", False, bool),
        sparse=sparse_steps,
    ),
    must={"use_sliding_window": (False,)},
    harmless=frozenset({"max_window_layers"}),
    places=_llama_places(**_EXPERT_PLACES),
)
OLMOE = _like(
    LLAMA,
    "olmoe",
    traits={"norm_eps": Key("rms_norm_eps", 1e-5), "qk_norm": "full", "clip_qkv": Key("clip_qkv", None, number)},
    biases={"gate up down": False},
    experts=experts(n="num_experts", d_ff="intermediate_size", renormalise=Key("norm_topk_prob", False, bool)),
    places=_llama_places(**_EXPERT_PLACES),
)
_PHI_LAYER = {
    **_LLAMA_LAYER,
    "o": "self_attn.dense",
    "q_norm": "self_attn.q_layernorm",
    "k_norm": "self_attn.k_layernorm",
    "up": "mlp.fc1",
    "down": "mlp.fc2",
}
PHI = _like(
    LLAMA,
    "phi",
    traits={
        "norm": "layer",
        "norm_eps": Key("layer_norm_eps", 1e-5),
        "parallel": True,
        "mlp_norm": False,
        "gated": False,
        "activation": Key("hidden_act", "gelu_new", activation),
        "qk_norm": lambda facts: "head" if facts.get("qk_layernorm", False) else None,
        "qk_norm_kind": "layer",
    },
    rope=rope_everywhere(part=Key("partial_rotary_factor", 0.5)),
    biases={"q k v o": True, "gate up down": False, "up down norm qk_norm head": True},
    places=_places(
        "model.layers.{i}",
        _PHI_LAYER,
        embed="model.embed_tokens",
        final_norm="model.final_layernorm",
        head="lm_head",
    ),
)
_QKV_BY_HEAD = {name: Part("attention.query_key_value", name, grouped=True) for name in ("q", "k", "v")}
GPT_NEOX = Family(
    name="gpt_neox",
    sizes={
        **SIZES,
        "n_kv_heads": lambda facts: facts.n_heads,
        "head_dim": lambda facts: facts.d_model // facts.n_heads,
    },
    traits={
        "norm": "layer",
        "norm_eps": Key("layer_norm_eps", 1e-5),
        "parallel": Key("use_parallel_residual", True, bool),
        "gated": False,
        "activation": Key("hidden_act", "gelu", activation),
        "tied": _UNTIED,
    },
    rope=rope_everywhere(theta=10_000.0, part=Key("rotary_pct partial_rotary_factor", 0.25)),
    biases={"q k v o": Key("attention_bias", True, bool), "up down norm": True},
    places=_places(
        "gpt_neox.layers.{i}",
        {
            "attn_norm": "input_layernorm",
            **_QKV_BY_HEAD,
            "o": "attention.dense",
            "mlp_norm": "post_attention_layernorm",
            "up": "mlp.dense_h_to_4h",
            "down": "mlp.dense_4h_to_h",
        },
        embed="gpt_neox.embed_in",
        final_norm="gpt_neox.final_layer_norm",
        head="embed_out",
    ),
    base="gpt_neox.",
    ignored=r".*\.attention\.(bias|masked_bias|rotary_emb\.inv_freq)",
)
_GPT2_LAYER = {
    "attn_norm": "ln_1",
    "q": Part("attn.c_attn", "q"),
    "k": Part("attn.c_attn", "k"),
    "v": Part("attn.c_attn", "v"),
    "o": "attn.c_proj",
    "mlp_norm": "ln_2",
    "up": "mlp.c_fc",
    "down": "mlp.c_proj",
}
_GPT2_TOP = {"embed": "transformer.wte", "final_norm": "transformer.ln_f", "head": "lm_head"}
GPT2 = Family(
    name="gpt2",
    sizes=_GPT2_SIZES,
    traits={
        "norm": "layer",
        "norm_eps": Key("layer_norm_epsilon", 1e-5),
        "gated": False,
        "activation": Key("activation_function", "gelu_new", activation),
        "positions": True,
        "tied": _TIED,
    },
    scales=lambda facts: tuple(
        (facts.head_dim**-0.5 if facts.get("scale_attn_weights", True) else 1.0)
        / (i + 1 if facts.get("scale_attn_by_inverse_layer_idx", False) else 1)
        for i in range(facts.n_layers)
    ),
    biases={"q k v o up down norm": True},
    places=_places("transformer.h.{i}", _GPT2_LAYER, positions="transformer.wpe", **_GPT2_TOP),
    must={"reorder_and_upcast_attn": (False, True)},
    base="transformer.",
    transposed=frozenset({"q", "k", "v", "o", "up", "down"}),
    ignored=r".*\.attn\.(bias|masked_bias)",
)
GPT_BIGCODE = replace(
    GPT2,
    name="gpt_bigcode",
    sizes={**_GPT2_SIZES, "n_kv_heads": Key("num_key_value_heads", 1)},
    traits={**GPT2.traits, "activation": Key("activation_function", "gelu_pytorch_tanh", activation)},
    must={"multi_query": (True,)},
    harmless=frozenset(
        {"attention_softmax_in_fp32", "scale_attention_softmax_in_fp32", "inference_runner", "validate_runner_input"}
        | {"pre_allocate_kv_cache", "max_sequence_length", "max_batch_size", "runner_max_sequence_length"}
    ),
    transposed=frozenset(),
)
GPTJ = replace(
    GPT2,
    name="gptj",
    traits={**GPT2.traits, "positions": False, "parallel": True, "mlp_norm": False, "tied": _UNTIED},
    rope=rope_everywhere(part=lambda facts: facts.get("rotary_dim", 64) / facts.head_dim, interleaved=True),
    biases={"up down norm head": True},
    places=_places(
        "transformer.h.{i}",
        {
            "attn_norm": "ln_1",
            "q": "attn.q_proj",
            "k": "attn.k_proj",
            "v": "attn.v_proj",
            "o": "attn.out_proj",
            "up": "mlp.fc_in",
            "down": "mlp.fc_out",
        },
        **_GPT2_TOP,
    ),
    must={"rotary": (True,)},
    transposed=frozenset(),
    scales=lambda facts: facts.head_dim**-0.5,
    harmless=frozenset({"scale_attn_weights"}),
)


def _opt_width(facts: Facts) -> int:
    """Refuse an embedding narrower than the blocks (OPT-350m): its projections are not computed."""
    width = facts.value(SIZES["d_model"])
    if facts.get("word_embed_proj_dim", width) != width:
        raise UnsupportedError(
            "word_embed_proj_dim must be hidden_size", shown(facts.get("word_embed_proj_dim")), CHECK
        )
    return int(width)


OPT = Family(
    name="opt",
    sizes={
        **SIZES,
        "n_kv_heads": lambda facts: facts.n_heads,
        "head_dim": lambda facts: facts.d_model // facts.n_heads,
        "d_ff": Key("ffn_dim"),
        "d_model": _opt_width,
    },
    traits={
        "norm": "layer",
        "norm_eps": 1e-5,
        "gated": False,
        "activation": Key("activation_function", "relu", activation),
        "positions": True,
        "tied": _TIED,
    },
    biases={"q k v o up down norm": True},
    places=_places(
        "model.decoder.layers.{i}",
        {
            "attn_norm": "self_attn_layer_norm",
            "q": "self_attn.q_proj",
            "k": "self_attn.k_proj",
            "v": "self_attn.v_proj",
            "o": "self_attn.out_proj",
            "mlp_norm": "final_layer_norm",
            "up": "fc1",
            "down": "fc2",
        },
        embed="model.decoder.embed_tokens",
        positions=Part("model.decoder.embed_positions", "after 2"),
        final_norm="model.decoder.final_layer_norm",
        head="lm_head",
    ),
    must={
        "do_layer_norm_before": (True,),
        "_remove_final_layer_norm": (False,),
        "enable_bias": (True,),
        "layer_norm_elementwise_affine": (True,),
    },
    base="model.",
)


def _falcon_parallel(facts: Facts) -> bool:
    return bool(facts.get("new_decoder_architecture", False) or facts.get("parallel_attn", True))


def _falcon_two_norms(facts: Facts) -> bool:
    new = bool(facts.get("new_decoder_architecture", False))
    return not _falcon_parallel(facts) or (new and facts.get("num_ln_in_parallel_attn", 2) == 2)


def _falcon_kv_heads(facts: Facts) -> int:
    stated = facts.get("num_kv_heads", facts.get("n_head_kv"))
    multi = facts.get("multi_query", True)  # read in any case: the newer architecture does without these two
    facts.get("parallel_attn")
    if facts.get("new_decoder_architecture", False):
        return int(stated or facts.n_heads)
    return 1 if multi else int(facts.n_heads)


FALCON = Family(
    name="falcon",
    sizes={
        **SIZES,
        "n_layers": Key("num_hidden_layers n_layer"),
        "d_model": Key("hidden_size n_embed"),
        "n_heads": Key("num_attention_heads n_head"),
        "n_kv_heads": _falcon_kv_heads,
        "head_dim": lambda facts: facts.d_model // facts.n_heads,
        "d_ff": Key("ffn_hidden_size", lambda facts: 4 * facts.d_model),
        "max_positions": Key("max_position_embeddings", 2048),
    },
    traits={
        "norm": "layer",
        "norm_eps": Key("layer_norm_epsilon", 1e-5),
        "parallel": _falcon_parallel,
        "mlp_norm": _falcon_two_norms,
        "gated": False,
        "activation": Key("activation", "gelu", activation),
        "tied": _TIED,
    },
    rope=rope_everywhere(),
    biases={"norm": True, "q k v o up down": Key("bias", False, bool)},
    places=_places(
        "transformer.h.{i}",
        {
            "attn_norm": ("ln_attn", "input_layernorm"),
            **{name: Part("self_attention.query_key_value", name, grouped=True) for name in ("q", "k", "v")},
            "o": "self_attention.dense",
            "mlp_norm": ("ln_mlp", "post_attention_layernorm"),
            "up": "mlp.dense_h_to_4h",
            "down": "mlp.dense_4h_to_h",
        },
        embed="transformer.word_embeddings",
        final_norm="transformer.ln_f",
        head="lm_head",
    ),
    must={"alibi": (False,)},
    base="transformer.",
)
BLOOM = Family(
    name="bloom",
    sizes={
        **_GPT2_SIZES,
        "d_model": Key("hidden_size n_embed n_embd"),
        "d_ff": lambda facts: 4 * facts.d_model,
        "max_positions": Key("seq_length", 2048),
    },
    traits={
        "norm": "layer",
        "norm_eps": Key("layer_norm_epsilon", 1e-5),
        "gated": False,
        "activation": "gelu_tanh",
        "embed_norm": True,
        "alibi": lambda facts: alibi_slopes(facts.n_heads),
        "tied": _TIED,
    },
    biases={"q k v o up down norm": True},
    places=_places(
        "transformer.h.{i}",
        {
            "attn_norm": "input_layernorm",
            **{name: Part("self_attention.query_key_value", name, grouped=True) for name in ("q", "k", "v")},
            "o": "self_attention.dense",
            "mlp_norm": "post_attention_layernorm",
            "up": "mlp.dense_h_to_4h",
            "down": "mlp.dense_4h_to_h",
        },
        embed="transformer.word_embeddings",
        embed_norm="transformer.word_embeddings_layernorm",
        final_norm="transformer.ln_f",
        head="lm_head",
    ),
    must={"apply_residual_connection_post_layernorm": (False,), "attention_softmax_in_fp32": (True,)},
    harmless=frozenset({"slow_but_exact", "masked_softmax_fusion", "bias_dropout_fusion", "offset_alibi"}),
    base="transformer.",
)

HF_FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        ARCEE, BLOOM, COHERE, COHERE2, FALCON, GEMMA, GEMMA2, GEMMA3, GPT2, GPTJ, GPT_BIGCODE, GPT_NEOX, GRANITE,
        LLAMA, MISTRAL, MIXTRAL, NEMOTRON, OLMO, OLMO2, OLMO3, OLMOE, OPT, PHI, PHI3, QWEN2, QWEN2_MOE, QWEN3,
        QWEN3_MOE, SMOLLM3, STABLELM, STARCODER2,
    )
}  # fmt: skip
