"""A checkpoint in TensorRT-LLM's own layout, made from the workbench's: `config.json` and `rank0.safetensors`.

Only decoders of the llama kind. Without the attention plugin TensorRT-LLM ignores the rotary base and any scaling, so
the table of sines and cosines is stored as a weight. Each layer holds a float32 mask of `max_positions` squared there:
choose the longest prompt, not the model's limit.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.engine.trtllm.engine_config import PLAIN_ROPE_BASE, ROPE_TABLE_FLAG
from workbench.errors import UnsupportedError
from workbench.writing import whole_file, write_whole

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from workbench.checkpoint.config import DecoderConfig

TENSOR_DTYPES = {"float16": "F16", "bfloat16": "BF16", "float32": "F32"}


def export_checkpoint(
    config: DecoderConfig,
    weights: Mapping[str, NDArray[np.float32]],
    folder: Path | str,
    *,
    dtype: str = "float16",
    max_positions: int = 128,
) -> Path:
    """Write a checkpoint that `trtllm-build` reads.

    Parameters
    ----------
    config : DecoderConfig
        The decoder.
    weights : mapping of str to float32 array
        By canonical name, matrices as [out, in].
    folder : path
        Is made if needed.
    dtype : str
        float16, bfloat16 or float32.
    max_positions : int
        Longest prompt in tokens.

    Returns
    -------
    Path
        The folder.

    Raises
    ------
    UnsupportedError
        If the decoder has a part that this export does not write.
    """
    check_llama(config)
    if dtype not in TENSOR_DTYPES:
        raise UnsupportedError(f"dtype must be one of {', '.join(TENSOR_DTYPES)}", dtype, "Choose one of them.")
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(_config(config, dtype, max_positions), indent=1, sort_keys=True)
    tensors = {name: (dtype, array) for name, array in _tensors(config, weights).items()}
    tensors["embed_positions"] = ("float32", _rope_table(config, max_positions))
    (folder / "config.json").unlink(missing_ok=True)  # without it the folder is no checkpoint
    write_safetensors(folder / "rank0.safetensors", tensors)
    write_whole(folder / "config.json", text.encode())
    return folder


def check_llama(config: DecoderConfig) -> None:
    """Refuse decoders with parts beyond the llama kind.

    Raises
    ------
    UnsupportedError
        If there is one; the message names it.
    """
    rope = config.layers[0].rope
    factors = (config.embed_scale, config.residual_scale, config.logit_scale)
    scale = config.head_dim**-0.5
    rules = {
        "RMS norms in front of attention and MLP": (config.norm, config.attn_norm, config.mlp_norm)
        == ("rms", True, True),
        "no norms elsewhere": not (
            config.attn_post_norm or config.mlp_post_norm or config.qk_norm or config.embed_norm
        ),
        "a gated MLP with silu": config.gated and config.activation == "silu",
        "no biases": not config.biases,
        "no soft caps, clips or factors": not (config.attn_softcap or config.final_softcap or config.clip_qkv)
        and factors == (1.0, 1.0, 1.0),
        "no learned positions or alibi": not (config.positions or config.alibi) and not config.parallel,
        "one rotary table over the whole head": rope is not None
        and (rope.dims, rope.magnitude, rope.max_tokens) == (config.head_dim, 1.0, None)
        and all(layer.rope == rope for layer in config.layers),
        "plain attention and a plain MLP in every layer": all(
            layer.window is None and layer.experts is None and abs(layer.attn_scale - scale) < 1e-9
            for layer in config.layers
        ),
    }
    for what, holds in rules.items():
        if not holds:
            raise UnsupportedError(
                f"the export to TensorRT-LLM must be given a decoder with {what}",
                f"another in family {config.family}",
                "Convert with the convert_checkpoint.py of TensorRT-LLM.",
            )


def _tensors(config: DecoderConfig, weights: Mapping[str, NDArray[np.float32]]) -> dict[str, NDArray[np.float32]]:
    named = {
        "transformer.vocab_embedding.weight": weights["embed.weight"],
        "transformer.ln_f.weight": weights["final_norm.weight"],
        "lm_head.weight": weights["embed.weight" if config.tied else "head.weight"],
    }
    for layer in range(config.n_layers):
        here, there = f"blocks.{layer}", f"transformer.layers.{layer}"
        query, key = (_halves(config, weights[f"{here}.{name}.weight"]) for name in ("q", "k"))
        named |= {
            f"{there}.attention.qkv.weight": np.concatenate([query, key, weights[f"{here}.v.weight"]]),
            f"{there}.attention.dense.weight": weights[f"{here}.o.weight"],
            f"{there}.mlp.fc.weight": weights[f"{here}.gate.weight"],  # fc is the half with silu there
            f"{there}.mlp.gate.weight": weights[f"{here}.up.weight"],
            f"{there}.mlp.proj.weight": weights[f"{here}.down.weight"],
            f"{there}.input_layernorm.weight": weights[f"{here}.attn_norm.weight"],
            f"{there}.post_layernorm.weight": weights[f"{here}.mlp_norm.weight"],
        }
    return named


def _halves(config: DecoderConfig, matrix: NDArray[np.float32]) -> NDArray[np.float32]:
    """Reorder the rows of each head so that the two of a pair lie half a head apart."""
    rope = config.layers[0].rope
    if rope is None or not rope.interleaved:
        return matrix
    heads = matrix.reshape(-1, config.head_dim // 2, 2, matrix.shape[1])
    return np.ascontiguousarray(heads.swapaxes(1, 2)).reshape(matrix.shape)


def _rope_table(config: DecoderConfig, max_positions: int) -> NDArray[np.float32]:
    """Give [1, position, head_dim]: sines, then cosines."""
    rope = config.layers[0].rope
    assert rope is not None
    angles = np.arange(max_positions)[:, None] * np.asarray(rope.inv_freq)
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1)[None].astype(np.float32)


def _config(config: DecoderConfig, dtype: str, max_positions: int) -> dict[str, Any]:
    rope = config.layers[0].rope
    assert rope is not None
    return {
        "architecture": "LlamaForCausalLM",
        "dtype": dtype,
        "logits_dtype": "float32",
        "vocab_size": config.d_vocab,
        "hidden_size": config.d_model,
        "num_hidden_layers": config.n_layers,
        "num_attention_heads": config.n_heads,
        "num_key_value_heads": config.n_kv_heads,
        "head_size": config.head_dim,
        "intermediate_size": config.d_ff,
        "hidden_act": "silu",
        "norm_epsilon": config.norm_eps,
        "position_embedding_type": "rope_gpt_neox",
        "max_position_embeddings": max_positions,
        "rotary_base": _base(rope.inv_freq),
        "mapping": {"world_size": 1, "tp_size": 1, "pp_size": 1},
        ROPE_TABLE_FLAG: True,
    }


def _base(inv_freq: tuple[float, ...]) -> float:
    """Give the base of an unscaled table, which the attention plugin computes again; scaled ones are refused."""
    base = float(inv_freq[1] ** -len(inv_freq)) if len(inv_freq) > 1 else PLAIN_ROPE_BASE
    again = base ** -(np.arange(len(inv_freq)) / len(inv_freq))
    if not np.allclose(again, inv_freq, rtol=1e-4):
        raise UnsupportedError(
            "the export to TensorRT-LLM must be given unscaled rotary positions",
            "scaled ones",
            "Convert with the convert_checkpoint.py of TensorRT-LLM.",
        )
    return float(f"{base:.6g}")  # float32 frequencies give it to seven digits


def write_safetensors(path: Path, tensors: Mapping[str, tuple[str, NDArray[np.float32]]]) -> None:
    """Write tensors, converting one at a time.

    Parameters
    ----------
    path : Path
        The file.
    tensors : mapping of str to (str, float32 array)
        Dtype in the file, and values.
    """
    rows: dict[str, Any] = {}
    at = 0
    for name, (dtype, array) in tensors.items():
        size = array.size * (4 if dtype == "float32" else 2)
        rows[name] = {"dtype": TENSOR_DTYPES[dtype], "shape": list(array.shape), "data_offsets": [at, at + size]}
        at += size
    header = json.dumps(rows).encode()
    header += b" " * (-len(header) % 8)
    with whole_file(path) as file:
        file.write(struct.pack("<Q", len(header)) + header)
        for dtype, array in tensors.values():
            file.write(_bytes(dtype, array))


def _bytes(dtype: str, array: NDArray[np.float32]) -> bytes:
    if dtype != "bfloat16":
        return np.ascontiguousarray(array, dtype).tobytes()
    import ml_dtypes

    return array.astype(ml_dtypes.bfloat16).tobytes()
