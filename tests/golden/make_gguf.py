"""Make the small GGUF files of `tiny_gguf/` and llama.cpp's states after the final norm.

Needs the packages gguf and llama-cpp-python, which are no dependency of the project:
`python tests/golden/make_gguf.py [NAME ...]`. Weights are random float32, norms and biases too; the caches of keys and
values are float32. llama.cpp looks its GELU up in a table of float16, so families with one agree to about 5e-4 only.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import gguf
import llama_cpp
import numpy as np

OUT = Path(__file__).parent / "tiny_gguf"
D_MODEL, N_HEADS, N_KV, HEAD_DIM, D_FF, D_VOCAB, N_TOKENS, N_EXPERTS, D_SHARED = 32, 4, 2, 8, 48, 96, 24, 4, 16
EXPERTS = {"expert_count": N_EXPERTS, "expert_used_count": 2}
ROUTED = {**EXPERTS, "expert_feed_forward_length": 16}
LAYER = {"layer_norm": True}
BIASED = {"qkv_bias": True, "o_bias": True, "mlp_bias": True, "norm_bias": True}
GEMMA = {"wide": True, "head": False, "meta": {}}
YARN = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 32}
COHERE = {**LAYER, "mlp_norm": False, "head": False}

# name: what the file has beyond a plain llama; "arch" where it is not the name
CASES: dict[str, dict[str, Any]] = {
    "llama": {},
    "llama_tied_biased": {"arch": "llama", "head": False, "qkv_bias": True, "meta": {"rope.freq_base": 5e4}},
    "llama_freqs": {"arch": "llama", "factors": True},
    "llama_linear": {"arch": "llama", "meta": {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}},
    "llama_yarn": {"arch": "llama", "meta": YARN},
    "llama_experts": {"arch": "llama", "d_expert": D_FF, "meta": EXPERTS},
    "qwen2": {"qkv_bias": True},
    "qwen3": {"qk_norm": "head", "wide": True},
    "qwen2moe": {"qkv_bias": True, "d_expert": 16, "shared": True, "meta": ROUTED},
    "qwen3moe": {"qk_norm": "head", "wide": True, "d_expert": 16, "meta": ROUTED},
    "gemma": GEMMA,
    "gemma2": {**GEMMA, "post": True, "meta": {"attention.sliding_window": 8}},
    "gemma3": {
        **GEMMA,
        "post": True,
        "qk_norm": "head",
        "n_layers": 7,
        "meta": {"attention.sliding_window": 8, "rope.freq_base": 1e6},
    },
    "phi2": {
        **LAYER,
        **BIASED,
        "fused_qkv": True,
        "head_bias": True,
        "gated": False,
        "mlp_norm": False,
        "meta": {"rope.dimension_count": 4},
    },
    "phi3": {"fused_qkv": True, "fused_gate": True},
    "stablelm": {**LAYER, "norm_bias": True, "qkv_bias": True, "meta": {"rope.dimension_count": 4}},
    "stablelm_parallel": {
        **LAYER,
        "arch": "stablelm",
        "norm_bias": True,
        "qk_norm": "heads",
        "mlp_norm": False,
        "meta": {"rope.dimension_count": 4, "use_parallel_residual": True},
    },
    "starcoder2": {**LAYER, **BIASED, "gated": False},
    "gpt2": {**LAYER, **BIASED, "gated": False, "positions": True, "fused_qkv": True, "n_kv": N_HEADS},
    "olmo": {**LAYER, "norms": False, "meta": {"attention.clamp_kqv": 0.6}},
    "olmo2": {"pre": False, "post": True, "qk_norm": "full"},
    "olmoe": {"qk_norm": "full", "d_expert": D_FF, "n_kv": N_HEADS, "meta": EXPERTS},
    "granite": {
        "meta": {"embedding_scale": 12.0, "residual_scale": 0.22, "logit_scale": 8.0, "attention.scale": 0.3},
    },
    "command-r": {**COHERE, "meta": {"logit_scale": 0.25}},
    "cohere2": {**COHERE, "n_layers": 4, "meta": {"logit_scale": 0.25, "attention.sliding_window": 8}},
    "smollm3": {"n_layers": 4},
    "arcee": {"gated": False},
    "nemotron": {**LAYER, "norm_bias": True, "gated": False, "meta": {"rope.dimension_count": 4}},
}


class Tensors(dict[str, np.ndarray]):
    """Random tensors of one file."""

    def __init__(self, case: dict[str, Any]) -> None:
        super().__init__()
        self.case = case
        self.rng = np.random.default_rng(0)

    def draw(self, name: str, *shape: int, around: float = 0.0, spread: float = 0.15) -> None:
        self[name] = (around + self.rng.standard_normal(shape) * spread).astype(np.float32)

    def norm(self, name: str, *shape: int, biased: bool | None = None) -> None:
        self.draw(f"{name}.weight", *(shape or (D_MODEL,)), around=1.0, spread=0.1)
        if self.case.get("norm_bias") if biased is None else biased:
            self.draw(f"{name}.bias", *(shape or (D_MODEL,)), spread=0.1)

    def linear(self, name: str, n_out: int, n_in: int, *, biased: bool = False) -> None:
        self.draw(f"{name}.weight", n_out, n_in)
        if biased:
            self.draw(f"{name}.bias", n_out, spread=0.1)


def tensors_of(case: dict[str, Any]) -> Tensors:
    """Draw every tensor of a file."""
    made = Tensors(case)
    made.draw("token_embd.weight", D_VOCAB, D_MODEL, spread=0.5)
    if case.get("norms", True):
        made.norm("output_norm")
    if case.get("head", True):
        made.linear("output", D_VOCAB, D_MODEL, biased=case.get("head_bias", False))
    if case.get("positions"):
        made.draw("position_embd.weight", 256, D_MODEL)
    if case.get("factors"):
        made["rope_freqs.weight"] = np.linspace(1, 8, HEAD_DIM // 2).astype(np.float32)
    for i in range(case.get("n_layers", 2)):
        attention(made, case, f"blk.{i}.")
        mlp(made, case, f"blk.{i}.")
    return made


def attention(made: Tensors, case: dict[str, Any], block: str) -> None:
    """Draw norms and attention of one block."""
    dim, n_kv = (16 if case.get("wide") else HEAD_DIM), case.get("n_kv", N_KV)
    d_q, d_kv, biased = N_HEADS * dim, n_kv * dim, case.get("qkv_bias", False)
    if case.get("norms", True) and case.get("pre", True):
        made.norm(f"{block}attn_norm")
        if case.get("mlp_norm", True):
            made.norm(f"{block}ffn_norm")
    if case.get("post"):
        made.norm(f"{block}post_attention_norm")
        made.norm(f"{block}post_ffw_norm")
    if case.get("fused_qkv"):
        made.linear(f"{block}attn_qkv", d_q + 2 * d_kv, D_MODEL, biased=biased)
    else:
        for name, width in (("q", d_q), ("k", d_kv), ("v", d_kv)):
            made.linear(f"{block}attn_{name}", width, D_MODEL, biased=biased)
    made.linear(f"{block}attn_output", D_MODEL, d_q, biased=case.get("o_bias", False))
    for name, heads in (("q", N_HEADS), ("k", n_kv)):
        shapes = {"head": (dim,), "heads": (heads, dim), "full": (heads * dim,)}
        if case.get("qk_norm"):
            made.norm(f"{block}attn_{name}_norm", *shapes[case["qk_norm"]], biased=False)


def mlp(made: Tensors, case: dict[str, Any], block: str) -> None:
    """Draw the MLP or the experts of one block."""
    biased = case.get("mlp_bias", False)
    if "d_expert" in case:
        width = case["d_expert"]
        made.draw(f"{block}ffn_gate_inp.weight", N_EXPERTS, D_MODEL)
        for name in ("gate", "up"):
            made.draw(f"{block}ffn_{name}_exps.weight", N_EXPERTS, width, D_MODEL)
        made.draw(f"{block}ffn_down_exps.weight", N_EXPERTS, D_MODEL, width)
        if case.get("shared"):
            made.draw(f"{block}ffn_gate_inp_shexp.weight", D_MODEL)
            for name in ("gate", "up"):
                made.linear(f"{block}ffn_{name}_shexp", D_SHARED, D_MODEL)
            made.linear(f"{block}ffn_down_shexp", D_MODEL, D_SHARED)
        return
    if case.get("gated", True) and not case.get("fused_gate"):
        made.linear(f"{block}ffn_gate", D_FF, D_MODEL, biased=biased)
    made.linear(f"{block}ffn_up", D_FF * (2 if case.get("fused_gate") else 1), D_MODEL, biased=biased)
    made.linear(f"{block}ffn_down", D_MODEL, D_FF, biased=biased)


def write(path: Path, arch: str, case: dict[str, Any]) -> None:
    """Write one file."""
    writer = gguf.GGUFWriter(str(path), arch)
    sizes: dict[str, Any] = {
        "vocab_size": D_VOCAB,
        "context_length": 256,
        "embedding_length": D_MODEL,
        "block_count": case.get("n_layers", 2),
        "feed_forward_length": D_FF,
        "attention.head_count": N_HEADS,
        "attention.head_count_kv": case.get("n_kv", N_KV),
    }
    if case.get("wide"):
        sizes |= {"attention.key_length": 16, "attention.value_length": 16}
    if case.get("shared"):
        sizes["expert_shared_feed_forward_length"] = D_SHARED
    sizes["attention.layer_norm_epsilon" if case.get("layer_norm") else "attention.layer_norm_rms_epsilon"] = 1e-5
    adders = {float: writer.add_float32, bool: writer.add_bool, str: writer.add_string, int: writer.add_uint32}
    for key, value in {**sizes, **case.get("meta", {})}.items():
        adders[type(value)](f"{arch}.{key}", value)
    writer.add_string("tokenizer.ggml.model", "no_vocab")
    for name, array in tensors_of(case).items():
        writer.add_tensor(name, np.ascontiguousarray(array))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def states(path: Path, ids: np.ndarray) -> np.ndarray:
    """Run llama.cpp: its "embeddings" of single tokens are the states after the final norm, [token, d_model]."""
    model = llama_cpp.llama_model_load_from_file(str(path).encode(), llama_cpp.llama_model_default_params())
    options = llama_cpp.llama_context_default_params()
    options.n_ctx = options.n_batch = options.n_ubatch = 256
    options.embeddings, options.pooling_type, options.flash_attn_type = True, 0, 0
    options.type_k = options.type_v = 0  # float32
    context = llama_cpp.llama_init_from_model(model, options)
    batch = llama_cpp.llama_batch_init(len(ids), 0, 1)
    batch.n_tokens = len(ids)
    for i, token in enumerate(ids):
        batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = int(token), i, 1, 1
        batch.seq_id[i][0] = 0
    if llama_cpp.llama_decode(context, batch):
        raise RuntimeError(path.name)
    width = llama_cpp.llama_model_n_embd(model)
    rows = (llama_cpp.llama_get_embeddings_ith(context, i) for i in range(len(ids)))
    return np.stack([np.ctypeslib.as_array(row, (width,)).copy() for row in rows])


def main() -> None:
    """Write the files that are named; without names all of them, each in a process of its own."""
    OUT.mkdir(exist_ok=True)
    if len(sys.argv) == 1:
        for name in CASES:
            subprocess.run([sys.executable, __file__, name], check=True)
        made = {
            "made_with": f"llama-cpp-python {llama_cpp.__version__}, float32 keys and values, CPU",
            "command": "python tests/golden/make_gguf.py",
        }
        (OUT / "README.json").write_text(json.dumps(made, indent=1) + "\n")
    for name in sys.argv[1:]:
        path, case = OUT / f"{name}.gguf", CASES[name]
        write(path, case.get("arch", name), case)
        ids = np.random.default_rng(1).integers(3, 90, N_TOKENS).astype(np.int32)
        np.savez(OUT / f"{name}.npz", input_ids=ids, final_norm=states(path, ids))


if __name__ == "__main__":
    main()
