"""Families without gates in their MLP, as config.json and safetensors files describe them."""

from __future__ import annotations

from dataclasses import replace

from workbench.checkpoint.hf_gated import LLAMA
from workbench.checkpoint.hf_keys import GPT2_SIZES, LLAMA_LAYER, SIZES, TIED, UNTIED, like, places
from workbench.checkpoint.rules import activation, alibi_slopes, rope_everywhere
from workbench.checkpoint.table import CHECK, Facts, Family, Key, Part
from workbench.errors import UnsupportedError, shown

_PHI_LAYER = {
    **LLAMA_LAYER,
    "o": "self_attn.dense",
    "q_norm": "self_attn.q_layernorm",
    "k_norm": "self_attn.k_layernorm",
    "up": "mlp.fc1",
    "down": "mlp.fc2",
}
PHI = like(
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
    places=places(
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
        "tied": UNTIED,
    },
    rope=rope_everywhere(theta=10_000.0, part=Key("rotary_pct partial_rotary_factor", 0.25)),
    biases={"q k v o": Key("attention_bias", True, bool), "up down norm": True},
    places=places(
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
    sizes=GPT2_SIZES,
    traits={
        "norm": "layer",
        "norm_eps": Key("layer_norm_epsilon", 1e-5),
        "gated": False,
        "activation": Key("activation_function", "gelu_new", activation),
        "positions": True,
        "tied": TIED,
    },
    scales=lambda facts: tuple(
        (facts.head_dim**-0.5 if facts.get("scale_attn_weights", True) else 1.0)
        / (i + 1 if facts.get("scale_attn_by_inverse_layer_idx", False) else 1)
        for i in range(facts.n_layers)
    ),
    biases={"q k v o up down norm": True},
    places=places("transformer.h.{i}", _GPT2_LAYER, positions="transformer.wpe", **_GPT2_TOP),
    must={"reorder_and_upcast_attn": (False, True)},
    base="transformer.",
    transposed=frozenset({"q", "k", "v", "o", "up", "down"}),
    ignored=r".*\.attn\.(bias|masked_bias)",
)
GPT_BIGCODE = replace(
    GPT2,
    name="gpt_bigcode",
    sizes={**GPT2_SIZES, "n_kv_heads": Key("num_key_value_heads", 1)},
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
    traits={**GPT2.traits, "positions": False, "parallel": True, "mlp_norm": False, "tied": UNTIED},
    rope=rope_everywhere(part=lambda facts: facts.get("rotary_dim", 64) / facts.head_dim, interleaved=True),
    biases={"up down norm head": True},
    places=places(
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
        "tied": TIED,
    },
    biases={"q k v o up down norm": True},
    places=places(
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
        "tied": TIED,
    },
    rope=rope_everywhere(),
    biases={"norm": True, "q k v o up down": Key("bias", False, bool)},
    places=places(
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
        **GPT2_SIZES,
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
        "tied": TIED,
    },
    biases={"q k v o up down norm": True},
    places=places(
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
