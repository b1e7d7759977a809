# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 8. Bring your own checkpoint
#
# **What you will see.** A checkpoint is written from scratch: a small llama with random weights, as `config.json` and
# `model.safetensors`. The workbench builds an engine of it, and a decoder of thirty lines of NumPy agrees with
# every tap. Then what is refused: a config field that nobody knows, a weight that is missing, text where there is no
# tokenizer.
#
# **How long it takes.** A few seconds. Nothing shared is needed.

# %%
import json
import tempfile
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

import workbench as wb
from workbench.errors import CheckpointError, TokenError, UnsupportedError, WorkbenchError
from workbench.graph import tap_names

scratch = tempfile.TemporaryDirectory()
folder = Path(scratch.name)
LAYERS, WIDTH, HEADS, KV_HEADS, HEAD, INNER, VOCAB, EPS, THETA = 2, 32, 4, 2, 8, 48, 64, 1e-5, 10_000.0

# %% [markdown]
# ## Write it
#
# Names and shapes as the `transformers` library stores them.

# %%
random = np.random.default_rng(0)
config = {
    "model_type": "llama",
    "num_hidden_layers": LAYERS,
    "hidden_size": WIDTH,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD,
    "intermediate_size": INNER,
    "vocab_size": VOCAB,
    "max_position_embeddings": 128,
    "rms_norm_eps": EPS,
    "rope_parameters": {"rope_type": "default", "rope_theta": THETA},
    "hidden_act": "silu",
    "tie_word_embeddings": True,
}
shapes = {"model.embed_tokens.weight": (VOCAB, WIDTH), "model.norm.weight": (WIDTH,)}
for i in range(LAYERS):
    for name, shape in {
        "input_layernorm": (WIDTH,),
        "self_attn.q_proj": (HEADS * HEAD, WIDTH),
        "self_attn.k_proj": (KV_HEADS * HEAD, WIDTH),
        "self_attn.v_proj": (KV_HEADS * HEAD, WIDTH),
        "self_attn.o_proj": (WIDTH, HEADS * HEAD),
        "post_attention_layernorm": (WIDTH,),
        "mlp.gate_proj": (INNER, WIDTH),
        "mlp.up_proj": (INNER, WIDTH),
        "mlp.down_proj": (WIDTH, INNER),
    }.items():
        shapes[f"model.layers.{i}.{name}.weight"] = shape
weights = {name: random.normal(0, 0.3, size=shape).astype(np.float32) for name, shape in shapes.items()}


def write(name: str, config: dict[str, object], weights: dict[str, np.ndarray]) -> Path:
    """Write a checkpoint folder."""
    home = folder / name
    home.mkdir()
    (home / "config.json").write_text(json.dumps(config))
    save_file(weights, home / "model.safetensors")
    return home


checkpoint = wb.open_checkpoint(write("tiny", config, weights))
taps = tuple(tap for tap in tap_names(checkpoint.config) if tap != "logits")
assert checkpoint.unused_tensors() == ()
print(checkpoint)
print(*taps, sep="  ")

# %% [markdown]
# ## Read it
#
# Without a tokenizer a checkpoint runs on token ids.

# %%
prompts = wb.load_prompts(token_ids=[random.integers(0, VOCAB, size=length) for length in (7, 3, 12, 1)])
engine = wb.build(wb.Recipe(checkpoint=checkpoint, taps=taps, positions="all", max_tokens=32), folder / "engines")
run = wb.extract(prompts, engine, out=folder / "run", progress=False)
print(run)

# %% [markdown]
# ## Check it
#
# The same decoder, slow and plain, one prompt at a time.


# %%
def norm(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + EPS) * weight


def rotated(x: np.ndarray) -> np.ndarray:
    """Rotary positions on [token, head, dimension]: the first half of the dimensions turns with the second."""
    turns = np.arange(len(x))[:, None] * THETA ** (-np.arange(0, HEAD, 2) / HEAD)
    cos, sin = np.cos(turns)[:, None], np.sin(turns)[:, None]
    a, b = np.split(x, 2, axis=-1)
    return np.concatenate((a * cos - b * sin, b * cos + a * sin), axis=-1)


def decoder(ids: np.ndarray) -> dict[str, np.ndarray]:
    """Every tap of one prompt, float64 [token, d_model]."""
    w = {name: value.astype(np.float64) for name, value in weights.items()}
    x = w["model.embed_tokens.weight"][ids]
    seen = {"embed": x}
    for i in range(LAYERS):
        layer = {name: w[f"model.layers.{i}.{name}.weight"] for name in (
            "input_layernorm", "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
            "post_attention_layernorm", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj",
        )}  # fmt: skip
        seen[f"blocks.{i}.resid_pre"] = x
        h = norm(x, layer["input_layernorm"])
        q, k, v = (
            (h @ layer[f"self_attn.{one}_proj"].T).reshape(len(ids), heads, HEAD)
            for one, heads in (("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS))
        )
        q, k = rotated(q), rotated(k)
        k, v = (np.repeat(one, HEADS // KV_HEADS, axis=1) for one in (k, v))
        scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(HEAD)
        scores = np.where(np.tri(len(ids), dtype=bool), scores, -np.inf)
        scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
        mixed = np.einsum("hqk,khd->qhd", scores / scores.sum(axis=-1, keepdims=True), v)
        seen[f"blocks.{i}.attn_out"] = mixed.reshape(len(ids), -1) @ layer["self_attn.o_proj"].T
        x = x + seen[f"blocks.{i}.attn_out"]
        h = norm(x, layer["post_attention_layernorm"])
        gate = h @ layer["mlp.gate_proj"].T
        seen[f"blocks.{i}.mlp_out"] = (gate / (1 + np.exp(-gate)) * (h @ layer["mlp.up_proj"].T)) @ layer[
            "mlp.down_proj"
        ].T
        x = x + seen[f"blocks.{i}.mlp_out"]
        seen[f"blocks.{i}.resid_post"] = x
    return seen | {"final_norm": norm(x, w["model.norm.weight"])}


expected = [decoder(ids) for ids in prompts.token_ids]
worst = {}
for tap in taps:
    rows = np.concatenate([one[tap] for one in expected])
    apart = np.linalg.norm(run.tap(tap)[:] - rows, axis=1) / np.linalg.norm(rows, axis=1)
    worst[tap] = float(apart.max())
    print(f"{tap:20} worst row {worst[tap]:.1e}")

# %% [markdown]
# **Finding.** The engine computes what the weights say: every row of every tap agrees with the plain decoder to float32
# rounding, whatever the length of the prompt and whatever stood beside it in its pass.

# %%
assert set(worst) == set(taps)
assert max(worst.values()) < 1e-5
print(f"{run.n_rows} rows, {len(taps)} taps, worst {max(worst.values()):.1e}")


# %% [markdown]
# ## What is refused
#
# A field that nobody here knows may change what a decoder computes: it is named, not skipped. A missing weight is
# never invented; one too many is reported.


# %%
def refusal(kind: type[WorkbenchError], home: Path) -> str:
    """Open a checkpoint that must be refused; give the reason."""
    try:
        wb.open_checkpoint(home)
    except kind as error:
        return str(error)
    raise AssertionError(f"{home.name} was opened")


gone = "model.layers.1.mlp.up_proj.weight"
print(refusal(UnsupportedError, write("field", {**config, "attention_tilt": 0.5}, weights)), end="\n\n")
print(refusal(CheckpointError, write("gap", config, {k: v for k, v in weights.items() if k != gone})), end="\n\n")
more = wb.open_checkpoint(write("more", config, {**weights, "model.adapter.weight": np.ones((3, 3), np.float32)}))
assert more.unused_tensors() == ("model.adapter.weight",)
try:
    wb.extract(wb.load_prompts(["some text"]), engine, out=folder / "text", progress=False)
except TokenError as error:
    print(error)
else:
    raise AssertionError("text without a tokenizer must be refused")
scratch.cleanup()
