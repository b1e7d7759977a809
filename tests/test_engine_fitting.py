"""Fitted 4-bit weights: rounding with compensation, graphs run stage by stage, and the builds that come of it."""

import json

import numpy as np
import pytest

import workbench as wb
from workbench.engine import fitting
from workbench.engine.compensating import DAMPING, aimed, compensated
from workbench.engine.fitting import fit_products, fitting_prompts
from workbench.engine.observing import observe
from workbench.engine.ort_session import session_of
from workbench.engine.reference import run_one_by_one
from workbench.engine.staged import Staged
from workbench.engine.verification import relative_errors
from workbench.graph import build_graph
from workbench.graph.grids import Fitted, codes4, fit4, fit_of, levels4
from workbench.graph.halves import in_halves

BLOCK = 32


def correlated(tokens, width, seed):
    """Inputs [token, in] whose channels go together and differ in size, as those of a decoder do."""
    random = np.random.default_rng(seed)
    mix = random.standard_normal((width // 2, width)) * np.exp(random.standard_normal(width))
    noise = 0.1 * random.standard_normal((tokens, width))
    return (random.standard_normal((tokens, width // 2)) @ mix + noise).astype(np.float32)


def lost(matrix, fit, inputs):
    return np.linalg.norm(inputs @ (fit.matrix - matrix).T) / np.linalg.norm(inputs @ matrix.T)


def directly(matrix, gram, damping):
    """The same by its definition: after each column, the least squares over all that are left, in float64."""
    n_out, n_in = matrix.shape
    size = np.diag(gram)
    full = gram.astype(np.float64) + np.eye(n_in) * damping * size.mean()
    blocks = np.arange(n_in).reshape(-1, BLOCK)
    blocks = blocks[np.argsort(-size[blocks].sum(axis=1), kind="stable")]
    order = [int(i) for block in blocks for i in block[np.argsort(-size[block], kind="stable")]]
    rest = matrix.astype(np.float64).copy()
    codes, scales, zeros = (np.zeros((n_out, n_in // BLOCK, *more)) for more in ((BLOCK,), (), ()))
    for turn, column in enumerate(order):
        left = order[turn:]
        inverse = np.linalg.inv(full[np.ix_(left, left)])
        at = column // BLOCK
        if turn % BLOCK == 0:
            mine = order[turn : turn + BLOCK]
            importance = [
                1 / np.linalg.inv(full[np.ix_(order[turn + i :], order[turn + i :])])[0, 0] for i in range(BLOCK)
            ]
            pair = levels4(rest[:, mine].T.astype(np.float32), np.array(importance, dtype=np.float32))
            scales[:, at], zeros[:, at] = pair
        code = np.clip(np.rint(rest[:, column] / scales[:, at]) + zeros[:, at], 0, 15)
        codes[:, at, column % BLOCK] = code
        missed = rest[:, column] - (code - zeros[:, at]) * scales[:, at]
        rest[:, left] -= np.outer(missed / inverse[0, 0], inverse[0])
    return codes, scales, zeros


@pytest.mark.parametrize("seed", range(4))
def test_compensation_is_what_its_definition_gives(seed):
    matrix = np.random.default_rng(seed + 10).standard_normal((5, 96)).astype(np.float32)
    inputs = correlated(70, 96, seed)  # fewer tokens than inputs: the Gram matrix has no inverse of its own
    gram = inputs.T @ inputs
    codes, scales, zeros = directly(matrix, gram, DAMPING)
    fit = compensated(matrix, gram)
    np.testing.assert_array_equal(fit.codes, codes)
    np.testing.assert_array_equal(fit.zeros, zeros)
    np.testing.assert_allclose(fit.scales, scales, rtol=1e-4)


@pytest.mark.parametrize("seed", range(6))
def test_compensation_loses_less_of_the_results_than_rounding_to_the_nearest(seed):
    inputs = correlated(200, 128, seed)
    matrix = np.random.default_rng(seed).standard_normal((40, 128)).astype(np.float32)
    assert lost(matrix, compensated(matrix, inputs.T @ inputs), inputs) < 0.8 * lost(matrix, fit4(matrix), inputs)


def test_a_block_takes_the_range_that_errs_least_and_keeps_zero():
    random = np.random.default_rng(1)
    block = random.standard_normal((BLOCK, 50)).astype(np.float32) + np.linspace(-3, 3, 50, dtype=np.float32)
    importance = np.exp(random.standard_normal(BLOCK)).astype(np.float32)
    scales, zeros = levels4(block, importance)
    assert ((zeros >= 0) & (zeros <= 15) & (zeros == np.rint(zeros))).all()

    def error(scale, zero):
        return importance @ np.square((codes4(block, scale, zero) - zero) * scale - block)

    low, high = np.minimum(block.min(axis=0), 0), np.maximum(block.max(axis=0), 0)
    whole = ((high - low) / np.float32(15)).astype(np.float32)
    assert (error(scales, zeros) <= error(whole, np.clip(np.rint(-low / whole), 0, 15)) * (1 + 1e-4)).all()
    assert (error(scales, zeros) < error(whole, np.clip(np.rint(-low / whole), 0, 15)) * 0.99).any()


@pytest.mark.parametrize("width", [32, 50, 96, 128])
def test_onnx_runtime_reads_codes_scales_and_zeros_bit_for_bit(width):
    import onnxruntime as ort
    from onnx import TensorProto, helper, numpy_helper

    matrix = np.random.default_rng(width).standard_normal((7, width)).astype(np.float32) + np.float32(0.4)
    fit = fit4(matrix)
    tensors = {"codes": fit.packed, "scales": fit.scales, "zeros": fit.packed_zeros}
    node = helper.make_node(
        "MatMulNBits", ["x", *tensors], ["y"], domain="com.microsoft",
        K=width, N=7, bits=4, block_size=BLOCK, accuracy_level=0,
    )  # fmt: skip
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [None, None]) for name in "xy"]
    graph = helper.make_graph(
        [node], "one", ends[:1], ends[1:], [numpy_helper.from_array(a, n) for n, a in tensors.items()]
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    got = session.run(None, {"x": np.eye(width, dtype=np.float32)})[0]
    np.testing.assert_array_equal(got.T, fit.matrix)
    assert len(np.unique(fit.zeros)) > 1


def degenerate():
    random = np.random.default_rng(2)
    matrix, inputs = random.standard_normal((6, 64)).astype(np.float32), correlated(90, 64, 3)
    dead = inputs.copy()
    dead[:, 5:40] = 0
    hole = matrix.copy()
    hole[:, :32] = 0
    hole[2] = 0
    yield "nothing was seen", matrix, inputs[:0]
    yield "only zeros were seen", matrix, inputs * 0
    yield "one token", matrix, inputs[:1]
    yield "one token many times", matrix, np.repeat(inputs[:1], 50, axis=0)
    yield "dead channels", matrix, dead
    yield "blocks of zeros", hole, inputs
    yield "one value", np.full_like(matrix, -0.3), inputs
    yield "the smallest values", matrix * np.float32(1e-38), inputs
    yield "huge inputs", matrix, inputs * np.float32(1e6)
    yield "a row that is no whole block", matrix[:, :50], inputs[:, :50]


@pytest.mark.parametrize(("matrix", "inputs"), [pytest.param(m, x, id=name) for name, m, x in degenerate()])
def test_inputs_of_every_kind_give_a_fit_near_the_matrix_and_the_same_one_twice(matrix, inputs):
    gram = inputs.T @ inputs
    fit, again = compensated(matrix, gram), compensated(matrix, gram)
    assert np.isfinite(fit.matrix).all()
    assert (fit.scales > 0).all()
    assert fit.matrix.shape == matrix.shape
    for one, other in ((fit.codes, again.codes), (fit.scales, again.scales), (fit.zeros, again.zeros)):
        np.testing.assert_array_equal(one, other)
    assert np.linalg.norm(fit.matrix - matrix) <= 0.5 * np.linalg.norm(matrix) + 1e-30
    np.testing.assert_array_equal(fit.matrix[(matrix == 0).all(axis=1)], 0)
    np.testing.assert_array_equal(aimed(matrix, inputs, inputs), matrix)


def test_a_matrix_that_is_aimed_undoes_some_of_what_its_inputs_lost_and_stays_near():
    exact = correlated(300, 64, 5)
    inputs = exact * np.float32(0.8) + correlated(300, 64, 6) * np.float32(0.1)
    matrix = np.random.default_rng(0).standard_normal((9, 64)).astype(np.float32)
    moved = aimed(matrix, inputs, exact)
    wanted = exact @ matrix.T
    assert np.linalg.norm(inputs @ moved.T - wanted) < 0.95 * np.linalg.norm(inputs @ matrix.T - wanted)
    assert 0 < np.linalg.norm(moved - matrix) < 0.5 * np.linalg.norm(matrix)


@pytest.fixture(params=["llama", "gpt_neox", "gemma2", "gpt2", "../tiny_gguf/llama_experts.gguf"])
def recipe(request, golden):
    return wb.Recipe(checkpoint=wb.open_checkpoint(golden / "tiny" / request.param), precision="int4", max_tokens=16)


def plain_graph(recipe, weights=None, tap="final_norm"):
    weights = recipe.checkpoint.weights if weights is None else weights
    config = recipe.checkpoint.config
    return build_graph(config, weights, taps=(tap,), positions="all", lowering="primitive", max_tokens=16)


def test_a_graph_run_by_stages_gives_products_what_the_whole_one_does(recipe):
    graph = plain_graph(recipe)
    seen = observe(recipe)
    prompts = fitting_prompts(recipe)[: seen.prompts]
    asked = []

    def weights(name):
        asked.append(name)
        return graph.initialisers[name].load()

    staged = Staged(graph, prompts)
    found = {module: rows for modules, rows in staged.stages(weights) for module in modules}
    assert set(found) == set(seen.largest)
    for module, rows in found.items():
        np.testing.assert_allclose(np.abs(rows).max(axis=0), seen.largest[module], rtol=2e-4, atol=2e-5)
    matrices = [name for name in asked if name.endswith(".weight") and name.removesuffix(".weight") in graph.policy]
    assert len(matrices) == len(set(matrices))  # every product runs once


def test_products_are_fitted_on_what_those_before_them_give(recipe):
    shares = []
    found = fit_products(recipe, 1.0, lambda done, total: shares.append((done, total)))
    assert [done for done, _ in shares] == list(range(shares[-1][1] + 1))
    assert fit_products(recipe, 1.0) is found
    assert found.tokens == sum(map(len, fitting_prompts(recipe)))
    weights = recipe.checkpoint.weights
    prompts = fitting_prompts(recipe)
    tap = "blocks.0.resid_post"  # further on, toys of random weights make as much of any change

    def error(fits):
        changed = Fitted(weights, {f"{module}.weight": fit for module, fit in fits.items()})
        rows = (
            run_one_by_one(session_of(plain_graph(recipe, one, tap)), prompts, "all", "int32")
            for one in (changed, weights)
        )
        return relative_errors(*(one[tap] for one in rows)).mean()

    nearest = {module: fit4(weights[f"{module}.weight"]) for module in found.fits}
    assert error(found.fits) < 0.85 * error(nearest)


def test_rows_that_change_places_take_their_codes_along(golden):
    checkpoint = wb.open_checkpoint(golden / "tiny_gguf" / "llama.gguf")
    assert checkpoint.config.layers[0].rope.interleaved
    names = [f"blocks.0.{part}.weight" for part in ("q", "k", "v")]
    fitted = Fitted(checkpoint.weights, {name: fit4(checkpoint.weights[name]) for name in names})
    _, moved = in_halves(checkpoint.config, fitted)
    for name in names:
        np.testing.assert_array_equal(fit_of(moved, name).matrix, moved[name])
    assert not np.array_equal(moved[names[0]], fitted[names[0]])
    assert fit_of(moved, "blocks.0.o.weight") is None


def test_the_engine_holds_what_was_fitted_and_says_how(toy_checkpoint, tmp_path):
    def make():
        recipe = wb.Recipe(checkpoint=toy_checkpoint, precision="int4", max_tokens=32)
        return wb.build(recipe, tmp_path / str(len(list(tmp_path.iterdir()))))

    engine, again = make(), make()
    assert engine.id == again.id
    contract = engine.contract
    facts = json.loads((engine.path / "scales.json").read_bytes())
    assert contract.precision.scales_digest == contract.files["scales.json"]
    assert "zero point" in contract.precision.weights
    assert facts["method"] == fitting.METHOD
    assert facts["block"] == BLOCK
    assert len(facts["digest"]) == 64
    assert facts["kept"] == []
    assert (
        contract.verification.split["final_norm"].engine_mean < contract.verification.split["final_norm"].numbers_mean
    )


def test_products_that_err_too_much_stay_and_are_named(toy_checkpoint, tmp_path):
    def make(**more):
        recipe = wb.Recipe(checkpoint=toy_checkpoint, precision="int4", max_tokens=32, **more)
        engine = wb.build(recipe, tmp_path, rebuild=False)
        return engine.contract, json.loads((engine.path / "scales.json").read_bytes())

    all_of_them, facts = make()
    errors = sorted(facts["layer_errors"].items(), key=lambda item: item[1])
    limit = (errors[-1][1] + errors[len(errors) // 2][1]) / 2
    some, kept = make(options={"layer_tolerance": limit})
    assert 0 < len(some.precision.kept_layers) < len(errors)
    assert set(some.precision.kept_layers) == set(kept["kept"])
    assert all(kept["layer_errors"][name] > limit for name in kept["kept"])
    named, _ = make(keep=("*.down",))
    assert set(named.precision.kept_layers) == {name for name, _ in errors if name.endswith(".down")}
    assert named.build.plan_bytes > all_of_them.build.plan_bytes
