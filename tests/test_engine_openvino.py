"""Backend `openvino`: the same rows as ONNX Runtime in float32, and what lower precision costs."""

from dataclasses import replace

import numpy as np
import pytest

import workbench as wb
from workbench.engine import processor
from workbench.engine.backends import openvino
from workbench.engine.ort_session import session_of
from workbench.engine.reference import run_one_by_one
from workbench.engine.spreading import spread
from workbench.errors import ContractError
from workbench.graph import build_graph

pytest.importorskip("openvino", reason="runs once `pip install openvino` was run")
TAPS = ("blocks.1.resid_post", "final_norm")


@pytest.fixture(scope="module")
def build(toy_checkpoint, tmp_path_factory):
    folder = tmp_path_factory.mktemp("openvino")

    def make(**changes):
        chosen = {"taps": TAPS, "max_tokens": 32, "backend": "openvino"} | changes
        return wb.build(wb.Recipe(checkpoint=toy_checkpoint, **chosen), folder)

    return make


@pytest.mark.parametrize("positions", ["all", "last", "mean", (0, -1)], ids=str)
def test_rows_equal_those_of_onnxruntime(build, toy_engines, toy_ids, positions):
    prompts = [ids for ids in toy_ids[:8] if len(ids) > 1]
    expected, got = toy_engines(positions=positions, taps=TAPS).run(prompts), build(positions=positions).run(prompts)
    for tap, rows in expected.items():
        assert np.abs((got[tap] - rows) / np.linalg.norm(rows, axis=1, keepdims=True)).max() < 2e-6, tap


@pytest.mark.parametrize(
    ("precision", "least", "most"), [("bf16", 1e-3, 0.03), ("int8", 0.01, 0.05), ("int4", 0.1, 0.35)]
)
def test_low_precision_has_the_error_of_its_numbers(build, precision, least, most):
    contract = build(precision=precision).contract
    verdict, split = contract.verification.taps["final_norm"], contract.verification.split["final_norm"]
    assert least < verdict.mean_relative_error < most
    assert split.numbers_mean == pytest.approx(verdict.mean_relative_error, rel=0.7)
    assert contract.verification.rebuild.plan_bytes_equal
    assert contract.backend.runs
    assert contract.build.tokens_per_second > 0


def test_bfloat16_is_multiplied_only_where_that_is_fast(toy_checkpoint, tmp_path, monkeypatch):
    errors, sizes = {}, {}
    for features in ((), ("amx_bf16",)):
        monkeypatch.setattr(openvino, "cpu_features", lambda known=features: frozenset(known))
        recipe = wb.Recipe(checkpoint=toy_checkpoint, precision="bf16", backend="openvino", max_tokens=32)
        contract = wb.build(recipe, tmp_path / str(len(features)), rebuild=False).contract
        errors[features] = contract.verification.split["final_norm"].numbers_mean
        sizes[features] = contract.build.plan_bytes
    assert errors[()] < 0.7 * errors[("amx_bf16",)]
    assert sizes[()] == pytest.approx(sizes[("amx_bf16",)], rel=1e-3)
    assert sizes[()] < 0.8 * wb.build(replace(recipe, precision="fp32"), tmp_path).contract.build.plan_bytes


def test_spreading_changes_weights_and_no_rows(toy_checkpoint):
    config, ids = toy_checkpoint.config, np.arange(9, dtype=np.int32)
    turned = spread(config, toy_checkpoint.weights)
    assert not np.allclose(turned["blocks.1.v.weight"], toy_checkpoint.weights["blocks.1.v.weight"], atol=1e-3)
    rows = []
    for weights in (toy_checkpoint.weights, turned):
        graph = build_graph(config, weights, taps=TAPS, positions="all", lowering="primitive", max_tokens=32)
        rows.append(run_one_by_one(session_of(graph), [ids], "all", "int32"))
    for tap in TAPS:
        assert np.abs(rows[1][tap] - rows[0][tap]).max() < 1e-5 * np.abs(rows[0][tap]).max()
    odd = replace(config, head_dim=config.head_dim * 3)
    assert spread(odd, toy_checkpoint.weights) is toy_checkpoint.weights


def test_activations_can_stay_in_float32(build):
    exact = build(precision="int8", options={"dynamic": False}).contract
    rounded = build(precision="int8").contract
    assert exact.verification.split["final_norm"].engine_mean < 1e-4
    assert rounded.verification.split["final_norm"].engine_mean > 1e-3
    assert exact.engine_id != rounded.engine_id


def test_wider_groups_are_smaller_and_err_more(build):
    narrow, wide = build(precision="int8").contract, build(precision="int8", options={"group": 64}).contract
    assert wide.build.plan_bytes < narrow.build.plan_bytes
    splits = [c.verification.split["final_norm"] for c in (narrow, wide)]
    assert splits[0].numbers_mean < splits[1].numbers_mean < 0.04
    assert splits[0].engine_mean < splits[1].engine_mean < 0.04
    for options, precision in (({"group": 48}, "int8"), ({"group": 64}, "int4")):
        with pytest.raises(ContractError, match="option group"):
            build(precision=precision, options=options)


def test_kept_layers_are_named_and_smaller_files_are_smaller(build):
    small, some = build(precision="int4"), build(precision="int4", keep=("*.down",))
    assert set(some.contract.precision.kept_layers) == {f"blocks.{i}.down" for i in range(3)}
    assert some.contract.build.plan_bytes > small.contract.build.plan_bytes
    assert build().contract.build.plan_bytes > some.contract.build.plan_bytes


def test_the_model_names_no_place_of_this_machine(build, tmp_path):
    text = (build().path / "model.xml").read_text(encoding="utf-8")
    assert "/tmp" not in text
    assert str(tmp_path) not in text


def test_what_the_processor_lacks_is_said(monkeypatch, capsys):
    from workbench.doctor import examine, to_text

    monkeypatch.setattr(processor, "cpu_features", lambda: frozenset({"avx2"}))
    assert set(processor.missing_features()) == {"bf16", "int8"}
    assert "no amx_bf16" in processor.what_runs("bf16")
    assert "float32 kernels over bfloat16 weights: this processor has no amx_bf16" in to_text(examine())
    monkeypatch.setattr(processor, "cpu_features", lambda: frozenset({"amx_bf16", "avx512_vnni"}))
    assert processor.missing_features() == {}
    assert "avx512_vnni" in processor.what_runs("int8")
