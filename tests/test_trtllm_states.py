"""The tap's values: networks of TensorRT computed layer by layer, two engines run side by side, and the verdicts."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from trtllm_tree import write_tree

from workbench.engine.trtllm.check import running
from workbench.engine.trtllm.check.__main__ import is_computed, main, run_child
from workbench.engine.trtllm.check.evaluating import evaluate
from workbench.engine.trtllm.check.judging import judge_states, rows_of
from workbench.errors import EngineError

if TYPE_CHECKING:
    from numpy.typing import NDArray

GOLDEN = Path(__file__).parent / "golden"
LLAMA = GOLDEN / "tiny" / "llama"


def reference(folder: Path) -> Path:
    """Three prompts and their states."""
    lengths = np.array([3, 1, 2])
    ids = np.array([[5, 6, 7], [8, 0, 0], [9, 3, 0]], np.int32)
    states = np.arange(1, 37, dtype=np.float32).reshape(3, 3, 4)
    np.savez(folder / "reference.npz", input_ids=ids, lengths=lengths, final_norm=states)
    return folder / "reference.npz"


def test_rows_are_those_of_real_tokens_in_prompt_order(tmp_path: Path) -> None:
    rows = rows_of(reference(tmp_path))
    assert rows[:, 0].tolist() == [1, 5, 9, 13, 25, 29]


@pytest.mark.parametrize(
    ("shift", "fails"),
    [
        (0.0, set()),
        (0.004, set()),
        (0.02, {"the tap is the state after the final norm", "the tap agrees with our engine, ours"}),
    ],
)
def test_the_tap_is_held_against_reference_and_own_engine(shift: float, fails: set[str], tmp_path: Path) -> None:
    rows = rows_of(reference(tmp_path))
    verdicts, figures = judge_states(rows * (1 + shift), rows, {"ours": rows}, "float16")
    assert {what for what, holds, _ in verdicts if not holds} == fails
    assert figures["own"]["ours"]["tap_to_own"]["mean"] == pytest.approx(shift, abs=1e-6)
    assert figures["rows"] == 6
    json.dumps(figures)


def test_an_infinite_row_fails(tmp_path: Path) -> None:
    rows = rows_of(reference(tmp_path))
    tap = rows.copy()
    tap[2, 1] = np.nan
    verdicts, _ = judge_states(tap, rows, {}, "float32")
    assert {what for what, holds, _ in verdicts if not holds} == {
        "the tap is the state after the final norm",
        "every value of the tap is finite",
    }


class FakeEngine:
    """As `CardEngine`: the state of a token is its id, repeated; counts the passes."""

    def __init__(self, _tensorrt: Any, folder: Path) -> None:
        self.part = SimpleNamespace(max_batch_size=2, layout="plain")
        self.patched, self.shift, self.passes = folder.name == "patched", 0.0, 0

    def run(self, ids: NDArray[np.int32], lengths: NDArray[Any]) -> dict[str, NDArray[Any]]:
        self.passes += 1
        table = np.zeros((len(lengths), lengths.max(), 4), np.float32)
        table[np.arange(table.shape[1]) < lengths[:, None]] = ids[:, None]
        logits = np.ones((len(lengths), 5), np.float32) * (self.shift if self.patched else 0.0)
        return {"logits": logits} | ({"final_hidden_states": table + self.drift()} if self.patched else {})

    def drift(self) -> float:
        return 0.0


class Drifting(FakeEngine):
    def drift(self) -> float:
        return float(self.passes)


class Shifted(FakeEngine):
    def __init__(self, tensorrt: Any, folder: Path) -> None:
        super().__init__(tensorrt, folder)
        self.shift = 1e-7


@pytest.mark.parametrize(
    ("engine", "fails"),
    [
        (FakeEngine, set()),
        (Drifting, {"a repeated pass gives the same bits"}),
        (Shifted, {"logits with and without the tap are bit-equal"}),
    ],
)
def test_both_engines_are_run_in_batches_and_alone(
    engine: Any, fails: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "CardEngine", engine)
    for name, plan in (("plain", b"logits"), ("patched", b"logits final_hidden_states")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "rank0.engine").write_bytes(plan)
    monkeypatch.setattr(running, "load_tensorrt", lambda *_: SimpleNamespace(__version__="10.6.0"))
    verdicts, outputs = running.run_on_card(tmp_path / "plain", tmp_path / "patched", reference(tmp_path), None)
    assert {what for what, holds, _ in verdicts if not holds} == fails
    if not fails:
        assert outputs["final_hidden_states"][:, 0].tolist() == [5, 6, 7, 8, 9, 3]


class Tensor:
    def __init__(self, name: str) -> None:
        self.name = name


class Layer:
    """As a layer of the bindings: its kind, its inputs by name (None for an empty place), its parameters."""

    def __init__(self, kind: str, out: str, inputs: tuple[str | None, ...] = (), **fields: Any) -> None:
        self.kind, self.out, self.inputs, self.num_inputs = kind, out, inputs, len(inputs)
        self.__dict__.update(fields)

    def get_input(self, i: int) -> Tensor | None:
        name = self.inputs[i]
        return None if name is None else Tensor(name)

    def get_output(self, _i: int) -> Tensor:
        return Tensor(self.out)


class _Kind:
    def __get__(self, layer: Any, _owner: Any = None) -> str:
        return f"LayerType.{layer.kind}" if layer is not None else self  # type: ignore[return-value]


FAKE = SimpleNamespace(ILayer=type("ILayer", (), {"type": _Kind()}))


def network(layers: list[Layer], *outputs: str) -> Any:
    return SimpleNamespace(
        num_layers=len(layers),
        get_layer=layers.__getitem__,
        num_outputs=len(outputs),
        get_output=lambda i: Tensor(outputs[i]),
    )


KINDS = """
Constant Shape Cast Gather Concatenation Shuffle ElementWise Unary Reduce MatrixMultiply Slice Select SoftMax Activation
"""
for _name in KINDS.split():
    setattr(FAKE, f"I{_name}Layer", Layer)
X = np.array([[1.0, 2.0, 4.0], [3.0, 5.0, 9.0]], np.float32)
TURN: dict[str, Any] = {"first_transpose": (1, 0, 2, 3), "second_transpose": (0, 1, 2, 3)}


class Unset:
    """As the sizes of a shuffle that were never set."""

    def __len__(self) -> int:
        return -1  # noqa: PLE0303


CASES: list[tuple[Layer, Any]] = [
    (Layer("SHAPE", "y", ("x",)), [2, 3]),
    (Layer("CAST", "y", ("x",), to_type="DataType.INT32"), X.astype(np.int32)),
    (Layer("GATHER", "y", ("x", "one"), mode="DEFAULT", axis=1, num_elementwise_dims=0), [[2], [5]]),
    (Layer("CONCATENATION", "y", ("x", "x"), axis=0), np.concatenate([X, X])),
    (Layer("SHUFFLE", "y", ("x",), **TURN, reshape_dims=(-1,), zero_is_placeholder=True), X.T.ravel()),
    (Layer("SHUFFLE", "y", ("x", "sizes"), **TURN, reshape_dims=None, zero_is_placeholder=True), X.T.reshape(3, 2, 1)),
    (Layer("SHUFFLE", "y", ("x",), **TURN, reshape_dims=Unset(), zero_is_placeholder=True), X.T),
    (Layer("ELEMENTWISE", "y", ("x", "x"), op="ElementWiseOperation.SUB"), X * 0),
    (Layer("UNARY", "y", ("x",), op="UnaryOperation.NEG"), -X),
    (Layer("REDUCE", "y", ("x",), op="ReduceOperation.AVG", axes=2, keep_dims=True), X.mean(1, keepdims=True)),
    (Layer("MATRIX_MULTIPLY", "y", ("x", "x"), op0="NONE", op1="TRANSPOSE"), X @ X.T),
    (Layer("SLICE", "y", ("x",), mode="STRICT_BOUNDS", start=(0, 2), shape=(2, 2), stride=(1, -2)), [[4, 1], [9, 3]]),
    (Layer("SOFTMAX", "y", ("x",), axes=2), np.exp(X) / np.exp(X).sum(1, keepdims=True)),
    (Layer("ACTIVATION", "y", ("x",), type="ActivationType.SIGMOID"), 1 / (1 + np.exp(-X))),
]


@pytest.mark.parametrize(("layer", "want"), CASES, ids=lambda value: getattr(value, "kind", ""))
def test_each_kind_of_layer_computes_what_its_name_says(layer: Layer, want: Any) -> None:
    one, sizes = np.array([1]), np.array([0, 2, -1])
    got = evaluate(FAKE, network([layer], "y"), {"x": X, "one": one, "sizes": sizes})
    np.testing.assert_allclose(got["y"], want, rtol=1e-6)


def test_layers_are_computed_in_the_order_of_what_they_read() -> None:
    late = Layer("UNARY", "b", ("a",), op="UnaryOperation.NEG")
    first = Layer("UNARY", "a", ("x",), op="UnaryOperation.SQRT")
    got = evaluate(FAKE, network([late, first], "a", "b"), {"x": X})
    np.testing.assert_allclose(got["b"], -np.sqrt(X), rtol=1e-6)
    np.testing.assert_allclose(got["a"], np.sqrt(X), rtol=1e-6)


def test_narrow_products_are_summed_in_float32() -> None:
    x = np.full((1, 4096), 1.0, np.float16)
    layer = Layer("MATRIX_MULTIPLY", "y", ("x", "x"), op0="NONE", op1="TRANSPOSE")
    got = evaluate(FAKE, network([layer], "y"), {"x": x})["y"]
    assert got.dtype == np.float16
    assert got.tolist() == [[4096.0]]


@pytest.mark.parametrize(
    ("layer", "named"),
    [
        (Layer("PLUGIN_V2", "y", ("x",)), "PLUGIN_V2"),
        (Layer("UNARY", "y", ("x",), op="UnaryOperation.ASINH"), "ASINH"),
        (Layer("SLICE", "y", ("x",), mode="SampleMode.WRAP"), "WRAP"),
        (Layer("CONSTANT", "y", weights=SimpleNamespace(dtype="DataType.BF16"), shape=(1,)), "BF16"),
    ],
)
def test_what_is_not_written_here_is_named(layer: Layer, named: str) -> None:
    with pytest.raises(EngineError, match=named):
        evaluate(FAKE, network([layer], "y"), {"x": X})


def test_a_child_that_fails_is_quoted(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "print('what broke'); raise SystemExit(3)"]
    with pytest.raises(EngineError, match="the build must end well") as error:
        run_child(command, tmp_path / "log", "the build")
    assert "what broke" in str(error.value)
    assert (tmp_path / "log").read_text() == "what broke\n"


def test_only_a_traced_network_in_bfloat16_cannot_be_computed() -> None:
    cases = [(backend, dtype) for backend in ("rtx", "trt") for dtype in ("float32", "bfloat16")]
    assert [is_computed(*case) for case in cases] == [True, False, True, True]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["nowhere"], "a source tree must hold tensorrt_llm/models/modeling_utils.py"),
        (["tree", "--checkpoint", "nowhere"], "prompts and rows to compare with must be there; got nowhere"),
    ],
)
def test_what_cannot_be_checked_is_said(
    words: list[str], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_tree(tmp_path / "tree")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["check", *words, "--backend", "rtx"])
    assert main() == 2
    assert told in capsys.readouterr().err


def test_our_own_engine_gives_the_golden_states(tmp_path: Path) -> None:
    with np.load(LLAMA / "golden.npz") as golden:
        np.savez(tmp_path / "p.npz", input_ids=golden["input_ids"], lengths=golden["lengths"])
        want = golden["final_norm"]
    command = [sys.executable, "-m", "workbench.engine.trtllm.check.own", str(LLAMA), str(tmp_path / "o.npz")]
    done = subprocess.run([*command, "--prompts", str(tmp_path / "p.npz")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    with np.load(tmp_path / "o.npz") as own:
        assert str(own["engine"]).startswith("onnxruntime")
        real = np.arange(own["input_ids"].shape[1]) < own["lengths"][:, None]
        np.testing.assert_allclose(own["final_norm"][real], want[:, : real.shape[1]][real], rtol=1e-3, atol=1e-4)
