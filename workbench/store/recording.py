"""The journal while it is written."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workbench.store.journal import GROWTH_SLOTS, Record, pack_records, slot_bytes, slot_of, start_slot
from workbench.store.layout import JOURNAL

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from workbench.store.files import Disk
    from workbench.store.segments import Origin


class JournalWriter:
    """Appends records, one synced slot at a time; after a failure it goes on in another file.

    Parameters
    ----------
    folder : Path
        Run folder.
    disk : Disk
        File operations.
    origin : Origin
        Ids of store and run.
    table_digest : bytes
        16 bytes that name the tap table.
    n_taps : int
        Taps of the run.
    """

    def __init__(self, folder: Path, disk: Disk, origin: Origin, table_digest: bytes, n_taps: int) -> None:
        self._folder, self._disk = folder, disk
        self._slot_bytes = slot_bytes(n_taps)
        self._start = start_slot(
            store_id=bytes.fromhex(origin.store_id), run_id=bytes.fromhex(origin.run_id),
            table_digest=table_digest, n_taps=n_taps,
        )  # fmt: skip
        self._fd = -1
        self._slots = 0
        self.name = JOURNAL
        self.records: list[Record] = []

    def create(self, name: str = JOURNAL) -> None:
        """Start a file that holds every record so far, and sync it."""
        need = len(self.records) + 2
        self._slots = -(-need // GROWTH_SLOTS) * GROWTH_SLOTS
        fd = self._disk.create(self._folder / name, self._slots * self._slot_bytes)
        self._disk.write(fd, self._start, 0)
        for record in self.records:
            self._disk.write(fd, slot_of(record), (record.batch + 1) * self._slot_bytes)
        self._disk.sync(fd)
        self._fd, self.name = fd, name

    def adopt(self, name: str, records: Sequence[Record], size_bytes: int) -> None:
        """Take over the journal of an interrupted run; slots after the last record are blanked and synced."""
        self.name, self.records = name, list(records)
        self._fd = self._disk.open(self._folder / name)
        self._slots = size_bytes // self._slot_bytes
        if self.records:  # a crash may have left one good copy of it
            self._disk.write(self._fd, slot_of(self.records[-1]), len(records) * self._slot_bytes)
        blank = bytes(self._slot_bytes)
        for slot in range(len(records) + 1, self._slots):
            self._disk.write(self._fd, blank, slot * self._slot_bytes)
        self._disk.sync_data(self._fd)

    def append(self, record: Record) -> None:
        """Write a record to the next slot and sync; only then it counts.

        Raises
        ------
        OSError
            If the disk fails; then this file must not be synced again.
        """
        slot = len(self.records) + 1
        if slot + 1 >= self._slots:  # an empty slot always ends the file, so that a cut is seen
            self._disk.allocate(self._fd, self._slots * self._slot_bytes, GROWTH_SLOTS * self._slot_bytes)
            self._slots += GROWTH_SLOTS
        self._disk.write(self._fd, slot_of(record), slot * self._slot_bytes)
        self._disk.sync_data(self._fd)
        self.records.append(record)

    def replace(self) -> None:
        """Abandon a file that failed to sync, and go on in a new one with the same records."""
        self.close()
        _, _, generation = self.name.partition(".r")
        self.create(f"{JOURNAL}.r{int(generation or 0) + 1}")
        self._disk.sync_folder(self._folder)

    def packed(self) -> bytes:
        """Give all records behind each other."""
        return pack_records(tuple(self.records))

    def close(self) -> None:
        """Close the file."""
        if self._fd >= 0:
            self._disk.close(self._fd)
            self._fd = -1
