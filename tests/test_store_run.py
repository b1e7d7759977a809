"""A run written and read back: every row, prompt and token is where it belongs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from store_toys import CONTRACT, SMALL, TAPS, canary, fill, make_prompts, make_tokens, new_run, rows_of_batch

from workbench.errors import ContractError, ContractMismatch, RunExists, StoreError, StoreLocked, TapError
from workbench.store import TapSpec, open_run

if TYPE_CHECKING:
    from pathlib import Path


def test_every_row_is_read_back_where_it_belongs(tmp_path: Path) -> None:
    writer = new_run(tmp_path / "run")
    fill(writer)
    run = writer.close()
    assert run.status == "complete"
    assert run.n_prompts == 40
    assert run.n_rows == len(make_tokens().ids)
    for tap in TAPS:
        want = canary(tap, 0, run.n_rows)
        array = run.tap(tap.name)
        assert array.shape == want.shape
        assert array.storage_dtype == tap.dtype
        np.testing.assert_array_equal(array[:], want)
        np.testing.assert_array_equal(np.concatenate([block for _, block in array.blocks(size_bytes=300)]), want)
        rows = np.array([[5, 3], [-1, 5]])
        np.testing.assert_array_equal(array[rows], want[rows])
        np.testing.assert_array_equal(array[3], want[3])
        np.testing.assert_array_equal(array[10:30:3, 2], want[10:30:3, 2])
        mask = np.arange(run.n_rows) % 2 == 0
        np.testing.assert_array_equal(run.tap(tap.name, checked=True)[mask], want[mask])
    assert run.contract == CONTRACT
    assert run.engine_id == "e" * 64


def test_prompts_tokens_and_rows_join(tmp_path: Path) -> None:
    writer = new_run(tmp_path / "run")
    fill(writer)
    run = writer.close()
    prompts, tokens = make_prompts(), make_tokens()
    assert run.prompts.texts == prompts.texts
    assert run.prompts.ids == prompts.ids
    assert run.prompts.columns == prompts.columns
    assert run.prompts.content_hash == prompts.content_hash
    np.testing.assert_array_equal(run.tokens, tokens.ids)
    np.testing.assert_array_equal(run.offsets, tokens.offsets)
    np.testing.assert_array_equal(run.flag("truncated"), tokens.truncated)
    rows = run.rows_of(["p00007", "p00002"])
    want = [*range(tokens.offsets[7], tokens.offsets[8]), *range(tokens.offsets[2], tokens.offsets[3])]
    assert rows.tolist() == want
    assert (run.prompt_of_rows()[rows] == np.repeat([7, 2], np.diff(tokens.offsets)[[7, 2]])).all()
    assert (run.token_index() == np.arange(run.n_rows) - tokens.offsets[run.prompt_of_rows()]).all()
    with pytest.raises(ContractError, match="p99"):
        run.rows_of(["p99"])
    with pytest.raises(TapError, match="final_norm"):
        run.tap("embed")


@pytest.mark.parametrize("positions", ["last", "mean", (0, -1), (-3,)])
def test_positions_decide_the_rows(tmp_path: Path, positions: str | tuple[int, ...]) -> None:
    writer = new_run(tmp_path / "run", positions=positions)
    fill(writer)
    run = writer.close()
    lengths = np.diff(make_tokens().offsets)
    if isinstance(positions, str):
        want = [(prompt, n - 1 if positions == "last" else -1) for prompt, n in enumerate(lengths) if n]
    else:
        want = [(p, o if o >= 0 else n + o) for p, n in enumerate(lengths) for o in positions if -n <= o < n]
    assert list(zip(run.prompt_of_rows(), run.token_index(), strict=True)) == want
    assert run.n_rows == len(want)


def test_an_interrupted_run_goes_on_and_ends_like_an_uninterrupted_one(tmp_path: Path) -> None:
    whole = new_run(tmp_path / "whole")
    fill(whole)
    whole_run = whole.close()
    writer = new_run(tmp_path / "run")
    fill(writer, until=20)
    writer.abort()
    half = open_run(tmp_path / "run")
    assert half.status == "writing"
    assert half.n_prompts == 21
    assert len(half.prompts) == 21
    np.testing.assert_array_equal(half.tap("final_norm")[:], canary(TAPS[0], 0, half.n_rows))
    again = new_run(tmp_path / "run", resume=True)
    assert again.next_prompt == 21
    fill(again)
    run = again.close()
    for tap in TAPS:
        assert run.tap(tap.name).raw().tobytes() == whole_run.tap(tap.name).raw().tobytes()
        assert run.statistics(tap.name).n_rows == whole_run.statistics(tap.name).n_rows
        np.testing.assert_allclose(run.statistics(tap.name).variance, whole_run.statistics(tap.name).variance)
    done = new_run(tmp_path / "run", resume=True)
    assert done.next_prompt == 40
    assert done.close().status == "complete"


def test_resume_lists_each_difference(tmp_path: Path) -> None:
    writer = new_run(tmp_path / "run")
    fill(writer, until=20)
    writer.abort()
    other = {
        "contract": {**CONTRACT, "engine_id": "f" * 64},
        "prompts": make_prompts().select(list(range(39, -1, -1))),
        "taps": (TapSpec("final_norm", "BF16", 8), TAPS[1]),
        "provenance": {"tokenizer": "u" * 64, "template": None, "plan": {"window": 9}, "host": "there"},
    }
    with pytest.raises(ContractMismatch) as caught:
        new_run(tmp_path / "run", resume=True, **other)
    text = str(caught.value)
    for part in ("contract.engine_id", "prompts", "taps[0].dtype", "provenance.tokenizer", "provenance.plan.window"):
        assert part in text
    assert "host" not in text


def test_a_run_is_not_closed_before_every_prompt_is_there(tmp_path: Path) -> None:
    writer = new_run(tmp_path / "run")
    fill(writer, until=20)
    with pytest.raises(StoreError, match="all 40 prompts"):
        writer.close()
    assert open_run(tmp_path / "run").status == "writing"


def test_batches_come_in_order_and_in_shape(tmp_path: Path) -> None:
    writer = new_run(tmp_path / "run")
    rows = rows_of_batch(writer, TAPS, 0, 7)
    with pytest.raises(ContractError, match="prompt 0"):
        writer.commit(7, 14, rows)
    with pytest.raises(ContractError, match="taps"):
        writer.commit(0, 7, {"final_norm": rows["final_norm"]})
    with pytest.raises(ContractError, match="row="):
        writer.commit(0, 7, {**rows, "final_norm": rows["final_norm"][1:]})
    with pytest.raises(ContractError, match="float32"):
        writer.commit(0, 7, {**rows, "final_norm": rows["final_norm"].astype(np.float64)})
    writer.commit(0, 7, rows)
    with pytest.raises(ContractError, match="prompt 7"):
        writer.commit(0, 7, rows)
    writer.abort()


@pytest.mark.parametrize("stored", ["F32", "F16", "BF16", "F8_E4M3"])
@pytest.mark.parametrize("given", ["float32", "float16", "bfloat16", "float8_e4m3fn"])
def test_an_engine_may_emit_another_narrow_type_than_the_run_stores(tmp_path: Path, stored: str, given: str) -> None:
    import ml_dtypes

    narrow = np.dtype(getattr(ml_dtypes, given, given))
    tap = TapSpec("final_norm", stored, 8)
    writer = new_run(tmp_path / "run", taps=(tap,))
    rows = canary(tap, 0, int(writer.row_offsets[-1])) // 2  # FP8 holds whole numbers up to 16
    writer.commit(0, writer.n_prompts, {tap.name: rows.astype(narrow)})
    run = writer.close()
    np.testing.assert_array_equal(run.tap(tap.name, checked=True)[:], rows)


def test_an_existing_folder_and_a_second_writer_are_refused(tmp_path: Path) -> None:
    writer = new_run(tmp_path / "run")
    with pytest.raises(RunExists):
        new_run(tmp_path / "run")
    with pytest.raises(StoreLocked, match="process"):
        new_run(tmp_path / "run", resume=True)
    writer.abort()
    new_run(tmp_path / "run", resume=True).abort()


def test_shards_hold_whole_prompts_and_read_as_one(tmp_path: Path) -> None:
    from dataclasses import replace

    options = replace(SMALL, shard_bytes=640, group_bytes=1 << 20)
    writer = new_run(tmp_path / "run", options=options)
    fill(writer, step=13)
    run = writer.close()
    assert len([entry for entry in run.manifest.segments if entry.tap == "final_norm"]) > 3
    for tap in TAPS:
        want = canary(tap, 0, run.n_rows)
        np.testing.assert_array_equal(run.tap(tap.name, checked=True)[:], want)
        order = np.random.default_rng(0).permutation(run.n_rows)
        np.testing.assert_array_equal(run.tap(tap.name)[order], want[order])


def test_plain_safetensors_reads_every_file(tmp_path: Path) -> None:
    import ml_dtypes
    from safetensors.numpy import load_file

    writer = new_run(tmp_path / "run")
    fill(writer)
    run = writer.close()
    for file in sorted((tmp_path / "run").rglob("*.safetensors")):
        assert load_file(file)
    rows = load_file(tmp_path / "run" / "taps" / "blocks.0.resid_post.safetensors")["rows"]
    assert rows.dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(rows.astype(np.float32), run.tap("blocks.0.resid_post")[:])
    mapped = np.memmap(
        tmp_path / "run" / "taps" / "final_norm.safetensors", dtype="<f4", offset=4096, shape=(run.n_rows, 8)
    )
    np.testing.assert_array_equal(mapped, run.tap("final_norm")[:])
    del mapped


def test_a_reader_beside_a_writer_sees_whole_batches_only(tmp_path: Path) -> None:
    """F16: any number of opens while rows are committed; no torn row, no zero row, no warning."""
    import threading

    n, opens = 400, 0
    writer = new_run(tmp_path / "run", n, durability="process-crash-only")
    done = threading.Event()

    def write() -> None:
        fill(writer, step=3)
        writer.close()
        done.set()

    thread = threading.Thread(target=write)
    thread.start()
    seen = [0]
    while not done.is_set():
        run = open_run(tmp_path / "run")
        seen.append(run.n_rows)
        for tap in TAPS:
            np.testing.assert_array_equal(run.tap(tap.name)[:], canary(tap, 0, run.n_rows))
        opens += 1
    thread.join()
    assert seen == sorted(seen)
    assert opens > 1
    assert open_run(tmp_path / "run").n_prompts == n
