"""Joining runs without copying their rows: each becomes a part with its own journal and checksums."""

from __future__ import annotations

import os
import shutil
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.errors import ContractError, ContractMismatch, RunExists, StoreError
from workbench.store.checksums import digest_hex
from workbench.store.contents import prompts_bytes, tokens_bytes
from workbench.store.files import Disk, explain
from workbench.store.filesystem import check_place
from workbench.store.flags import save_validity
from workbench.store.keeping import save_statistics
from workbench.store.layout import HEAD, JOURNAL, PROMPTS, STATISTICS, TAPS, TOKENS, VALIDITY, segment_file
from workbench.store.manifest import Counts, ManifestFile, PartEntry, SegmentEntry
from workbench.store.preparing import VOLATILE, engine_of
from workbench.store.reader import Run, open_run
from workbench.store.statistics import merge_statistics

if TYPE_CHECKING:
    from collections.abc import Sequence

    from workbench.prompts import PromptSet
    from workbench.tokens import TokenTable


def merge_runs(paths: Sequence[str | Path], out: str | Path) -> Run:
    """Join disjoint runs of one engine into one, in the order given; rows are linked, not copied.

    Row files and journals become hard links where `out` lies on the same disk, and copies elsewhere. Checksums stay
    those of the runs that wrote them.

    Parameters
    ----------
    paths : sequence of str or Path
        Complete runs of the same contract, taps, positions and settings, with distinct prompt ids.
    out : str or Path
        Run folder to make.

    Returns
    -------
    Run

    Raises
    ------
    ContractMismatch
        If the runs were not made in the same way; lists each difference.
    ContractError
        If a prompt id stands in two of them.
    RunExists, StoreError
        If `out` is there or cannot be written, or a run is not complete.
    """
    runs = [open_run(path) for path in paths]
    _check_mergeable(runs)
    folder, disk = Path(out), Disk()
    if os.path.lexists(folder):
        raise RunExists(f"{str(folder)!r} must not exist", "a file or folder", "Choose another folder.")
    prompts = _joined_prompts(runs)
    tokens = _joined_tokens(runs)
    check_place(folder)
    try:
        disk.mkdir(folder)
        try:
            disk.mkdir(folder / TAPS)
            return _write_merged(runs, folder, disk, prompts, tokens)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
    except OSError as error:
        raise explain(error, folder, "the merged run must be written") from error


def _check_mergeable(runs: Sequence[Run]) -> None:
    if not runs:
        raise ContractError("a merge needs runs", "none", "Give at least two.")
    found = []
    for run in runs:
        if run.status != "complete":
            raise StoreError(f"{run.path} must be complete", run.status, "Finish it with resume=True.")
        for name in ("contract", "taps", "positions", "provenance"):
            one, other = (_settings(each, name) for each in (runs[0], run))
            if one != other:
                found.append(f"{name} of {run.path}")
    if len({run.manifest.files[HEAD] for run in runs if HEAD in run.manifest.files}) > 1:
        found.append("their output heads")
    if found:
        raise ContractMismatch("merged runs must be made in the same way", "; ".join(found), "Compare them instead.")
    _refuse_shared_prompts(runs)


def _refuse_shared_prompts(runs: Sequence[Run]) -> None:
    seen: dict[Any, Path] = {}
    for run in runs:
        for one in run.prompts.ids:
            if one in seen:
                got = f"{one!r} in {seen[one]} and {run.path}"
                raise ContractError("merged runs must have distinct prompt ids", got, "Split off what is in both.")
            seen[one] = run.path


def _settings(run: Run, name: str) -> Any:
    manifest = run.manifest
    if name == "provenance":
        return {key: value for key, value in manifest.provenance.items() if key not in VOLATILE}
    return engine_of(manifest.contract) if name == "contract" else getattr(manifest, name)


def _joined_prompts(runs: Sequence[Run]) -> PromptSet:
    from workbench.prompts import PromptSet

    sets = [run.prompts for run in runs]
    names = dict.fromkeys(name for one in sets for name in one.columns)
    columns = {name: [value for one in sets for value in one.columns.get(name, [None] * len(one))] for name in names}
    given = [one.token_ids for one in sets]
    ids = None if any(one is None for one in given) else tuple(row for one in given if one is not None for row in one)
    return PromptSet(
        texts=tuple(text for one in sets for text in one.texts), token_ids=ids, columns=columns,
        ids=tuple(name for one in sets for name in one.ids),
    )  # fmt: skip


def _joined_tokens(runs: Sequence[Run]) -> TokenTable:
    from workbench.tokens import TokenTable

    tables = [run.token_table() for run in runs]
    lengths = np.concatenate([np.diff(table.offsets) for table in tables])
    return TokenTable(
        ids=np.concatenate([table.ids for table in tables]),
        offsets=np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(lengths)]),
        truncated=np.concatenate([table.truncated for table in tables]),
        lossy=np.concatenate([table.lossy for table in tables]),
        original_lengths=np.concatenate([table.original_lengths for table in tables]),
    )


def _write_merged(runs: Sequence[Run], folder: Path, disk: Disk, prompts: PromptSet, tokens: TokenTable) -> Run:
    parts, segments = _link_parts(runs, folder)
    identity = uuid.uuid4().hex
    first = runs[0].manifest
    files = _write_files(runs, folder, disk, prompts, tokens, identity)
    merged = first.model_copy(
        update={
            "store_id": uuid.uuid4().hex, "run_id": identity, "version": 0, "files": files, "parts": tuple(parts),
            "segments": tuple(segments), "counts": _joined_counts(runs), "prompts_hash": prompts.content_hash,
            "tokens_hash": files[TOKENS],
            "durability": next((r.manifest.durability for r in runs if r.durability != "full"), first.durability),
            "provenance": first.provenance | {"notes": {"merged": [run.manifest.run_id for run in runs]}},
        }
    )  # fmt: skip
    disk.sync_folder(folder / TAPS)
    disk.sync_folder(folder)
    disk.sync_folder(folder.parent)
    ManifestFile(folder, disk, None).publish_twice(merged)
    return open_run(folder)


def _write_files(
    runs: Sequence[Run], folder: Path, disk: Disk, prompts: PromptSet, tokens: TokenTable, identity: str
) -> dict[str, str]:
    """Write what is neither rows nor journal; checksums by file name."""
    inputs = {
        PROMPTS: prompts_bytes(prompts, tokens),
        TOKENS: b"".join(bytes(part) for part in tokens_bytes(tokens.ids, tokens.offsets)),
    }
    for name, data in inputs.items():
        disk.replace_file(folder / name, data)
    files = {name: digest_hex(data) for name, data in inputs.items()}
    flagged = np.concatenate([run.flagged_rows + _row_shift(runs, at) for at, run in enumerate(runs)])
    files[VALIDITY] = save_validity(folder, disk, flagged)
    if (carrier := next((run for run in runs if HEAD in run.manifest.files), None)) is not None:
        _link(carrier.path / HEAD, folder / HEAD)
        files[HEAD] = carrier.manifest.files[HEAD]
    statistics = {name: runs[0].statistics(name) for name in runs[0].taps}
    for run in runs[1:]:
        statistics = {name: merge_statistics(numbers, run.statistics(name)) for name, numbers in statistics.items()}
    files[STATISTICS] = save_statistics(folder, disk, statistics, identity, sum(len(run.batches) for run in runs))
    return files


def _link_parts(runs: Sequence[Run], folder: Path) -> tuple[list[PartEntry], list[SegmentEntry]]:
    parts: list[PartEntry] = []
    segments: list[SegmentEntry] = []
    shards: dict[str, int] = {}
    prompt = row = 0
    for run in runs:
        for at, part in enumerate(run.manifest.parts):
            name = f"{JOURNAL}.p{len(parts):05d}"
            _link(run.path / part.journal, folder / name)
            for entry in [entry for entry in run.manifest.segments if entry.part == at]:
                shard = shards[entry.tap] = shards.get(entry.tap, -1) + 1
                moved = {
                    "part": len(parts), "file": segment_file(entry.tap, shard),
                    "first_row": entry.first_row + row, "stop_row": entry.stop_row + row,
                }  # fmt: skip
                segments.append(entry.model_copy(update=moved))
                end = "" if entry.state == "sealed" else ".part"
                _link(run.path / TAPS / f"{entry.file}{end}", folder / TAPS / f"{moved['file']}{end}")
            start = {"first_prompt": part.first_prompt + prompt, "first_row": part.first_row + row}
            parts.append(part.model_copy(update={"journal": name} | start))
        prompt, row = prompt + run.n_prompts, row + run.n_rows
    return parts, segments


def _link(source: Path, target: Path) -> None:
    if source.is_symlink():
        raise StoreError(f"{source.name} must be a file of the run", "a link", "Do not merge runs with links inside.")
    try:
        os.link(source, target)
    except OSError:  # another disk, or one without hard links
        shutil.copyfile(source, target)
        fd = os.open(target, os.O_RDWR)
        os.fsync(fd)
        os.close(fd)


def _row_shift(runs: Sequence[Run], at: int) -> int:
    return sum(run.n_rows for run in runs[:at])


def _joined_counts(runs: Sequence[Run]) -> Counts:
    every = [run.manifest.counts for run in runs]
    numbers = {
        name: sum(int(getattr(counts, name) or 0) for counts in every)
        for name in ("prompts", "tokens", "rows", "truncated_prompts", "lossy_prompts", "flagged_rows")
    }
    per_tap = {
        kind: {tap: sum(getattr(counts, kind).get(tap, 0) for counts in every) for tap in runs[0].taps}
        for kind in ("non_finite", "saturated")
    }
    return Counts.model_validate(numbers | per_tap)
