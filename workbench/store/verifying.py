"""Checking a stored run against its own checksums and sums, and mending what can be computed again."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.canonical import digest_of
from workbench.errors import ChecksumMismatch, ContractError, StoreError, WorkbenchError
from workbench.store.batches import check_records, journal_content
from workbench.store.contents import InputHasher
from workbench.store.dtypes import narrow, storage_type
from workbench.store.files import Disk
from workbench.store.layout import PREVIOUS, ROWS_AT, TAPS
from workbench.store.lock import WriterLock
from workbench.store.manifest import MAX_MANIFEST_BYTES, parse_manifest, read_small
from workbench.store.opening import file_digest
from workbench.store.reader import Run, open_run

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

Progress = Callable[[int, int], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class BadBatch:
    """A batch whose bytes at one tap are not those that were written."""

    batch: int
    tap: str
    first_prompt: int
    stop_prompt: int
    first_row: int
    stop_row: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Verification:
    """What a check of a run found; true if it is sound.

    Attributes
    ----------
    path : str
        The run.
    batches, checked : int
        Batches (of all taps together) that the run has, and that were checked.
    bad : tuple of BadBatch
        Damaged batches, in row order.
    problems : tuple of str
        Everything that is wrong, damaged batches last.
    """

    path: str
    batches: int
    checked: int
    bad: tuple[BadBatch, ...]
    problems: tuple[str, ...]

    def __bool__(self) -> bool:
        return not self.problems

    def __str__(self) -> str:
        head = f"{self.path}: {self.checked} of {self.batches} tap batches checked"
        if self:
            return f"{head}, all sound"
        return "\n".join([f"{head}, {len(self.problems)} problems", *(f"  {line}" for line in self.problems)])


def verify_run(
    path: str | Path, *, sample: float = 1.0, seed: int = 0, progress: Progress | None = None
) -> Verification:
    """Check a run: conservation, files, journal, contract, and the checksums of its batches.

    Parameters
    ----------
    path : str or Path
        Run folder.
    sample : float
        Share of the batches to check, 0 to 1.
    seed : int
        Which ones.
    progress : callable (done, total), optional
        Called after each batch.

    Returns
    -------
    Verification

    Raises
    ------
    StoreError
        If the folder is no run, or too damaged to open.
    """
    if not 0 <= sample <= 1:
        raise ContractError("a sample must be a share from 0 to 1", str(sample), "Write 0.01 or 1%.")
    run = open_run(path)
    problems: list[str] = []
    for check in (_files, _journal, _previous, _conservation, _inputs, _contract, _segments):
        problems += _told(check, run)
    bad, checked, total = _batches(run, sample, seed, problems, progress)
    return Verification(path=str(path), batches=total, checked=checked, bad=bad, problems=tuple(problems))


def _told(check: Callable[[Run], Iterable[str]], run: Run) -> list[str]:
    found: list[str] = []
    try:
        found.extend(check(run))
    except WorkbenchError as error:
        found.append(str(error))
    return found


def _files(run: Run) -> Iterable[str]:
    for name, checksum in sorted(run.manifest.files.items()):
        if (found := file_digest(run.path / name)) != checksum:
            yield f"{name} must have checksum {checksum}; got {found}."


def _journal(run: Run) -> Iterable[str]:
    for part in run.manifest.parts:
        content, _ = journal_content(run.path, part, len(run.taps))
        weak = [slot for slot in content.weak_slots if run.status == "complete" or slot < len(content.records)]
        if weak:  # the last slot of an unfinished run may have been cut short by a crash
            yield f"{part.journal}: only one good copy of slots {weak[:5]}; no batch is lost."
        if content.dropped_bytes and run.status == "complete":
            yield f"{part.journal}: {content.dropped_bytes} bytes after the last record."
        if part.records_digest is not None:
            check_records(content.records, part)


def _previous(run: Run) -> Iterable[str]:
    try:
        parse_manifest(read_small(run.path / PREVIOUS, MAX_MANIFEST_BYTES), PREVIOUS)
    except FileNotFoundError:
        if run.manifest.version > 1:
            yield f"{PREVIOUS} is missing; the manifest has no second copy."


def _conservation(run: Run) -> Iterable[str]:
    """Each prompt once, rows as the positions ask for, parts and batches without a gap."""
    counts, prompt, row = run.manifest.counts, 0, 0
    for part in run.manifest.parts:
        if (part.first_prompt, part.first_row) != (prompt, row):
            yield f"part {part.run_id} must begin at prompt {prompt}, row {row}."
        prompt, row = prompt + part.n_prompts, row + part.n_rows
    if (prompt, row) != (counts.prompts, counts.rows):
        yield f"the parts hold {prompt} prompts and {row} rows; the manifest counts {counts.prompts} and {counts.rows}."
    if int(run.row_offsets[-1]) != run.n_rows:
        yield f"positions {run.positions!r} ask for {int(run.row_offsets[-1])} rows; {run.n_rows} are stored."
    if len(run.all_prompts) != counts.prompts:
        yield f"{len(run.all_prompts)} prompts are listed; the manifest counts {counts.prompts}."
    stored = run.batches.prompts(len(run.batches) - 1)[1] if len(run.batches) else 0
    if run.status == "complete" and stored != counts.prompts:
        yield f"batches hold {stored} of {counts.prompts} prompts."
    for number in range(len(run.batches)):
        first, stop = run.batches.prompts(number)
        if run.batches.rows(number) != (int(run.row_offsets[first]), int(run.row_offsets[stop])):
            yield f"batch {number} must hold the rows of prompts {first} to {stop - 1}."


def _inputs(run: Run) -> Iterable[str]:
    prompts, offsets = run.all_prompts.ids, run.all_offsets
    ids = run.all_tokens
    for number, (part, record) in enumerate(run.batches.items):
        start, stop = part.first_prompt, part.first_prompt + part.n_prompts
        hasher = InputHasher(prompts[start:stop], ids, offsets[start : stop + 1])
        if hasher.of(record.first_prompt, record.stop_prompt) != record.input_hash:
            yield f"batch {number}: its prompts or tokens are not those that were run."


def _contract(run: Run) -> Iterable[str]:
    contract = run.contract
    if "digest" in contract:
        own = digest_of({key: value for key, value in contract.items() if key != "digest"})
        if contract["digest"] != own:
            yield f"the engine contract must have digest {own}; got {contract['digest']}."
    taps = contract.get("taps")
    if isinstance(taps, list) and not set(run.taps) <= set(taps):
        yield f"the engine has taps {taps}; the run holds {list(run.taps)}."


def _segments(run: Run) -> Iterable[str]:
    for name in run.taps:
        if run.n_rows:
            run.tap(name).open_files()
    named = {entry.file for entry in run.manifest.segments}
    for file in sorted((run.path / TAPS).iterdir()):
        if file.name.removesuffix(".part") not in named:
            yield f"{TAPS}/{file.name} is not part of the run."


def _batches(
    run: Run, sample: float, seed: int, problems: list[str], progress: Progress | None
) -> tuple[tuple[BadBatch, ...], int, int]:
    try:
        chosen = run.batches.sample(sample, random.Random(seed))  # noqa: S311 - a sample, no secret
    except WorkbenchError as error:
        problems.append(str(error))
        return (), 0, 0
    bad = []
    for done, (number, name) in enumerate(chosen):
        try:
            run.batches.check(run.tap(name), number)
        except ChecksumMismatch as error:
            problems.append(str(error))
            bad.append(_bad(run, number, name))
        except StoreError as error:
            problems.append(str(error))
        if progress is not None:
            progress(done + 1, len(chosen))
    return tuple(bad), len(chosen), len(run.batches) * len(run.taps)


def _bad(run: Run, number: int, name: str) -> BadBatch:
    (first, stop), (row, end) = run.batches.prompts(number), run.batches.rows(number)
    return BadBatch(batch=number, tap=name, first_prompt=first, stop_prompt=stop, first_row=row, stop_row=end)


def repair_batch(path: str | Path, number: int, rows: Mapping[str, NDArray[Any]]) -> None:
    """Write a damaged batch again, from rows that were computed again.

    The rows must have the checksum that the record has: what is written is what was there.

    Parameters
    ----------
    path : str or Path
        Run folder.
    number : int
        Batch, as `verify_run` names it.
    rows : mapping of tap name to float32 or storage dtype [row, width]
        Rows of the batch at the taps to mend.

    Raises
    ------
    ChecksumMismatch
        If the rows are not bit for bit those that were stored; nothing is written then.
    StoreLocked
        If a writer holds the run.
    """
    run, disk = open_run(path), Disk()
    lock = WriterLock(run.path, run.manifest.run_id)
    try:
        for name, values in rows.items():
            spec = run.manifest.tap(name)
            kind = storage_type(spec.dtype)
            raw = np.empty(values.shape, dtype=kind.bits)
            narrow(values, kind, raw)
            run.batches.check_rows(name, number, raw)
            start, stop = run.batches.rows(number)
            for entry in run.manifest.segments:
                first, end = max(start, entry.first_row), min(stop, entry.stop_row)
                if entry.tap == name and first < end:
                    file = run.path / TAPS / entry.file
                    fd = disk.open(file if file.exists() else file.with_name(f"{entry.file}.part"))
                    try:
                        disk.write(fd, raw[first - start : end - start], _offset(first - entry.first_row, raw))
                        disk.sync_data(fd)
                    finally:
                        os.close(fd)
    finally:
        lock.release()


def _offset(row: int, raw: NDArray[Any]) -> int:
    return int(ROWS_AT + row * raw.shape[1] * raw.itemsize)
