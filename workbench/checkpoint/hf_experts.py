"""Families with a mixture of experts, as config.json and safetensors files describe them."""

from __future__ import annotations

from workbench.checkpoint.hf_gated import LLAMA, MISTRAL, QWEN2, QWEN3
from workbench.checkpoint.hf_keys import like, llama_places
from workbench.checkpoint.rules import (
    all_full,
    experts,
    number,
    rope_everywhere,
    sliding_by_type,
    sliding_everywhere,
    sparse_steps,
)
from workbench.checkpoint.table import Facts, Key, Stack

_EXPERT_PLACES = {
    "experts.{e}.gate": ("mlp.experts.{e}.gate_proj", Stack("mlp.experts.gate_up_proj", "gate")),
    "experts.{e}.up": ("mlp.experts.{e}.up_proj", Stack("mlp.experts.gate_up_proj", "up")),
    "experts.{e}.down": ("mlp.experts.{e}.down_proj", Stack("mlp.experts.down_proj")),
    "router": "mlp.gate",
}
MIXTRAL = like(
    MISTRAL,
    "mixtral",
    traits={"norm_eps": Key("rms_norm_eps", 1e-5)},
    rope=rope_everywhere(theta=1e6),
    windows=sliding_everywhere(None),
    experts=experts(n="num_local_experts num_experts", d_ff="intermediate_size", renormalise=True),
    places=llama_places(
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


QWEN2_MOE = like(
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
    places=llama_places(
        **_EXPERT_PLACES,
        **{f"shared.{part}": f"mlp.shared_expert.{part}_proj" for part in ("gate", "up", "down")},
        shared_gate="mlp.shared_expert_gate",
    ),
)
QWEN3_MOE = like(
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
    places=llama_places(**_EXPERT_PLACES),
)
OLMOE = like(
    LLAMA,
    "olmoe",
    traits={"norm_eps": Key("rms_norm_eps", 1e-5), "qk_norm": "full", "clip_qkv": Key("clip_qkv", None, number)},
    biases={"gate up down": False},
    experts=experts(n="num_experts", d_ff="intermediate_size", renormalise=Key("norm_topk_prob", False, bool)),
    places=llama_places(**_EXPERT_PLACES),
)
