"""Listing, removing, merging and splitting runs; the verbs of the command line."""

from __future__ import annotations

import argparse
import shutil
from typing import TYPE_CHECKING

import numpy as np
import pytest
from store_toys import PROVENANCE, TAPS, canary, fill, make_prompts, make_tokens, new_run

from workbench.errors import ContractError, ContractMismatch, RunExists, StoreError, StoreLocked
from workbench.store import open_run
from workbench.store.commands import add_commands, share
from workbench.store.housekeeping import list_runs, remove_run
from workbench.store.merging import merge_runs
from workbench.store.splitting import split_run
from workbench.store.verifying import verify_run

if TYPE_CHECKING:
    from pathlib import Path


def verb(*arguments: object) -> int:
    parser = argparse.ArgumentParser()
    add_commands(parser.add_subparsers())
    options = parser.parse_args([str(argument) for argument in arguments])
    return int(options.run(options))


def whole_run(path: Path):
    writer = new_run(path)
    fill(writer)
    return writer.close()


def test_a_split_run_merges_back_to_the_same_rows(tmp_path: Path) -> None:
    run = whole_run(tmp_path / "whole")
    pieces = split_run(tmp_path / "whole", [tmp_path / "a", tmp_path / "b", tmp_path / "c"], [11, 30])
    assert [piece.n_prompts for piece in pieces] == [11, 19, 10]
    assert pieces[1].prompts.ids == run.prompts.ids[11:30]
    merged = merge_runs([piece.path for piece in pieces], tmp_path / "merged")
    assert verify_run(tmp_path / "merged")
    assert merged.prompts.ids == run.prompts.ids
    assert merged.prompts.columns == run.prompts.columns
    np.testing.assert_array_equal(merged.tokens, run.tokens)
    np.testing.assert_array_equal(merged.flag("lossy"), run.flag("lossy"))
    for tap in TAPS:
        np.testing.assert_array_equal(merged.tap(tap.name, checked=True)[:], canary(tap, 0, run.n_rows))
        np.testing.assert_allclose(merged.statistics(tap.name).variance, run.statistics(tap.name).variance)
    first = tmp_path / "a" / "taps" / "final_norm.safetensors"
    assert first.stat().st_nlink == 2, "rows are linked, not copied"
    again = merge_runs([tmp_path / "merged"], tmp_path / "again")
    np.testing.assert_array_equal(again.tap("final_norm")[:], run.tap("final_norm")[:])
    assert verify_run(tmp_path / "again")
    for path in ("a", "b", "c"):
        remove_run(tmp_path / path)
    assert verify_run(tmp_path / "merged"), "links keep the rows"


def test_a_damaged_batch_of_a_merged_run_is_named(tmp_path: Path) -> None:
    whole_run(tmp_path / "whole")
    split_run(tmp_path / "whole", [tmp_path / "a", tmp_path / "b"], [20])
    merged = merge_runs([tmp_path / "a", tmp_path / "b"], tmp_path / "merged")
    file = tmp_path / "merged" / "taps" / "final_norm.00001.safetensors"
    data = bytearray(file.read_bytes())
    data[4100] ^= 1
    file.write_bytes(data)
    bad = verify_run(tmp_path / "merged").bad
    assert [(one.tap, one.first_prompt) for one in bad] == [("final_norm", 20)]
    assert merged.n_prompts == 40


def test_runs_that_differ_are_not_merged(tmp_path: Path) -> None:
    whole_run(tmp_path / "a")
    with pytest.raises(ContractError, match="distinct prompt ids"):
        merge_runs([tmp_path / "a", tmp_path / "a"], tmp_path / "no")
    other = new_run(tmp_path / "b", provenance={**PROVENANCE, "template": "chat"})
    fill(other)
    other.close()
    with pytest.raises(ContractMismatch, match="provenance"):
        merge_runs([tmp_path / "a", tmp_path / "b"], tmp_path / "no")
    new_run(tmp_path / "c").abort()
    with pytest.raises(StoreError, match="complete"):
        merge_runs([tmp_path / "a", tmp_path / "c"], tmp_path / "no")
    with pytest.raises(RunExists):
        merge_runs([tmp_path / "a"], tmp_path / "b")
    assert not (tmp_path / "no").exists()
    with pytest.raises(ContractError, match="bounds"):
        split_run(tmp_path / "a", [tmp_path / "x", tmp_path / "y"], [40])


def test_the_list_shows_whole_unfinished_and_damaged_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole_run(tmp_path / "a")
    writer = new_run(tmp_path / "b")
    fill(writer, until=10)
    writer.abort()
    shutil.copytree(tmp_path / "a", tmp_path / "c")
    for name in ("manifest.json", "manifest.prev.json"):
        (tmp_path / "c" / name).write_bytes(b"{}")
    (tmp_path / "other").mkdir()
    found = {one.path.name: one for one in list_runs(tmp_path)}
    assert {name: one.status for name, one in found.items()} == {"a": "complete", "b": "writing", "c": "damaged"}
    assert found["a"].rows == len(make_tokens().ids)
    assert found["b"].prompts == 14
    assert verb("runs", tmp_path) == 0
    out = capsys.readouterr().out
    assert "durability full" in out
    assert "3 runs" in out


def test_removing_asks_first_and_takes_only_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole_run(tmp_path / "a")
    with pytest.raises(ContractError, match="--yes"):
        verb("rm", tmp_path / "a")
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", lambda question: "n")
    assert verb("rm", tmp_path / "a") == 0
    assert (tmp_path / "a").exists()
    (tmp_path / "a" / "notes.txt").write_text("mine")
    with pytest.raises(StoreError, match=r"notes\.txt"):
        verb("rm", tmp_path / "a", "--yes")
    (tmp_path / "a" / "notes.txt").unlink()
    assert verb("rm", tmp_path / "a", "--yes") == 0
    assert not (tmp_path / "a").exists()
    (tmp_path / "home").mkdir()
    with pytest.raises(StoreError, match="run folder"):
        remove_run(tmp_path / "home")
    writer = new_run(tmp_path / "b")
    with pytest.raises(StoreLocked):
        remove_run(tmp_path / "b")
    writer.abort()
    remove_run(tmp_path / "b")


def test_verbs_verify_export_and_import(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole_run(tmp_path / "a")
    assert verb("verify", tmp_path / "a") == 0
    assert verb("verify", tmp_path / "a", "--sample", "1%") == 0
    assert verb("split", tmp_path / "a", "--at", 9, "--out", tmp_path / "x", "--out", tmp_path / "y") == 0
    assert verb("merge", tmp_path / "x", tmp_path / "y", "--out", tmp_path / "xy") == 0
    assert verb("export", tmp_path / "xy", "--format", "zip", "--out", tmp_path / "xy.zip") == 0
    assert verb("import", tmp_path / "xy.zip", "--kind", "zip", "--out", tmp_path / "back") == 0
    np.testing.assert_array_equal(
        open_run(tmp_path / "back").tap("final_norm")[:], open_run(tmp_path / "a").tap("final_norm")[:]
    )
    np.save(tmp_path / "rows.npy", np.zeros((40, 3), dtype=np.float32))
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("\n".join(text for text in make_prompts().texts if text))
    arguments = ("--kind", "npy", "--prompts", prompts, "--out", tmp_path / "imported")
    assert verb("import", tmp_path / "rows.npy", *arguments) == 0
    assert "norm_point: not recorded" in capsys.readouterr().out
    file = tmp_path / "a" / "taps" / "final_norm.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    assert verb("verify", tmp_path / "a") == 1
    assert "checksum" in capsys.readouterr().out


def test_a_share_is_read_both_ways() -> None:
    assert share("1%") == share("0.01") == 0.01
    for text in ("x", "200%", "-1"):
        with pytest.raises(ContractError):
            share(text)
