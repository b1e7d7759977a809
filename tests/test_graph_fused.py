"""Lowerings with own operators: the same states as the reference, with the operators evaluated in NumPy."""

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from workbench.checkpoint.config import DecoderConfig, Layer, Rope
from workbench.engine.batch import make_feeds
from workbench.engine.ort_session import session_of
from workbench.engine.tensorrt.kernels.launching import operators_of
from workbench.graph import build_graph
from workbench.graph.joined import join_gates
from workbench.graph.narrow import narrow

WIDTH, HEADS, KV, HEAD, INNER, VOCAB = 128, 2, 1, 64, 256, 50


class RopeAttention(OpRun):
    op_domain = "workbench"

    def _run(self, qkv, cos, sin, heads, kv_heads, head_dim, interleaved, half, scale, step):
        assert step == half == 0
        prompts, tokens, _ = qkv.shape
        parts = qkv.reshape(prompts, tokens, heads + 2 * kv_heads, head_dim).transpose(0, 2, 1, 3)
        q, k, v = np.split(parts, [heads, heads + kv_heads], axis=1)

        def turn(x):
            first, second = (x[..., 0::2], x[..., 1::2]) if interleaved else np.split(x, 2, axis=-1)
            c, s = cos[:tokens], sin[:tokens]
            return np.concatenate([first * c - second * s, second * c + first * s], axis=-1)

        k, v = (np.repeat(x, heads // kv_heads, axis=1) for x in (turn(k), v))
        scores = turn(q) @ k.swapaxes(-1, -2) * scale
        scores = np.where(np.tril(np.ones((tokens, tokens), dtype=bool)), scores, -np.inf)
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = shares / shares.sum(-1, keepdims=True) @ v
        return (mixed.transpose(0, 2, 1, 3).reshape(prompts, tokens, heads * head_dim).astype(qkv.dtype),)


class SiluGate(OpRun):
    op_domain = "workbench"

    def _run(self, both, width, half, step):
        assert step == half == 0
        gate, up = np.split(both, [width], axis=-1)
        return ((gate / (1 + np.exp(-gate)) * up).astype(both.dtype),)


class AddRmsNorm(OpRun):
    op_domain = "workbench"

    def _run(self, x, delta, scale, width, wide, half, eps, step):
        assert step == half == 0
        assert x.shape[-1] == width
        total = x + delta
        return total, (total / np.sqrt((total**2).mean(-1, keepdims=True) + eps) * scale).astype(x.dtype)


def stored_places(*, codes):
    """Place in a tile of each of its 128 outputs: what the kernel's threads hold and where they write 16 bytes each."""
    runs = 8 if codes else 4  # of eight columns, of which a thread holds two
    place_of = np.full(128, -1)
    for part in range(16 // runs):
        for quarter in range(4):
            for n in range(2 * runs):
                run = part * runs + n // 2
                place_of[part * 8 * runs + quarter * 2 * runs + n] = 8 * run + 2 * quarter + n % 2
    assert sorted(place_of) == list(range(128))
    return place_of


def from_tiles(words, dtype, *, codes):
    """Undo `in_tiles`: [d_model, 2 * d_ff], gate before up."""
    tiles = words.view(dtype).reshape(-1, 2, 128, words.view(dtype).shape[1])[:, :, stored_places(codes=codes)]
    return tiles.swapaxes(0, 1).reshape(-1, tiles.shape[-1]).T


class GatedProduct(OpRun):
    op_domain = "workbench"

    def _run(self, x, words, width, coded, half, scale, step):
        assert (coded, half, scale, step) == (0, 0, 1.0, 0.0)
        gate, up = np.split(x @ from_tiles(words, x.dtype, codes=False), [width], axis=-1)
        return ((gate / (1 + np.exp(-gate)) * up).astype(x.dtype),)


def config(*, interleaved=False, d_ff=INNER):
    inv_freq = tuple(float(f) for f in 1e4 ** (-np.arange(0, HEAD, 2) / HEAD))
    rope = Rope(dims=HEAD, inv_freq=inv_freq, interleaved=interleaved)
    return DecoderConfig(
        family="llama",
        n_layers=2,
        d_model=WIDTH,
        n_heads=HEADS,
        n_kv_heads=KV,
        head_dim=HEAD,
        d_ff=d_ff,
        d_vocab=VOCAB,
        max_positions=64,
        layers=(Layer(rope=rope, attn_scale=HEAD**-0.5),) * 2,
        norm_eps=1e-5,
        activation="silu",
    )


class Weights(dict):
    def shape(self, name):
        return self[name].shape


@pytest.fixture(scope="module")
def weights():
    random = np.random.default_rng(0)
    sizes = {"q": (HEADS * HEAD, WIDTH), "k": (KV * HEAD, WIDTH), "v": (KV * HEAD, WIDTH), "o": (WIDTH, HEADS * HEAD)}
    sizes |= {"gate": (INNER, WIDTH), "up": (INNER, WIDTH), "down": (WIDTH, INNER)}
    made = {"embed.weight": random.standard_normal((VOCAB, WIDTH)), "final_norm.weight": np.ones(WIDTH)}
    for i in range(2):
        for part, shape in sizes.items():
            made[f"blocks.{i}.{part}.weight"] = random.standard_normal(shape) / np.sqrt(shape[1])
        made |= {f"blocks.{i}.{part}_norm.weight": 1 + random.standard_normal(WIDTH) / 10 for part in ("attn", "mlp")}
    return Weights({name: array.astype(np.float32) for name, array in made.items()})


def graph_of(weights, lowering, *, interleaved=False, positions="all", d_ff=INNER):
    taps = ("blocks.0.attn_out", "blocks.1.mlp_out", "final_norm")
    shape = config(interleaved=interleaved, d_ff=d_ff)
    return build_graph(shape, weights, taps=taps, positions=positions, lowering=lowering, max_tokens=32)


def evaluate(graph, feeds):
    model = onnx.ModelProto()
    model.CopyFrom(graph.model)
    for tensor in model.graph.initializer:
        if tensor.name in graph.initialisers:
            tensor.CopyFrom(onnx.numpy_helper.from_array(graph.initialisers[tensor.name].load(), tensor.name))
    session = ReferenceEvaluator(model, new_ops=[RopeAttention, SiluGate, AddRmsNorm, GatedProduct])
    return dict(zip((output.name for output in model.graph.output), session.run(None, feeds), strict=True))


@pytest.mark.parametrize("lowering", ["packed", "fused", "fused_gate", "fused_norm"])
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("positions", ["all", "last"])
def test_own_operators_give_the_states_of_the_reference(weights, lowering, interleaved, positions):
    random = np.random.default_rng(1)
    feeds = make_feeds([random.integers(0, VOCAB, n).astype(np.int32) for n in (9, 1, 5)], positions, "int32")
    expected = session_of(graph_of(weights, "opset23", interleaved=interleaved, positions=positions)).run(feeds)
    graph = graph_of(weights, lowering, interleaved=interleaved, positions=positions)
    for written in (graph, join_gates(graph)):
        got = evaluate(written, feeds)
        for tap, rows in expected.items():
            np.testing.assert_allclose(got[tap], rows, rtol=2e-3, atol=2e-4)


def ranges(graph, *, without=()):
    return {module: 4.0 for module in graph.policy if module not in without}


def test_kernels_write_the_codes_where_a_product_alone_reads_them(weights):
    graph = graph_of(weights, "fused_gate")
    model = narrow(graph, "fp8", ranges=ranges(graph)).model
    own = [node for node in model.graph.node if node.domain == "workbench"]
    assert [node.op_type for node in own] == ["RopeAttention", "SiluGate"] * 2
    readers = {name: node for node in model.graph.node for name in node.input}
    for node in own:
        step = next(a.f for a in node.attribute if a.name == "step")
        assert step >= 4.0 / 448
        assert readers[node.output[0]].op_type == "DequantizeLinear"
    assert [sizes["codes"] for _, sizes in operators_of(model)] == [1, 1]


def test_a_norm_writes_codes_and_a_stream_of_the_precision(weights):
    graph = graph_of(weights, "fused_norm")
    for precision, codes, wide, half in (("fp8", 1, 0, 0), ("bf16", 0, 1, 0), ("fp16", 0, 1, 1)):
        model = narrow(graph, precision, ranges=ranges(graph)).model
        found = [sizes for operator, sizes in operators_of(model) if operator == "AddRmsNorm"]
        assert {"width": WIDTH, "wide": wide, "half": half, "codes": codes} in found
        assert {
            "width": WIDTH,
            "wide": wide,
            "half": half,
            "codes": 0,
        } in found  # the final norm, which no product reads


def test_a_kept_product_gets_values_from_its_kernel(weights):
    graph = graph_of(weights, "fused_gate")
    model = narrow(graph, "fp8", ranges=ranges(graph), keep=("blocks.1.*",)).model
    steps = [
        next(a.f for a in node.attribute if a.name == "step") > 0
        for node in model.graph.node
        if node.domain == "workbench"
    ]
    assert steps == [True, True, False, False]
    assert sorted(sizes["codes"] for _, sizes in operators_of(model)) == [0, 0, 1, 1]


def test_gate_and_up_share_one_range_or_none(weights):
    graph = graph_of(weights, "fused_gate")
    whole = narrow(graph, "fp8", ranges=ranges(graph))
    half = narrow(graph, "fp8", ranges=ranges(graph, without=("blocks.0.up",)))
    assert str(whole.initialisers["blocks.0.gate_up.weight"].dtype) == "float8_e4m3fn"
    assert str(half.initialisers["blocks.0.gate_up.weight"].dtype) == "bfloat16"
    assert half.policy["blocks.0.gate"] == "bf16"


def own(model, operator):
    return [node for node in model.graph.node if node.op_type == operator]


def attributes(node):
    return {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}


@pytest.mark.parametrize(("keep", "coded", "codes"), [((), 1, 1), (("*.down",), 1, 0), (("*.gate",), 0, 1)])
def test_a_joined_product_reads_and_writes_what_its_neighbours_do(weights, keep, coded, codes):
    plain = graph_of(weights, "fused_norm")
    apart = narrow(plain, "fp8", ranges=ranges(plain), keep=keep)
    graph = join_gates(apart)
    assert not own(graph.model, "SiluGate")
    assert graph.policy == apart.policy
    known = {t.name for t in (*graph.model.graph.initializer, *graph.model.graph.input)}
    for node in graph.model.graph.node:
        assert set(filter(None, node.input)) <= known, node.name
        known |= set(node.output)
    assert set(graph.initialisers) <= {t.name for t in graph.model.graph.initializer}
    first = own(graph.model, "GatedProduct")[0]
    assert attributes(first) == {
        "width": INNER,
        "coded": coded,
        "half": 0,
        "scale": pytest.approx(4.0 / 448, rel=2**-7) if coded else 1.0,
        "step": pytest.approx(4.0 / 448, rel=2**-7) if codes else 0.0,
    }
    norm = own(graph.model, "AddRmsNorm")[0]
    assert first.input[0] == norm.output[1]
    assert list(first.input[1:]) == ["blocks.0.gate_up.tiles", "blocks.0.gate_up.weight.step"][: 1 + coded]
    matrix = apart.initialisers["blocks.0.gate_up.weight"].load()
    assert matrix.dtype == (ml_dtypes.float8_e4m3fn if coded else ml_dtypes.bfloat16)
    words = graph.initialisers["blocks.0.gate_up.tiles"].load()
    np.testing.assert_array_equal(from_tiles(words, matrix.dtype, codes=bool(codes)), matrix)
    assert graph.weight_bytes == apart.weight_bytes


def test_what_the_joined_kernel_does_not_cover_stays(weights):
    narrow_inner = Weights(weights)
    for i in range(2):
        for part in ("gate", "up"):
            narrow_inner[f"blocks.{i}.{part}.weight"] = weights[f"blocks.{i}.{part}.weight"][:192]
        narrow_inner[f"blocks.{i}.down.weight"] = weights[f"blocks.{i}.down.weight"][:, :192]
    plain = graph_of(narrow_inner, "fused_norm", d_ff=192)
    graph = narrow(plain, "bf16")
    assert join_gates(graph) is graph
    quantising = narrow(graph_of(weights, "fused_norm"), "fp8", ranges=ranges(plain), stored=False)
    assert join_gates(quantising) is quantising
