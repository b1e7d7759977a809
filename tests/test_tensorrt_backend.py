"""Backend `tensorrt` without a GPU: the same code over a stand-in for TensorRT 10.6 that runs the very same graph."""

import ctypes
import json
from dataclasses import replace

import numpy as np
import pytest
from tensorrt_twin import TwinCuda, twin_api

import workbench as wb
from workbench.engine import plan_files
from workbench.engine.backends import tensorrt as backend
from workbench.engine.sequence import STEPS, build_sequence, table_of
from workbench.engine.tensorrt import api as apis
from workbench.engine.tensorrt import driver as drivers
from workbench.engine.tensorrt import mapped
from workbench.engine.tensorrt.limits import Limits
from workbench.errors import ContractError, EngineError, EngineRefused


@pytest.fixture
def calls():
    return []


@pytest.fixture
def card(monkeypatch, calls):
    """Put the stand-in where TensorRT and the driver would be; the answer changes what it is."""

    def be(*, version="10.6.0", refuse=None, weights="file", **facts):
        api = twin_api(calls, version=version, refuse=refuse, weights=weights)
        driver = drivers.Driver(TwinCuda(**facts))
        monkeypatch.setattr(apis, "load_api", lambda *_: api)
        monkeypatch.setattr(backend, "load_api", lambda *_: api)
        monkeypatch.setattr(drivers, "load_driver", lambda *_: driver)
        return driver

    be()
    return be


@pytest.fixture
def recipe(toy_checkpoint, toy_taps):
    def make(**changes):
        chosen = {"taps": toy_taps, "max_tokens": 32, "options": {"tokens_per_pass": 256}} | changes
        return wb.Recipe(checkpoint=toy_checkpoint, backend="tensorrt", **chosen)

    return make


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("positions", ["all", "last", "mean", (0, -1)], ids=str)
def test_rows_equal_those_of_the_cpu_backend(card, recipe, toy_engines, toy_ids, tmp_path, precision, positions):
    engine = wb.build(recipe(positions=positions, precision=precision), tmp_path)
    prompts = [ids for ids in toy_ids[:8] if len(ids) > 1]
    expected, got = toy_engines(positions=positions).run(prompts), engine.run(prompts)
    for tap, rows in expected.items():
        scale = np.linalg.norm(rows, axis=1, keepdims=True)
        assert got[tap].dtype == np.float32
        assert np.abs((got[tap] - rows) / scale).max() < {"fp32": 2e-6, "fp16": 2e-3}[precision], tap


@pytest.mark.parametrize(("precision", "near"), [("fp32", 2e-6), ("fp16", 4e-3)])
def test_a_baseline_keeps_its_cache_on_the_card_and_gives_one_token(
    card, recipe, toy_checkpoint, toy_ids, tmp_path, precision, near
):
    options = {"tokens_per_pass": 256, "cache": True}
    engine = wb.build(recipe(precision=precision, positions="last", options=options), tmp_path / "card")
    cpu = wb.build(
        wb.Recipe(checkpoint=toy_checkpoint, taps=engine.contract.taps, max_tokens=32, options={"cache": True}),
        tmp_path / "cpu",
    )
    prompts = [ids for ids in toy_ids[:8] if len(ids) > 1]
    expected, got = cpu.run_outputs(prompts), engine.run_outputs(prompts)
    assert set(got) == {*engine.contract.taps, "next_token"}
    assert (got["next_token"] == expected["next_token"]).mean() >= (1 if precision == "fp32" else 0.75)
    for tap in engine.contract.taps:
        scale = np.linalg.norm(expected[tap], axis=-1, keepdims=True)
        assert np.abs((got[tap] - expected[tap]) / scale).max() < near, tap
    part = engine.contract.cache
    assert part.outputs == cpu.contract.cache.outputs
    assert part.bytes_per_token * 4 == cpu.contract.cache.bytes_per_token * (4 if precision == "fp32" else 2)

    session = engine._session
    slots = session._slots
    assert not any(set(slot.host) & set(part.outputs) for slot in slots)
    slot = slots[-1 if next(session._turn) == 0 else 0]  # that of the last pass
    longest = max(map(len, prompts))
    worst = []
    for name in part.outputs:  # the "card" is host memory
        dtype, rows = session._ports[name].dtype, expected[name]
        flat = (ctypes.c_ubyte * (rows.size * dtype.itemsize)).from_address(slot.card[name])
        kept = np.frombuffer(flat, dtype=dtype).reshape(rows.shape).astype(np.float32)
        real = np.arange(longest) < np.array([len(ids) for ids in prompts])[:, None]
        worst.append(np.abs(kept - rows)[real].max() / np.abs(rows[real]).max())
    assert max(worst) < near


@pytest.mark.parametrize(
    ("change", "text"),
    [({"positions": "all"}, "positions all"), ({"precision": "fp8"}, "fp8"), ({"kernels": "all"}, "kernels all")],
)
def test_a_baseline_that_no_generator_runs_is_refused(card, recipe, tmp_path, change, text):
    options = {"tokens_per_pass": 256, "cache": True} | {k: v for k, v in change.items() if k == "kernels"}
    asked = {"positions": "last"} | {k: v for k, v in change.items() if k != "kernels"}
    with pytest.raises(ContractError, match=f"a baseline with a cache is in fp32, fp16, bf16.*{text}"):
        wb.build(recipe(options=options, **asked), tmp_path)


def test_a_sequence_names_memory_of_the_card_and_the_cache_in_it(card, toy_checkpoint, tmp_path):
    chosen = {step.name: step for step in STEPS if step.backend == "tensorrt"}
    baseline = replace(chosen["baseline-kv-tensorrt"], precision="fp16")  # the stand-in computes no bf16
    built = build_sequence(
        toy_checkpoint,
        tmp_path,
        max_tokens=32,
        positions="all",
        steps=(baseline, chosen["cacheless-tensorrt"]),
        rebuild=False,
        trial=False,
    )
    cached, plain = (one.contract for one in built)
    assert (cached.positions, plain.positions) == ("last", "all")
    assert cached.parent is None
    memory = [row[3] for row in table_of(built)[1:]]
    width = cached.cache.bytes_per_token * 8192 / 1e6
    assert memory == [
        f"{cached.backend.card['need_bytes'] / 1e6:,.0f} of the card, cache {width:,.0f}",
        f"{plain.backend.card['need_bytes'] / 1e6:,.0f} of the card",
    ]
    assert cached.backend.card["need_bytes"] > cached.cache.bytes_per_token * 8192


def test_steps_of_a_sequence_for_a_card_are_recipes_of_this_backend(recipe):
    for step in STEPS:
        if step.backend == "tensorrt":
            backend.check_options(dict(step.options))
            keep = tuple(pattern.format(last=29, before=28) for pattern in step.keep)
            positions = "last" if step.cached else "all"
            made = recipe(precision=step.precision, keep=keep, positions=positions, options=dict(step.options))
            backend.check_baseline(made)
            assert keep in ((), ("*.down", "blocks.28.*", "blocks.29.*"))


def test_the_contract_names_card_limits_and_tensorrt(card, recipe, tmp_path):
    contract = wb.build(recipe(), tmp_path).contract
    assert contract.backend.card["name"] == "Twin"
    assert contract.backend.card["compute_capability"] == "9.0"
    assert contract.backend.card["need_bytes"] > contract.build.plan_bytes
    assert contract.backend.target == "sm_90"
    assert contract.backend.version == "10.6.0"
    assert contract.limits.tokens_per_pass == 256
    assert contract.limits.prompts_per_pass == 32
    assert {"build.log", "layers.json", "timing.cache", "engine.plan", "plan.json"} < set(contract.files)


def test_records_of_a_build_are_no_part_of_the_engine_id(card, recipe, tmp_path):
    first = wb.build(recipe(), tmp_path / "a")
    assert "chose a tactic" in (first.path / "build.log").read_text()
    assert json.loads((first.path / "layers.json").read_bytes())
    assert wb.build(recipe(), tmp_path / "b").id == first.id


def test_the_calls_are_those_of_tensorrt_10_6(card, calls, recipe, tmp_path):
    steps = []
    wb.build(recipe(), tmp_path, progress=lambda step, share: steps.append((step, share)))
    names = [call[0] for call in calls]
    order = [
        "create_network",
        "parse_from_file",
        "clear_flag",
        "create_timing_cache",
        "set_timing_cache",
        "set_shape",
        "add_optimization_profile",
        "build_serialized_network",
        "deserialize_cuda_engine",
        "create_execution_context",
        "set_optimization_profile_async",
        "set_input_shape",
    ]
    places = [names.index(name) for name in order]
    assert places == sorted(places)
    assert calls[0] == ("create_network", 1 << 1)
    assert ("set_shape", "input_ids", (1, 1), (8, 32), (16, 32)) in calls
    assert ("set_shape", "input_ids", (1, 1), (32, 8), (32, 16)) in calls
    assert ("create_execution_context", "USER_MANAGED") in calls
    assert ("write", 0.5) in steps


@pytest.mark.parametrize(
    ("weights", "names"), [("mapped", ["parse", "add_constant"]), ("loaded", ["load_model_proto", "load_initializer"])]
)
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_weights_are_read_where_they_are_mapped(
    card, calls, recipe, toy_engines, toy_ids, tmp_path, monkeypatch, weights, names, precision
):
    card(weights=weights)
    monkeypatch.setattr(mapped, "LEAST", 1 << 10)
    places, real = [], plan_files.map_weights

    def watched(model, file):
        arrays = real(model, file)
        places.extend(array.ctypes.data for array in arrays.values())
        return arrays

    monkeypatch.setattr(plan_files, "map_weights", watched)
    engine = wb.build(recipe(precision=precision), tmp_path)
    called = [call[0] for call in calls]
    assert [name for name in dict.fromkeys(called) if name in names] == names
    assert "parse_from_file" not in called
    read = {call[1] for call in calls if call[0] == names[1]}
    assert read
    assert read <= set(places)
    expected, got = toy_engines(positions="last").run(toy_ids[:6]), engine.run(toy_ids[:6])
    for tap, rows in expected.items():
        scale = np.linalg.norm(rows, axis=1, keepdims=True)
        assert np.abs((got[tap] - rows) / scale).max() < {"fp32": 2e-6, "fp16": 2e-3}[precision], tap


def test_a_weight_that_stays_an_input_is_named(card, recipe, tmp_path, monkeypatch):
    card(weights="mapped", refuse="remove")
    monkeypatch.setattr(mapped, "LEAST", 1 << 10)
    with pytest.raises(EngineError, match="every weight must become a constant; got "):
        wb.build(recipe(), tmp_path)
    assert not list(tmp_path.iterdir())


def test_card_memory_holds_any_shape_of_the_profile(card, recipe, tmp_path):
    session = wb.build(recipe(), tmp_path)._session
    assert session.scratch_bytes == 1000 * 16 * 32


@pytest.mark.parametrize(
    ("tokens", "most", "length"), [(256, 32, 32), (300, 35, 32), (97, 97, 33), (64, 4, 32), (7, 7, 3)]
)
def test_a_profile_holds_every_pass_within_the_limits(tokens, most, length):
    limits = Limits(max_tokens=length, tokens_per_pass=tokens, prompts_per_pass=most)
    largest = [span[1] for span in limits.spans()]
    for prompts in range(1, most + 1):
        token = min(length, tokens // prompts)
        assert any(prompts <= a and token <= b for a, b in largest), (prompts, token)
    for common, span in limits.spans():
        assert all(a <= b for a, b in zip(common, span, strict=True))


def test_two_passes_fly_at_once_and_keep_apart(card, recipe, toy_ids, tmp_path):
    engine = wb.build(recipe(), tmp_path)
    batches = [toy_ids[i : i + 4] for i in range(0, 40, 4)]
    alone = [engine.run(batch)["final_norm"] for batch in batches]
    first = engine.submit(batches[0])
    for before, batch in zip(alone, batches[1:], strict=False):
        second = engine.submit(batch)
        np.testing.assert_array_equal(first()["final_norm"], before)
        first = second


def test_nothing_is_allocated_after_two_passes(card, recipe, toy_ids, tmp_path):
    driver = card()
    engine = wb.build(recipe(), tmp_path)
    for _ in range(2):
        engine.run(toy_ids[:4])
    driver._library.calls.clear()
    for i in range(6):
        engine.run(toy_ids[i : i + 6])
    made = set(driver._library.calls)
    assert not made & {"cuMemAlloc_v2", "cuMemHostAlloc", "cuStreamCreate", "cuEventCreate", "cuStreamSynchronize"}


def test_a_captured_graph_is_replayed_for_a_shape_seen_before(card, calls, recipe, toy_ids, tmp_path):
    driver = card()
    engine = wb.build(recipe(options={"tokens_per_pass": 256, "cuda_graph": True}), tmp_path)
    for _ in range(4):
        engine.run(toy_ids[:3])
    assert driver._library.calls.count("cuGraphLaunch") >= 2
    assert driver._library.calls.count("cuStreamBeginCapture_v2") == driver._library.calls.count("cuStreamEndCapture")


def test_a_run_is_stored_end_to_end(card, recipe, toy_ids, toy_engines, tmp_path):
    engine = wb.build(recipe(positions="all"), tmp_path / "engines")
    prompts = wb.load_prompts(token_ids=[ids.tolist() for ids in toy_ids])
    run = wb.extract(prompts, engine, out=tmp_path / "run", progress=False)
    other = wb.extract(prompts, toy_engines(positions="all"), out=tmp_path / "other", progress=False)
    np.testing.assert_allclose(run.tap("final_norm")[:], other.tap("final_norm")[:], atol=1e-4)


@pytest.mark.parametrize(
    ("here", "text"),
    [
        ({"capability": (12, 0)}, r"compute capability must be 9.0.*got 12.0 \(Twin\)"),
        ({"version": "10.7.0"}, "TensorRT version must be 10.6.0"),
        ({"cuda": 12040}, "driver must know CUDA 13.0"),
        ({"free": 1000}, "bytes of free memory"),
    ],
)
def test_another_card_is_refused_before_the_plan_is_read(card, calls, recipe, tmp_path, here, text):
    path = wb.build(recipe(positions=(0, -1), taps=("blocks.0.resid_post", "final_norm")), tmp_path).path
    card(**here)
    calls.clear()
    with pytest.raises(EngineRefused, match=text) as refusal:
        wb.open_engine(path)
    rebuild = "workbench build CHECKPOINT --into engines --backend tensorrt --precision fp32 --max-tokens 32 "
    rebuild += "--positions=0,-1 --tap blocks.0.resid_post --tap final_norm --option tokens_per_pass=256"
    assert rebuild in str(refusal.value)
    assert not calls


@pytest.mark.parametrize(
    ("refuse", "text"),
    [("parser", "no importer for operator Foo"), ("builder", "could not find any implementation")],
)
def test_a_refusal_of_tensorrt_is_told_in_its_words(card, recipe, tmp_path, refuse, text):
    card(refuse=refuse)
    with pytest.raises(EngineError, match=text):
        wb.build(recipe(), tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_driver_error_is_told_by_name(card, recipe, tmp_path):
    card(fail=("cuMemAlloc_v2", 2))
    with pytest.raises(
        EngineError, match=r"cuMemAlloc_v2 must succeed; got CUDA_ERROR_OUT_OF_MEMORY\. Use fewer tokens"
    ):
        wb.build(recipe(), tmp_path)


def test_a_pass_beyond_the_limits_is_refused_before_launch_and_run_makes_several(card, recipe, toy_ids, tmp_path):
    engine = wb.build(recipe(), tmp_path)
    with pytest.raises(ContractError, match="32 prompts and 256 tokens"):
        engine.submit([np.array([1])] * 33)
    with pytest.raises(ContractError, match="32 prompts and 256 tokens"):
        engine.submit([np.arange(32)] * 9)
    assert engine.submit([np.array([1])] * 32)()["final_norm"].shape[0] == 32
    assert engine.run([np.array([1])] * 33)["final_norm"].shape[0] == 33
    rows = engine.run([np.arange(32)] * 9)["final_norm"]
    assert np.array_equal(rows, np.broadcast_to(rows[:1], rows.shape))


def test_options_are_known_ones(card, recipe, tmp_path):
    with pytest.raises(ContractError, match="tokens_per_pass"):
        wb.build(recipe(options={"batch": 3}), tmp_path)
    with pytest.raises(ContractError, match="at least 32"):
        wb.build(recipe(options={"tokens_per_pass": 31}), tmp_path)


def test_without_tensorrt_the_command_that_brings_it_is_named():
    here = backend.available()
    assert here.ready or "pip install" in here.do or "GPU" in here.do


def test_own_kernels_are_compiled_for_the_graph_that_is_built(card, recipe, tmp_path, monkeypatch):
    """Also where a parser takes no quantised weights, so that another graph is tried."""
    fused, tried = [], []

    def refuse(_api, graph, *_rest):
        tried.append(graph)
        raise EngineError("the parser must accept the graph", "a refusal", "Choose another.")

    monkeypatch.setattr(backend, "fuse", lambda _folder, graph: fused.append(graph))
    monkeypatch.setattr(backend, "compile_graph", refuse)
    with pytest.raises(EngineError, match="must accept the graph"):
        wb.build(recipe(precision="fp8"), tmp_path)
    assert [id(graph) for graph in fused] == [id(graph) for graph in tried]
    stored = [any("float8" in str(t.dtype) for t in graph.initialisers.values()) for graph in tried]
    assert stored == [True, False]
