"""Neighbours of texts that a run does not hold: read by its engine, refused without one."""

import numpy as np
import pytest
from token_vocabularies import pairs

import workbench as wb
from workbench.cli import main
from workbench.errors import AnalysisError
from workbench.tokens import tokenizer_from_gguf

N_IDS = 200  # of the toy vocabulary


@pytest.fixture(scope="module")
def letters():
    """A tokenizer of single bytes, as many as the toy model knows."""
    made = pairs()
    kept = {"tokenizer.ggml.tokens": made["tokenizer.ggml.tokens"][:N_IDS], "tokenizer.ggml.merges": []}
    return tokenizer_from_gguf(made | kept | {"tokenizer.ggml.token_type": [1] * N_IDS})


@pytest.fixture
def engine(toy_engines, letters, monkeypatch):
    made = toy_engines(positions="all")
    monkeypatch.setitem(vars(made), "tokenizer", letters)
    return made


@pytest.fixture
def run(engine, letters, tmp_path):
    return wb.extract(wb.load_prompts(["a city", "a town", "lemon"]), engine, out=tmp_path / "run", progress=False)


def test_a_new_text_is_read_by_the_engine(run, engine, letters):
    state = engine.run([letters.encode("a citx")])["final_norm"][-1]
    found = wb.neighbours(run, text="a citx", engine=engine, k=3)
    np.testing.assert_array_equal(found.rows, wb.neighbours(run, vector=state, k=3).rows)
    assert found.tap == "final_norm"
    assert found.question == "the text 'a citx'"
    assert "'a citx'" in found.to_json()


def test_a_stored_text_needs_no_engine_and_is_not_its_own_neighbour(run, engine):
    stored = wb.neighbours(run, text="a city", k=3)
    np.testing.assert_array_equal(stored.rows, wb.neighbours(run, text="a city", engine=engine, k=3).rows)
    assert 5 not in stored.rows  # its own last row


def test_what_cannot_be_answered_says_what_to_do(run, engine, toy_engines, capsys):
    with pytest.raises(AnalysisError, match=r"needs an engine: workbench\.neighbours\(run, text=\.\.\., engine="):
        wb.neighbours(run, text="nowhere")
    with pytest.raises(AnalysisError, match="one of row"):
        wb.neighbours(run, text="nowhere", row=1, engine=engine)
    with pytest.raises(AnalysisError, match="the engine emits"):
        wb.neighbours(run, "blocks.0.resid_post", text="nowhere", engine=engine)
    other = toy_engines("int8", positions="all")
    with pytest.raises(AnalysisError, match="run's own engine"):
        wb.neighbours(run, text="nowhere", engine=other)
    assert main(["neighbours", str(run.path), "--text", "nowhere"]) == 2
    assert "needs an engine" in capsys.readouterr().err
    assert main(["neighbours", str(run.path), "--row", "3", "--k", "2"]) == 0
    assert "Nearest to row 3 at final_norm" in capsys.readouterr().out
