"""Families: what a config asks for is computed or refused by name, and every weight is where the table says."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from golden_models import GOLDEN, TINY, flat_rows, named, relative, session

from workbench.checkpoint.families import resolve
from workbench.checkpoint.gguf import open_gguf
from workbench.checkpoint.rope import rope_from
from workbench.checkpoint.safetensors_file import open_safetensors
from workbench.errors import CheckpointError, UnsupportedError
from workbench.graph import build_graph

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

TINY_GGUF = sorted((GOLDEN / "tiny_gguf").glob("*.gguf"))
BY_TABLE = ("gemma", "gemma2", "gemma3", "gpt2", "phi2", "starcoder2")  # llama.cpp's GELU is a float16 table


class Tensors:
    """A TensorFile over arrays."""

    def __init__(self, arrays: Mapping[str, np.ndarray]) -> None:
        self.arrays = dict(arrays)
        self.names = tuple(arrays)
        self.metadata: dict[str, object] = {}

    def __contains__(self, name: object) -> bool:
        return name in self.arrays

    def shape(self, name: str) -> tuple[int, ...]:
        return self.arrays[name].shape

    def type(self, name: str) -> str:
        del name
        return "F32"

    def read(self, name: str) -> np.ndarray:
        return self.arrays[name]

    def read_rows(self, name: str, start: int, stop: int) -> np.ndarray:
        return self.arrays[name][start:stop]

    def raw(self, name: str) -> np.ndarray:
        return self.arrays[name].view(np.uint8).reshape(-1)


def opened(name: str) -> tuple[Tensors, dict[str, Any]]:
    folder = next(path for path in TINY if path.name == name)
    file = open_safetensors(folder / "model.safetensors")
    return Tensors({n: file.read(n) for n in file.names}), json.loads((folder / "config.json").read_text())


# GGUF -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", TINY_GGUF, ids=lambda path: path.stem)
def test_gguf_files_give_the_states_of_llama_cpp(path: Path) -> None:
    file = open_gguf(path)
    config, weights = resolve(file, file.metadata)
    assert weights.unused == ()
    with np.load(path.with_suffix(".npz")) as golden:
        ids, want = golden["input_ids"][None], golden["final_norm"]
    graph = build_graph(config, weights, taps=("final_norm",), positions="all", max_tokens=32)
    rows = flat_rows(np.array([ids.shape[1]]), ids.shape[1])
    got = session(graph).run(None, {"input_ids": ids, "rows": rows})[0]
    assert relative(got, want) < (1e-3 if path.stem in BY_TABLE else 2e-6)


def test_every_gguf_family_has_a_golden_file() -> None:
    from workbench.checkpoint.gguf_families import GGUF_FAMILIES

    assert set(GGUF_FAMILIES) == {str(open_gguf(path).metadata["general.architecture"]) for path in TINY_GGUF}


def test_gguf_metadata_that_is_not_understood_is_refused() -> None:
    file = open_gguf(GOLDEN / "tiny_gguf" / "llama.gguf")
    good = dict(file.metadata)
    wrong: list[dict[str, object]] = [
        {"general.architecture": "mamba"},
        {"general.type": "adapter"},
        {"llama.attention.sliding_window": 4},
        {"llama.rope.scaling.type": "banana", "llama.rope.scaling.factor": 2.0},
        {"llama.rope.scaling.yarn_ext_factor": 0.5},
        {"llama.rope.scaling.attn_factor": 1.3},
        {"llama.attention.head_count": [4, 2]},
        {"llama.attention.value_length": 4},
        {"llama.attention.causal": False},
    ]
    for change in wrong:
        with pytest.raises(CheckpointError):
            resolve(file, {**good, **change})


# Configs ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("llama", {"model_type": "mamba2"}),
        ("llama", {"model_type": None}),
        ("llama", {"hidden_act": "xielu"}),
        ("llama", {"rope_parameters": {"rope_type": "banana", "rope_theta": 1e4}}),
        ("llama", {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}}),
        ("llama", {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "mystery": 1}}),
        ("llama", {"rope_scaling": {"type": "linear"}}),
        ("llama", {"rope_theta": -1, "rope_parameters": None}),
        ("llama", {"quantization_config": {"quant_method": "gptq"}}),
        ("llama", {"residual_multiplier": 0.5}),
        ("llama", {"sliding_window": 16}),
        ("llama", {"use_rope": False}),
        ("llama", {"is_encoder_decoder": True}),
        ("llama", {"num_key_value_heads": 3}),
        ("llama", {"num_hidden_layers": "3"}),
        ("llama", {"vocab_size": 0}),
        ("gemma2", {"use_bidirectional_attention": True}),
        ("gemma2", {"layer_types": ["sliding_attention", "chunked_attention", "full_attention"]}),
        ("gemma2", {"layer_types": ["full_attention"]}),
        ("gemma2", {"sliding_window": None}),
        ("mistral_sliding", {"sliding_window": -1}),
        ("mistral_sliding", {"layer_types": ["full_attention"] * 3}),
        ("smollm3", {"no_rope_layers": [1]}),
        ("gpt2", {"add_cross_attention": True}),
        ("falcon", {"alibi": True}),
        ("opt", {"word_embed_proj_dim": 16}),
        ("opt", {"do_layer_norm_before": False}),
        ("bloom", {"apply_residual_connection_post_layernorm": True}),
        ("mixtral", {"num_experts_per_tok": 9}),
        ("granite", {"residual_multiplier": "half"}),
    ],
    ids=str,
)
def test_what_is_not_computed_is_refused(name: str, change: dict[str, Any]) -> None:
    file, config = opened(name)
    resolve(file, config)
    with pytest.raises(UnsupportedError):
        resolve(file, {**config, **change})


def test_keys_of_generation_and_training_are_harmless() -> None:
    file, config = opened("llama")
    more = {
        "torch_dtype": "float16",
        "_name_or_path": "x",
        "temperature": 0.7,
        "id2label": {"0": "a"},
        "unknown_but_null": None,
        "pruned_heads": {},
        "pretraining_tp": 2,
        "is_decoder": True,
    }
    assert resolve(file, {**config, **more})[0] == resolve(file, config)[0]


@pytest.mark.parametrize(
    ("name", "old"),
    [
        ("llama", {"rope_theta": 10000.0}),
        ("llama_linear", {"rope_theta": 5e4, "rope_scaling": {"type": "linear", "factor": 4.0}}),
        ("llama_dynamic", {"rope_scaling": {"type": "dynamic", "factor": 2.0}}),
        (
            "llama_rope_llama3",
            {
                "rope_theta": 10000.0,
                "rope_scaling": {
                    "rope_type": "llama3",
                    "factor": 8.0,
                    "low_freq_factor": 1.0,
                    "high_freq_factor": 4.0,
                    "original_max_position_embeddings": 64,
                },
            },
        ),
        (
            "phi3_longrope",
            {
                "rope_theta": 10000.0,
                "rope_scaling": {
                    "type": "su",
                    "short_factor": [1.0, 1.1, 1.2, 1.3],
                    "long_factor": [2.0, 3.0, 4.0, 5.0],
                },
            },
        ),
        (
            "gemma3_mixed",
            {
                "rope_theta": 1e6,
                "rope_local_base_freq": 1e4,
                "rope_scaling": {"rope_type": "linear", "factor": 8.0},
            },
        ),
        ("gpt_neox", {"rotary_emb_base": 10000, "rotary_pct": 0.25}),
        ("stablelm", {"rope_theta": 10000, "partial_rotary_factor": 0.5}),
        ("smollm3", {"rope_theta": 2000000.0}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_older_configs_mean_the_same(name: str, old: dict[str, Any]) -> None:
    file, config = opened(name)
    plain = {key: value for key, value in config.items() if key != "rope_parameters"}
    assert resolve(file, {**plain, **old})[0] == resolve(file, config)[0]


def test_yarn_and_linear_scaling_are_what_their_papers_say() -> None:
    plain = np.array(rope_from({}, head_dim=16, dims=16, theta=1e4, max_positions=128).inv_freq)
    linear = rope_from({"type": "linear", "factor": 4.0}, head_dim=16, dims=16, theta=1e4, max_positions=128)
    assert np.allclose(np.array(linear.inv_freq) * 4, plain)
    yarn = rope_from(
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048},
        head_dim=16,
        dims=16,
        theta=1e4,
        max_positions=8192,
    )
    ratio = plain / np.array(yarn.inv_freq)
    assert np.isclose(ratio[0], 1)
    assert np.isclose(ratio[-1], 4)
    assert np.all(np.diff(ratio) > -1e-6)
    assert np.isclose(yarn.magnitude, 0.1 * np.log(4) + 1)


# Weights ----------------------------------------------------------------------------------------------------------


def test_a_missing_tensor_is_named_and_never_invented() -> None:
    file, config = opened("qwen2")
    gone = "model.layers.1.self_attn.k_proj.bias"
    left = Tensors({name: array for name, array in file.arrays.items() if name != gone})
    with pytest.raises(CheckpointError, match=r"blocks\.1\.k\.bias.*model\.layers\.1\.self_attn\.k_proj\.bias"):
        resolve(left, config)


@pytest.mark.parametrize("name", ["llama", "gpt2", "gpt_neox", "phi3", "falcon_new"])
def test_a_tensor_of_another_shape_is_refused(name: str) -> None:
    file, config = opened(name)
    for victim in [tensor for tensor in file.names if ".1." in tensor]:
        array = file.arrays[victim]
        grown = Tensors({**file.arrays, victim: np.concatenate([array, array[:1]])})
        with pytest.raises(CheckpointError, match="as the config says"):
            resolve(grown, config)


def test_unused_tensors_are_reported_but_not_stored_masks() -> None:
    file, config = opened("gpt_neox")
    extra = {"adapter.weight": np.ones(3), "gpt_neox.layers.0.attention.bias": np.ones((1, 1, 4, 4))}
    assert resolve(Tensors({**file.arrays, **extra}), config)[1].unused == ("adapter.weight",)
    for folder in TINY:
        assert named(folder.name).weights.unused == (), folder.name


@pytest.mark.parametrize("name", ["llama", "gpt2", "gpt_neox", "bloom", "falcon"])
def test_a_checkpoint_of_the_bare_decoder_serves_all_taps_but_logits(name: str) -> None:
    file, config = opened(name)
    prefix = {"gpt_neox": "gpt_neox.", "llama": "model."}.get(name, "transformer.")
    bare = Tensors({n.removeprefix(prefix): a for n, a in file.arrays.items() if n.startswith(prefix)})
    decoder, weights = resolve(bare, config)
    model = named(name)
    assert all(np.array_equal(weights[key], model.weights[key]) for key in weights)
    build_graph(decoder, weights, taps=("final_norm",), positions="last", max_tokens=32)
    if not decoder.tied:
        with pytest.raises(CheckpointError, match="head"):
            build_graph(decoder, weights, taps=("logits",), positions="last", max_tokens=32)


def test_experts_may_lie_in_one_tensor() -> None:
    """Newer checkpoints stack gate and up of all experts."""
    file, config = opened("qwen3_moe")
    arrays = dict(file.arrays)
    for layer in range(2):
        prefix = f"model.layers.{layer}.mlp.experts"
        parts = {
            part: np.stack([arrays.pop(f"{prefix}.{e}.{part}_proj.weight") for e in range(4)])
            for part in ("gate", "up", "down")
        }
        arrays[f"{prefix}.gate_up_proj"] = np.concatenate([parts["gate"], parts["up"]], axis=1)
        arrays[f"{prefix}.down_proj"] = parts["down"]
    _, weights = resolve(Tensors(arrays), config)
    model = named("qwen3_moe")
    assert weights.unused == ()
    assert all(np.array_equal(weights[key], model.weights[key]) for key in model.weights)


def test_raw_bytes_exist_only_where_a_tensor_is_whole() -> None:
    assert named("llama").weights.raw("blocks.0.q.weight") is not None
    assert named("phi3").weights.raw("blocks.0.q.weight") is None
    assert named("gpt2").weights.raw("blocks.0.o.weight") is None
    assert named("gemma2").weights.raw("final_norm.weight") is None
    assert named("llama").weights.type("blocks.0.q.weight") == "F32"
