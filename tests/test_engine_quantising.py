"""Quantised engines: grids, smoothing, calibration, kept layers, the three-way split and the sequence of builds."""

import json

import numpy as np
import pytest

import workbench as wb
from workbench.cli import main
from workbench.engine import calibration, observing, quantising, sequence
from workbench.engine.backends import onnxruntime as backend
from workbench.engine.batch import make_feeds
from workbench.engine.contract import CONTRACT_FILE
from workbench.engine.names import folder_of
from workbench.engine.ort_session import session_of
from workbench.engine.processor import this_processor
from workbench.engine.sequence import STEPS, build_fastest, build_sequence, foreign_speeds, table_of
from workbench.engine.smoothing import smooth
from workbench.engine.speeds import measured_elsewhere, speed_here
from workbench.errors import ContractError, EngineError
from workbench.graph import build_graph
from workbench.graph.compact import KINDS, compact
from workbench.graph.grids import Fitted, fit4, grid_of, values_of
from workbench.graph.narrow import narrow
from workbench.planning import plan_run

TAPS = ("blocks.1.resid_post", "final_norm")


def q4_1_bytes(matrix):
    """A matrix [out, in] in blocks of 32 as GGUF's Q4_1 has them: scale, smallest, then low and high halves."""
    blocks = matrix.reshape(-1, 32)
    low = blocks.min(axis=1)
    step = ((blocks.max(axis=1) - low) / 15).astype(np.float16)
    low = low.astype(np.float16)
    safe = np.where(step == 0, 1, step).astype(np.float32)
    codes = np.clip(np.rint((blocks - low[:, None].astype(np.float32)) / safe[:, None]), 0, 15).astype(np.uint8)
    head = np.stack([step, low], axis=1).view(np.uint8).reshape(len(blocks), 4)
    values = codes.astype(np.float32) * step[:, None].astype(np.float32) + low[:, None].astype(np.float32)
    raw = np.concatenate([head, codes[:, :16] | (codes[:, 16:] << 4)], axis=1)
    return raw.reshape(-1), values.reshape(matrix.shape).astype(np.float32)


class Gridded(dict):
    """Weights of a checkpoint whose matrices of products are Q4_1."""

    def __init__(self, weights):
        super().__init__({name: weights[name] for name in weights})
        self.bytes = {}
        for name, array in self.items():
            if name.startswith("blocks.") and array.ndim == 2 and array.shape[1] % 32 == 0:
                self.bytes[name], self[name] = q4_1_bytes(array)

    def names(self):
        return tuple(self)

    def shape(self, name):
        return self[name].shape

    def type(self, name):
        return "Q4_1" if name in self.bytes else "F32"

    def raw(self, name):
        return self.bytes.get(name)


@pytest.fixture(scope="module")
def gridded(toy_checkpoint):
    return Gridded(toy_checkpoint.weights)


def rows_of(graph, prompts):
    feeds = make_feeds(prompts, "last", graph.inputs[0].dtype)
    return {tap: rows.astype(np.float64) for tap, rows in session_of(graph).run(feeds).items()}


def error(got, expected):
    return float(np.mean(np.linalg.norm(got - expected, axis=1) / np.linalg.norm(expected, axis=1)))


def test_a_grid_of_the_file_gives_back_its_values_exactly(gridded):
    for name in gridded.bytes:
        np.testing.assert_array_equal(
            values_of(grid_of(gridded, name)).astype(np.float16), gridded[name].astype(np.float16)
        )
        assert np.abs(values_of(grid_of(gridded, name)) - gridded[name]).max() < 1e-7
    assert grid_of(gridded, "embed.weight") is None


@pytest.mark.parametrize("shape", [(5, 32), (3, 64), (4, 50), (1, 1)])
def test_four_bits_err_by_less_than_a_step_and_less_than_one_plain_scale(shape):
    matrix = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    fit = fit4(matrix)
    step = np.repeat(fit.scales, 32, axis=1)[:, : shape[1]]
    assert (np.abs(fit.matrix - matrix) <= 2.5 * step + 1e-7).all()
    wide = np.zeros((shape[0], fit.scales.shape[1] * 32), dtype=np.float32)
    wide[:, : shape[1]] = matrix
    blocks = wide.reshape(shape[0], -1, 32)
    plain = np.abs(blocks).max(axis=2, keepdims=True) / 7
    plain = np.rint(blocks / np.where(plain, plain, 1)) * plain
    assert (
        np.square(fit.matrix - matrix).sum()
        <= np.square(plain.reshape(wide.shape)[:, : shape[1]] - matrix).sum() + 1e-9
    )


def test_the_own_grid_moves_no_weight(toy_checkpoint, gridded, toy_ids):
    """Weights are exact, so only the rounding of activations is left; and it beats 4 bits fitted anew."""
    graph = build_graph(toy_checkpoint.config, gridded, taps=TAPS, positions="last", max_tokens=32)
    exact = rows_of(graph, toy_ids[:6])
    names = [f"{module}.weight" for module in graph.policy]
    fitted = Fitted(gridded, {name: fit4(gridded[name]) for name in names})
    kinds = {"int4-grid": gridded, "int4": fitted}
    own, anew = (rows_of(compact(graph, kind, weights), toy_ids[:6]) for kind, weights in kinds.items())
    for tap in TAPS:
        assert error(own[tap], exact[tap]) < 0.04
        assert error(own[tap], exact[tap]) < error(anew[tap], exact[tap]) / 3


def test_a_checkpoint_without_a_grid_is_told_so(toy_checkpoint, tmp_path):
    with pytest.raises(ContractError, match="no 4-bit grid"):
        wb.build(wb.Recipe(checkpoint=toy_checkpoint, precision="int4-grid", max_tokens=32), tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("family", ["llama", "qwen2", "gemma2", "gpt2", "gpt_neox", "phi3", "olmo2"])
def test_smoothing_changes_nothing_in_float32(golden, family):
    checkpoint = wb.open_checkpoint(golden / "tiny" / family)
    random = np.random.default_rng(5)
    config, weights = checkpoint.config, checkpoint.weights
    plain = build_graph(config, weights, taps=("final_norm",), positions="last", max_tokens=16)
    largest = {}
    for module in plain.policy:
        width = weights.shape(f"{module}.weight")[1]
        group = module.rsplit(".", 1)[0] + ("" if module.endswith((".q", ".k", ".v")) else module[-4:])
        largest[module] = np.exp(random.standard_normal(width)).astype(np.float32) + len(group) * 0
    shared, factors = smooth(config, weights, largest, 0.6)
    prompts = [random.integers(0, config.d_vocab, size=9).astype(np.int32)]
    smoothed = build_graph(config, shared, taps=("final_norm",), positions="last", max_tokens=16)
    got, expected = rows_of(smoothed, prompts)["final_norm"], rows_of(plain, prompts)["final_norm"]
    assert error(got, expected) < 5e-6
    if family != "olmo2":  # its norms stand behind the products
        assert factors
        changed = [name for name in weights if not np.array_equal(shared[name], weights[name])]
        assert len(changed) >= 2 * len(factors)


@pytest.mark.parametrize("precision", ["int8-dynamic", "int8-static", "int4", "fp16", "bf16", "fp8"])
def test_a_build_says_its_error_and_a_prompt_does_not_depend_on_its_pass(toy_checkpoint, tmp_path, precision):
    contract = wb.build(
        wb.Recipe(checkpoint=toy_checkpoint, precision=precision, taps=TAPS, max_tokens=32), tmp_path
    ).contract
    verdict = contract.verification.taps["final_norm"]
    least = {"fp16": 1e-4, "bf16": 1e-3}.get(precision, 0.01)
    assert least < verdict.mean_relative_error < contract.verification.tolerance_mean
    assert contract.verification.batch_of_one.max_relative_error < 1e-6
    assert contract.verification.rebuild.plan_bytes_equal
    emulated = precision in backend.EMULATED
    assert contract.build.emulated is emulated
    assert (contract.build.tokens_per_second is None) is emulated
    if precision in KINDS:
        split = contract.verification.split["final_norm"]
        assert 0 < split.numbers_mean < verdict.mean_relative_error * 1.5
        assert split.engine_mean > 0
    if precision in quantising.STRENGTH:
        assert "scales.json" in contract.files
        assert ("smoothing.safetensors" in contract.files) is (quantising.STRENGTH[precision] > 0)
        assert contract.precision.scales_digest == contract.files["scales.json"]


def test_a_layer_above_its_limit_is_kept_and_named(toy_checkpoint, tmp_path):
    def build(limit):
        options = {"layer_tolerance": limit}
        recipe = wb.Recipe(checkpoint=toy_checkpoint, precision="int8-dynamic", max_tokens=32, options=options)
        engine = wb.build(recipe, tmp_path)
        return engine.contract, json.loads((engine.path / "scales.json").read_bytes())

    none, facts = build(1.0)
    assert not none.precision.kept_layers
    errors = sorted(facts["layer_errors"].items(), key=lambda item: item[1])
    some, kept = build((errors[-3][1] + errors[-4][1]) / 2)
    assert set(some.precision.kept_layers) == {name for name, _ in errors[-3:]} == set(kept["kept"])
    assert facts["digest"] == kept["digest"]
    assert len(facts["digest"]) == 64


@pytest.fixture
def sparse(golden, monkeypatch):
    """A mixture of experts calibrated on six tokens, which leave two of its experts out."""
    ids = np.random.default_rng(0).integers(0, 96, 6).astype(np.int32)
    for module in (calibration, observing):
        monkeypatch.setattr(module, "calibration_prompts", lambda *_: (ids,))
    return wb.open_checkpoint(golden / "tiny_more" / "mixtral")


def unreached(checkpoint, precision="fp8"):
    seen = observing.observe(wb.Recipe(checkpoint=checkpoint, precision=precision, max_tokens=32))
    return {module for module, rows in seen.sample.items() if not len(rows)}


@pytest.mark.parametrize("precision", sorted(quantising.RANGED))
def test_an_expert_that_calibration_never_reached_stays_as_it_is(sparse, tmp_path, precision):
    """Its range is not known; the 0 that a maximum over nothing gives would clip every later input to nothing."""
    options = {"layer_tolerance": 1.0}  # so that nothing else is kept
    recipe = wb.Recipe(checkpoint=sparse, precision=precision, max_tokens=32, options=options)
    contract = wb.build(recipe, tmp_path).contract
    assert set(contract.precision.kept_layers) == unreached(sparse)
    assert len(contract.precision.kept_layers) == 2 * 3  # experts, matrices of each


def test_ranges_are_those_that_were_observed_and_none_where_nothing_was(sparse):
    recipe = wb.Recipe(checkpoint=sparse, precision="int8-static", max_tokens=32)
    ranges, seen = calibration.calibrate(recipe), observing.observe(recipe)
    assert set(seen.largest) - set(ranges.largest) == unreached(sparse)
    for module, most in ranges.largest.items():
        assert most == pytest.approx(float(seen.largest[module].max()), rel=1e-6)
    graph = narrow(calibration.plain_graph(recipe), "fp8", ranges=ranges.largest, emulate=True)
    assert {module for module, kind in graph.policy.items() if kind != "fp8"} == unreached(sparse)


def test_calibration_texts_need_a_tokenizer_and_are_part_of_the_engine(toy_checkpoint, tmp_path):
    def build(texts):
        options = {"calibration": texts}
        recipe = wb.Recipe(checkpoint=toy_checkpoint, precision="int8-dynamic", max_tokens=32, options=options)
        return wb.build(recipe, tmp_path)

    if toy_checkpoint.tokenizer is None:
        with pytest.raises(ContractError, match="tokenizer"):
            build(["one text"])
    else:
        assert build(["one text"]).id != build(["another one"]).id


@pytest.mark.parametrize(
    "options", [{"smooth": 1}, {"smoothing": -1}, {"smoothing": "much"}, {"layer_tolerance": True}]
)
def test_options_that_nobody_reads_are_refused(toy_checkpoint, tmp_path, options):
    with pytest.raises(ContractError, match="option"):
        wb.build(wb.Recipe(checkpoint=toy_checkpoint, precision="int8-dynamic", options=options), tmp_path)


def test_an_overflow_in_fp16_names_its_layer(toy_checkpoint, tmp_path, monkeypatch):
    true_observe = quantising.observe

    def large(recipe):
        seen = true_observe(recipe)
        seen.largest["blocks.1.down"][3] = 70000
        return seen

    monkeypatch.setattr(quantising, "observe", large)
    with pytest.raises(EngineError, match=r"below 65504 in fp16; got 7e\+04 at blocks.1.down"):
        wb.build(wb.Recipe(checkpoint=toy_checkpoint, precision="fp16", max_tokens=32), tmp_path)
    assert not list(tmp_path.iterdir())


def test_the_baseline_writes_its_cache_and_the_greedy_token(toy_checkpoint, toy_ids, tmp_path):
    recipe = wb.Recipe(checkpoint=toy_checkpoint, taps=("final_norm", "logits"), max_tokens=32, options={"cache": True})
    engine = wb.build(recipe, tmp_path)
    config, cache = toy_checkpoint.config, engine.contract.cache
    per_token = 4 * 2 * config.n_layers * config.n_kv_heads * config.head_dim
    assert cache.bytes_per_token == per_token
    assert len(cache.outputs) == 2 * config.n_layers
    out = engine.run_outputs(toy_ids[:3])
    np.testing.assert_array_equal(out[cache.next_token], out["logits"].argmax(axis=-1))
    assert out["cache.0.key"].shape == (3, max(map(len, toy_ids[:3])), config.n_kv_heads * config.head_dim)
    assert set(engine.run(toy_ids[:3])) == {"final_norm", "logits"}
    # values of layer 0 by hand: norm of the embedding, times the weights
    x = toy_checkpoint.weights["embed.weight"][toy_ids[0]]
    x = (
        x
        / np.sqrt((x**2).mean(-1, keepdims=True) + config.norm_eps)
        * toy_checkpoint.weights["blocks.0.attn_norm.weight"]
    )
    value = x @ toy_checkpoint.weights["blocks.0.v.weight"].T
    np.testing.assert_allclose(out["cache.0.value"][0, : len(toy_ids[0])], value, rtol=1e-4, atol=1e-5)


def test_the_cache_of_a_shorter_prompt_is_the_start_of_the_longer_ones(toy_checkpoint, toy_ids, tmp_path):
    engine = wb.build(wb.Recipe(checkpoint=toy_checkpoint, max_tokens=32, options={"cache": True}), tmp_path)
    long = max(toy_ids, key=len)
    whole, part = engine.run_outputs([long]), engine.run_outputs([long[:5]])
    for name in engine.contract.cache.outputs:
        np.testing.assert_allclose(whole[name][:, :5], part[name], rtol=1e-4, atol=1e-5)


def test_a_sequence_has_parents_and_a_table(toy_checkpoint, tmp_path, capsys, monkeypatch):
    wanted = ("baseline-kv", "cacheless", "cacheless-int8-weights", "cacheless-int4-grid")
    monkeypatch.setattr(sequence, "STEPS", [step for step in STEPS if step.name in wanted])
    built = {one.step.name: one for one in build_sequence(toy_checkpoint, tmp_path, max_tokens=32, rebuild=False)}
    ids = {name: one.contract.engine_id for name, one in built.items() if one.contract}
    assert built["baseline-kv"].contract.parent is None
    assert built["cacheless"].contract.parent == ids["baseline-kv"]
    assert built["cacheless-int8-weights"].contract.parent == ids["cacheless"]
    assert "no 4-bit grid" in built["cacheless-int4-grid"].refusal
    for name in ids:
        contract = built[name].contract
        assert contract.name == name
        assert contract.verification.rebuild is None
        assert contract.build.trial.pass_tokens == 2048
        assert contract.build.trial.peak_bytes > 0
    baseline, plain = built["baseline-kv"].contract.build.trial, built["cacheless"].contract.build.trial
    assert sum(baseline.output_bytes.values()) > sum(plain.output_bytes.values()) + 2048 * 768
    arguments = ["build", str(toy_checkpoint.path), "--into", str(tmp_path), "--max-tokens", "32"]
    assert main([*arguments, "--sequence", "--once"]) == 0
    table = capsys.readouterr().out
    assert [line.split()[0] for line in table.splitlines()] == ["build", *wanted]
    assert "refused: int4-grid" in table
    assert main([*arguments, "--fast", "--within", "0.00001", "--name", "best"]) == 0
    assert "precision   fp32" in capsys.readouterr().out
    assert (tmp_path / ".names" / "best").read_text() == ids["cacheless"]


def test_an_engine_that_was_there_takes_its_place_in_a_sequence(toy_checkpoint, tmp_path):
    alone = wb.build(wb.Recipe(checkpoint=toy_checkpoint, max_tokens=32), tmp_path)
    assert alone.contract.parent is None
    steps = [step for step in STEPS if step.name in ("baseline-kv", "cacheless")]
    baseline, plain = build_sequence(toy_checkpoint, tmp_path, max_tokens=32, steps=steps)
    assert plain.contract.engine_id == alone.id
    assert plain.contract.parent == baseline.contract.engine_id
    assert plain.contract.build.trial is not None
    assert wb.open_engine(alone.path, expect=alone.id).contract == plain.contract
    assert len(list(tmp_path.iterdir())) == 2


def test_the_fastest_build_is_within_its_limit_or_there_is_none(toy_checkpoint, tmp_path):
    steps = [
        step for step in STEPS if step.precision in ("fp32", "int8", "int4", "bf16") and step.backend != "openvino"
    ]
    best, built = build_fastest(toy_checkpoint, tmp_path, within=1e-4, max_tokens=32, steps=steps)
    assert best.precision.name == "fp32"
    assert {one.step.precision for one in built} == {"fp32", "int8", "int4"}  # bf16 is emulated here
    with pytest.raises(EngineError, match="at best"):
        build_fastest(toy_checkpoint, tmp_path, within=1e-12, max_tokens=32, steps=steps)


def restate(folder, contract, processor, speed=1e9):
    """Let the contract of an engine state another speed, measured on a processor."""
    backend = contract.backend.model_copy(update={"processor": processor})
    build = contract.build.model_copy(update={"tokens_per_second": speed})
    stated = contract.model_copy(update={"backend": backend, "build": build}).sealed()
    (folder_of(folder, contract.engine_id) / CONTRACT_FILE).write_bytes(stated.to_bytes())
    return stated


def test_the_fastest_is_chosen_by_speeds_of_this_machine_alone(toy_checkpoint, tmp_path, monkeypatch):
    steps = [step for step in STEPS[1:] if step.precision in ("fp32", "int8") and step.backend == "onnxruntime"]
    build = {"within": 0.5, "max_tokens": 32, "steps": steps}
    _, built = build_fastest(toy_checkpoint, tmp_path, **build)
    int8 = next(one.contract for one in built if one.step.precision == "int8")
    assert int8.backend.processor == this_processor()
    restate(tmp_path, int8, this_processor())
    best, built = build_fastest(toy_checkpoint, tmp_path, **build)
    assert best.precision.name == "int8"
    assert foreign_speeds(built) == ()
    for processor, words in (("Another, 64 threads", "on Another, 64 threads"), (None, "does not name")):
        restate(tmp_path, int8, processor)
        best, built = build_fastest(toy_checkpoint, tmp_path, **build)
        assert best.precision.name == "fp32"
        head, line, _ = foreign_speeds(built)
        assert head.endswith("1 of 2.")
        assert this_processor() in head
        assert words in line
        assert "cacheless-int8-weights" in line
        assert [row[6].startswith("(") for row in table_of(built)[1:]] == [False, True]
    monkeypatch.setattr("workbench.engine.processor.thread_count", lambda: 1000)  # the same processor, other cores
    with pytest.raises(EngineError, match=r"got none that was measured here\. .*: 2 of 2\. To have"):
        build_fastest(toy_checkpoint, tmp_path, **build)


def test_a_plan_says_where_the_speed_that_it_reckons_with_was_measured(toy_checkpoint, tmp_path):
    engine = wb.build(wb.Recipe(checkpoint=toy_checkpoint, max_tokens=32), tmp_path)
    prompts = wb.load_prompts(token_ids=[np.arange(1, 9)] * 5)
    assert "about 0 s, at the speed measured when the engine was built\n" in f"{plan_run(prompts, engine.path)}\n"
    restate(tmp_path, engine.contract, "Another, 64 threads", speed=2.0)
    assert "about 20 s, at the speed measured when the engine was built, on Another, 64 threads, not here" in str(
        plan_run(prompts, engine.path)
    )
    restate(tmp_path, engine.contract, None, speed=None)
    assert "not known" in str(plan_run(prompts, engine.path))


def test_the_speed_of_a_card_counts_on_such_a_card(toy_engines, tmp_path, monkeypatch):
    contract = toy_engines().contract
    backend = contract.backend.model_copy(update={"card": {"name": "H200"}})
    contract = contract.model_copy(update={"backend": backend})
    for here, elsewhere in (("H200", ""), ("H100", "H200")):
        monkeypatch.setattr("workbench.engine.speeds._card", lambda here=here: here)
        assert measured_elsewhere(contract) == elsewhere
        assert speed_here(contract) == (None if elsewhere else contract.build.tokens_per_second)


def test_a_quantised_checkpoint_says_so_in_every_contract(golden):
    from workbench.engine.measuring import origin_note

    class Recipe:
        class checkpoint:  # noqa: N801
            source_quantization = "Q4_1"

    assert "Q4_1 already" in origin_note(Recipe)
    Recipe.checkpoint.source_quantization = None
    assert origin_note(Recipe) is None
