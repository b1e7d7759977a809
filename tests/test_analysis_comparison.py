"""Comparison: rows are joined by content, and no word goes beyond the measured floor."""

import json

import numpy as np
import pytest
from analysis_runs import make_run

from workbench import compare
from workbench.analysis.drift import measure_drift
from workbench.analysis.floors import CLAIM, Floor, Repeat, load_floor, metrics_of
from workbench.analysis.joining import join_rows
from workbench.analysis.judging import judge
from workbench.analysis.repeating import make_floor
from workbench.analysis.splitting import split_error
from workbench.errors import AnalysisError
from workbench.index.blocks import rows_of

QUIET = {"progress": False}


def states_of(n=60, width=16, seed=0):
    return np.random.default_rng(seed).standard_normal((n, width)).astype(np.float32)


def test_rows_are_joined_by_prompt_and_token_whatever_their_order(tmp_path):
    lengths = np.array([2, 1, 3])
    states, texts, tokens = np.arange(6)[:, None].repeat(4, axis=1), ["a", "b", "c"], [5, 6, 7, 8, 9, 10]
    a = make_run(tmp_path / "a", states, texts=texts, lengths=lengths, positions="all", tokens=tokens)
    order = [2, 0]  # other order, and "b" is missing
    rows = [3, 4, 5, 0, 1]
    b = make_run(
        tmp_path / "b", states[rows], texts=[texts[i] for i in order], lengths=lengths[order], positions="all",
        tokens=[tokens[i] for i in rows],
    )  # fmt: skip
    joined = join_rows(a, b)
    np.testing.assert_array_equal(a.tap("final_norm")[joined.rows_a], b.tap("final_norm")[joined.rows_b])
    assert list(joined.rows_a) == [0, 1, 3, 4, 5]
    assert (joined.only_a, joined.only_b) == (1, 0)


def test_repeated_prompts_are_paired_by_occurrence(tmp_path):
    states = states_of(3)
    a = make_run(tmp_path / "a", states, texts=["x", "x", "y"], tokens=[1, 2, 3] * 3)
    b = make_run(tmp_path / "b", states[[2, 0]], texts=["y", "x"], tokens=[1, 2, 3] * 2)
    joined = join_rows(a, b)
    assert list(joined.rows_a) == [0, 2]
    assert list(joined.rows_b) == [1, 0]


def test_other_token_ids_or_prompts_are_refused(tmp_path):
    states = states_of(4)
    a = make_run(tmp_path / "a", states, tokens=np.arange(12))
    changed = np.arange(12)
    changed[7] = 99
    with pytest.raises(AnalysisError, match="first prompt 2"):
        join_rows(a, make_run(tmp_path / "b", states, tokens=changed))
    with pytest.raises(AnalysisError, match="no prompt"):
        join_rows(a, make_run(tmp_path / "c", states, texts=list("wxyz")))
    with pytest.raises(AnalysisError, match="token index"):
        join_rows(a, make_run(tmp_path / "d", states, lengths=np.full(4, 3), positions="mean", tokens=np.arange(12)))


def test_equal_runs_are_bit_equal_and_nothing_more_is_said(tmp_path):
    states = states_of()
    found = compare(make_run(tmp_path / "a", states), make_run(tmp_path / "b", states), **QUIET)
    assert found.verdicts["final_norm"].text == "bit-equal"
    assert found.above == ()
    assert set(metrics_of(found.taps[0]).values()) == {0.0}


def test_without_a_floor_the_text_says_so_and_claims_nothing(tmp_path):
    states = states_of()
    a, b = make_run(tmp_path / "a", states), make_run(tmp_path / "b", states + 1, letter="b")
    found = compare(a, b, **QUIET)
    assert found.verdicts["final_norm"].text == "floor not measured"
    assert found.verdicts["final_norm"].multiple is None
    assert found.above == ()
    assert len(found.rows_above("final_norm")) == 0
    text = str(found)
    assert "floor not measured" in text
    for word in ("moved", "changed", "differs", "drift", "above"):
        assert word not in text
    assert found.to_frame()["verdict"].tolist() == ["floor not measured"]
    assert json.loads(found.to_json())["floor"] is None


def noisy(base, scale, rng):
    return base * (1 + scale * rng.standard_normal(base.shape))


def test_a_planted_change_is_flagged_at_its_tap_and_nowhere_else(tmp_path):
    rng = np.random.default_rng(0)
    taps = [f"blocks.{i}.resid_post" for i in range(4)]
    base = {tap: states_of(seed=i) for i, tap in enumerate(taps)}
    repeat = lambda: {tap: noisy(rows, 1e-6, rng) for tap, rows in base.items()}  # noqa: E731
    a = make_run(tmp_path / "a", base)
    floor = make_floor(a, [(f"repeat {i}", make_run(tmp_path / f"r{i}", repeat())) for i in range(3)], **QUIET)
    changed = repeat()
    changed[taps[2]] = noisy(base[taps[2]], 2e-6, rng)
    found = compare(a, make_run(tmp_path / "b", changed, letter="b"), floor=floor.save(tmp_path), **QUIET)
    assert found.above == (taps[2],)
    assert found.verdicts[taps[2]].multiple == pytest.approx(2, rel=0.2)
    assert "above the floor" in str(found)


def test_the_worst_token_stands_beside_the_mean_with_its_prompt(tmp_path):
    states = states_of(50)
    changed = states.copy()
    changed[31] += 3
    noise = {"final_norm": {"error_mean": 1e-6, "error_worst": 2e-6}}
    a = make_run(tmp_path / "a", states, ids=[f"p{i}" for i in range(50)])
    found = compare(a, make_run(tmp_path / "b", changed), floor=Floor(
        engine_id="a" * 64, prompts_hash=a.prompts.content_hash, n_rows=50, created="", workbench="",
        repeats=(Repeat(kind="order", run_id="", engine_id="", taps=noise),),
    ), **QUIET)  # fmt: skip
    assert found.worst[0].row_a == 31
    assert found.worst[0].prompt == 31
    assert found.worst[0].text == "prompt 31"
    assert found.worst[0].error == pytest.approx(
        np.linalg.norm(changed[31] - states[31]) / np.linalg.norm(states[31]), rel=1e-5
    )
    assert list(found.rows_above("final_norm")) == [31]
    assert "another prompt set" not in str(found)


def test_rows_with_inf_or_nan_are_counted_and_left_out(tmp_path):
    states = states_of(40)
    broken = states.copy()
    broken[3, 2], broken[7] = np.inf, np.nan
    found = compare(make_run(tmp_path / "a", states), make_run(tmp_path / "b", broken), **QUIET)
    drift = found.taps[0]
    assert (drift.left_out_a, drift.left_out_b, drift.n_rows) == (0, 2, 38)
    assert np.isnan(drift.errors[[3, 7]]).all()
    assert np.nanmax(drift.errors) == 0


def test_a_floor_of_exactly_zero_is_not_divided_by():
    floor = Floor(
        engine_id="", prompts_hash="", n_rows=1, created="", workbench="",
        repeats=(Repeat(kind="same engine", run_id="", engine_id="", taps={"t": {"error_mean": 0.0}}),),
    )  # fmt: skip
    a = states_of()
    verdict = judge(measure_drift("t", rows_of(a), rows_of(a * 1.001), sample=np.arange(60)), floor)
    assert verdict.text == "above the floor"
    assert verdict.multiple is None


def null_repeat(rng, base, kind):
    """One repeat of a toy kernel: rounding noise that depends on the batch; some repeats are bit-equal, as in life."""
    if kind == "same engine":
        return base
    touched = rng.random(len(base)) < {"order": 0.9, "batch size": 1.0, "batch slot": 0.5}[kind]
    noise = 1e-7 * rng.standard_normal(base.shape) * np.exp(0.5 * rng.standard_normal((len(base), 1)))
    return (base * (1 + noise * touched[:, None])).astype(np.float32)


def test_null_pairs_claim_nothing_in_100_seeds_and_twice_the_floor_is_always_flagged():
    """False-alarm rate: 0 of 100, so below 3% with 95% confidence (rule of three)."""
    alarms, missed = 0, 0
    for seed in range(100):
        rng = np.random.default_rng(seed)
        base = rng.standard_normal((300, 24)).astype(np.float32)
        measure = lambda other: measure_drift("t", rows_of(base), rows_of(other), sample=np.arange(20))  # noqa: B023, E731
        repeats = tuple(
            Repeat(kind=kind, run_id="", engine_id="", taps={"t": metrics_of(measure(null_repeat(rng, base, kind)))})
            for kind in ("same engine", "order", "batch slot", "batch size")
        )
        floor = Floor(engine_id="", prompts_hash="", n_rows=300, created="", workbench="", repeats=repeats)
        alarms += judge(measure(null_repeat(rng, base, "batch size")), floor).text == "above the floor"
        planted = null_repeat(rng, base, "batch size").astype(np.float64)
        size = 2 * floor.value("t", "error_mean")
        push = rng.standard_normal(base.shape)
        planted += push * (size * np.linalg.norm(base, axis=1) / np.linalg.norm(push, axis=1))[:, None]
        missed += judge(measure(planted.astype(np.float32)), floor).text != "above the floor"
    assert alarms == 0
    assert missed == 0
    assert CLAIM < 2


def test_a_floor_survives_the_disk_and_broken_ones_are_refused(tmp_path):
    states = states_of()
    a = make_run(tmp_path / "a", states)
    floor = make_floor(a, [("order", make_run(tmp_path / "b", noisy(states, 1e-6, np.random.default_rng(0))))], **QUIET)
    path = floor.save(tmp_path / "floor")
    assert load_floor(tmp_path / "floor") == load_floor(path) == floor
    assert floor.kinds == ("order",)
    for text in ("{", "[]", '{"schema": "workbench.floor/2"}', path.read_text().replace('"repeats"', '"other"')):
        (tmp_path / "bad.json").write_text(text)
        with pytest.raises(AnalysisError, match=r"floor\.json of schema"):
            load_floor(tmp_path / "bad.json")
    with pytest.raises(AnalysisError, match="at least one repeat"):
        make_floor(a, [])


def test_a_floor_of_another_engine_or_prompts_is_noted(tmp_path):
    states = states_of()
    a, b = make_run(tmp_path / "a", states), make_run(tmp_path / "b", states * 1.01, letter="b")
    floor = Floor(engine_id="z", prompts_hash="other", n_rows=60, created="", workbench="", repeats=())
    notes = " ".join(compare(a, b, floor=floor, **QUIET).notes)
    assert "another engine" in notes
    assert "another prompt set" in notes
    other = make_run(tmp_path / "c", states, checkpoint={"digest": "other"})
    assert "checkpoints differ" in " ".join(compare(a, other, **QUIET).notes)


def test_taps_must_be_common(tmp_path):
    states = states_of()
    a, b = make_run(tmp_path / "a", {"embed": states}), make_run(tmp_path / "b", {"final_norm": states})
    with pytest.raises(AnalysisError, match="both hold"):
        compare(a, b, **QUIET)
    with pytest.raises(AnalysisError, match="final_norm"):
        compare(a, a, taps=["final_norm"], **QUIET)


def test_dtype_and_engine_error_are_told_apart(tmp_path):
    rng = np.random.default_rng(0)
    base = states_of(200)
    low = noisy(base, 1e-2, rng)
    engine = noisy(low, 1e-4, rng)
    runs = [make_run(tmp_path / name, rows, letter=name) for name, rows in (("a", base), ("b", low), ("c", engine))]
    split = split_error(*runs, **QUIET)
    error = lambda x, y: float((np.linalg.norm(y - x, axis=1) / np.linalg.norm(x, axis=1)).mean())  # noqa: E731
    assert split.dtype.tap("final_norm").error_mean == pytest.approx(error(base, low), rel=1e-3)
    assert split.engine.tap("final_norm").error_mean == pytest.approx(error(low, engine), rel=1e-3)
    assert split.total.tap("final_norm").error_mean == pytest.approx(error(base, engine), rel=1e-3)
    assert "do not add up" in str(split)
    assert split.to_frame()["dtype_error"].tolist() == [split.dtype.taps[0].error_mean]


def test_statistics_gathered_while_writing_serve_the_comparison(tmp_path, monkeypatch):
    from workbench.analysis import drift

    states = states_of(80) + 3
    a, b = make_run(tmp_path / "a", states), make_run(tmp_path / "b", states * 1.01 + 0.1, letter="b")
    walked = measure_drift(
        "final_norm", rows_of(a.tap("final_norm")), rows_of(b.tap("final_norm")), sample=np.arange(80)
    )

    def no_pass(rows):
        raise AssertionError("a pass over the rows for what is stored")

    monkeypatch.setattr(drift, "moments", no_pass)
    found = compare(a, b, **QUIET).taps[0]
    assert found.zscored_error_mean == pytest.approx(walked.zscored_error_mean, rel=1e-5)
    assert found.cka_zscored == pytest.approx(walked.cka_zscored, rel=1e-6)
    with pytest.raises(AssertionError, match="pass over the rows"):  # a part of the rows has no stored statistics
        compare(a, make_run(tmp_path / "c", states[:70]), **QUIET)
