"""Writers broken on purpose, each in one way: the harness must catch every one of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from workbench.store.committing import Committer, Group
from workbench.store.files import Disk
from workbench.store.manifest import Manifest, ManifestFile, manifest_bytes

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def record_before_data() -> None:
    """Append the record before the rows are written."""

    def write(self: Committer, group: Group) -> None:
        for shard, first, stop in self._plan.parts(group.first_prompt, group.stop_prompt):
            rows = int(self._plan.row_offsets[first]), int(self._plan.row_offsets[stop])
            held: list[tuple[Any, ...]] = []
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(self._segments, "write", lambda *write, held=held: held.append(write))
                record = self._write_part(group, shard, (first, stop), rows, continues=stop != group.stop_prompt)
            self._journal.append(record)
            for write_of in held:
                self._segments.write(*write_of)

    Committer._write = write  # type: ignore[method-assign]


def manifest_in_place() -> None:
    """Write the manifest over itself."""

    def publish(self: ManifestFile, manifest: Manifest) -> Manifest:
        manifest = manifest.model_copy(update={"version": self.current.version + 1 if self.current else 1})
        path: Path = self.folder / "manifest.json"
        fd = self._disk.open(path) if path.exists() else self._disk.create(path)
        self._disk.write(fd, manifest_bytes(manifest), 0)
        self._disk.sync(fd)
        self._disk.close(fd)
        self.current = manifest
        return manifest

    ManifestFile.publish = publish  # type: ignore[method-assign]


def no_data_sync() -> None:
    """Never sync the segments."""
    Committer._sync_segment = lambda self, tap, part: None  # type: ignore[method-assign]


def no_journal_sync() -> None:
    """Acknowledge before the record is synced."""
    from workbench.store.recording import JournalWriter, slot_of

    def append(self: JournalWriter, record) -> None:  # type: ignore[no-untyped-def]
        self._disk.write(self._fd, slot_of(record), (len(self.records) + 1) * self._slot_bytes)
        self.records.append(record)

    JournalWriter.append = append  # type: ignore[method-assign]


def no_folder_sync() -> None:
    """Never sync a folder."""
    Disk.sync_folder = lambda self, path: None  # type: ignore[method-assign]


def ignores_failed_sync() -> None:
    """Sync the same file again after a failure, as if that helped."""

    def sync_segment(self: Committer, tap: str, part) -> None:  # type: ignore[no-untyped-def]
        try:
            self._segments.sync(tap, part.first_row)
        except OSError:
            self._segments.sync(tap, part.first_row)

    Committer._sync_segment = sync_segment  # type: ignore[method-assign]


BREAK: dict[str, Callable[[], None]] = {
    function.__name__: function
    for function in (
        record_before_data, manifest_in_place, no_data_sync, no_journal_sync, no_folder_sync, ignores_failed_sync,
    )
}  # fmt: skip
