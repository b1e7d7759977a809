"""T3: a power cut after any operation leaves every acknowledged row, and nothing that is half there."""

from __future__ import annotations

import shutil
import warnings
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
import store_broken
from store_power import RecordingDisk, crash_states, lay_out
from store_toys import SMALL, TAPS, canary, new_run, rows_of_batch, windows

from workbench.errors import StoreError, WorkbenchError
from workbench.store import StoreWarning, open_run

if TYPE_CHECKING:
    from pathlib import Path

    from fault_figures import Note

N = 12


def record(root: Path, **options: object) -> list[tuple[object, ...]]:
    """Write a run and note each acknowledgement among its file operations."""
    root.mkdir()
    disk = RecordingDisk(root)
    small = replace(SMALL, reserve_bytes=4096, **options)
    writer = new_run(root / "run", N, disk=disk, options=small)
    disk.note("mark", "created")
    for first, stop in windows(N, step=4):
        writer.commit(first, stop, rows_of_batch(writer, TAPS, first, stop))
        writer.flush()
        disk.note("mark", writer.next_prompt)
    writer.close()
    disk.note("mark", "closed")
    return disk.log


def fault_of(path: Path, marks: list[tuple[object, ...]]) -> str | None:
    """Say what is wrong with a run after a power cut, if anything is."""
    acked = max([mark[1] for mark in marks if isinstance(mark[1], int)], default=0)
    created = any(mark[1] == "created" for mark in marks)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", StoreWarning)
        try:
            run = open_run(path)
            if run.n_prompts < acked:
                return f"lost: {acked} acked, {run.n_prompts} there"
            for tap in TAPS:
                if not np.array_equal(run.tap(tap.name)[:], canary(tap, 0, run.n_rows)):
                    return f"wrong rows at {tap.name}"
            if len(run.prompts) != run.n_prompts or len(run.tokens) != run.offsets[-1]:
                return "prompts or tokens are not whole"
        except StoreError as error:
            return f"does not open: {error}" if created else None
        except WorkbenchError as error:
            return None if run.n_prompts == 0 else str(error)  # no prompt set of no prompts
    return None


def cut_power(
    folder: Path, log: list[tuple[object, ...]], *, most: int, resume_every: int = 0
) -> tuple[int, list[str]]:
    count, faults = 0, []
    for moment, state, marks in crash_states(log, seed=1, most=most):
        path = folder / "cut"
        path.mkdir()
        lay_out(state, path)
        if (fault := fault_of(path / "run", marks)) is not None:
            faults.append(f"after operation {moment} {log[moment][:3]!r}: {fault}")
        elif resume_every and count % resume_every == 0:
            _resume(path / "run")
        shutil.rmtree(path)
        count += 1
        if len(faults) > 5:
            break
    return count, faults


def _resume(path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", StoreWarning)
        writer = new_run(path, N, resume=True, options=replace(SMALL, reserve_bytes=4096))
    for first, stop in windows(N, writer.next_prompt, step=4):
        writer.commit(first, stop, rows_of_batch(writer, TAPS, first, stop))
    run = writer.close()
    for tap in TAPS:
        np.testing.assert_array_equal(run.tap(tap.name, checked=True)[:], canary(tap, 0, run.n_rows))


def test_a_power_cut_after_any_operation_loses_nothing(folder: Path, note: Note) -> None:
    count, faults = cut_power(folder, record(folder / "root"), most=16, resume_every=40)
    assert not faults, faults
    assert count > 200
    note(states=count, lost=0, wrong=0)


@pytest.mark.slow
def test_every_legal_state_after_a_power_cut_loses_nothing(folder: Path, note: Note) -> None:
    states = 0
    for number, options in enumerate(({}, {"shard_bytes": 300})):
        count, faults = cut_power(folder, record(folder / f"root{number}", **options), most=512, resume_every=25)
        assert not faults, faults
        states += count
    note(states=states, lost=0, wrong=0)


@pytest.mark.parametrize("broken", ["no_data_sync", "no_journal_sync", "no_folder_sync", "manifest_in_place"])
def test_the_replayer_catches_a_broken_writer(folder: Path, broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from workbench.store.committing import Committer
    from workbench.store.manifest import ManifestFile
    from workbench.store.recording import JournalWriter

    for owner, name in (
        (Committer, "_sync_segment"), (JournalWriter, "append"), (RecordingDisk, "sync_folder"),
        (ManifestFile, "publish"),
    ):  # fmt: skip
        monkeypatch.setattr(owner, name, getattr(owner, name))
    if broken == "no_folder_sync":
        monkeypatch.setattr(RecordingDisk, "sync_folder", lambda self, path: None)
    else:
        store_broken.BREAK[broken]()
    count, faults = cut_power(folder, record(folder / "root"), most=16)
    assert faults, f"{broken} passed {count} states"
