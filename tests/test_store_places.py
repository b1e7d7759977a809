"""T4, F08-F10, F20 on real disks: no room, no permission, read only, no descriptors; found or survived, all typed."""

from __future__ import annotations

import gc
import os
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from store_places import NOBODY, ask, small_disk
from store_toys import SMALL, TAPS, canary, fill, make_prompts, make_tokens, new_run, rows_of_batch, windows
from test_store_errors import N, attempt, check_after

import workbench as wb
from workbench import extraction
from workbench.errors import StoreError, StoreFull
from workbench.store import TapSpec, export_run, files, open_run, preparing, resuming
from workbench.store.importing.archive import import_zip
from workbench.store.merging import merge_runs
from workbench.store.splitting import split_run
from workbench.store.verifying import verify_run

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fault_figures import Note
    from store_places import SmallDisk

PAGE = 4096


@pytest.fixture
def disk() -> Iterator[SmallDisk]:
    """A tmpfs of 8 MiB, as a real full disk."""
    try:
        context = small_disk(8 << 20)
        made = context.__enter__()
    except OSError as error:
        pytest.skip(f"NOT TESTED HERE, real full disks: a tmpfs cannot be mounted ({error}); run the tests as root")
    yield made
    context.__exit__(None, None, None)


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder that every user may enter, made by root."""
    if os.geteuid() != 0:
        pytest.skip("NOT TESTED HERE, other users' folders: only root may start a process as another user")
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def as_stranger(steps: list[list[Any]]) -> list[list[Any]]:
    try:
        return ask(steps, user=NOBODY)
    except OSError as error:
        pytest.skip(f"NOT TESTED HERE, other users' folders: another user cannot run this Python ({error})")


def complete(path: Path, n: int = 24, taps: Any = TAPS, **more: Any) -> Path:
    writer = new_run(path, n, taps, **more)
    fill(writer, taps, step=97 if n > 100 else 7)
    writer.close()
    return path


def test_every_size_of_a_disk_that_is_too_small_is_survived(
    disk: SmallDisk, monkeypatch: pytest.MonkeyPatch, note: Note
) -> None:
    """From one page up to more than enough: each time a typed error or a whole run, and a run that goes on later."""
    for module in (preparing, resuming):
        monkeypatch.setattr(module, "check_room", lambda *_: None)  # as if another process took the room meanwhile
    fitted = sizes = 0
    gc.collect()
    descriptors = len(list(Path("/proc/self/fd").iterdir()))
    for pages in range(8, 140):
        gc.collect()  # a map keeps the room of a removed file
        assert len(list(Path("/proc/self/fd").iterdir())) <= descriptors
        disk.resize(pages * PAGE)
        path = disk.path / "run"
        acked, error = attempt(path, files.DISKS["full"](), replace(SMALL, reserve_bytes=1 << 14))
        assert error is None or isinstance(error, StoreFull), (pages, error)
        assert error is not None or acked == N
        if error is not None and "must be created" not in str(error) and path.exists():
            assert open_run(path).n_prompts >= acked
        disk.resize(8 << 20)
        check_after(path, acked, error)
        shutil.rmtree(path)
        fitted += error is None
        sizes += 1
    assert 5 < fitted < sizes - 50
    note(sizes=sizes, too_small=sizes - fitted, lost=0)


def test_a_run_larger_than_the_disk_is_refused_before_anything_is_computed(
    disk: SmallDisk, toy_engines: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extraction, "run_plan", lambda *_, **__: pytest.fail("computed"))
    prompts = wb.load_prompts(token_ids=[[1, 2, 3]] * 50)
    with pytest.raises(StoreFull, match=r"needs [\d,]+ bytes; got [\d,]+ free"):
        wb.extract(prompts, toy_engines(), out=disk.path / "run", progress=False)
    assert list(disk.path.iterdir()) == []


def test_a_disk_that_fills_up_meanwhile_costs_nothing(disk: SmallDisk) -> None:
    """Rows have their room from the start, and the reserve is enough for the last manifest."""
    writer = new_run(disk.path / "run", N)
    disk.fill()
    for first, stop in windows(N):
        writer.commit(first, stop, rows_of_batch(writer, TAPS, first, stop))
    run = writer.close()
    assert run.status == "complete"
    assert not (disk.path / "run" / "reserve").exists()
    assert verify_run(run.path)


def test_a_journal_that_cannot_grow_pauses_the_run(disk: SmallDisk) -> None:
    options = replace(SMALL, group_bytes=1)
    writer = new_run(disk.path / "run", 60, options=options)
    filler = disk.fill()
    for first, stop in windows(40, step=1):
        writer.commit(first, stop, rows_of_batch(writer, TAPS, first, stop))
        if first >= 30:
            break
        writer.flush()
    with pytest.raises(StoreFull, match="resume=True"):
        writer.flush()
    acked = writer.next_prompt
    writer.abort()
    assert acked >= 30
    run = open_run(disk.path / "run")
    assert run.n_prompts == acked
    for tap in TAPS:
        np.testing.assert_array_equal(run.tap(tap.name, checked=True)[:], canary(tap, 0, run.n_rows))
    filler.unlink()
    writer = new_run(disk.path / "run", 60, options=options, resume=True)
    assert writer.next_prompt == acked
    fill(writer, step=1)
    assert verify_run(writer.close().path)


def test_nothing_half_written_is_left_on_a_full_disk(disk: SmallDisk, tmp_path: Path) -> None:
    wide = (TapSpec("final_norm", "F32", 64),)
    complete(tmp_path / "wide", 2000, taps=wide)
    whole = complete(tmp_path / "whole", 2000)
    sent = export_run(open_run(whole), tmp_path / "sent.zip", format="zip")
    prompts = make_prompts(4000).select(np.arange(2000, 4000))
    other = complete(tmp_path / "other", prompts=prompts, tokens=make_tokens(2000))
    disk.resize(40 * PAGE)
    for kind in ("npy", "safetensors"):
        with pytest.raises(StoreFull):
            export_run(open_run(tmp_path / "wide"), disk.path / "out", format=kind, taps=("final_norm",))
    disk.resize(8 * PAGE)
    with pytest.raises(StoreFull):
        export_run(open_run(whole), disk.path / "out", format="parquet")
    with pytest.raises(StoreFull):
        import_zip(sent, out=disk.path / "out")
    with pytest.raises(StoreFull):
        merge_runs([whole, other], disk.path / "out")
    with pytest.raises(StoreFull):
        split_run(whole, [disk.path / "out", disk.path / "out2"], [1000])
    assert list(disk.path.iterdir()) == []


def test_a_read_only_disk_is_read_and_never_written(disk: SmallDisk) -> None:
    complete(disk.path / "done")
    fill(half := new_run(disk.path / "half", 24), until=10)
    half.abort()
    disk.read_only()
    assert open_run(disk.path / "done").n_prompts == 24
    assert verify_run(disk.path / "done")
    steps = [
        ["create", str(disk.path / "new")], ["resume", str(disk.path / "half")], ["extract", str(disk.path / "new")],
        ["extract", str(disk.path / "deep" / "er" / "new")],
        ["merge", [str(disk.path / "done")], str(disk.path / "new")], ["remove", str(disk.path / "done")],
        ["export", str(disk.path / "done"), str(disk.path / "out.npy"), "npy"],
    ]  # fmt: skip
    for step, (kind, text) in zip(steps, ask(steps), strict=True):
        assert kind == "StoreError", (step, kind, text)
        assert "ead-only file system" in text, (step, text)
    assert verify_run(disk.path / "done")


def test_a_stranger_reads_what_is_readable_and_changes_nothing(shared: Path) -> None:
    done, half, private = shared / "done", shared / "half", shared / "private"
    complete(done)
    fill(writer := new_run(half, 24), until=10)
    writer.abort()
    sent = export_run(open_run(done), shared / "sent.zip", format="zip")
    complete(private)
    private.chmod(0o700)
    complete(shared / "sealed-off")
    (shared / "sealed-off" / "taps" / "final_norm.safetensors").chmod(0o600)
    own = shared / "own"
    own.mkdir()
    own.chmod(0o777)
    new = str(shared / "new")
    allowed = [
        ["open", str(done)], ["open", str(half)], ["verify", str(done)], ["merge", [str(done)], str(own / "merged")],
        ["verify", str(own / "merged")], ["export", str(done), str(own / "rows.npy"), "npy"],
        ["import", str(sent), str(own / "back")], ["split", str(done), [str(own / "a"), str(own / "b")]],
        ["remove", str(own / "merged")], ["list", str(shared)],
    ]  # fmt: skip
    for step, (kind, found) in zip(allowed, answers := as_stranger(allowed), strict=True):
        assert kind == "done", (step, kind, found)
    listed = {name: (status, problem) for name, status, problem in answers[-1][1]}
    assert listed["done"] == ("complete", "")
    assert "Permission denied" in listed["private"][1]
    refused = [
        ["create", new], ["extract", new], ["resume", str(half)], ["remove", str(done)], ["merge", [str(done)], new],
        ["split", str(done), [new, f"{new}2"]], ["export", str(done), f"{new}.npy", "npy"], ["import", str(sent), new],
        ["open", str(private)], ["list", str(private)], ["remove", str(private)], ["open", str(shared / "sealed-off")],
        ["create", str(private / "deeper" / "run")], ["extract", str(private / "deeper" / "run")],
    ]  # fmt: skip
    for step, (kind, text) in zip(refused, as_stranger(refused), strict=True):
        assert kind == "StoreError", (step, kind, text)
        assert "ermission" in text, (step, text)
    assert verify_run(done)
    assert not (shared / "new").exists()


def test_a_low_limit_of_open_files_is_found_before_computing_and_survived(tmp_path: Path) -> None:
    found = ask([["many taps", str(tmp_path / "many"), 20], ["many taps", str(tmp_path / "few"), 2]], files=80)
    assert found[0][0] == "StoreError"
    assert "ulimit -n" in found[0][1]
    assert found[1] == ["done", "complete"]
    assert not (tmp_path / "many").exists()
    (kind, text), *_ = ask([["out of files", str(tmp_path / "run")]], files=120)
    assert kind == "Told", (kind, text)
    assert "ulimit -n" in text
    acked = int(text.split("acked ")[1].split(".")[0])
    assert open_run(tmp_path / "run").n_prompts >= acked
    assert ask([["resume", str(tmp_path / "run")]]) == [["done", "complete"]]


def test_a_limit_of_file_sizes_is_a_typed_error(tmp_path: Path) -> None:
    """RLIMIT_FSIZE: real short writes and EFBIG, at every limit up to enough."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    refused = 0
    for size in range(512, 300_000, 6007):
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
        try:
            acked, error = attempt(tmp_path / "run", files.DISKS["full"](), replace(SMALL, reserve_bytes=0))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert error is None or (isinstance(error, StoreError) and "ulimit -f" in str(error)), (size, error)
        check_after(tmp_path / "run", acked, error)
        shutil.rmtree(tmp_path / "run")
        refused += error is not None
    assert refused > 10


def test_a_real_quota_is_said_as_such() -> None:
    options = ("usrquota", f"usrquota_block_hardlimit={200_000}", "mode=1777")
    try:
        with small_disk(8 << 20, *options) as limited:
            answers = ask([["create", str(limited.path / "run")]], user=NOBODY)
    except OSError as error:
        pytest.skip(f"NOT TESTED HERE, real quotas: no tmpfs of this kernel has them ({error}); EDQUOT is injected")
    assert answers[0][0] == "StoreFull"
    assert "uota" in answers[0][1]
