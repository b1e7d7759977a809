"""Versions of how weights are made: another way makes another engine, and no way changes without its version."""

import json

import pytest
from method_figures import KEPT, PAIRS, figures

import workbench as wb
from workbench.engine.backends.protocol import backend_names, get_backend
from workbench.engine.building import make_engine
from workbench.engine.difference import differences
from workbench.engine.methods import KERNELS, METHODS, method_of
from workbench.engine.opening import read_contract

CAST = {"fp32", "fp16", "bf16"}  # the checkpoint's own weights, at most in another type
FOREIGN = {"tensorrt_llm"}  # its weights are made by other tools


def recipe_of(checkpoint, precision="int4"):
    return wb.Recipe(checkpoint=checkpoint, precision=precision, max_tokens=32)


@pytest.mark.parametrize("pair", PAIRS, ids=" ".join)
def test_what_is_made_is_that_of_the_stated_version(pair):
    kept = json.loads(KEPT.read_text(encoding="utf-8"))[" ".join(pair)]
    assert kept["version"] == method_of(*pair), "run `python tests/method_figures.py`, which keeps the new figures"
    # other kernels of BLAS move no figure; a prompt fewer, or a constant off by a hundredth, moves one by 0.008 or more
    assert figures(*pair) == pytest.approx(kept["figures"], abs=0.002), "raise its version in engine/methods.py"


def test_every_precision_whose_weights_are_made_here_has_a_version():
    for backend in backend_names():
        made = set(get_backend(backend).PRECISIONS) - CAST if backend not in FOREIGN else set()
        assert made <= set(METHODS.get(backend, {})) <= set(get_backend(backend).PRECISIONS), backend


@pytest.mark.parametrize("before", [None, 7], ids=["stated none", "another"])
def test_an_engine_whose_weights_were_made_otherwise_opens_and_answers_no_build(
    toy_checkpoint, tmp_path, monkeypatch, before
):
    """One that stated no version is what every build was before there were versions."""
    with monkeypatch.context() as patch:
        patch.setitem(METHODS, "onnxruntime", {} if before is None else {"int4": before})
        old = make_engine(recipe_of(toy_checkpoint), tmp_path)
        assert json.loads((old / "recipe.json").read_bytes()).get("method") == before
    new = make_engine(recipe_of(toy_checkpoint), tmp_path)
    assert new != old
    assert make_engine(recipe_of(toy_checkpoint), tmp_path) == new
    assert wb.open_engine(old, expect=read_contract(old).engine_id).contract.precision.method == before
    words = " ".join(differences(read_contract(old), read_contract(new)))
    assert f"How weights or ranges are made: version {before or 'not stated'} in A, 1 in B." in words


def test_a_recipe_of_the_checkpoints_own_weights_states_no_version(toy_checkpoint):
    assert "method" not in recipe_of(toy_checkpoint, "fp32").to_json()
    assert recipe_of(toy_checkpoint).to_json()["method"] == METHODS["onnxruntime"]["int4"]


def test_a_recipe_with_own_kernels_states_their_version(toy_checkpoint):
    def of(**options):
        return wb.Recipe(checkpoint=toy_checkpoint, precision="bf16", backend="tensorrt", options=options).to_json()

    assert of(kernels="all")["kernels"] == KERNELS["tensorrt"]
    assert "kernels" not in of(kernels="none")
    assert "kernels" not in of()
