"""The command line: every verb helps by example, works on real folders, and refuses in one line."""

import json
import subprocess
import sys

import pytest

import workbench as wb
from workbench.cli import main, make_parser, visible

VERBS = sorted(next(a for a in make_parser()._actions if a.dest == "verb").choices)


@pytest.fixture
def prompt_file(tmp_path, toy_ids):
    path = tmp_path / "prompts.jsonl"
    path.write_text("\n".join(json.dumps({"text": f"prompt {i}", "group": i % 3}) for i in range(4)))
    return path


@pytest.mark.parametrize("verb", VERBS)
def test_help_shows_examples(verb, capsys):
    with pytest.raises(SystemExit) as stop:
        main([verb, "--help"])
    assert stop.value.code == 0
    assert f"workbench {verb}" in capsys.readouterr().out.split("examples:")[1]


def test_doctor_finds_what_is_needed(capsys):
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert "onnxruntime" in out
    assert "MISSING" not in out


def test_build_and_inspect(golden, tmp_path, capsys):
    assert (
        main(
            [
                "build",
                str(golden / "tiny" / "qwen3"),
                "--into",
                str(tmp_path),
                "--tap",
                "final_norm",
                "--positions",
                "0,-1",
            ]
        )
        == 0
    )
    (engine,) = tmp_path.iterdir()
    capsys.readouterr()
    assert main(["inspect", str(engine), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["positions"] == [0, -1]
    assert shown["checkpoint"]["family"] == wb.open_checkpoint(golden / "tiny" / "qwen3").config.family
    assert main(["inspect", str(golden / "tiny" / "qwen3")]) == 0
    assert "token ids only" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--name", "Bad Name"], "must be 1 to 64 lower-case"),
        (["--name", "c0ffee"], "start of an engine id"),
        (["--sequence", "--precision", "int8"], "got --precision."),
        (["--fast", "--keep", "*.down", "--option", "group=64"], "got --keep, --option."),
        (["--fast", "--backend", "openvino"], "--fast chooses these itself"),
        (["--sequence", "--name", "all"], "got --name."),
        (["--once", "--within", "0.1"], "got --once, --within."),
        (["--fast", "--within", "nan"], "--within must be a relative error above 0"),
        (["--fast", "--within", "0"], "--within must be a relative error above 0"),
        (["--precision", "int8", "--keep", "*.donw"], "--keep must name a layer; got '*.donw'. Those of block 0 are"),
        (["--precision", "fp7", "--keep", "head", "--keep", "*.down.weight"], "the precision of backend onnxruntime"),
        (["--positions=-129"], "between -128 and 127"),
        (["--positions=-1,0", "--precision", "fp7"], "the precision of backend onnxruntime"),
    ],
)
def test_a_build_refuses_options_at_once_that_it_would_pass_over(golden, tmp_path, capsys, options, words):
    into = tmp_path / "engines"
    assert main(["build", str(golden / "tiny" / "llama"), "--into", str(into), *options]) == 2
    assert words in capsys.readouterr().err
    assert not into.exists() or not list(into.iterdir())


def test_a_short_build_draws_no_bar(golden, tmp_path, capsys):
    assert main(["build", str(golden / "tiny" / "llama"), "--into", str(tmp_path)]) == 0
    assert capsys.readouterr().err == ""


def test_inspect_describes_a_run(toy_run, capsys):
    assert main(["inspect", str(toy_run.path)]) == 0
    assert "complete" in capsys.readouterr().out


def test_output_that_nobody_reads_is_no_error():
    child = subprocess.Popen(
        [sys.executable, "-m", "workbench", "doctor"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    child.stdout.close()
    assert child.stderr.read() == b""
    assert child.wait() == 141
    child.stderr.close()


def test_a_broken_pipe_of_the_work_itself_is_not_hidden(monkeypatch):
    def broken():
        raise BrokenPipeError

    monkeypatch.setattr("workbench.doctor.examine", broken)
    with pytest.raises(BrokenPipeError):
        main(["doctor"])


def test_a_refusal_is_one_line_without_traceback(tmp_path, capsys):
    assert main(["inspect", str(tmp_path / "nowhere")]) == 2
    err = capsys.readouterr().err
    assert err.startswith("workbench inspect: ")
    assert "Traceback" not in err
    assert err.count("\n") == 1


def test_plan_and_extract_refuse_text_without_tokenizer(prompt_file, toy_engines, tmp_path, capsys):
    for verb in ("plan", "extract"):
        arguments = [verb, str(prompt_file), "--engine", str(toy_engines().path), "--out", str(tmp_path / "run")]
        assert main(arguments) == 2
        assert "tokenizer" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_terminal_text_cannot_drive_the_terminal():
    assert visible("a\x1b[31m\u202eb") == "a\\x1b[31m\\u202eb"


def test_the_module_runs_as_a_program():
    done = subprocess.run([sys.executable, "-m", "workbench", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"workbench {wb.__version__}"
