"""A small random decoder with its reference, so that the check needs no model."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from workbench.checkpoint.config import DecoderConfig, Layer, Rope
from workbench.engine.trtllm.export import export_checkpoint

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

N_LAYERS, D_MODEL, N_HEADS, N_KV_HEADS, HEAD_DIM, D_FF, D_VOCAB, EPS, BASE = 2, 256, 4, 2, 64, 704, 1000, 1e-5, 5e5
LENGTHS = (128, 97, 64, 33, 7, 5, 2, 1)
Weights = dict[str, "NDArray[np.float32]"]


def write_toy(folder: Path, *, dtype: str = "float16", seed: int = 0) -> Path:
    """Write a checkpoint in TensorRT-LLM's layout, and `reference.npz` beside it.

    Parameters
    ----------
    folder : Path
        Is made if needed.
    dtype : str
        Dtype of the weights; the reference is computed in float64 from the same rounded weights.
    seed : int
        Of the weights and token ids.

    Returns
    -------
    Path
        The folder. `reference.npz` holds `input_ids` int32 [prompt, column], `lengths` int64 [prompt] and `final_norm`
        float32 [prompt, column, d_model].
    """
    rng = np.random.default_rng(seed)
    rope = Rope(dims=HEAD_DIM, inv_freq=tuple(BASE ** -(np.arange(0, HEAD_DIM, 2) / HEAD_DIM)))
    layer = Layer(rope=rope, attn_scale=HEAD_DIM**-0.5)
    config = DecoderConfig(
        family="llama",
        n_layers=N_LAYERS,
        d_model=D_MODEL,
        n_heads=N_HEADS,
        n_kv_heads=N_KV_HEADS,
        head_dim=HEAD_DIM,
        d_ff=D_FF,
        d_vocab=D_VOCAB,
        max_positions=max(LENGTHS),
        layers=(layer,) * N_LAYERS,
        norm_eps=EPS,
        activation="silu",
    )
    weights = {name: _round(array, dtype) for name, array in _random(rng).items()}
    export_checkpoint(config, weights, folder, dtype=dtype, max_positions=max(LENGTHS))
    lengths = np.array(LENGTHS)
    real = np.arange(lengths.max()) < lengths[:, None]
    ids = np.where(real, rng.integers(1, D_VOCAB, real.shape), 0).astype(np.int32)
    states = final_norm(weights, ids, np.asarray(rope.inv_freq))
    np.savez(folder / "reference.npz", input_ids=ids, lengths=lengths, final_norm=states.astype(np.float32))
    return folder


def _random(rng: np.random.Generator) -> Weights:
    def matrix(n_out: int, n_in: int) -> NDArray[np.float32]:
        return np.asarray(rng.standard_normal((n_out, n_in)) / np.sqrt(n_in), np.float32)

    def gain() -> NDArray[np.float32]:
        return rng.uniform(0.5, 1.5, D_MODEL).astype(np.float32)

    d_kv = N_KV_HEADS * HEAD_DIM
    weights = {"embed.weight": matrix(D_VOCAB, D_MODEL) * 16, "head.weight": matrix(D_VOCAB, D_MODEL)}
    weights["final_norm.weight"] = gain()
    for layer in range(N_LAYERS):
        block = {
            "q.weight": matrix(D_MODEL, D_MODEL),
            "k.weight": matrix(d_kv, D_MODEL),
            "v.weight": matrix(d_kv, D_MODEL),
            "o.weight": matrix(D_MODEL, D_MODEL),
            "gate.weight": matrix(D_FF, D_MODEL),
            "up.weight": matrix(D_FF, D_MODEL),
            "down.weight": matrix(D_MODEL, D_FF),
            "attn_norm.weight": gain(),
            "mlp_norm.weight": gain(),
        }
        weights |= {f"blocks.{layer}.{name}": array for name, array in block.items()}
    return weights


def _round(array: NDArray[np.float32], dtype: str) -> NDArray[np.float32]:
    if dtype == "bfloat16":
        import ml_dtypes

        short = array.astype(ml_dtypes.bfloat16)
        return np.asarray(short, np.float32)
    return array.astype(dtype).astype(np.float32)


def final_norm(weights: Weights, ids: NDArray[np.int32], inv_freq: NDArray[np.float64]) -> NDArray[np.float64]:
    """Compute the state after the final norm in float64.

    Parameters
    ----------
    weights : dict of str to float32 array
        By canonical name.
    ids : int32 [prompt, column]
        Padded on the right.
    inv_freq : float64 [pair]
        Rotary angle per position.

    Returns
    -------
    float64 [prompt, column, d_model]
        The state of every token.
    """
    wide = {name: array.astype(np.float64) for name, array in weights.items()}
    columns = ids.shape[1]
    angles = np.arange(columns)[:, None] * inv_freq
    turn = np.cos(angles), np.sin(angles)
    future = np.triu(np.full((columns, columns), -np.inf), 1)
    states = wide["embed.weight"][ids]
    for layer in range(N_LAYERS):
        block = {name.split(".", 2)[2]: array for name, array in wide.items() if name.startswith(f"blocks.{layer}.")}
        states = states + _attention(block, _norm(states, block["attn_norm.weight"]), turn, future)
        inner = _norm(states, block["mlp_norm.weight"])
        gate = inner @ block["gate.weight"].T
        states = states + (gate / (1 + np.exp(-gate)) * (inner @ block["up.weight"].T)) @ block["down.weight"].T
    return _norm(states, wide["final_norm.weight"])


def _norm(states: NDArray[np.float64], gain: NDArray[np.float64]) -> NDArray[np.float64]:
    normed: NDArray[np.float64] = states / np.sqrt((states**2).mean(-1, keepdims=True) + EPS) * gain
    return normed


def _attention(
    block: dict[str, NDArray[np.float64]],
    inner: NDArray[np.float64],
    turn: tuple[NDArray[np.float64], NDArray[np.float64]],
    future: NDArray[np.float64],
) -> NDArray[np.float64]:
    def heads(name: str) -> NDArray[np.float64]:
        flat = inner @ block[f"{name}.weight"].T
        return flat.reshape(*flat.shape[:2], -1, HEAD_DIM).swapaxes(1, 2)

    def rotated(vectors: NDArray[np.float64]) -> NDArray[np.float64]:
        first, second = np.split(vectors, 2, axis=-1)
        cos, sin = turn
        return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)

    query = rotated(heads("q"))
    key, value = (np.repeat(array, N_HEADS // N_KV_HEADS, axis=1) for array in (rotated(heads("k")), heads("v")))
    scores = query @ key.swapaxes(-1, -2) / np.sqrt(HEAD_DIM) + future
    share = np.exp(scores - scores.max(-1, keepdims=True))
    mixed = (share / share.sum(-1, keepdims=True)) @ value
    joined: NDArray[np.float64] = mixed.swapaxes(1, 2).reshape(inner.shape) @ block["o.weight"].T
    return joined
