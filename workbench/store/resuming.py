"""Taking up an interrupted run at its last acknowledged batch."""

from __future__ import annotations

import contextlib
import os
import time
import warnings
from typing import TYPE_CHECKING

from workbench.errors import ChecksumMismatch, ContractMismatch, StoreError
from workbench.store.batches import Batches, journal_content
from workbench.store.filesystem import StoreWarning, check_descriptors, check_place, check_room, is_folder
from workbench.store.keeping import load_statistics
from workbench.store.layout import FORMAT, MANIFEST, PREVIOUS, RESERVE, TAPS
from workbench.store.lock import WriterLock
from workbench.store.manifest import Manifest, ManifestFile, load_manifest
from workbench.store.opening import open_inside
from workbench.store.preparing import refuse_differences, remove_debris
from workbench.store.segments import Origin, SegmentWriter
from workbench.store.statistics import TapStatistics, empty_statistics, merge_statistics, rows_statistics
from workbench.store.taparray import open_tap
from workbench.store.writer import RunWriter, Session

if TYPE_CHECKING:
    from pathlib import Path

    from workbench.store.journal import Record
    from workbench.store.preparing import Work
    from workbench.store.recording import JournalWriter

TAIL_BATCHES = 4


def resume_run(work: Work) -> RunWriter:
    """Go on with the run in a folder, or start it anew if it never came to exist."""
    folder = work.folder
    if not is_folder(folder) or folder.is_symlink():
        raise StoreError(f"{str(folder)!r} must be a run folder", "something else", "Choose another folder.")
    check_place(folder)
    check_descriptors(2 * len(work.taps))
    if not (os.path.lexists(folder / MANIFEST) or os.path.lexists(folder / PREVIOUS)):
        lock = WriterLock(folder, "")
        try:
            remove_debris(folder)
        finally:
            lock.release()
        return work.create()
    manifest = load_manifest(folder)
    if manifest.format < FORMAT:
        must = f"a run that goes on must be of format {FORMAT}"
        raise StoreError(must, f"{manifest.format}: an older one is read only", "Extract to another folder.")
    refuse_differences(folder, work.differences(manifest))
    if len(manifest.parts) != 1:
        raise ContractMismatch("a run that goes on must have one writer", "a merged run", "Extract to another folder.")
    lock = WriterLock(folder, manifest.run_id)
    try:
        return RunWriter(_session(work, lock, load_manifest(folder)))
    except BaseException:
        lock.release()
        raise


def _session(work: Work, lock: WriterLock, manifest: Manifest) -> Session:
    part = manifest.parts[0]
    work.bounds = part.shards  # as the files were made, whatever the options say now
    origin = Origin(store_id=part.store_id, run_id=part.run_id)
    segments = SegmentWriter(work.folder, work.disk, work.taps, origin)
    journal = work.journal(origin)
    session = work.session(lock, ManifestFile(work.folder, work.disk, manifest), segments, journal, origin)
    if manifest.status == "complete":
        return session
    _forget_pages(work, manifest)
    content, size = journal_content(work.folder, part, len(work.taps))
    if content.dropped_bytes:
        _warn(work.folder, f"{content.dropped_bytes} bytes at the end of the journal are no whole record; dropped")
    records = _without_bad_tail(work, manifest, content.records)
    _check_inputs(work, records)
    journal.adopt(part.journal, records, size)
    segments.adopt(manifest.segments, records[-1].stop_row if records else 0)
    _restore_reserve(work)
    session.statistics.update(_statistics_so_far(work, manifest, journal))
    return session


def _without_bad_tail(work: Work, manifest: Manifest, records: tuple[Record, ...]) -> tuple[Record, ...]:
    """Drop last batches whose bytes are not those that were written: they are computed again."""
    kept = list(records)
    for _ in range(min(TAIL_BATCHES, len(records))):
        batches = Batches(work.folder, manifest, [tuple(kept)])
        try:
            for tap in work.taps:
                array = open_tap(work.folder, manifest, tap.name, kept[-1].stop_row)
                batches.check(array, len(kept) - 1)
        except ChecksumMismatch as error:
            _warn(work.folder, f"the last batch is dropped and will be computed again; {error}")
            kept.pop()
            while kept and kept[-1].continues:
                kept.pop()
            if not kept:
                break
            continue
        break
    return tuple(kept)


def _forget_pages(work: Work, manifest: Manifest) -> None:
    """Let journal and unfinished segments be read from the disk, not from pages that a failed sync left behind."""
    writing = [f"{entry.file}.part" for entry in manifest.segments if entry.state == "writing"]
    for path in (work.folder / manifest.parts[0].journal, *(work.folder / TAPS / name for name in writing)):
        with contextlib.suppress(FileNotFoundError):
            fd, _ = open_inside(path)
            work.disk.forget(fd)
            os.close(fd)


def _check_inputs(work: Work, records: tuple[Record, ...]) -> None:
    hasher = work.hasher()
    for record in records:
        if hasher.of(record.first_prompt, record.stop_prompt) != record.input_hash:
            must = f"prompts {record.first_prompt} to {record.stop_prompt - 1} must be those of batch {record.batch}"
            raise ContractMismatch(must, "other ids or tokens", "Give the prompts in the order of the first run.")


def _restore_reserve(work: Work) -> None:
    if work.options.reserve_bytes and not (work.folder / RESERVE).exists():
        check_room(work.folder, work.options.reserve_bytes)
        work.disk.close(work.disk.create(work.folder / RESERVE, work.options.reserve_bytes))


def _statistics_so_far(work: Work, manifest: Manifest, journal: JournalWriter) -> dict[str, TapStatistics]:
    """Load the last snapshot and add the batches after it from the data."""
    records = journal.records
    try:
        found, covered = load_statistics(work.folder, work.taps, None, manifest.run_id)
    except (StoreError, KeyError, ValueError):
        found, covered = {}, 0
    if covered > len(records) or not found:
        found, covered = {tap.name: empty_statistics(tap.width) for tap in work.taps}, 0
    began = time.monotonic()
    for tap in work.taps:
        array = open_tap(work.folder, manifest, tap.name, records[-1].stop_row if records else 0)
        for record in records[covered:]:
            rows = rows_statistics(array.raw(record.first_row, record.stop_row), array.kind)
            found[tap.name] = merge_statistics(found[tap.name], rows)
    if (took_s := time.monotonic() - began) > 60:
        _warn(work.folder, f"statistics of the stored batches took {took_s:.0f} s to gather again")
    return found


def _warn(folder: Path, text: str) -> None:
    warnings.warn(f"{folder}: {text}", StoreWarning, stacklevel=5)
