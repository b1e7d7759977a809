"""T2 and F21 on the real job: an extraction killed again and again ends bit-identical to an uninterrupted one."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from workbench.store import StoreWarning, open_run
from workbench.store.verifying import verify_run

if TYPE_CHECKING:
    from fault_figures import Note

JOB = """
import json, sys
import numpy as np
from workbench import extract, load_prompts
from workbench.runtime import BatchPlan
engine, out, count, resume = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4] == "resume"
random = np.random.default_rng(5)
ids = [random.integers(0, 200, size=n).tolist() for n in random.integers(1, 25, size=count)]
prompts = load_prompts([f"prompt {i}" for i in range(count)], token_ids=ids)
plan = BatchPlan(tokens_per_pass=64, tokens_per_window=128, rows_per_window=16)
print("starting", flush=True)
extract(prompts, engine, out=out, resume=resume, plan=plan, progress=False)
print("finished", flush=True)
"""


def start(engine: Any, out: Path, count: int, how: str = "resume") -> subprocess.Popen[str]:
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join([str(Path(__file__).parent.parent), *sys.path]))
    return subprocess.Popen(
        [sys.executable, "-c", JOB, str(engine.path), str(out), str(count), how],
        stdout=subprocess.PIPE, text=True, env=environment,
    )  # fmt: skip


def finish(job: subprocess.Popen[str]) -> int:
    job.communicate(timeout=120)
    return job.returncode


def kill_until_whole(engine: Any, folder: Path, kills: int, count: int, seed: int) -> int:
    """Kill the job at random moments after it began, open the run each time, and let the last one finish."""
    generator = random.Random(seed)
    out, done, last = folder / "killed", 0, 0
    while done < kills:
        job = start(engine, out, count)
        assert job.stdout is not None
        assert job.stdout.readline() == "starting\n"
        time.sleep(generator.uniform(0.0, 1.2))
        job.send_signal(signal.SIGKILL)
        code = finish(job)
        if code == 0:
            break
        assert code == -signal.SIGKILL
        done += 1
        if (out / "manifest.json").exists():
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", StoreWarning)
                assert open_run(out).n_prompts >= last
                last = open_run(out).n_prompts
    assert finish(start(engine, out, count)) == 0
    return done


def same_bits(one: Path, other: Path) -> None:
    left, right = open_run(one), open_run(other)
    assert left.taps == right.taps
    for name in left.taps:
        assert left.tap(name).raw().tobytes() == right.tap(name).raw().tobytes(), name
    assert verify_run(other)


def test_a_killed_extraction_ends_bit_identical(toy_engines: Any, tmp_path: Path, note: Note) -> None:
    engine = toy_engines()
    assert finish(start(engine, tmp_path / "whole", 600, "anew")) == 0
    kills = kill_until_whole(engine, tmp_path, 4, 600, seed=3)
    same_bits(tmp_path / "whole", tmp_path / "killed")
    note(kills=kills, seed=3, lost=0, wrong=0)


@pytest.mark.parametrize("kills", [pytest.param(30, marks=pytest.mark.slow), pytest.param(300, marks=pytest.mark.long)])
def test_many_kills_of_an_extraction(toy_engines: Any, tmp_path: Path, kills: int, note: Note) -> None:
    engine = toy_engines(positions="all")
    assert finish(start(engine, tmp_path / "whole", 4000, "anew")) == 0
    done, round_ = 0, 0
    while done < kills:
        folder = tmp_path / f"round{round_}"
        folder.mkdir()
        done += max(1, kill_until_whole(engine, folder, 30, 4000, seed=round_))
        same_bits(tmp_path / "whole", folder / "killed")
        round_ += 1
    note(kills=done, runs=round_, seeds=[0, round_ - 1], lost=0, wrong=0)
