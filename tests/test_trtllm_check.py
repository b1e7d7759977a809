"""The check of a real source tree: its stand-ins, its verdicts, its small decoder and the exported checkpoint."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ml_dtypes  # noqa: F401 - gives NumPy bfloat16
import numpy as np
import pytest
from safetensors.numpy import load_file

from workbench.checkpoint import open_checkpoint
from workbench.cli import main
from workbench.engine.trtllm.check.__main__ import compare_networks, copy_tree
from workbench.engine.trtllm.check.toy import LENGTHS, write_toy
from workbench.engine.trtllm.check.tracing import VARIANTS
from workbench.engine.trtllm.export import check_llama, export_checkpoint
from workbench.errors import UnsupportedError

if TYPE_CHECKING:
    from numpy.typing import NDArray

GOLDEN = Path(__file__).parent / "golden"
REAL_TREE = os.environ.get("TENSORRT_LLM_TREE")
RTX_PYTHON = os.environ.get("TENSORRT_RTX_PYTHON")


def run_exported(folder: Path, ids: NDArray[np.int32]) -> NDArray[np.float64]:
    """State after the final norm of one prompt, from the exported files alone, as TensorRT-LLM documents its layout."""
    config = json.loads((folder / "config.json").read_text())
    w = {name: array.astype(np.float64) for name, array in load_file(folder / "rank0.safetensors").items()}
    n_heads, n_kv, hd = config["num_attention_heads"], config["num_key_value_heads"], config["head_size"]
    n = len(ids)
    sin, cos = np.split(w["embed_positions"][0, :n], 2, axis=1)

    def norm(x: Any, name: str) -> Any:
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + config["norm_epsilon"]) * w[name]

    def turn(x: Any) -> Any:
        a, b = x[..., : hd // 2], x[..., hd // 2 :]
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)

    x = w["transformer.vocab_embedding.weight"][ids]
    for i in range(config["num_hidden_layers"]):
        p = f"transformer.layers.{i}."
        qkv = norm(x, p + "input_layernorm.weight") @ w[p + "attention.qkv.weight"].T
        q, k, v = (
            part.reshape(n, -1, hd).swapaxes(0, 1) for part in np.split(qkv, [n_heads * hd, (n_heads + n_kv) * hd], 1)
        )
        k, v = (np.repeat(part, n_heads // n_kv, 0) for part in (turn(k), v))
        scores = turn(q) @ k.swapaxes(1, 2) / np.sqrt(hd) + np.triu(np.full((n, n), -np.inf), 1)
        share = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = (share / share.sum(-1, keepdims=True)) @ v
        x = x + mixed.swapaxes(0, 1).reshape(n, -1) @ w[p + "attention.dense.weight"].T
        inner = norm(x, p + "post_layernorm.weight")
        gate = inner @ w[p + "mlp.fc.weight"].T
        x = x + (gate / (1 + np.exp(-gate)) * (inner @ w[p + "mlp.gate.weight"].T)) @ w[p + "mlp.proj.weight"].T
    return norm(x, "transformer.ln_f.weight")


def worst(got: Any, want: Any) -> float:
    return float((np.linalg.norm(got - want, axis=-1) / np.linalg.norm(want, axis=-1)).max())


def test_the_export_computes_the_golden_states(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(GOLDEN / "tiny" / "llama")
    export_checkpoint(checkpoint.config, checkpoint.weights, tmp_path, dtype="float32", max_positions=32)
    with np.load(GOLDEN / "tiny" / "llama" / "golden.npz") as golden:
        for ids, length, want in zip(golden["input_ids"], golden["lengths"], golden["final_norm"], strict=True):
            assert worst(run_exported(tmp_path, ids[:length]), want[:length]) < 1e-5


def test_interleaved_pairs_are_put_half_a_head_apart(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(GOLDEN / "tiny" / "llama")
    config, weights = checkpoint.config, dict(checkpoint.weights)
    half = config.head_dim // 2
    order = np.stack([np.arange(half), np.arange(half) + half], 1).ravel()  # half-split to neighbours
    for name, matrix in list(weights.items()):
        if name.endswith((".q.weight", ".k.weight")):
            heads = matrix.reshape(-1, config.head_dim, config.d_model)
            weights[name] = heads[:, order].reshape(matrix.shape)
    layers = tuple(replace(layer, rope=replace(layer.rope, interleaved=True)) for layer in config.layers)
    export_checkpoint(replace(config, layers=layers), weights, tmp_path, dtype="float32", max_positions=32)
    with np.load(GOLDEN / "tiny" / "llama" / "golden.npz") as golden:
        n = int(golden["lengths"][0])
        assert worst(run_exported(tmp_path, golden["input_ids"][0, :n]), golden["final_norm"][0, :n]) < 1e-5


@pytest.mark.parametrize(
    ("family", "what"),
    [
        ("gpt2", "RMS norms"),
        ("qwen2", "no biases"),
        ("qwen3", "no norms elsewhere"),
        ("mistral_sliding", "plain attention"),
    ],
)
def test_other_decoders_are_not_exported(family: str, what: str) -> None:
    config = open_checkpoint(GOLDEN / "tiny" / family).config
    with pytest.raises(UnsupportedError, match=what):
        check_llama(config)


def test_scaled_rotary_positions_are_not_exported(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(GOLDEN / "tiny" / "llama_rope_llama3")
    with pytest.raises(UnsupportedError, match="unscaled"):
        export_checkpoint(checkpoint.config, checkpoint.weights, tmp_path)


class Failing(dict[str, Any]):
    """Weights of which one cannot be read."""

    def __getitem__(self, name: str) -> Any:
        if name == "blocks.1.down.weight":
            raise OSError("cannot be read")
        return super().__getitem__(name)


def test_an_export_that_fails_leaves_no_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = open_checkpoint(GOLDEN / "tiny" / "llama")
    weights = dict(checkpoint.weights)
    export_checkpoint(checkpoint.config, weights, tmp_path, max_positions=32)
    whole = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(OSError, match="cannot be read"):
        export_checkpoint(checkpoint.config, Failing(weights), tmp_path, max_positions=32)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == whole
    monkeypatch.setattr("workbench.engine.trtllm.export._bytes", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        export_checkpoint(checkpoint.config, weights, tmp_path, max_positions=32)
    assert [path.name for path in tmp_path.iterdir()] == ["rank0.safetensors"]
    assert (tmp_path / "rank0.safetensors").read_bytes() == whole["rank0.safetensors"]


def test_the_command_line_exports(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, folder = str(GOLDEN / "tiny" / "llama"), tmp_path / "out"
    assert main(["trtllm", "export", model, str(folder), "--precision", "fp16", "--max-tokens", "16"]) == 0
    assert capsys.readouterr().out == f"{folder}\n"
    config = json.loads((folder / "config.json").read_text())
    assert (config["dtype"], config["max_position_embeddings"]) == ("float16", 16)
    assert main(["trtllm", "export", str(GOLDEN / "tiny" / "gpt2"), str(tmp_path / "no")]) == 2
    assert "RMS norms" in capsys.readouterr().err
    assert not (tmp_path / "no").exists()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_the_small_decoder_agrees_with_its_reference(dtype: str, tmp_path: Path) -> None:
    write_toy(tmp_path, dtype=dtype)
    assert json.loads((tmp_path / "config.json").read_text())["dtype"] == dtype
    with np.load(tmp_path / "reference.npz") as data:
        assert data["lengths"].tolist() == list(LENGTHS)
        for row in (3, 5, 7):
            n = LENGTHS[row]
            assert worst(run_exported(tmp_path, data["input_ids"][row, :n]), data["final_norm"][row, :n]) < 1e-5


PLAIN: dict[str, Any] = {
    "inputs": [{"name": "input_ids", "dtype": "INT32", "shape": [-1, -1]}],
    "outputs": [{"name": "logits", "dtype": "FLOAT", "shape": [-1, 1000]}],
    "layers": 7,
    "kinds": {"GATHER": 2, "SHUFFLE": 5},
    "plugin_layers": 0,
    "version": "0.16.0",
    "commands_parsed": ["--kv_cache_type disabled"] * len(VARIANTS),
}
INT32 = ("input_ids", "position_ids", "attention_mask")
ASKED = {
    "plain": [{"name": name, "dtype": "INT32", "shape": [-1, -1]} for name in INT32]
    + [{"name": "last_token_ids", "dtype": "INT32", "shape": [-1]}]
}
PLAIN["inputs_asked"] = ASKED
OUR_TABLE = "our table has the inputs of layout plain"
TAP = {"name": "final_hidden_states", "dtype": "HALF", "shape": [-1, -1, 64]}
CONFIG = {"dtype": "float16", "hidden_size": 64}


def failing(change: Any) -> set[str]:
    patched = copy.deepcopy(PLAIN)
    patched["outputs"].insert(0, dict(TAP))
    change(patched)
    return {what for what, holds, _ in compare_networks(PLAIN, patched, CONFIG) if not holds}


def test_the_verdicts_hold_for_the_tap_alone() -> None:
    assert failing(lambda seen: None) == set()


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda seen: seen["outputs"].pop(0), "the network gains the tap and nothing else"),
        (lambda seen: seen["outputs"].pop(1), "the network gains the tap and nothing else"),
        (lambda seen: seen["outputs"][0].update(shape=[-1, 64]), "the network gains the tap and nothing else"),  # late
        (lambda seen: seen["outputs"][0].update(dtype="FLOAT"), "the network gains the tap and nothing else"),
        (lambda seen: seen["outputs"].append({"name": "x"}), "the network gains the tap and nothing else"),
        (lambda seen: seen["inputs"].append({"name": "x"}), "inputs are the same"),
        (lambda seen: seen["kinds"].update(CAST=1), "layers are the same"),
        (lambda seen: seen.update(plugin_layers=1), "no plugin is in it"),
        (lambda seen: seen["commands_parsed"].pop(), "every variant of the command parses"),
        (lambda seen: seen["inputs_asked"]["plain"].pop(), OUR_TABLE),
        (
            lambda seen: seen["inputs_asked"]["plain"][0].update(dtype="INT64"),
            "our table has the inputs of layout plain",
        ),
        (lambda seen: seen["inputs_asked"]["plain"][0].update(shape=[-1]), OUR_TABLE),
    ],
)
def test_each_verdict_can_fail(change: Any, what: str) -> None:
    assert failing(change) == {what}


def test_only_python_sources_are_copied(tmp_path: Path) -> None:
    package = tmp_path / "from" / "tensorrt_llm"
    (package / "libs").mkdir(parents=True)
    for name in ("a.py", "b.so", "libs/c.bin"):
        (package / name).write_text("")
    copied = copy_tree(tmp_path / "from", tmp_path / "to")
    assert [path.name for path in copied.rglob("*") if path.is_file()] == ["a.py"]


def test_stand_ins_can_be_imported_subclassed_and_called() -> None:
    # in a process of its own: the stand-ins change modules for good
    script = """
import sys, types
from workbench.engine.trtllm.check import stubs
sys.modules["transformers"] = types.ModuleType("transformers")
for name in ("transformers.models", "transformers.models.gpt2", "transformers.models.gpt2.modeling_gpt2"):
    sys.modules[name] = types.ModuleType(name)
used = stubs.install_stubs()
import dataclasses, importlib.metadata
import onnx_graphsurgeon.ir as ir
from tensorrt_llm.bindings import KVCacheType, executor
from tensorrt_llm.bindings.BuildInfo import ENABLE_MULTI_DEVICE
assert KVCacheType("disabled") is KVCacheType.DISABLED and ENABLE_MULTI_DEVICE is False
class Mine(executor.Request): ...
annotation = executor.Request | None
@ir.decorator
def function(): return 5
assert function() == 5 and Mine(1, a=2).anything(3) is not None
@dataclasses.dataclass
class Inner: a: int = 1
@dataclasses.dataclass
class Outer: inner: Inner = Inner()
assert importlib.metadata.version("pynvml") and "onnx_graphsurgeon" in used and "tensorrt_llm.bindings" in used
try:
    import surely_not_installed_anywhere
except ModuleNotFoundError:
    print("fine")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.stdout == "fine\n", done.stderr


@pytest.mark.skipif(
    not (REAL_TREE and RTX_PYTHON),
    reason="goes once TENSORRT_LLM_TREE names a source tree, TENSORRT_RTX_PYTHON a Python with tensorrt-rtx-cu13 1.4",
)
def test_the_real_source_traces_with_the_tap(tmp_path: Path) -> None:
    command = [str(RTX_PYTHON), "-m", "workbench.engine.trtllm.check", str(REAL_TREE), "--backend", "rtx"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    done = subprocess.run(
        [*command, "--work", tmp_path], capture_output=True, text=True, check=False, env=environment, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "FAILS" not in done.stdout
