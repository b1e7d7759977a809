"""Make the small checkpoints of `tiny_more/` and their golden taps.

Needs transformers and torch, which are no dependency of the project: `python tests/golden/make_tiny.py [NAME ...]`.
Every parameter is random, norms and biases too, so that none of them can be left out unseen. Each prompt runs alone and
unpadded, in float32 with eager attention; attn_out and mlp_out are what the modules give before any norm or factor.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

OUT = Path(__file__).parent / "tiny_more"
LENGTHS = (24, 9, 1)
SMALL = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
NO_FF = {key: value for key, value in SMALL.items() if key != "intermediate_size"}
GROUPED = {**SMALL, "num_key_value_heads": 2}
WIDE = {**GROUPED, "head_dim": 16}
N_EMBD = {
    "vocab_size": 96,
    "n_positions": 128,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "rope_theta": 10000.0}
LONG = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0, 1.1, 1.2, 1.3],
    "long_factor": [2.0, 3.0, 4.0, 5.0],
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}

# name: (model_type, config)
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama_biased_head_dim": ("llama", {**WIDE, "attention_bias": True, "mlp_bias": True}),
    "llama_linear": (
        "llama",
        {**GROUPED, "rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 5e4}},
    ),
    "llama_dynamic": (
        "llama",
        {**GROUPED, "rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}},
    ),
    "llama_yarn": ("llama", {**WIDE, "rope_parameters": YARN}),
    "llama_yarn_mscale": (
        "llama",
        {**WIDE, "rope_parameters": {**YARN, "mscale": 1.0, "mscale_all_dim": 0.8, "beta_fast": 8, "truncate": False}},
    ),
    "llama_mha_tied": ("llama", {**SMALL, "tie_word_embeddings": True}),
    "phi3_longrope": (
        "phi3",
        {**GROUPED, "rope_parameters": LONG, "original_max_position_embeddings": 32, "sliding_window": 8},
    ),
    "phi3_partial": ("phi3", {**GROUPED, "partial_rotary_factor": 0.5}),
    "qwen2_sliding": ("qwen2", {**GROUPED, "use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}),
    "qwen3_tied": ("qwen3", {**WIDE, "tie_word_embeddings": True}),
    "gemma": ("gemma", WIDE),
    "gemma3_mixed": (
        "gemma3_text",
        {
            **WIDE,
            "num_hidden_layers": 3,
            "sliding_window": 8,
            "query_pre_attn_scalar": 24,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            },
        },
    ),
    "phi": ("phi", SMALL),
    "phi_qk_norm": ("phi", {**GROUPED, "qk_layernorm": True}),
    "stablelm": ("stablelm", {**GROUPED, "partial_rotary_factor": 0.5, "use_qkv_bias": True}),
    "stablelm_parallel_qk_norm": (
        "stablelm",
        {**GROUPED, "partial_rotary_factor": 0.5, "qk_layernorm": True, "use_parallel_residual": True},
    ),
    "granite": (
        "granite",
        {
            **GROUPED,
            "embedding_multiplier": 12.0,
            "residual_multiplier": 0.22,
            "attention_multiplier": 0.3,
            "logits_scaling": 8.0,
        },
    ),
    "olmo": ("olmo", {**GROUPED, "clip_qkv": 0.6}),
    "olmo3": ("olmo3", {**GROUPED, "sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]}),
    "starcoder2": ("starcoder2", {**GROUPED, "sliding_window": 8}),
    "cohere": ("cohere", {**GROUPED, "use_qk_norm": True, "logit_scale": 0.25}),
    "cohere2": ("cohere2", {**GROUPED, "sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]}),
    "nemotron": ("nemotron", GROUPED),
    "arcee": ("arcee", GROUPED),
    "gpt_neox_serial": ("gpt_neox", {**SMALL, "use_parallel_residual": False, "rotary_pct": 0.5}),
    "gptj": ("gptj", {**N_EMBD, "rotary_dim": 4}),
    "gpt2_scaled": ("gpt2", {**N_EMBD, "scale_attn_by_inverse_layer_idx": True, "activation_function": "relu"}),
    "gpt_bigcode": ("gpt_bigcode", N_EMBD),
    "opt": ("opt", {**NO_FF, "ffn_dim": 64, "word_embed_proj_dim": 32}),
    "falcon": ("falcon", {**NO_FF, "bias": True}),
    "falcon_new": ("falcon", {**NO_FF, "new_decoder_architecture": True, "num_kv_heads": 2}),
    "falcon_serial": ("falcon", {**NO_FF, "multi_query": False, "parallel_attn": False, "bias": True}),
    "bloom": ("bloom", {"vocab_size": 96, "hidden_size": 32, "n_layer": 2, "n_head": 4}),
    "mixtral": (
        "mixtral",
        {**GROUPED, "num_local_experts": 4, "num_experts_per_tok": 2, "intermediate_size": 24, "sliding_window": 8},
    ),
    "qwen2_moe": (
        "qwen2_moe",
        {**GROUPED, **EXPERTS, "shared_expert_intermediate_size": 24, "decoder_sparse_step": 1, "mlp_only_layers": [0]},
    ),
    "qwen3_moe": ("qwen3_moe", {**WIDE, **EXPERTS, "norm_topk_prob": True}),
    "olmoe": ("olmoe", {**GROUPED, "num_experts": 4, "num_experts_per_tok": 2, "intermediate_size": 24}),
}

ATTENTION = ("self_attention.dense", "self_attn", "attn", "attention", "self_attention")
MLP = ("mlp", "block_sparse_moe", "fc2")


def randomise(model: torch.nn.Module) -> None:
    """Draw every parameter: matrices narrow, norms around 1, biases around 0."""
    torch.manual_seed(0)
    with torch.no_grad():
        for name, value in model.named_parameters():
            value.normal_(0.0, 0.15 if value.dim() > 1 else 0.1)
            if (
                value.dim() == 1
                and "norm" in name.lower() + ("norm" if "ln_" in name else "")
                and name.endswith("weight")
            ):
                value.add_(0.0 if model.config.model_type.startswith(("gemma", "nemotron")) else 1.0)


def module_of(layer: torch.nn.Module, names: tuple[str, ...]) -> torch.nn.Module:
    """Find the first module that a layer has."""
    for name in names:
        if name == "self_attention.dense" and layer.__class__.__name__ != "BloomBlock":
            continue
        try:
            return layer.get_submodule(name)
        except AttributeError:
            continue
    raise LookupError(names)


def tensor(value: object) -> torch.Tensor:
    """Take the first tensor of what a module gives."""
    return (value[0] if isinstance(value, tuple) else value).detach().clone()  # type: ignore[union-attr]


def taps_of(model: torch.nn.Module, ids: torch.Tensor) -> dict[str, np.ndarray]:
    """Run one prompt and gather its taps, each [token, width]."""
    base = model.base_model
    base = getattr(base, "decoder", base)
    layers = next(getattr(base, name) for name in ("layers", "h") if hasattr(base, name))
    final = next(
        getattr(base, n)
        for n in ("norm", "ln_f", "final_layer_norm", "final_layernorm")
        if getattr(base, n, None) is not None
    )
    seen: dict[str, torch.Tensor] = {}
    hooks = [final.register_forward_hook(lambda _m, _i, out: seen.__setitem__("final_norm", tensor(out)))]
    for i, layer in enumerate(layers):

        def pre(_m, args, kwargs, i=i):
            seen[f"blocks.{i}.resid_pre"] = tensor(args[0] if args else kwargs["hidden_states"])

        hooks.append(layer.register_forward_pre_hook(pre, with_kwargs=True))
        for name, module in (
            ("attn_out", module_of(layer, ATTENTION)),
            ("mlp_out", module_of(layer, MLP)),
            ("resid_post", layer),
        ):
            target = module.dense_4h_to_h if name == "mlp_out" and layer.__class__.__name__ == "BloomBlock" else module
            hooks.append(
                target.register_forward_hook(
                    lambda _m, _i, out, key=f"blocks.{i}.{name}": seen.__setitem__(key, tensor(out))
                )
            )
    with torch.no_grad():
        seen["logits"] = model(input_ids=ids[None]).logits
    for hook in hooks:
        hook.remove()
    return {key: value.reshape(len(ids), -1).float().numpy() for key, value in seen.items()}


def make(name: str) -> None:
    """Write one checkpoint with its golden taps."""
    kind, options = CASES[name]
    config = transformers.AutoConfig.for_model(kind, **options)
    config._attn_implementation = "eager"
    model = transformers.AutoModelForCausalLM.from_config(
        config, attn_implementation="eager", dtype=torch.float32
    ).eval()
    randomise(model)
    ids = np.random.default_rng(0).integers(3, 96, size=(len(LENGTHS), max(LENGTHS))).astype(np.int32)
    golden: dict[str, np.ndarray] = {"lengths": np.array(LENGTHS, dtype=np.int32)}
    for row, length in enumerate(LENGTHS):
        ids[row, length:] = 0
        for key, value in taps_of(model, torch.from_numpy(ids[row, :length]).long()).items():
            golden.setdefault(key, np.zeros((*ids.shape, value.shape[1]), dtype=np.float32))[row, :length] = value
    folder = OUT / name
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    np.savez(folder / "golden.npz", **golden, input_ids=ids)


def main() -> None:
    """Write the checkpoints that are named, or all, and what they were made with."""
    names = sys.argv[1:] or list(CASES)
    for name in names:
        make(name)
    torch_version = torch.__version__.split("+")[0]
    made = {
        "made_with": f"transformers {transformers.__version__}, torch {torch_version}, eager attention, float32, CPU",
        "command": "python tests/golden/make_tiny.py",
        "families": sorted(path.parent.name for path in OUT.glob("*/golden.npz")),
    }
    (OUT / "README.json").write_text(json.dumps(made, indent=1) + "\n")


if __name__ == "__main__":
    main()
