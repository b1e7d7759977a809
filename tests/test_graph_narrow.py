"""Lower precision on the CPU: the graph that a GPU builder gets, with every rounding, against the golden states."""

import numpy as np
import onnx
import pytest
from golden_models import TINY, expected, feed, graph_of, named, relative, toy

from workbench.engine.ort_session import session_of
from workbench.errors import ContractError, UnsupportedError
from workbench.graph.baseline import build_baseline
from workbench.graph.kinds import KINDS, step_of
from workbench.graph.narrow import narrow
from workbench.graph.watching import products, watch

# worst relative error of a row of final_norm, toy weights
BOUNDS = {"fp16": 0.006, "bf16": 0.06, "fp8": 0.5, "int8": 0.22}
DENSE = [path for path in TINY if path.parent.name == "tiny"]


def rows_of(model, precision, positions="all", lowering="packed", **options):
    plain = graph_of(model, positions, taps=("final_norm",), lowering="primitive")
    ranges = largest_of(model)
    graph = graph_of(model, positions, taps=("final_norm",), lowering=lowering)
    graph = narrow(graph, precision, ranges=ranges, emulate=precision != "fp16", **options)
    assert set(graph.policy) == set(plain.policy)
    rows = session_of(graph).run(feed(graph, model.ids, model.lengths))["final_norm"]
    return graph, np.asarray(rows, dtype=np.float32)


def largest_of(model):
    graph = graph_of(model, taps=("final_norm",), lowering="primitive")
    watched, read = watch(graph), products(graph)
    found = session_of(graph).run(feed(graph, model.ids, model.lengths))
    return {module: float(found[watched[value]].max(initial=0.0)) for module, value in read.items()}


@pytest.mark.parametrize("precision", BOUNDS)
@pytest.mark.parametrize("folder", DENSE, ids=lambda path: path.name)
def test_every_precision_is_near_the_golden_states(folder, precision):
    model = toy(folder)
    _, rows = rows_of(model, precision)
    error = relative(rows, expected(model.golden["final_norm"], "all", model.lengths))
    assert 1e-5 < error < BOUNDS[precision]


@pytest.mark.parametrize("positions", ["last", "mean", (0, -1)], ids=str)
@pytest.mark.parametrize("precision", ["bf16", "fp8"])
def test_positions_are_chosen_in_the_narrow_graph(positions, precision):
    model = named("llama")
    _, rows = rows_of(model, precision, positions)
    assert relative(rows, expected(model.golden["final_norm"], positions, model.lengths)) < BOUNDS[precision]


def test_kept_products_are_not_quantised_and_lower_the_error():
    model = named("llama")
    want = expected(model.golden["final_norm"], "all", model.lengths)
    all_of_it, rows = rows_of(model, "fp8")
    some, kept = rows_of(model, "fp8", keep=["*.down", "blocks.1.*"])
    assert set(all_of_it.policy.values()) == {"fp8"}
    assert some.policy["blocks.0.down"] == some.policy["blocks.1.q"] == "bf16"
    assert some.policy["blocks.0.q"] == "fp8"
    assert relative(kept, want) < relative(rows, want)


def test_packed_queries_are_quantised_together_or_not_at_all():
    graph, _ = rows_of(named("llama"), "fp8", keep=["blocks.0.k"])
    assert {graph.policy[f"blocks.0.{part}"] for part in "qkv"} == {"bf16"}
    assert graph.policy["blocks.1.k"] == "fp8"


def test_weights_that_the_graph_quantises_are_as_near():
    model = named("llama")
    graph, folded = rows_of(model, "fp8", stored=False)
    assert "float8_e4m3fn" not in {str(tensor.dtype) for tensor in graph.initialisers.values()}
    assert relative(folded, expected(model.golden["final_norm"], "all", model.lengths)) < BOUNDS["fp8"]


def test_taps_leave_in_the_narrow_type_and_every_product_is_narrow():
    model = named("llama")
    graph = narrow(graph_of(model, lowering="packed"), "bf16")
    assert {spec.dtype for spec in graph.outputs} <= {"bfloat16", "float32"}
    assert next(s for s in graph.outputs if s.name == "final_norm").dtype == "bfloat16"
    matrices = [t for name, t in graph.initialisers.items() if name.endswith(".qkv.weight")]
    assert {str(t.dtype) for t in matrices} == {"bfloat16"}
    inferred = onnx.shape_inference.infer_shapes(graph.model)
    kinds = {v.name: v.type.tensor_type.elem_type for v in inferred.graph.value_info}
    reads = [kinds.get(node.input[0]) for node in inferred.graph.node if node.op_type == "MatMul"]
    assert set(reads) <= {onnx.TensorProto.BFLOAT16, None}


def test_a_step_holds_the_largest_value():
    for largest in np.random.default_rng(0).lognormal(0, 3, 500):
        step = step_of(float(largest), KINDS["fp8"])
        assert largest <= 448 * step * (1 + 1e-7)
        assert step <= largest / 448 * 1.01


def test_what_cannot_be_narrowed_is_refused():
    model = named("llama")
    with pytest.raises(ContractError, match="primitive"):
        narrow(graph_of(model), "bf16")
    with pytest.raises(ContractError, match="fp8"):
        narrow(graph_of(model, lowering="primitive"), "fp7")
    bloom = [path for path in TINY if path.name == "bloom"]
    if bloom:
        with pytest.raises(UnsupportedError, match="alibi"):
            narrow(graph_of(toy(bloom[0]), lowering="primitive"), "bf16")


@pytest.mark.parametrize("folder", DENSE, ids=lambda path: path.name)
def test_a_baseline_is_the_same_decoder_in_every_lowering_and_narrow(folder):
    model = toy(folder)
    if model.config.alibi is not None:
        pytest.skip("a decoder with alibi is not narrowed")

    def outputs(graph):
        return session_of(graph).run(feed(graph, model.ids, model.lengths))

    def written(lowering):
        asked = {"taps": ("final_norm",), "max_tokens": model.ids.shape[1], "lowering": lowering}
        return build_baseline(model.config, model.weights, **asked)

    (plain, names), (packed, same) = written("opset23"), written("packed")
    assert same == names
    exact, got = outputs(plain), outputs(packed)
    assert exact.keys() == got.keys()
    for name, array in exact.items():
        np.testing.assert_allclose(got[name], array, rtol=1e-4, atol=2e-5, err_msg=name)

    rounded = outputs(narrow(packed, "bf16", emulate=True))
    assert relative(rounded["final_norm"], exact["final_norm"]) < BOUNDS["bf16"]
    for name in names:
        error = np.linalg.norm(rounded[name] - exact[name]) / np.linalg.norm(exact[name])
        assert 1e-5 < error < 0.03, name
    real = narrow(packed, "bf16")
    assert {spec.dtype for spec in real.outputs if spec.name in names} == {"bfloat16"}
    assert next(spec.dtype for spec in real.outputs if spec.name == "next_token") == "int64"
    onnx.shape_inference.infer_shapes(real.model, check_type=True, strict_mode=True)
