"""Loading: every tampered folder is refused before the runtime sees a byte; a trial in a process that may die."""

import contextlib
import json
import os
import shutil
import signal

import numpy as np
import pytest

import workbench as wb
from workbench.canonical import canonical_json, digest_of
from workbench.cli import main
from workbench.engine import opening, trial
from workbench.engine.backends import onnxruntime as backend
from workbench.engine.backends.protocol import get_backend
from workbench.engine.contract import CONTRACT_FILE, Contract, parse_contract
from workbench.errors import EngineRefused

MUTANTS = 10_000


@pytest.fixture
def copied(toy_engines, tmp_path):
    """A copy of a good engine folder, to be damaged."""
    return shutil.copytree(toy_engines().path, tmp_path / "engine")


@pytest.fixture
def spy(monkeypatch):
    """Everything through which bytes of an engine could reach a runtime."""
    seen = []
    for name in ("onnxruntime", "openvino"):
        monkeypatch.setattr(get_backend(name), "load", seen.append)
    monkeypatch.setattr(opening, "run_trial", lambda folder, _contract: seen.append(folder))
    return seen


@pytest.fixture(scope="module")
def engine_kinds(tmp_path_factory, toy_checkpoint, golden):
    """Engines that hold every kind of file: with a tokenizer, with scales, of another backend with its settings."""
    from tokenizers import Tokenizer, models

    root = tmp_path_factory.mktemp("kinds")
    with_tokenizer = shutil.copytree(golden / "tiny" / "llama", root / "llama")
    Tokenizer(models.WordLevel({str(i): i for i in range(200)}, unk_token="0")).save(str(root / "llama/tokenizer.json"))
    kinds = (
        (wb.open_checkpoint(with_tokenizer), "onnxruntime", "fp32"),
        (toy_checkpoint, "onnxruntime", "int8-dynamic"),
        (toy_checkpoint, "openvino", "int8"),
    )
    made = []
    for checkpoint, name, precision in kinds:
        if get_backend(name).available().ready:
            recipe = wb.Recipe(checkpoint=checkpoint, precision=precision, backend=name, max_tokens=16)
            made.append(wb.build(recipe, root / "engines").path)
    return made


def mutant(data, random):
    """One byte changed, or a part cut, doubled, moved or overwritten; never the same bytes."""
    at, size = int(random.integers(len(data))), int(random.integers(1, 65))
    kind = int(random.integers(6))
    changed = bytearray(data)
    if kind <= 1:
        changed[at] ^= 1 << int(random.integers(8))
    elif kind == 2:
        changed = changed[:at]
    elif kind == 3:
        changed[at:at] = data[at : at + size] or b"\0"
    elif kind == 4:
        del changed[at : at + size]
    else:
        changed[at : at + size] = random.bytes(len(data[at : at + size]))
    return bytes(changed) if bytes(changed) != data else data + b"\0"


def test_ten_thousand_tampered_folders_are_refused_before_the_runtime_sees_them(engine_kinds, tmp_path, spy):
    random = np.random.default_rng(12)
    names, refused = set(), 0
    for kind in engine_kinds:
        folder = shutil.copytree(kind, tmp_path / kind.name)
        good = {path.name: path.read_bytes() for path in sorted(folder.iterdir())}
        names |= set(good)
        share = MUTANTS // len(engine_kinds) + (MUTANTS % len(engine_kinds) if kind is engine_kinds[0] else 0)
        by_name = {name: share // (4 * (len(good) - 1)) for name in good} | {CONTRACT_FILE: 0}
        by_name[CONTRACT_FILE] = share - sum(by_name.values())  # three in four: its parser can go wrong in most ways
        refused += sum(damaged(folder, name, good[name], count, random) for name, count in by_name.items())
        assert not spy
        with pytest.raises(AttributeError):  # the spy is where the bytes of a good folder arrive
            wb.open_engine(folder)
        assert len(spy) > 0
        spy.clear()
    assert refused == MUTANTS
    assert {"recipe.json", "tokenizer.json", "scales.json", "smoothing.safetensors", "selftest.safetensors"} <= names


def damaged(folder, name, data, count, random):
    """How many of `count` changes to one file are refused; the file is whole again afterwards."""
    refused, path = 0, folder / name
    handle = os.open(path, os.O_RDWR)
    for _ in range(count):
        changed = mutant(data, random)
        os.pwrite(handle, changed, 0)
        os.ftruncate(handle, len(changed))
        try:
            wb.open_engine(folder)
        except EngineRefused:
            refused += 1
    os.close(handle)
    path.write_bytes(data)
    return refused


DELETED = object()
VALUES = (
    DELETED,
    None,
    "",
    "../x",
    "\x1b[31m<script>",
    -1,
    0,
    1 << 70,
    1e308,
    True,
    [],
    {},
    [""],
    {"a": 1},
    "9" * 5000,
)


def fields(value, path=()):
    """The path of every field of plain data."""
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield (*path, key)
        yield from fields(value[key], (*path, key))


def test_every_field_may_hold_anything_in_a_contract_sealed_again_and_nothing_crashes(
    copied, toy_engines, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(opening, "remembered", lambda *_: True)  # the session of this process must bear it, not a child
    good = toy_engines().contract.to_json()
    paths = [path for path in fields(good) if path != ("digest",)]
    assert len(paths) > 100
    root = ["--in", str(copied.parent)]
    random = np.random.default_rng(5)
    for path in paths:
        value = VALUES[random.integers(len(VALUES))]
        plain = json.loads(json.dumps(good))
        *there, last = path
        part = plain
        for key in there:
            part = part[key]
        if value is DELETED:
            del part[last]
        else:
            part[last] = value
        plain.pop("digest")
        (copied / CONTRACT_FILE).write_bytes(canonical_json(plain | {"digest": digest_of(plain)}))
        with contextlib.suppress(EngineRefused):
            wb.open_engine(copied).run([np.array([1, 2, 3], dtype=np.int32)])
        for words in (
            ["engines", "list", *root],
            ["engines", "show", str(copied), *root],
            ["engines", "diff", str(copied), str(toy_engines().path), *root],
            ["engines", "diff", str(toy_engines().path), str(copied), *root],
            ["inspect", str(copied)],
            ["onboard", str(copied), "--out", str(tmp_path / "sheet.html")],
        ):
            assert main(words) in (0, 1, 2), path
        said = capsys.readouterr()
        assert "\x1b" not in said.out + said.err, (path, value)


def test_a_contract_sealed_again_with_other_tensors_is_refused_by_the_live_engine(copied, toy_engines):
    plain = toy_engines().contract.to_json()
    plain["outputs"].append(plain["outputs"][0] | {"name": "blocks.0.resid_post"})
    (copied / CONTRACT_FILE).write_bytes(Contract.model_validate(plain).sealed().to_bytes())
    with pytest.raises(EngineRefused, match="outputs of the engine must be"):
        wb.open_engine(copied)


def test_a_contract_of_an_older_minor_version_still_opens(toy_engines):
    plain = toy_engines().contract.to_json()
    for part, fields in ((plain, ("cache", "name")), (plain["verification"], ("split", "twin", "rebuild", "note"))):
        for field in fields:
            del part[field]
    plain["schema_version"] = "1.0"
    del plain["digest"]
    from workbench.canonical import canonical_json, digest_of

    data = canonical_json(plain | {"digest": digest_of(plain)})
    old = parse_contract(data, where="test")
    assert old.to_bytes() == data
    assert old.verification.rebuild is None


def test_the_contract_says_what_a_second_build_gave(toy_engines):
    again = toy_engines().contract.verification.rebuild
    assert again.plan_bytes_equal
    assert again.numbers.bit_equal


def test_a_rebuild_that_differs_is_reported(toy_checkpoint, tmp_path, monkeypatch):
    true_plan = backend.build_plan
    made = []

    def wavering(recipe, folder, progress=None):
        plan = true_plan(recipe, folder, progress)
        made.append(folder)
        if len(made) == 2:
            path = folder / "weights.bin"
            data = np.frombuffer(path.read_bytes(), dtype=np.float32).copy()
            data[np.abs(data) > 1e-3] *= np.float32(1.001)
            path.write_bytes(data.tobytes())
            plan.files["weights.bin"] = "0" * 64
        return plan

    monkeypatch.setattr(backend, "build_plan", wavering)
    again = wb.build(wb.Recipe(checkpoint=toy_checkpoint, max_tokens=32), tmp_path).contract.verification.rebuild
    assert not again.plan_bytes_equal
    assert again.differing_files == ("weights.bin",)
    assert 1e-5 < again.numbers.max_relative_error < 0.1
    assert len(list(tmp_path.iterdir())) == 1


def test_a_foreign_engine_is_tried_once_and_then_remembered(copied, toy_engines, monkeypatch):
    version = backend.available().version
    trial.forget(toy_engines().contract, version)
    children = []
    true_run = trial.subprocess.run
    monkeypatch.setattr(trial.subprocess, "run", lambda *a, **k: children.append(a) or true_run(*a, **k))
    wb.open_engine(copied)
    wb.open_engine(copied)
    assert len(children) == 1
    trial.forget(toy_engines().contract, version)
    monkeypatch.setenv(trial.CACHE_VARIABLE, "")
    wb.open_engine(copied)
    wb.open_engine(copied)
    assert len(children) == 3


def test_the_trial_measures_memory_of_a_pass(toy_engines):
    found = trial.run_trial(toy_engines().path, toy_engines().contract, pass_tokens=64)
    assert found["pass_tokens"] == 64
    assert found["worst"] == 0
    assert found["peak_bytes"] >= found["loaded_bytes"]
    assert found["output_bytes"]["final_norm"] == 2 * 4 * toy_engines().contract.checkpoint.d_model


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "SIGSEGV"),
        (
            "import sys; sys.stderr.write('cannot\\x1b deserialise'); sys.exit(3)",
            r"code 3; its last words: .cannot\\u001b",
        ),
        ("print('nonsense')", "its last words: none"),
        ("", "none"),
    ],
)
def test_a_child_that_dies_is_a_refusal_with_its_last_words(copied, toy_engines, tmp_path, monkeypatch, code, words):
    (tmp_path / "dying_child.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(trial, "CHILD", "dying_child")
    trial.forget(toy_engines().contract, backend.available().version)
    with pytest.raises(EngineRefused, match=words):
        wb.open_engine(copied)
    assert signal.getsignal(signal.SIGSEGV) == signal.SIG_DFL  # this process saw none of it


def test_a_failed_self_test_of_the_child_says_tap_and_error(copied, toy_engines, tmp_path):
    from safetensors.numpy import load_file, save_file

    path = copied / "selftest.safetensors"
    rows = load_file(path)
    rows["rows.final_norm"] = rows["rows.final_norm"] * np.float32(1.1)
    save_file(rows, path)
    plain = toy_engines().contract.to_json()
    plain["files"][path.name] = opening.sha256_of(path)
    (copied / CONTRACT_FILE).write_bytes(Contract.model_validate(plain).sealed().to_bytes())
    trial.forget(toy_engines().contract, backend.available().version)
    with pytest.raises(EngineRefused, match=r"final_norm of the self-test must be within 0.001.*got 0.0909"):
        wb.open_engine(copied)
    with pytest.raises(EngineRefused, match="final_norm"):
        opening.try_engine(copied)
    assert json.loads((copied / CONTRACT_FILE).read_bytes())["files"][path.name]
