"""Extraction: every row belongs to its prompt, and an interruption costs nothing that was stored."""

import numpy as np
import pytest

import workbench as wb
from workbench import extraction
from workbench.errors import ContractError, RunExists, TokenError, WorkbenchError
from workbench.repairing import repair
from workbench.runtime import BatchPlan
from workbench.store import verify_run

SMALL = BatchPlan(tokens_per_pass=64, tokens_per_window=120, least_tokens=16)


def prompts_of(ids):
    return wb.load_prompts(token_ids=[p.tolist() for p in ids])


@pytest.mark.parametrize("positions", ["all", "last", "mean", (0,)], ids=str)
def test_rows_are_those_of_each_prompt_alone(toy_engines, toy_ids, tmp_path, positions):
    engine = toy_engines(positions=positions)
    run = wb.extract(prompts_of(toy_ids), engine, out=tmp_path / "run", plan=SMALL, progress=False)
    for tap in run.taps:
        expected = np.concatenate([engine.run([ids])[tap] for ids in toy_ids])
        stored = run.tap(tap)[:]
        assert stored.shape == expected.shape
        assert np.abs(stored - expected).max() / np.abs(expected).max() < 2e-6, tap
    np.testing.assert_array_equal(run.tokens, np.concatenate(toy_ids))
    np.testing.assert_array_equal(np.diff(run.offsets), [len(p) for p in toy_ids])


def test_progress_can_be_the_callers_own(toy_ids, toy_engines, tmp_path):
    seen = []
    wb.extract(
        prompts_of(toy_ids), toy_engines(), out=tmp_path / "run", plan=SMALL, progress=lambda *at: seen.append(at)
    )
    total = sum(map(len, toy_ids))
    assert len(seen) > 1
    assert seen[-1] == (total, total)
    assert [done for done, _ in seen] == sorted({done for done, _ in seen})


def test_folders_above_the_run_are_made(toy_engines, toy_ids, tmp_path):
    run = wb.extract(prompts_of(toy_ids[:3]), toy_engines(), out=tmp_path / "a" / "b" / "run", progress=False)
    assert run.n_prompts == 3


def test_canary_rows_never_change_places(toy_engines, tmp_path):
    """The state at `embed` of a one-token prompt is the embedding of its id: 10,000 rows that encode who they are."""
    engine = toy_engines(taps=("embed",), positions="last")
    random = np.random.default_rng(5)
    ids = [random.integers(0, 200, size=n).astype(np.int32) for n in random.integers(1, 20, size=10_000)]
    table = np.concatenate([engine.run([np.array([i])])["embed"] for i in range(200)])
    run = wb.extract(prompts_of(ids), engine, out=tmp_path / "run", progress=False)
    np.testing.assert_array_equal(run.tap("embed")[:], table[[p[-1] for p in ids]])


def test_an_existing_folder_is_not_touched(toy_engines, toy_ids, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "mine").write_text("x")
    with pytest.raises(RunExists, match="resume=True"):
        wb.extract(prompts_of(toy_ids), toy_engines(), out=tmp_path / "run")
    assert [p.name for p in (tmp_path / "run").iterdir()] == ["mine"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_an_interrupted_run_resumes_to_the_same_bytes(toy_engines, toy_ids, tmp_path, monkeypatch, error):
    engine, prompts = toy_engines(), prompts_of(toy_ids)
    whole = wb.extract(prompts, engine, out=tmp_path / "whole", plan=SMALL, progress=False)
    with monkeypatch.context() as patch:
        patch.setattr(extraction, "run_plan", stopping_after(2, error))
        with pytest.raises(error):
            wb.extract(prompts, engine, out=tmp_path / "run", plan=SMALL, progress=False)
    assert wb.open_run(tmp_path / "run").status != "complete"
    run = wb.extract(prompts, engine, out=tmp_path / "run", plan=SMALL, resume=True, progress=False)
    assert run.status == "complete"
    for tap in whole.taps:
        np.testing.assert_array_equal(run.tap(tap)[:].view(np.uint32), whole.tap(tap)[:].view(np.uint32))


def stopping_after(n_windows, error):
    original = extraction.run_plan

    def run_plan(engine, tokens, windows, sink, **options):
        def some():
            for count, window in enumerate(windows):
                if count == n_windows:
                    raise error
                yield window

        original(engine, tokens, some(), sink, **options)

    return run_plan


def test_resume_with_another_engine_is_refused(toy_engines, toy_ids, tmp_path, monkeypatch):
    prompts = prompts_of(toy_ids)
    with monkeypatch.context() as patch:
        patch.setattr(extraction, "run_plan", stopping_after(1, KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            wb.extract(prompts, toy_engines(), out=tmp_path / "run", plan=SMALL, progress=False)
    ids = [toy_engines(precision).id for precision in ("fp32", "int8")]
    with pytest.raises(
        ContractError, match=rf"got contract\.engine_id: '{ids[0][:30]}.* there, '{ids[1][:30]}.* now; "
    ):
        wb.extract(prompts, toy_engines("int8"), out=tmp_path / "run", plan=SMALL, resume=True, progress=False)


def test_the_same_engine_measured_and_named_anew_resumes_a_run_and_merges_with_it(
    toy_engines, toy_ids, toy_checkpoint, toy_taps, tmp_path, monkeypatch
):
    from workbench.store.merging import merge_runs

    first, prompts = toy_engines(), prompts_of(toy_ids)
    recipe = wb.Recipe(checkpoint=toy_checkpoint, taps=toy_taps, max_tokens=32)
    again = wb.build(recipe, tmp_path / "engines", name="cacheless", parent="0" * 64, rebuild=False)
    assert again.id == first.id
    assert again.contract.digest != first.contract.digest
    with monkeypatch.context() as patch:
        patch.setattr(extraction, "run_plan", stopping_after(1, KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            wb.extract(prompts.select(range(30)), first, out=tmp_path / "run", plan=SMALL, progress=False)
    run = wb.extract(prompts.select(range(30)), again, out=tmp_path / "run", plan=SMALL, resume=True, progress=False)
    assert run.status == "complete"
    rest = wb.extract(prompts.select(range(30, 40)), again, out=tmp_path / "rest", plan=SMALL, progress=False)
    assert merge_runs([run.path, rest.path], tmp_path / "both").n_prompts == 40


@pytest.mark.parametrize(
    ("ids", "positions", "error"),
    [
        ([[1, 2], [3] * 33], "last", TokenError),
        ([[1], [10**6]], "last", WorkbenchError),
        ([[1, 2], [3]], (0, -2), ContractError),
    ],
)
def test_what_the_engine_cannot_read_is_refused_before_anything_is_made(toy_engines, tmp_path, ids, positions, error):
    with pytest.raises(error):
        wb.extract(wb.load_prompts(token_ids=ids), toy_engines(positions=positions), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_damaged_batch_is_computed_again_bit_for_bit(toy_engines, toy_ids, tmp_path):
    engine = toy_engines()
    run = wb.extract(prompts_of(toy_ids), engine, out=tmp_path / "run", plan=SMALL, progress=False)
    good = {tap: run.tap(tap)[:].copy() for tap in run.taps}
    segment = tmp_path / "run" / "taps" / "final_norm.safetensors"
    data = bytearray(segment.read_bytes())
    data[-7] ^= 4
    segment.write_bytes(data)
    assert not verify_run(run.path)
    with pytest.raises(ContractError, match="engine"):
        repair(run.path, toy_engines("int8"), plan=SMALL)
    with pytest.raises(ContractError, match="batch plan"):
        repair(run.path, engine)
    assert repair(run.path, engine, plan=SMALL)
    again = wb.open_run(run.path)
    for tap, rows in good.items():
        np.testing.assert_array_equal(again.tap(tap)[:], rows)


def test_truncation_is_asked_for_and_recorded(toy_engines, tmp_path):
    prompts = wb.load_prompts(token_ids=[[1, 2], list(range(40)), [3]])
    run = wb.extract(prompts, toy_engines(), out=tmp_path / "run", truncate=True, progress=False)
    np.testing.assert_array_equal(np.diff(run.offsets), [2, 32, 1])
    np.testing.assert_array_equal(run.flag("truncated"), [False, True, False])


def test_text_needs_a_tokenizer_and_ids_do_not(toy_engines, tmp_path):
    with pytest.raises(TokenError, match="tokenizer"):
        wb.extract(wb.load_prompts(["some text"]), toy_engines(), out=tmp_path / "run")


def test_half_precision_runs_keep_what_they_say(toy_engines, toy_ids, tmp_path):
    full = wb.extract(prompts_of(toy_ids), toy_engines(), out=tmp_path / "full", progress=False)
    half = wb.extract(prompts_of(toy_ids), toy_engines(), out=tmp_path / "half", dtype="bfloat16", progress=False)
    exact, kept = full.tap("final_norm")[:], half.tap("final_norm")[:]
    assert np.abs(kept - exact).max() <= np.abs(exact).max() * 2**-8
    assert np.any(kept != exact)
    with pytest.raises(ContractError, match="bfloat16"):
        wb.extract(prompts_of(toy_ids), toy_engines(), out=tmp_path / "x", dtype="int3")


def test_the_floor_repeats_in_four_ways_and_is_small(toy_engines, toy_ids, tmp_path):
    floor = wb.measure_floor(prompts_of(toy_ids), toy_engines(), out=tmp_path / "floor", progress=False)
    assert set(floor.kinds) == {"same engine", "batch slot", "order", "batch size"}
    same = next(repeat for repeat in floor.repeats if repeat.kind == "same engine")
    assert same.taps["final_norm"]["error_mean"] == 0
    assert floor.value("final_norm", "error_worst") < 2e-6
    with pytest.raises(RunExists):
        wb.measure_floor(prompts_of(toy_ids), toy_engines(), out=tmp_path / "floor")


def test_a_quantised_engine_stands_above_the_floor_and_a_repeat_does_not(toy_engines, toy_ids, tmp_path):
    prompts = prompts_of(toy_ids)
    floor = wb.measure_floor(prompts, toy_engines(), out=tmp_path / "floor", progress=False)
    runs = {
        name: wb.extract(prompts, toy_engines(precision), out=tmp_path / name, progress=False)
        for name, precision in (("a", "fp32"), ("b", "fp32"), ("c", "int8"))
    }
    same = wb.compare(runs["a"], runs["b"], floor=floor)
    other = wb.compare(runs["a"], runs["c"], floor=floor)
    error = {drift.tap: drift.error_mean for drift in other.taps}
    assert all(drift.error_mean == 0 for drift in same.taps)
    assert error["final_norm"] > 1e3 * floor.value("final_norm", "error_mean")
