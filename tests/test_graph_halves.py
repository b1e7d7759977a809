"""Rotary pairs in halves of a head: the same decoder with rows in another order."""

import numpy as np
import pytest

import workbench as wb
from workbench.engine.batch import make_feeds
from workbench.engine.ort_session import session_of
from workbench.graph import build_graph
from workbench.graph.halves import in_halves

SIDE_BY_SIDE = ("tiny_gguf/llama.gguf", "tiny_gguf/llama_tied_biased.gguf", "tiny_more/cohere", "tiny_more/gptj")


@pytest.mark.parametrize("place", SIDE_BY_SIDE)
def test_the_order_of_channels_within_a_head_changes_no_state(golden, place):
    checkpoint = wb.open_checkpoint(golden / place)
    config, weights = in_halves(checkpoint.config, checkpoint.weights)
    assert any(layer.rope.interleaved for layer in checkpoint.config.layers)
    assert not any(layer.rope.interleaved for layer in config.layers)
    moved = [name for name in weights if not np.array_equal(weights[name], checkpoint.weights[name])]
    assert {name.split(".", 2)[2].split(".")[0] for name in moved} <= {"q", "k", "q_norm", "k_norm"}
    assert len(moved) >= 2 * config.n_layers
    prompts = [np.random.default_rng(3).integers(0, config.d_vocab, 9).astype(np.int32)]
    rows = []
    for shape, source in ((checkpoint.config, checkpoint.weights), (config, weights)):
        graph = build_graph(shape, source, taps=("final_norm",), positions="all", lowering="primitive", max_tokens=16)
        feeds = make_feeds(prompts, "all", graph.inputs[0].dtype)
        rows.append(session_of(graph).run(feeds)["final_norm"].astype(np.float64))
    assert np.linalg.norm(rows[1] - rows[0]) < 2e-6 * np.linalg.norm(rows[0])


def test_pairs_in_halves_already_stay_as_they_are(toy_checkpoint):
    config, weights = in_halves(toy_checkpoint.config, toy_checkpoint.weights)
    assert config is toy_checkpoint.config
    assert weights is toy_checkpoint.weights


def test_bytes_of_a_grid_move_with_their_rows(golden):
    class Stored(dict):
        def shape(self, name):
            return self[name].shape

        def type(self, name):
            return "F32"

        def raw(self, name):
            return self[name].view(np.uint8).reshape(-1)

    config = wb.open_checkpoint(golden / SIDE_BY_SIDE[0]).config
    width = config.head_dim * config.n_kv_heads
    matrix = np.random.default_rng(0).standard_normal((width, 32)).astype(np.float32)
    stored = Stored({"blocks.0.k.weight": matrix, "blocks.0.v.weight": matrix})
    moved = in_halves(config, stored)[1]
    for name in stored:
        np.testing.assert_array_equal(moved.raw(name).view(np.float32).reshape(matrix.shape), moved[name])
    assert not np.array_equal(moved["blocks.0.k.weight"], matrix)
    np.testing.assert_array_equal(moved["blocks.0.v.weight"], matrix)
