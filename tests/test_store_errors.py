"""T4: an error on call N of every kind, short writes and full disks; no ack after a failed sync."""

from __future__ import annotations

import errno
import shutil
import warnings
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from store_disks import FailingDisk, HonestShortWriter, HookedDisk, ShortDisk
from store_toys import SMALL, TAPS, canary, new_run, rows_of_batch, windows

from workbench.errors import StoreError, StoreFull, WorkbenchError
from workbench.store import StoreWarning, open_run
from workbench.store.verifying import verify_run

if TYPE_CHECKING:
    from fault_figures import Note

N = 18
ERRORS = (errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EINTR)
KINDS = ("create", "allocate", "pwrite", "sync_data", "sync", "sync_folder", "rename", "unlink", "mkdir")


def attempt(path: Path, disk: HookedDisk, options: Any = SMALL) -> tuple[int, WorkbenchError | None]:
    """Write a run on a disk that fails; return what was acknowledged and the error, if it came."""
    acked = 0
    try:
        writer = new_run(path, N, disk=disk, options=options)
    except WorkbenchError as error:
        return acked, error
    try:
        for first, stop in windows(N):
            writer.commit(first, stop, rows_of_batch(writer, TAPS, first, stop))
            writer.flush()
            acked = writer.next_prompt
        writer.close()
    except WorkbenchError as error:
        acked = max(acked, writer.next_prompt)
        writer.abort()
        return acked, error
    return N, None


def check_after(path: Path, acked: int, error: WorkbenchError | None) -> None:
    """Acked rows are there and right; what went on to the end is whole; the rest can be resumed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", StoreWarning)
        try:
            run = open_run(path)
        except StoreError:
            assert error is not None
            assert acked == 0
        else:
            assert run.n_prompts >= acked
            for tap in TAPS:
                np.testing.assert_array_equal(run.tap(tap.name, checked=True)[:], canary(tap, 0, run.n_rows))
        if error is None:
            assert verify_run(path)
            return
        writer = new_run(path, N, resume=True)
    for first, stop in windows(N, writer.next_prompt):
        writer.commit(first, stop, rows_of_batch(writer, TAPS, first, stop))
    run = writer.close()
    assert verify_run(path)
    for tap in TAPS:
        np.testing.assert_array_equal(run.tap(tap.name)[:], canary(tap, 0, run.n_rows))


def counted(path: Path) -> dict[str, int]:
    disk = HookedDisk()
    assert attempt(path, disk) == (N, None)
    return disk.kinds


def fail_everywhere(folder: Path, kinds: tuple[str, ...], errors: tuple[int, ...], *, for_good: bool) -> int:
    total = 0
    for kind in kinds:
        for at in range(1, counted(folder / f"count-{kind}").get(kind, 0) + 1):
            for number in errors:
                path = folder / f"{kind}-{at}-{number}"
                disk = FailingDisk(kind, at, number, for_good=for_good)
                acked, error = attempt(path, disk)
                assert disk.fired, (kind, at)
                assert not disk.synced_again, (kind, at, "synced again after a failed sync")
                check_after(path, acked, error)
                shutil.rmtree(path, ignore_errors=True)
                total += 1
    return total


def test_an_error_on_every_call_loses_nothing(folder: Path, note: Note) -> None:
    total = fail_everywhere(folder, KINDS, (errno.EIO,), for_good=False)
    note(calls_failed=total, lost=0)
    assert total > 70


@pytest.mark.slow
@pytest.mark.parametrize("for_good", [False, True])
def test_every_error_on_every_call_loses_nothing(folder: Path, for_good: bool, note: Note) -> None:
    note(calls_failed=fail_everywhere(folder, KINDS, ERRORS, for_good=for_good), lost=0)


def test_a_full_disk_on_every_write_is_said_and_resumed(folder: Path) -> None:
    fail_everywhere(folder, ("allocate", "pwrite"), (errno.ENOSPC,), for_good=True)


def test_a_failed_data_sync_poisons_the_file_and_the_run_goes_on(folder: Path) -> None:
    disk = FailingDisk("sync_data", 3, errno.EIO)
    acked, error = attempt(folder / "run", disk)
    assert (acked, error) == (N, None)
    assert not disk.synced_again
    run = open_run(folder / "run")
    states = {entry.file: entry.state for entry in run.manifest.segments}
    assert "poisoned" in states.values() or run.manifest.parts[0].journal != "journal"
    for name, state in states.items():
        assert (folder / "run" / "taps" / name).exists() == (state == "sealed")
    assert verify_run(folder / "run")


def test_every_position_of_a_failed_data_sync(folder: Path) -> None:
    for at in range(1, counted(folder / "count")["sync_data"] + 1):
        disk = FailingDisk("sync_data", at, errno.EIO)
        assert attempt(folder / f"run{at}", disk) == (N, None)
        assert not disk.synced_again
        check_after(folder / f"run{at}", N, None)


def test_the_harness_catches_a_second_sync_of_the_same_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import store_broken

    from workbench.store.committing import Committer

    monkeypatch.setattr(Committer, "_sync_segment", Committer._sync_segment)
    store_broken.ignores_failed_sync()
    found = []
    for at in range(1, 8):
        disk = FailingDisk("sync_data", at, errno.EIO)
        attempt(folder / f"run{at}", disk)
        found += disk.synced_again
    assert found


def test_short_writes_are_continued(folder: Path) -> None:
    disk = ShortDisk()
    acked, error = attempt(folder / "run", disk)
    check_after(folder / "run", acked, error)
    assert error is None
    acked, error = attempt(folder / "broken", HonestShortWriter())
    with pytest.raises((AssertionError, StoreError)):
        check_after(folder / "broken", acked, error)


def test_a_run_that_does_not_fit_says_how_many_bytes_it_needs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from workbench.store import filesystem

    usage = shutil.disk_usage(folder)
    monkeypatch.setattr(filesystem.shutil, "disk_usage", lambda path: usage._replace(free=1000))
    with pytest.raises(StoreFull, match=r"needs [\d,]+ bytes; got 1,000 free"):
        new_run(folder / "run")
    assert not (folder / "run").exists()


def test_the_reserve_is_freed_when_the_disk_is_full(folder: Path) -> None:
    disk = FailingDisk("pwrite", 12, errno.ENOSPC, for_good=True)
    _, error = attempt(folder / "run", disk, replace(SMALL, reserve_bytes=1 << 16))
    assert isinstance(error, StoreFull)
    assert not (folder / "run" / "reserve").exists()
    assert open_run(folder / "run").status == "writing"


def test_a_full_disk_at_the_seal_is_met_with_the_reserve(folder: Path) -> None:
    """F09: once the reserve is gone there is room for the manifest, and the run is whole."""

    class Full(HookedDisk):
        armed = False

        def before(self, kind: str) -> None:
            if self.armed and kind == "create" and (folder / "run" / "reserve").exists():
                raise OSError(errno.ENOSPC, "full")

    disk = Full()
    writer = new_run(folder / "run", N, disk=disk)
    for first, stop in windows(N):
        writer.commit(first, stop, rows_of_batch(writer, TAPS, first, stop))
    writer.flush()
    disk.armed = True
    assert writer.close().status == "complete"
    assert not (folder / "run" / "reserve").exists()
    assert verify_run(folder / "run")


def test_a_network_file_system_is_warned_of_and_read_without_maps(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from workbench.store import filesystem, taparray

    monkeypatch.setattr(filesystem, "type_number", lambda path: 0x6969)
    monkeypatch.setattr(taparray.mmap, "mmap", lambda *_, **__: pytest.fail("mapped"))
    with pytest.warns(StoreWarning, match="nfs"):
        writer = new_run(folder / "run")
    for first, stop in windows(40):
        writer.commit(first, stop, rows_of_batch(writer, TAPS, first, stop))
    run = writer.close()
    assert run.manifest.durability.network
    assert run.manifest.durability.file_system == "nfs"
    for tap in TAPS:
        want = canary(tap, 0, run.n_rows)
        np.testing.assert_array_equal(run.tap(tap.name, checked=True)[:], want)
        np.testing.assert_array_equal(run.tap(tap.name)[[5, 3, 5]], want[[5, 3, 5]])


def test_statfs_tells_the_type() -> None:
    from workbench.store.filesystem import NETWORK_TYPES, type_name, type_number

    assert type_number(Path("/proc")) == 0x9FA0
    assert type_name(Path("/proc")) == "0x9fa0"
    assert NETWORK_TYPES[0x6969] == "nfs"


def test_a_parent_that_is_missing_or_no_folder_is_refused(folder: Path) -> None:
    with pytest.raises(StoreError, match="mkdir"):
        new_run(folder / "nowhere" / "run")
    (folder / "file").write_text("x")
    with pytest.raises(StoreError, match="folder"):
        new_run(folder / "file" / "run")


def test_too_few_file_descriptors_are_found_first(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import resource

    monkeypatch.setattr(resource, "getrlimit", lambda which: (40, 40))
    with pytest.raises(StoreError, match="ulimit"):
        new_run(folder / "run")


def test_weaker_durability_is_recorded_and_shown(folder: Path) -> None:
    writer = new_run(folder / "run", durability="process-crash-only")
    for first, stop in windows(40):
        writer.commit(first, stop, rows_of_batch(writer, TAPS, first, stop))
    run = writer.close()
    assert run.durability == "process-crash-only"
    assert run.manifest.durability.data_sync == "none"
    assert "process-crash-only" in repr(run)


def resident_pages(path: Path) -> int:
    """Pages of a file that are kept in memory, by mincore(2)."""
    import ctypes
    import mmap

    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ, flags=mmap.MAP_SHARED) as mapped:
        count = -(-len(mapped) // mmap.PAGESIZE)
        held = (ctypes.c_ubyte * count)()
        start = np.frombuffer(mapped, np.uint8)
        library = ctypes.CDLL(None, use_errno=True)
        assert library.mincore(ctypes.c_void_p(start.ctypes.data), ctypes.c_size_t(len(mapped)), held) == 0
        del start
    return sum(one & 1 for one in held)


def test_pages_that_a_failed_sync_may_have_left_are_dropped_before_a_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from workbench.store.files import Disk
    from workbench.store.filesystem import type_name

    writer = new_run(tmp_path / "run", 24)
    for first, stop in windows(10):
        writer.commit(first, stop, rows_of_batch(writer, TAPS, first, stop))
    writer.abort()
    seen: list[str] = []
    forget = Disk.forget

    def watched(disk: Disk, fd: int) -> None:
        path = Path(f"/proc/self/fd/{fd}").resolve()
        assert type_name(path) == "tmpfs" or resident_pages(path) > 0
        forget(disk, fd)
        assert type_name(path) == "tmpfs" or resident_pages(path) == 0
        seen.append(path.name)

    monkeypatch.setattr(Disk, "forget", watched)
    writer = new_run(tmp_path / "run", 24, resume=True)
    writer.abort()
    assert sorted(seen) == ["blocks.0.resid_post.safetensors.part", "final_norm.safetensors.part", "journal"]


def test_a_group_is_written_at_its_age_though_nothing_follows(folder: Path) -> None:
    """A crash costs at most `group_s` of work, also where rows come slowly."""
    import time

    writer = new_run(folder / "run", N, options=replace(SMALL, group_bytes=1 << 20))
    time.sleep(0.1)  # the writer thread is asleep
    for first, stop in windows(N):
        writer.commit(first, stop, rows_of_batch(writer, TAPS, first, stop))
        until = time.monotonic() + 20
        while writer.next_prompt < stop and time.monotonic() < until:
            time.sleep(0.01)
        assert writer.next_prompt == stop
    writer.close()


def test_a_writer_that_is_stopped_between_record_and_statistics_ends(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found by ten thousand steps of the state machine: the thread that acknowledges waited for ever."""
    import threading
    import time

    from workbench.store.committing import Committer

    def measures_nothing(committer: Committer) -> bool:
        with committer._state:
            while not committer._stopping:
                committer._state.wait()
        return False

    with monkeypatch.context() as patch:
        patch.setattr(Committer, "_measure_next", measures_nothing)
        writer = new_run(folder / "run", N)
        writer.commit(0, 7, rows_of_batch(writer, TAPS, 0, 7))
        while not writer._session.journal.records:
            time.sleep(0.01)
        ending = threading.Thread(target=writer._end, daemon=True)
        ending.start()
        ending.join(timeout=20)
        assert not ending.is_alive()
    writer = new_run(folder / "run", N, resume=True)
    assert writer.next_prompt == 7
    for first, stop in windows(N, 7):
        writer.commit(first, stop, rows_of_batch(writer, TAPS, first, stop))
    run = writer.close()
    assert run.statistics("final_norm").n_rows == run.n_rows
    assert verify_run(folder / "run")
