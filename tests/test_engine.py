"""Engines: what a build proves, what a load refuses."""

import json
import shutil
import subprocess
import sys

import numpy as np
import pytest

import workbench as wb
from workbench.canonical import canonical_json, digest_of
from workbench.engine import opening, verification
from workbench.engine.contract import CONTRACT_FILE, Contract, parse_contract
from workbench.errors import ContractError, EngineError, EngineRefused, TapError

POSITIONS = ["all", "last", "mean", (0, -1)]


@pytest.fixture
def copied(toy_engines, tmp_path):
    """A copy of a good engine folder, to be damaged."""
    return shutil.copytree(toy_engines().path, tmp_path / "engine")


def test_the_contract_holds_what_was_measured(toy_engines):
    contract = toy_engines().contract
    assert contract.verification.same_engine_twice.bit_equal
    assert contract.verification.batch_of_one.max_relative_error < 2e-6
    for verdict in contract.verification.taps.values():
        assert verdict.worst_relative_error < 2e-5
        assert not verdict.non_finite
    assert contract.build.tokens_per_second > 0
    assert contract.build.plan_bytes == sum(
        (toy_engines().path / name).stat().st_size for name in ("model.onnx", "weights.bin")
    )


def test_int8_is_measured_and_told_apart(toy_engines):
    full, small = toy_engines().contract, toy_engines("int8").contract
    error = small.verification.taps["final_norm"]
    assert 1e-4 < error.mean_relative_error < small.verification.tolerance_mean
    assert full.engine_id != small.engine_id
    assert full.recipe_digest != small.recipe_digest
    assert small.precision.weights != full.precision.weights


@pytest.mark.parametrize("positions", POSITIONS, ids=str)
def test_positions_choose_rows_of_all_tokens(toy_engines, toy_ids, positions):
    prompts = [ids for ids in toy_ids if len(ids) > 1]
    every = toy_engines(positions="all").run(prompts)
    some = toy_engines(positions=positions).run(prompts)
    splits = np.cumsum([len(p) for p in prompts])[:-1]
    pick = {
        "all": lambda rows: rows,
        "last": lambda rows: rows[-1:],
        "mean": lambda rows: rows.mean(0, keepdims=True),
        (0, -1): lambda rows: rows[[0, -1]],
    }[positions]
    for tap, rows in every.items():
        expected = np.concatenate([pick(part) for part in np.split(rows, splits)])
        scale = np.linalg.norm(expected, axis=1, keepdims=True)
        assert np.abs((some[tap] - expected) / scale).max() < 2e-6, tap


def test_a_batch_of_one_equals_a_shuffled_batch(toy_engines, toy_ids):
    engine = toy_engines(positions="all")
    order = np.random.default_rng(1).permutation(len(toy_ids))
    together = engine.run([toy_ids[i] for i in order])["final_norm"]
    alone = np.concatenate([engine.run([toy_ids[i]])["final_norm"] for i in order])
    assert np.abs(together - alone).max() / np.abs(alone).max() < 2e-6


def test_the_same_recipe_gives_the_same_engine(toy_engines, toy_checkpoint, toy_taps, tmp_path):
    first = toy_engines()
    recipe = wb.Recipe(checkpoint=toy_checkpoint, taps=toy_taps, max_tokens=32)
    again = wb.build(recipe, tmp_path)
    assert again.id == first.id
    assert again.path != first.path
    assert wb.build(recipe, tmp_path).path == again.path
    assert sorted(p.name for p in tmp_path.iterdir()) == [again.path.name]


def test_a_build_out_of_tolerance_names_the_tap_and_leaves_nothing(toy_checkpoint, tmp_path, monkeypatch):
    monkeypatch.setitem(verification.TOLERANCES, "int8", (1e-6, 1e-6))
    with pytest.raises(EngineError, match=r"final_norm must be within 1e-06.*got mean"):
        wb.build(wb.Recipe(checkpoint=toy_checkpoint, precision="int8"), tmp_path)
    assert not list(tmp_path.iterdir())


def test_an_interrupted_build_leaves_nothing(toy_checkpoint, tmp_path):
    def stop(step, _share):
        if step == "verify":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        wb.build(wb.Recipe(checkpoint=toy_checkpoint), tmp_path, progress=stop)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["weights.bin", "contract.json", "recipe.json"])
def test_building_again_mends_a_damaged_engine(toy_checkpoint, tmp_path, name):
    recipe = wb.Recipe(checkpoint=toy_checkpoint, max_tokens=16)
    first = wb.build(recipe, tmp_path)
    path = first.path / name
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(EngineRefused, match="workbench build"):
        wb.open_engine(first.path)
    again = wb.build(recipe, tmp_path)
    assert again.id == first.id
    assert wb.open_engine(first.path).id == first.id
    assert list(tmp_path.iterdir()) == [first.path]


KILLED = """
import os, sys
import workbench as wb
from workbench.engine import building
building.write_selftest = lambda *_: os._exit(9)
wb.build(wb.Recipe(checkpoint=wb.open_checkpoint(sys.argv[1])), sys.argv[2])
"""


def test_the_next_build_sweeps_away_what_a_killed_one_left(toy_checkpoint, tmp_path):
    done = subprocess.run([sys.executable, "-c", KILLED, str(toy_checkpoint.path), str(tmp_path)], check=False)
    assert done.returncode == 9
    (left,) = tmp_path.iterdir()
    assert (left / "weights.bin").stat().st_size > 0
    engine = wb.build(wb.Recipe(checkpoint=toy_checkpoint), tmp_path)
    assert list(tmp_path.iterdir()) == [engine.path]


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"taps": ("blocks.9.resid_post",)}, TapError, "blocks.0 to blocks.2"),
        ({"taps": "final_norm"}, ContractError, r"taps=\('final_norm',\)"),
        ({"positions": "first"}, ContractError, "all, last, mean"),
        ({"positions": (1, 1)}, ContractError, "different"),
        ({"max_tokens": 0}, ContractError, "max_tokens"),
        ({"max_tokens": 10**9}, ContractError, "max_tokens"),
        ({"max_tokens": 16.0}, ContractError, "whole number"),
        ({"max_tokens": True}, ContractError, "whole number"),
        ({"max_tokens": "16"}, ContractError, "whole number"),
        ({"positions": (0, 16), "max_tokens": 16}, ContractError, "between -16 and 15.*got 16"),
        ({"positions": (-17,), "max_tokens": 16}, ContractError, "between -16 and 15.*got -17"),
        ({"keep": "*.down"}, ContractError, r"keep=\('\*.down',\)"),
        ({"keep": (1,)}, ContractError, "tuple of names"),
        ({"options": {"x": object()}}, ContractError, "plain data"),
        ({"options": {"x": float("nan")}}, ContractError, "plain data"),
        ({"options": None}, ContractError, "plain data"),
        ({"checkpoint": "model"}, ContractError, "open_checkpoint"),
    ],
)
def test_a_recipe_that_cannot_be_is_refused(toy_checkpoint, change, error, text):
    with pytest.raises(error, match=text):
        wb.Recipe(**({"checkpoint": toy_checkpoint} | change))


def test_a_recipe_does_not_change_with_what_it_was_made_of(toy_checkpoint):
    options = {"list": [1]}
    recipe = wb.Recipe(checkpoint=toy_checkpoint, options=options, positions=(15, -16), max_tokens=16)
    before = recipe.digest
    options["list"].append(2)
    assert recipe.options == {"list": [1]}
    assert (
        wb.Recipe(checkpoint=toy_checkpoint, options={"list": [1]}, positions=(15, -16), max_tokens=16).digest == before
    )


def test_unknown_precision_and_backend_name_those_that_exist(toy_checkpoint, tmp_path):
    with pytest.raises(EngineError, match="fp32"):
        wb.build(wb.Recipe(checkpoint=toy_checkpoint, precision="fp7"), tmp_path)
    with pytest.raises(EngineError, match="onnxruntime"):
        wb.build(wb.Recipe(checkpoint=toy_checkpoint, backend="../x"), tmp_path)


def test_a_runtime_that_computes_wrongly_is_not_ready(toy_checkpoint, copied, tmp_path, monkeypatch):
    import onnxruntime

    monkeypatch.setattr(onnxruntime, "__version__", "1.26.9")
    with pytest.raises(EngineError, match=r"onnxruntime must be ready; got version 1\.26\.9 .* Run: pip install"):
        wb.build(wb.Recipe(checkpoint=toy_checkpoint), tmp_path / "engines")
    with pytest.raises(EngineRefused, match="soft cap"):
        wb.open_engine(copied)


@pytest.mark.parametrize(
    ("prompts", "text"),
    [
        ([], "at least one prompt"),
        ([[]], "must have a token"),
        ([[1] * 33], "32 tokens"),
        ([[-1]], "token ids must lie between"),
        ([[10**6]], "token ids must lie between"),
    ],
)
def test_a_batch_outside_the_contract_is_refused_before_launch(toy_engines, prompts, text):
    with pytest.raises(ContractError, match=text):
        toy_engines().run([np.array(p, dtype=np.int64) for p in prompts])


def test_more_prompts_than_a_pass_may_hold_are_split_or_refused(toy_engines, toy_ids):
    engine, passes = toy_engines(positions="all"), []

    class Counting:
        inputs, outputs = engine._session.inputs, engine._session.outputs

        def run(self, feeds):
            passes.append(feeds["input_ids"].shape)
            return engine._session.run(feeds)

    limits = engine.contract.limits.model_copy(update={"tokens_per_pass": 48, "prompts_per_pass": 3})
    small = opening.Engine(engine.path, engine.contract.model_copy(update={"limits": limits}), Counting())
    got, whole = small.run(toy_ids), engine.run(toy_ids)
    assert sum(count for count, _ in passes) == len(toy_ids)
    assert all(count <= 3 and count * width <= 48 for count, width in passes)
    assert max(count for count, _ in passes) == 3
    for tap, rows in whole.items():
        assert np.abs(got[tap] - rows).max() < 2e-6 * np.abs(rows).max()
    passes.clear()
    for launch in (small.submit, small.run_outputs):
        with pytest.raises(ContractError, match=r"3 prompts and 48 tokens, pads included; got 40 prompts of up to"):
            launch(toy_ids)
    with pytest.raises(ContractError, match="32 tokens"):
        small.run([*toy_ids, np.ones(33, dtype=np.int32)])
    assert not passes
    plain = limits.model_copy(update={"prompts_per_pass": None})
    alike = opening.Engine(engine.path, engine.contract.model_copy(update={"limits": plain}), Counting())
    with pytest.raises(ContractError, match="a pass may hold 48 tokens"):
        alike.submit(toy_ids)
    alike.run([np.array([1], dtype=np.int32)] * 100)
    assert [count for count, _ in passes] == [48, 48, 4]


def test_a_good_copy_opens_and_gives_the_same_rows(toy_engines, toy_ids, copied):
    again = wb.open_engine(copied, expect=toy_engines().id)
    np.testing.assert_array_equal(again.run(toy_ids[:3])["final_norm"], toy_engines().run(toy_ids[:3])["final_norm"])


def test_a_contract_that_is_a_link_is_refused(copied, tmp_path):
    moved = shutil.move(copied / CONTRACT_FILE, tmp_path / "elsewhere")
    (copied / CONTRACT_FILE).symlink_to(moved)
    with pytest.raises(EngineRefused, match=r"contract\.json must be a regular file"):
        wb.open_engine(copied)


def test_the_expected_id_is_demanded(copied):
    with pytest.raises(EngineRefused, match="Expected 00ff"):
        wb.open_engine(copied, expect="00ff")


def damage_byte(path, at):
    data = bytearray(path.read_bytes())
    data[at % len(data)] ^= 1 << (at % 8)
    path.write_bytes(data)


def test_every_damaged_file_is_refused_before_the_backend_sees_it(copied, monkeypatch):
    from workbench.engine.backends import onnxruntime as backend

    monkeypatch.setattr(backend, "load", lambda _folder: pytest.fail("the backend was called"))
    good = {path: path.read_bytes() for path in copied.iterdir()}
    random = np.random.default_rng(3)
    for path, data in good.items():
        for at in random.integers(0, len(data), 150):
            damage_byte(path, int(at))
            with pytest.raises(EngineRefused):
                wb.open_engine(copied)
            path.write_bytes(data)
        for size in (0, 1, len(data) // 2, len(data) - 1):
            path.write_bytes(data[:size])
            with pytest.raises(EngineRefused):
                wb.open_engine(copied)
        path.unlink()
        with pytest.raises(EngineRefused):
            wb.open_engine(copied)
        path.write_bytes(data)
    (copied / "extra").touch()
    with pytest.raises(EngineRefused, match="extra"):
        wb.open_engine(copied)


def test_a_link_in_place_of_a_file_is_refused(copied, tmp_path):
    moved = shutil.move(copied / "weights.bin", tmp_path / "elsewhere")
    (copied / "weights.bin").symlink_to(moved)
    with pytest.raises(EngineRefused, match="regular file"):
        wb.open_engine(copied)


EDITS = [  # what stands in a contract, what is put there, and what the refusal names
    (("engine_id",), "0" * 64, "engine id"),
    (("recipe_digest",), "0" * 64, "recipe digest"),
    (("taps",), ["embed"], "every tap and no other"),
    (("taps",), [], "one or more different names"),
    (("taps", 0), "blocks.1.resid_pre", "must be an output"),
    (("positions",), "all", "positions of contract.json must be that of recipe.json"),
    (("positions",), "", "positions"),
    (("positions",), [], "positions"),
    (("limits", "max_tokens"), 33, "max_tokens of contract.json must be that of recipe.json, '32'"),
    (("limits", "max_tokens"), -1, "limits.max_tokens"),
    (("checkpoint", "digest"), "0" * 64, "checkpoint of contract.json"),
    (("checkpoint", "d_model"), True, "checkpoint.d_model"),
    (("precision", "name"), "int8", "precision of contract.json"),
    (("precision", "method"), 1, "method of contract.json must be that of recipe.json"),
    (("backend", "options"), {"cache": True}, "options of contract.json"),
    (("verification", "taps"), {}, "every tap and no other"),
    (("verification", "taps", "embed", "worst_relative_error"), -1.0, "worst_relative_error"),
    (("verification", "taps", "embed", "worst_relative_error"), "0", "worst_relative_error"),
    (("self_test", "file"), "../selftest.safetensors", "self-test must be listed"),
    (("tokenizer_digest",), "0" * 64, "tokenizer.json must be listed"),
    (("files", "recipe.json"), "0" * 64, "sha256 of recipe.json"),
    (("files", "../recipe.json"), "0" * 64, "must be 1 to 64"),
    (("inputs", 0, "dtype"), "float32", "int32 or int64"),
    (("inputs", 0, "dtype"), "int64", "input_ids of the engine must be int64; got int32"),
    (("inputs",), [], "must be inputs"),
    (("outputs", 0, "dtype"), "float16", "embed of the engine must be float16; got float32"),
    (("outputs", 0, "axes"), ["prompt", "65"], r"embed of the engine must be \[prompt, 65\]; got \[any, 64\]"),
    (("outputs", 0, "axes"), ["64"], "embed of the engine must be"),
    (("outputs", 0, "name"), "blocks.0.resid_pre", "must be an output"),
    (("build", "emulated"), True, "must state no speed"),
    (("schema_version",), "2.0", "Update the workbench"),
]


def sealed_with(plain, path, value):
    """The bytes of a contract whose digest is right, whatever was put into it."""
    plain = json.loads(json.dumps(plain))
    *there, last = path
    part = plain
    for key in there:
        part = part[key]
    part[last] = value
    del plain["digest"]
    return canonical_json(plain | {"digest": digest_of(plain)})


@pytest.mark.parametrize(("path", "value", "words"), EDITS, ids=lambda part: str(part)[:40])
def test_an_edited_contract_is_refused_even_when_it_was_sealed_again(copied, toy_engines, path, value, words):
    (copied / CONTRACT_FILE).write_bytes(sealed_with(toy_engines().contract.to_json(), path, value))
    with pytest.raises(EngineRefused, match=words):
        wb.open_engine(copied)


def test_an_edited_contract_that_was_not_sealed_again_is_refused_by_its_digest(copied):
    plain = json.loads((copied / CONTRACT_FILE).read_bytes()) | {"norm_point": "elsewhere"}
    (copied / CONTRACT_FILE).write_bytes(canonical_json(plain))
    with pytest.raises(EngineRefused, match=r"digest of contract\.json must match"):
        wb.open_engine(copied)


def test_an_edited_contract_of_an_engine_that_was_tried_is_tried_again(copied, toy_engines, monkeypatch):
    wb.open_engine(copied)
    (copied / CONTRACT_FILE).write_bytes(sealed_with(toy_engines().contract.to_json(), ("norm_point",), "elsewhere"))
    tried = []
    monkeypatch.setattr(opening, "run_trial", lambda folder, _contract: tried.append(folder))
    wb.open_engine(copied)
    assert tried == [copied]


def test_unknown_fields_of_a_newer_minor_version_are_kept(toy_engines):
    plain = toy_engines().contract.to_json() | {"schema_version": "1.7", "of_the_future": [1]}
    newer = Contract.model_validate(plain).sealed()
    assert parse_contract(newer.to_bytes(), where="test").to_json()["of_the_future"] == [1]


def test_a_contract_with_twin_keys_is_refused(toy_engines):
    data = toy_engines().contract.to_bytes().replace(b'{"backend"', b'{"taps":[],"backend"', 1)
    with pytest.raises(EngineRefused, match="JSON"):
        parse_contract(data, where="test")
