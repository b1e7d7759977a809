"""What a new run needs before its first row: checks, room on the disk, files, lock; and what an old one must equal."""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import uuid
from collections import Counter
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

import workbench
from workbench.canonical import canonical_json
from workbench.errors import ContractError, ContractMismatch, RunExists, StoreError, StoreFull
from workbench.store.checksums import digest_hex
from workbench.store.committing import Plan
from workbench.store.contents import InputHasher, prompts_bytes, tokens_bytes
from workbench.store.dtypes import storage_type
from workbench.store.files import NO_ROOM, Disk
from workbench.store.filesystem import check_descriptors, check_place, check_room, is_folder, type_name, warn_if_network
from workbench.store.head import head_bytes
from workbench.store.journal import GROWTH_SLOTS, slot_bytes
from workbench.store.layout import (
    FORMAT,
    HEAD,
    LOCK,
    MANIFEST,
    PREVIOUS,
    PROMPTS,
    RESERVE,
    ROWS_AT,
    TAPS,
    TOKENS,
    segment_file,
)
from workbench.store.lock import WriterLock
from workbench.store.manifest import Counts, Durability, Manifest, ManifestFile, PartEntry, TapSpec
from workbench.store.positions import row_offsets
from workbench.store.recording import JournalWriter
from workbench.store.segments import Origin, SegmentWriter, shard_bounds
from workbench.store.statistics import empty_statistics
from workbench.store.writer import RunWriter, Session, WriterOptions

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from workbench.prompts import PromptSet
    from workbench.tokens import TokenTable

VOLATILE = ("created", "host", "command", "machine", "timings", "notes")  # provenance that may differ on resume
# What a contract measures, and what it says of its place among builds: an engine keeps its id when it is built or named
# again, and this may differ then.
MEASURED = ("build", "verification", "self_test", "files", "name", "parent", "digest", "schema_version")


class Work:
    """One call of `create_run`: what was asked, and the steps."""

    def __init__(self, **asked: Any) -> None:
        self.folder: Path = asked["folder"]
        self.disk: Disk = asked["disk"]
        self.prompts: PromptSet = asked["prompts"]
        self.tokens: TokenTable = asked["tokens"]
        self.taps: tuple[TapSpec, ...] = asked["taps"]
        self.positions: str | tuple[int, ...] = asked["positions"]
        self.contract: dict[str, Any] = asked["contract"]
        self.provenance: dict[str, Any] = asked["provenance"]
        self.durability: str = asked["durability"]
        self.head: list[Any] = head_bytes(asked["head"]) if asked["head"] is not None else []
        self.options: WriterOptions = asked["options"]
        self._check()
        self.row_offsets = row_offsets(np.diff(self.tokens.offsets), self.positions)
        widest = max(tap.width * storage_type(tap.dtype).itemsize for tap in self.taps)
        self.bounds = shard_bounds(self.row_offsets, widest, self.options.shard_bytes)
        if shared := clashing_files(self.taps, len(self.bounds) - 1):
            raise ContractError("every tap must have files of its own", f"{sorted(shared)[:3]}", "Rename a tap.")

    def _check(self) -> None:
        if not self.taps or len({tap.name for tap in self.taps}) != len(self.taps):
            raise ContractError("a run needs taps, each once", f"{[tap.name for tap in self.taps]}", "Name each once.")
        if len(self.tokens.offsets) != len(self.prompts) + 1:
            must = f"tokens must be of {len(self.prompts)} prompts"
            raise ContractError(must, str(len(self.tokens.offsets) - 1), "Tokenize the same prompt set.")
        try:
            canonical_json([self.contract, self.provenance])
        except (ValueError, TypeError) as error:
            raise ContractError(
                "contract and provenance must be plain JSON data", str(error), "Convert them."
            ) from None

    @property
    def n_rows(self) -> int:
        """Rows of the whole run."""
        return int(self.row_offsets[-1])

    def tokens_hash(self) -> str:
        """Hash of the token table, hexadecimal."""
        ids = np.ascontiguousarray(self.tokens.ids, dtype="<i4")
        flags = [np.ascontiguousarray(flag) for flag in (self.tokens.truncated, self.tokens.lossy)]
        return digest_hex(np.ascontiguousarray(self.tokens.offsets, dtype="<i8"), ids, *flags)

    def hasher(self) -> InputHasher:
        """Give a hasher of prompt ids and tokens."""
        return InputHasher(self.prompts.ids, self.tokens.ids, self.tokens.offsets)

    def plan(self, origin: Origin) -> Plan:
        """Say which rows lie where."""
        return Plan(
            taps=self.taps, row_offsets=self.row_offsets, bounds=self.bounds, origin=origin, lease=self.options.lease
        )

    def table_digest(self) -> bytes:
        """Hash of the taps: names, dtypes and widths."""
        return bytes.fromhex(digest_hex(canonical_json([asdict(tap) for tap in self.taps])))

    def journal(self, origin: Origin) -> JournalWriter:
        """Open the journal."""
        return JournalWriter(self.folder, self.disk, origin, self.table_digest(), len(self.taps))

    def need_bytes(self, small_bytes: int) -> int:
        """Bytes that the run takes on disk while it is written."""
        rows = sum(tap.width * storage_type(tap.dtype).itemsize for tap in self.taps) * self.n_rows
        shards = (len(self.bounds) - 1) * len(self.taps)
        journal = GROWTH_SLOTS * slot_bytes(len(self.taps))
        return rows + shards * ROWS_AT + journal + self.options.reserve_bytes + small_bytes

    def durability_entry(self) -> Durability:
        """Give what the manifest says of durability."""
        return Durability(
            asked=self.durability, data_sync=self.disk.data_sync, allocation=self.disk.allocation,
            folder_sync=self.disk.folder_sync, file_system=type_name(self.folder), network=warn_if_network(self.folder),
        )  # fmt: skip

    def create(self) -> RunWriter:
        """Write everything that is known before the first row; the manifest comes last."""
        parent = self.folder.parent
        if os.path.lexists(self.folder):
            do = "Choose another folder, pass resume=True, or remove it with `workbench rm`."
            raise RunExists(f"{str(self.folder)!r} must not exist", "a file or folder of that name", do)
        check_place(self.folder)
        if not is_folder(parent):
            raise StoreError(f"{str(parent)!r} must be a folder", "none", f"Create it: mkdir -p {parent}")
        check_descriptors(2 * len(self.taps))
        pieces = {
            PROMPTS: [prompts_bytes(self.prompts, self.tokens)],
            TOKENS: tokens_bytes(self.tokens.ids, self.tokens.offsets),
        } | ({HEAD: self.head} if self.head else {})
        check_room(parent, self.need_bytes(sum(memoryview(piece).nbytes for some in pieces.values() for piece in some)))
        try:
            self.disk.mkdir(self.folder)
        except FileExistsError:
            raise RunExists(f"{str(self.folder)!r} must not exist", "one made this moment", "Choose another.") from None
        return self.fill(pieces)

    def fill(self, pieces: Mapping[str, Sequence[Any]]) -> RunWriter:
        """Fill a new folder."""
        origin = Origin(store_id=uuid.uuid4().hex, run_id=uuid.uuid4().hex)
        lock = WriterLock(self.folder, origin.run_id)
        segments = SegmentWriter(self.folder, self.disk, self.taps, origin)
        journal = self.journal(origin)
        try:
            self.disk.mkdir(self.folder / TAPS)
            files = {name: self._write_whole(name, some) for name, some in pieces.items()}
            self._reserve()
            for shard, (first, stop) in enumerate(zip(self.bounds[:-1], self.bounds[1:], strict=True)):
                for tap in self.taps:
                    segments.create(tap.name, shard, int(self.row_offsets[first]), int(self.row_offsets[stop]))
            journal.create()
            for folder in (self.folder / TAPS, self.folder, self.folder.parent):
                self.disk.sync_folder(folder)
            manifest = ManifestFile(self.folder, self.disk, None)
            manifest.publish(self._manifest(origin, files, segments))
        except BaseException as error:
            journal.close()
            segments.close()
            self._undo()
            lock.release()
            if isinstance(error, OSError) and error.errno in NO_ROOM:
                raise self._full(error) from error
            raise
        return RunWriter(self.session(lock, manifest, segments, journal, origin))

    def _undo(self) -> None:
        """Remove a folder that this call made and could not fill."""
        with contextlib.suppress(OSError, StoreError):
            for name in (MANIFEST, PREVIOUS):
                (self.folder / name).unlink(missing_ok=True)
            remove_debris(self.folder)

    def session(
        self, lock: WriterLock, manifest: ManifestFile, segments: SegmentWriter, journal: JournalWriter, origin: Origin
    ) -> Session:
        """Join what a writer works with."""
        return Session(
            folder=self.folder, disk=self.disk, lock=lock, manifest=manifest, plan=self.plan(origin),
            segments=segments, journal=journal, hasher=self.hasher(), options=self.options,
            statistics={tap.name: empty_statistics(tap.width) for tap in self.taps},
        )  # fmt: skip

    def _full(self, error: OSError) -> StoreFull:
        need = self.need_bytes(0)
        return StoreFull(
            f"the run needs {need:,} bytes", f"no room: {error.strerror}", "Free space, or choose fewer taps."
        )

    def _write_whole(self, name: str, pieces: Sequence[Any]) -> str:
        tmp = self.folder / f".{name}.tmp"
        fd = self.disk.create(tmp)
        try:
            at = 0
            for piece in pieces:
                size = memoryview(piece).nbytes
                if size:
                    self.disk.write(fd, piece, at)
                at += size
            self.disk.sync(fd)
        finally:
            self.disk.close(fd)
        self.disk.rename(tmp, self.folder / name)
        return digest_hex(*pieces)

    def _reserve(self) -> None:
        if self.options.reserve_bytes:
            self.disk.close(self.disk.create(self.folder / RESERVE, self.options.reserve_bytes))

    def _manifest(self, origin: Origin, files: dict[str, str], segments: SegmentWriter) -> Manifest:
        part = PartEntry(
            store_id=origin.store_id, run_id=origin.run_id, journal="journal", first_prompt=0,
            n_prompts=len(self.prompts), first_row=0, n_rows=self.n_rows, shards=self.bounds,
        )  # fmt: skip
        counts = Counts(
            prompts=len(self.prompts), tokens=int(self.tokens.offsets[-1]), rows=self.n_rows,
            truncated_prompts=int(np.sum(self.tokens.truncated)), lossy_prompts=int(np.sum(self.tokens.lossy)),
        )  # fmt: skip
        return Manifest(
            format=FORMAT, version=0, store_id=origin.store_id, run_id=origin.run_id, status="writing",
            created=dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
            written_by=f"hidden-state-workbench {workbench.__version__}", durability=self.durability_entry(),
            contract=self.contract, provenance=self.provenance, positions=self.positions,
            prompts_hash=self.prompts.content_hash, tokens_hash=self.tokens_hash(), files=files, taps=self.taps,
            parts=(part,), segments=tuple(segments.entries), counts=counts,
            policies={"non_finite": self.options.non_finite, "overflow": "saturate and count"},
        )  # fmt: skip

    def differences(self, manifest: Manifest) -> list[str]:
        """List everything in which an interrupted run differs from what is asked now."""
        kept = {key: value for key, value in manifest.provenance.items() if key not in VOLATILE}
        asked = {key: value for key, value in self.provenance.items() if key not in VOLATILE}
        positions = list(self.positions) if isinstance(self.positions, tuple) else self.positions
        old = {
            "contract": engine_of(manifest.contract), "provenance": kept,
            "taps": [asdict(tap) for tap in manifest.taps],
            "positions": list(manifest.positions) if isinstance(manifest.positions, tuple) else manifest.positions,
            "prompts": manifest.prompts_hash, "tokens": manifest.tokens_hash, "durability": manifest.durability.asked,
            "code version": manifest.written_by, "non-finite policy": manifest.policies.get("non_finite"),
            "head": manifest.files.get(HEAD),
        }  # fmt: skip
        new = {
            "contract": engine_of(self.contract), "provenance": asked, "taps": [asdict(tap) for tap in self.taps],
            "positions": positions, "prompts": self.prompts.content_hash, "tokens": self.tokens_hash(),
            "durability": self.durability, "code version": f"hidden-state-workbench {workbench.__version__}",
            "non-finite policy": self.options.non_finite, "head": digest_hex(*self.head) if self.head else None,
        }  # fmt: skip
        return [line for key in old for line in _differences(key, old[key], new[key])]


def engine_of(contract: Mapping[str, Any]) -> dict[str, Any]:
    """Give what decides the rows of an engine, its id first; a contract without an id is given whole."""
    if "engine_id" not in contract:
        return dict(contract)
    return {"engine_id": contract["engine_id"]} | {key: contract[key] for key in contract if key not in MEASURED}


def _differences(where: str, old: Any, new: Any) -> list[str]:
    if isinstance(old, dict) and isinstance(new, dict):
        keys = sorted({*old, *new}, key=lambda key: (key != "engine_id", key))
        return [line for key in keys for line in _differences(f"{where}.{key}", old.get(key), new.get(key))]
    if isinstance(old, list | tuple) and isinstance(new, list | tuple) and len(old) == len(new):
        pairs = enumerate(zip(old, new, strict=True))
        return [line for at, (one, other) in pairs for line in _differences(f"{where}[{at}]", one, other)]
    if canonical_json(old) == canonical_json(new):
        return []
    return [f"{where}: {_short(old)} there, {_short(new)} now"]


def _short(value: Any) -> str:
    text = ascii(value)
    return text if len(text) <= 60 else f"{text[:40]}...{text[-12:]}"


def refuse_differences(folder: Path, found: Sequence[str]) -> None:
    """Refuse to go on with a run that was made in another way.

    Raises
    ------
    ContractMismatch
        If there is any difference; the message lists each.
    """
    if found:
        must = f"resuming {str(folder)!r} needs the same engine, tokens, taps, prompts and plan"
        raise ContractMismatch(must, "; ".join(found), "Use the same settings, or write to another folder.")


def remove_debris(folder: Path) -> None:
    """Remove what an unfinished creation left: only a folder without a manifest, and only files that are ours."""
    taps = folder / TAPS
    own = {PROMPTS, TOKENS, HEAD, LOCK, RESERVE, "journal"}
    names = {entry.name for entry in folder.iterdir()} - {TAPS}
    tmp = {f".{name}.tmp" for name in (*own, MANIFEST, PREVIOUS)}
    strange = names - own - tmp
    if strange or taps.is_symlink():
        do = "Look into it; the workbench removes only its own files."
        raise StoreError(f"{str(folder)!r} must be a run, or left over from one", f"{sorted(strange)[:3]}", do)
    if taps.is_dir():
        for file in taps.iterdir():
            if not file.name.endswith(".safetensors.part"):
                raise StoreError(f"{str(taps)!r} must hold only unfinished segments", file.name[:80], "Look into it.")
            file.unlink()
        taps.rmdir()
    for name in names:
        (folder / name).unlink()
    folder.rmdir()


def clashing_files(taps: Sequence[TapSpec], n_shards: int) -> set[str]:
    """List file names that two taps would share."""
    names = Counter(segment_file(tap.name, shard) for tap in taps for shard in range(n_shards))
    return {name for name, count in names.items() if count > 1}
