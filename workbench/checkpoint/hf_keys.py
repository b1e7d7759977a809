"""What entries for config.json share: harmless keys, sizes, and how places are spelled."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from workbench.checkpoint.rules import activation
from workbench.checkpoint.table import Family, Key, Part, Stack

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
GPT2_SIZES = {
    **SIZES,
    "n_layers": Key("n_layer num_hidden_layers"),
    "d_model": Key("n_embd hidden_size"),
    "n_heads": Key("n_head num_attention_heads"),
    "n_kv_heads": lambda facts: facts.n_heads,
    "head_dim": lambda facts: facts.d_model // facts.n_heads,
    "d_ff": Key("n_inner", lambda facts: 4 * facts.d_model),
    "max_positions": Key("n_positions n_ctx max_position_embeddings"),
}


def places(layer: str, names: dict[str, Any], **top: Any) -> dict[str, Any]:
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


LLAMA_LAYER: dict[str, Any] = {
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


def llama_places(**changes: Any) -> dict[str, Any]:
    """Spell the places of a family that differs from llama by `changes`."""
    return places(
        "model.layers.{i}",
        {**LLAMA_LAYER, **changes},
        embed="model.embed_tokens",
        final_norm="model.norm",
        head="lm_head",
    )


TIED, UNTIED = Key("tie_word_embeddings", True, bool), Key("tie_word_embeddings", False, bool)
ACT = Key("hidden_act", "silu", activation)
QKVO = Key("attention_bias", False, bool)


def like(parent: Family, name: str, **changes: Any) -> Family:
    """Copy an entry: mappings named here are laid over the parent's, everything else replaces it."""
    laid = ("sizes", "traits", "biases", "must")
    merged: dict[str, Any] = {
        key: {**getattr(parent, key), **value} if key in laid and value is not None else value
        for key, value in changes.items()
    }
    return replace(parent, name=name, **merged)
