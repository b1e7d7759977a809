"""The README tells the truth: its code runs, its verbs exist, its figures come from the result files."""

import importlib.util
import re
import shlex
from pathlib import Path

import pytest
from conftest import needs_smollm2

from workbench.cli import make_parser

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language):
    """Fenced blocks of one language; a fence closes the one before it, so both ends are matched in turn."""
    return [
        text
        for name, text in re.findall(r"^```(\w*)\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)
        if name == language
    ]


def test_figures_come_from_the_result_files():
    spec = importlib.util.spec_from_file_location("readme_figures", ROOT / "benchmarks" / "readme.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.rendered(README) == README, "run: python benchmarks/readme.py"


@needs_smollm2
def test_python_blocks_run_in_order(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    scope = {}
    for block in blocks("python"):
        exec(compile(block, "README.md", "exec"), scope)
    assert scope["states"].shape == (6, 576)
    assert "(6, 576)" in capsys.readouterr().out


@pytest.mark.parametrize("line", [line for b in blocks("") for line in b.splitlines() if line.startswith("workbench ")])
def test_shell_lines_parse(line):
    options = make_parser().parse_args(shlex.split(line, comments=True)[1:])
    assert callable(options.run)


def test_the_two_commands_come_first():
    first = blocks("")[0]
    assert re.match(r"make demo\b.*\nmake test\b", first)
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert re.search(r"^demo:", makefile, re.MULTILINE)
    assert re.search(r"^test:", makefile, re.MULTILINE)
