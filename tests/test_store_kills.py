"""T1 and T2: kill -9 at every change of a commit, at every system call, and at random; nothing acked is lost."""

from __future__ import annotations

import contextlib
import os
import random
import re
import shutil
import signal
import subprocess
import time
import warnings
from typing import TYPE_CHECKING

import numpy as np
import pytest
from store_jobs import Jobs, acks_of
from store_toys import TAPS, canary, fill, new_run

from workbench.errors import StoreError, WorkbenchError
from workbench.store import StoreWarning, open_run
from workbench.store.verifying import verify_run

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from fault_figures import Note

N = 22
CALLS = ("pwrite64", "fdatasync", "fsync", "rename", "fallocate", "unlink", "mkdir")
needs_strace = pytest.mark.skipif(shutil.which("strace") is None, reason="runs once `apt-get install strace` was run")


@pytest.fixture(scope="module")
def jobs() -> Iterator[Jobs]:
    started = Jobs()
    yield started
    started.close()


def faults_after_crash(path: Path, acks: Path, n: int = N) -> list[str]:
    """What is wrong with a run after a crash: nothing, or a list of lost and wrong rows."""
    created, acked, _ = acks_of(acks)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            run = open_run(path)
            found = [f"a record without its rows: {one.message}" for one in told if "left out; " in str(one.message)]
            found += [] if run.n_prompts >= acked else [f"lost: {acked} acked, {run.n_prompts} there"]
            for tap in TAPS:
                rows = run.tap(tap.name)[:]
                if not np.array_equal(rows, canary(tap, 0, run.n_rows)):
                    found.append(f"wrong rows at {tap.name}")
            verification = verify_run(path)
        except WorkbenchError as error:
            return [f"does not open: {error}"] if created else []
        return found + list(verification.problems)


def resumes_to_the_end(path: Path, n: int = N, step: int = 7) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", StoreWarning)
        writer = new_run(path, n, resume=True)
    fill(writer, step=step)
    run = writer.close()
    assert run.n_prompts == n
    for tap in TAPS:
        np.testing.assert_array_equal(run.tap(tap.name)[:], canary(tap, 0, run.n_rows))
    assert verify_run(path)


def kill_everywhere(
    jobs: Jobs, folder: Path, *, resume: bool = True, stride: int = 1, **job: object
) -> tuple[int, list[str]]:
    """Kill before each change of a whole run, from its creation to its seal, until something is found."""
    found: list[str] = []
    for at in range(1, 1000, stride):
        if found:
            break
        path, acks = folder / f"run{at}", folder / f"acks{at}"
        jobs.start(path=str(path), acks=str(acks), n=N, kill_at=at, **job)
        code = jobs.wait()
        if code == 0:
            return at - 1, found
        if code != -signal.SIGKILL:
            found.append(f"change {at}: the writer ended with {code}")
        found += [f"change {at}: {fault}" for fault in faults_after_crash(path, acks)]
        if resume and not found and at % 3 == 0:
            resumes_to_the_end(path, step=int(job.get("step", 7)))  # type: ignore[call-overload]
        shutil.rmtree(path, ignore_errors=True)
    return at, found


def test_kill_before_every_change_loses_nothing(jobs: Jobs, folder: Path, note: Note) -> None:
    points, found = kill_everywhere(jobs, folder)
    assert not found, found[:5]
    assert points > 60
    note(points=points, lost=0, wrong=0)


@pytest.mark.parametrize("stride", [7, pytest.param(1, marks=pytest.mark.slow)])
def test_kill_before_every_change_of_a_sharded_run(jobs: Jobs, folder: Path, stride: int, note: Note) -> None:
    points, found = kill_everywhere(jobs, folder, shard_bytes=500, step=9, stride=stride)
    assert not found, found[:5]
    assert points > 100
    note(points=points // stride, lost=0, wrong=0)


@pytest.mark.parametrize("broken", ["record_before_data", "manifest_in_place"])
def test_the_harness_catches_a_broken_writer(jobs: Jobs, folder: Path, broken: str) -> None:
    _, found = kill_everywhere(jobs, folder, resume=False, broken=broken)
    assert found, "a broken writer passed"


def traced(jobs: Jobs, path: Path, acks: Path, *, log: Path, inject: str, calls: str) -> int:
    """Run a job under strace, attached before it touches anything."""
    child = jobs.start(path=str(path), acks=str(acks), n=N, traced=True, step=11)
    command = ["strace", "-f", "-q", "-o", str(log), "-e", f"trace={calls}", "-p", str(child)]
    if inject:
        command[5:5] = ["-e", f"inject={inject}"]
    tracer = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    code = jobs.wait()
    tracer.wait(timeout=20)
    return code


@needs_strace
def test_kill_at_every_system_call_loses_nothing(jobs: Jobs, folder: Path, note: Note) -> None:
    log = folder / "log"
    assert traced(jobs, folder / "whole", folder / "acks", log=log, inject="", calls=",".join(CALLS)) == 0
    points = 0
    for call in CALLS:
        counts: dict[str, int] = {}
        for line in log.read_text().splitlines():
            if match := re.match(rf"(\d+) +{call}\(", line):
                counts[match[1]] = counts.get(match[1], 0) + 1
        for at in range(1, max(counts.values(), default=0) + 1):
            path, acks = folder / f"{call}{at}", folder / f"{call}{at}.acks"
            inject = f"{call}:signal=KILL:when={at}"
            code = traced(jobs, path, acks, log=folder / "injected", inject=inject, calls=call)
            assert code == -signal.SIGKILL, (call, at, code)
            assert not faults_after_crash(path, acks), (call, at)
            resumes_to_the_end(path, step=11)
            shutil.rmtree(path)
            points += 1
    assert points > 40
    note(points=points, lost=0, wrong=0)


def kill_at_random(jobs: Jobs, folder: Path, kills: int, seed: int) -> int:
    """Kill a running job after a random time, again and again on the same run until it is whole."""
    generator = random.Random(seed)
    done = number = 0
    while done < kills:
        path, acks = folder / f"run{number}", folder / f"acks{number}"
        number += 1
        for _ in range(40):
            child = jobs.start(
                path=str(path), acks=str(acks), n=80, flush=False, step=3, group_bytes=300, pause_s=0.0005
            )
            time.sleep(generator.uniform(0.0, 0.09))
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
            code = jobs.wait()
            assert code in (0, -signal.SIGKILL)
            assert not (found := faults_after_crash(path, acks, 80)), (seed, number, found)
            if code == 0:
                break
            done += 1
        resumes_to_the_end(path, 80, step=3)
        shutil.rmtree(path)
    return done


def test_random_kills_lose_nothing(jobs: Jobs, folder: Path, note: Note) -> None:
    note(kills=kill_at_random(jobs, folder, 60, seed=11), seed=11, lost=0, wrong=0)


@pytest.mark.slow
def test_three_hundred_random_kills_lose_nothing(jobs: Jobs, folder: Path, note: Note) -> None:
    note(kills=kill_at_random(jobs, folder, 300, seed=12), seed=12, lost=0, wrong=0)


def test_a_dead_writer_leaves_no_lock(jobs: Jobs, folder: Path) -> None:
    child = jobs.start(path=str(folder / "run"), acks=str(folder / "acks"), n=80, step=1, pause_s=0.05)
    while not acks_of(folder / "acks")[1]:
        time.sleep(0.01)
    with pytest.raises(StoreError, match=f"process {child} on"):
        new_run(folder / "run", 80, resume=True)
    os.kill(child, signal.SIGKILL)
    jobs.wait()
    resumes_to_the_end(folder / "run", 80, step=1)
