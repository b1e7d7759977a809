"""Bars come after their delay and not before, in a terminal and in a notebook, and leave nothing dead behind."""

import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from workbench import Recipe, build, progress
from workbench.engine import Step, build_sequence
from workbench.progress import bar, shown, steps

DELAY_S = 0.2


def drive_bar(wait):
    with bar("work", 10, "tok") as step:
        step(1)
        wait()
        step(9)


def drive_steps(wait):
    with steps("work") as say:
        say("first", 0.0)
        say("second", 0.5)
        wait()
        say("second", 0.7)
        say("third", 0.0)


def drive_shown(wait):
    with shown("work", True) as report:
        report(0, 10)
        report(3, 10)
        wait()
        report(10, 10)


def drive_parts(wait):
    with shown("work", True) as report:
        for total in (10, 20, 30):
            report(total // 2, total)
            wait()
        report(30, 30)


each = pytest.mark.parametrize("drive", [drive_bar, drive_steps, drive_shown, drive_parts])


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(progress, "_DELAY_S", DELAY_S)


@each
def test_nothing_is_drawn_before_the_delay_is_over(drive, capsys, monkeypatch):
    monkeypatch.setattr(progress, "_DELAY_S", 60.0)
    drive(lambda: None)
    assert capsys.readouterr().err == ""


@each
def test_what_takes_longer_is_drawn_and_stays(drive, capsys):
    drive(lambda: time.sleep(1.5 * DELAY_S))
    last = capsys.readouterr().err.strip().split("\r")[-1]
    assert last.startswith("work: ")
    assert "third" in last if drive is drive_steps else "100%" in last


def test_parts_that_are_short_wait_for_one_delay_together(capsys):
    drive_parts(lambda: time.sleep(0.6 * DELAY_S))
    assert "30.0/30.0" in capsys.readouterr().err


@pytest.mark.parametrize("show", [False, print])
def test_what_is_not_shown_draws_nothing(show, capsys):
    with steps("work", show=show) as say:
        time.sleep(1.5 * DELAY_S)
        say("first", 0.5)
    with shown("work", show) as report:
        time.sleep(1.5 * DELAY_S)
        report(1, 2)
    captured = capsys.readouterr()
    assert captured.err == ""
    assert captured.out == ("first 0.5\n1 2\n" if show is print else "")


def test_a_terminal_session_of_ipython_is_no_notebook(monkeypatch):
    assert not progress._in_notebook()
    for app, found in (("TerminalIPythonApp", False), ("IPKernelApp", True)):
        shell = SimpleNamespace(config={app: {}})
        monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda shell=shell: shell))
        assert progress._in_notebook() is found


def test_a_notebook_gets_one_line_of_text_after_the_delay_and_no_widget():
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient", reason="runs once `pip install nbclient ipykernel` was run")
    tests = Path(__file__).parent
    setup = f"import sys; sys.path[:0] = {[str(tests), str(tests.parent)]}"
    setup += "; import time; import test_progress as t; from workbench import progress"
    cells = [f"{setup}; progress._DELAY_S = 60.0"]
    drives = ("drive_bar", "drive_steps", "drive_shown", "drive_parts")
    cells += [f"t.{drive}(lambda: None)" for drive in drives] + [f"progress._DELAY_S = {DELAY_S}"]
    cells += [f"t.{drive}(lambda: time.sleep({1.5 * DELAY_S}))" for drive in drives]
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in cells])
    nbclient.NotebookClient(book, timeout=120, kernel_name="python3").execute()
    quiet, late = book.cells[: len(drives) + 2], book.cells[len(drives) + 2 :]
    assert [cell.outputs for cell in quiet] == [[]] * len(quiet)
    for cell in late:
        (output,) = cell.outputs
        assert set(output.data) == {"text/plain"}
        assert output.data["text/plain"].startswith("work: ")
        assert ("third" if "steps" in cell.source else "100%") in output.data["text/plain"]
    assert "widgets" not in book.metadata


def test_builds_show_their_steps_unless_told_not_to(toy_checkpoint, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(progress, "_DELAY_S", 0.0)
    recipe = Recipe(checkpoint=toy_checkpoint, max_tokens=32)
    one = (Step(name="cacheless"),)
    for name, options in (("shown", {}), ("quiet", {"progress": False})):
        build(recipe, tmp_path / name / "one", **options)
        build_sequence(toy_checkpoint, tmp_path / name / "many", max_tokens=32, steps=one, trial=False, **options)
        drawn = capsys.readouterr().err
        for word in ("build: ", "verify", "load", "cacheless"):
            assert (word in drawn) is (name == "shown")
