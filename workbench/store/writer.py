"""Writing a run: batches in, a sealed folder out."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from workbench.axes import HasShape, bind_axes
from workbench.errors import ContractError, StoreError
from workbench.store.checksums import digest_hex
from workbench.store.committing import Committer, Group, Plan
from workbench.store.dtypes import storable, storage_type
from workbench.store.files import NO_ROOM, Disk, explain
from workbench.store.flags import flagged_rows, save_validity
from workbench.store.keeping import save_statistics
from workbench.store.layout import RESERVE, STATISTICS, VALIDITY
from workbench.store.manifest import Manifest, ManifestFile, pack_text
from workbench.store.statistics import TapStatistics, merge_statistics

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from types import TracebackType

    from numpy.typing import NDArray

    from workbench.store.contents import InputHasher
    from workbench.store.lock import WriterLock
    from workbench.store.reader import Run
    from workbench.store.recording import JournalWriter
    from workbench.store.segments import SegmentWriter

SNAPSHOT_S = 30.0


@dataclass(frozen=True, kw_only=True, slots=True)
class WriterOptions:
    """How a run is written; the defaults are right but for tests and odd disks.

    Attributes
    ----------
    group_bytes, group_s : int, float
        Batches are synced and recorded together up to this size or age, whichever comes first.
    groups_in_flight : int
        Groups on their way to the disk while the next one is filled.
    shard_bytes : int
        Largest segment file.
    reserve_bytes : int
        Size of the reserve file that is freed when the disk is full.
    non_finite : str
        `keep` flags and counts rows with NaN or infinity, `fail` refuses them.
    lease : bytes
        16 bytes of the queue's lease token, in every record and checksum.
    """

    group_bytes: int = 64 << 20
    group_s: float = 2.0
    groups_in_flight: int = 2
    shard_bytes: int = 16 << 30
    reserve_bytes: int = 64 << 20
    non_finite: str = "keep"
    lease: bytes = bytes(16)

    def __post_init__(self) -> None:
        if self.non_finite not in ("keep", "fail") or len(self.lease) != 16:
            raise ContractError(
                "non_finite must be 'keep' or 'fail', and a lease has 16 bytes", f"{self}", "Correct it."
            )


@dataclass(kw_only=True, slots=True, eq=False)
class Session:
    """What a writer holds: files, lock and what is known of the run so far."""

    folder: Path
    disk: Disk
    lock: WriterLock
    manifest: ManifestFile
    plan: Plan
    segments: SegmentWriter
    journal: JournalWriter
    hasher: InputHasher
    statistics: dict[str, TapStatistics]
    options: WriterOptions

    @property
    def current(self) -> Manifest:
        """The manifest as published last."""
        assert self.manifest.current is not None
        return self.manifest.current


class RunWriter:
    """Writes the rows of a run; made by `create_run`.

    Attributes
    ----------
    path : Path
        Run folder.
    row_offsets : int64 [prompt + 1]
        Rows of prompt `p` are `row_offsets[p]` to `row_offsets[p + 1] - 1`.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._plan = session.plan
        self._done = session.current.status == "complete"
        self.path = session.folder
        self.row_offsets = session.plan.row_offsets
        records = session.journal.records
        self._acked = self._next = self.n_prompts if self._done else records[-1].stop_prompt if records else 0
        self._saved_at = time.monotonic()
        self._committer: Committer | None = None if self._done else self._start()

    def _start(self) -> Committer:
        session = self._session
        return Committer(
            session.plan, session.segments, session.journal, session.hasher,
            group_bytes=session.options.group_bytes, group_s=session.options.group_s,
            in_flight=session.options.groups_in_flight,
            publish=self._publish_twice, acknowledge=self._acknowledge, no_room=self._free_reserve,
        )  # fmt: skip

    @property
    def n_prompts(self) -> int:
        """Number of prompts of the run."""
        return len(self._plan.row_offsets) - 1

    @property
    def next_prompt(self) -> int:
        """First prompt whose rows are not acknowledged: where a resumed extraction goes on."""
        return self._acked

    @property
    def row_alignment(self) -> int:
        """Rows after which every tap is at a 4 KiB boundary again; batches of a multiple of it are written best."""
        steps = [4096 // int(np.gcd(4096, tap.width * storage_type(tap.dtype).itemsize)) for tap in self._plan.taps]
        return max(steps)

    def commit(self, first: int, stop: int, rows: Mapping[str, NDArray[Any]]) -> None:
        """Take the rows of the prompts `first` to `stop - 1`, in prompt order.

        Returns once the rows are copied; waits while too much is on its way to the disk. They count as stored when
        `next_prompt` has passed them.

        Parameters
        ----------
        first, stop : int
            Range of prompts; each batch begins where the one before ended.
        rows : mapping of tap name to float32, float16, bfloat16 or float8_e4m3fn [row, width]
            The rows of those prompts at every tap.

        Raises
        ------
        ContractError
            If prompts, taps, shapes or dtypes are not what the run was created for.
        StoreFull, StoreError
            If the disk failed; batches acknowledged before stay readable.
        """
        if self._committer is None:
            raise StoreError("a closed run takes no rows", f"prompts {first} to {stop}", "Create another run.")
        kinds = {tap.name: storage_type(tap.dtype) for tap in self._plan.taps}
        rows = {name: storable(array, kinds[name]) if name in kinds else array for name, array in rows.items()}
        self._check(first, stop, rows)
        self._committer.add(first, stop, rows)
        self._next = stop

    def _check(self, first: int, stop: int, rows: Mapping[str, NDArray[Any]]) -> None:
        if first != self._next or not first < stop <= self.n_prompts:
            must = f"a batch must begin at prompt {self._next} and end by {self.n_prompts}"
            raise ContractError(must, f"{first} to {stop}", "Commit batches in prompt order, each once.")
        names = {tap.name for tap in self._plan.taps}
        if set(rows) != names:
            raise ContractError(f"a batch must hold taps {sorted(names)}", f"{sorted(rows)}", "Give all taps at once.")
        n_rows = int(self.row_offsets[stop] - self.row_offsets[first])
        for tap in self._plan.taps:
            array, kind = rows[tap.name], storage_type(tap.dtype)
            do = "Give each prompt the rows that the positions ask for."
            want: HasShape = _Shape(n_rows, tap.width)
            bind_axes(do=do, **{"the run": (want, "row d_model"), tap.name: (array, "row d_model")})
            if array.dtype not in (np.float32, kind.array):
                raise ContractError(
                    f"{tap.name} must be float32 or a storage dtype", str(array.dtype), "Convert it before."
                )
            if self._session.options.non_finite == "fail" and not np.isfinite(array.astype(np.float32)).all():
                raise ContractError(
                    f"{tap.name} must be finite", f"NaN or Inf in prompts {first} to {stop}", "See F32."
                )

    def flush(self) -> None:
        """Wait until every batch taken so far is acknowledged.

        Raises
        ------
        StoreFull, StoreError
            If the disk failed.
        """
        if self._committer is not None:
            self._committer.flush()

    def close(self) -> Run:
        """Seal the run: every prompt must be there.

        Raises
        ------
        StoreError
            If prompts are missing or the disk failed; the run stays resumable.
        """
        from workbench.store.reader import open_run

        if not self._done:
            try:
                self.flush()
                if self._acked != self.n_prompts:
                    must = f"a run is closed when all {self.n_prompts} prompts are stored"
                    raise StoreError(must, str(self._acked), "Commit the others, or go on later with resume=True.")
                self._stop()
                self._seal_with_reserve()
            except OSError as error:
                raise explain(error, self.path, "the run must be sealed") from error
            finally:
                self._end()
        self._end()
        return open_run(self.path)

    def abort(self) -> None:
        """Stop writing; what is acknowledged stays, and the run can be resumed."""
        try:
            self.flush()
        except StoreError:
            pass  # said before by commit, or of no use to a caller who gives up
        finally:
            self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()

    def _stop(self) -> None:
        if self._committer is not None:
            self._committer.stop()
            self._committer = None

    def _end(self) -> None:
        self._stop()
        self._session.segments.close()
        self._session.journal.close()
        self._session.lock.release()

    def _acknowledge(self, group: Group) -> None:
        session = self._session
        for tap, numbers in (group.statistics or {}).items():
            session.statistics[tap] = merge_statistics(session.statistics[tap], numbers)
        self._acked = group.stop_prompt
        if self._acked != self.n_prompts and session.segments.seal(int(self.row_offsets[self._acked])):
            self._publish()
        if time.monotonic() - self._saved_at > SNAPSHOT_S:
            self._save_statistics()
            self._saved_at = time.monotonic()

    def _save_statistics(self) -> str:
        session = self._session
        return save_statistics(
            session.folder, session.disk, session.statistics, session.current.run_id, len(session.journal.records)
        )

    def _manifest(self, **changes: Any) -> Manifest:
        session = self._session
        part = session.current.parts[0].model_copy(update={"journal": session.journal.name})
        update = {"parts": (part,), "segments": tuple(session.segments.entries)} | changes
        return session.current.model_copy(update=update)

    def _publish(self) -> None:
        self._session.manifest.publish(self._manifest())

    def _publish_twice(self) -> None:
        self._session.manifest.publish_twice(self._manifest())

    def _seal(self) -> None:
        session = self._session
        session.segments.seal(int(self.row_offsets[-1]))
        files = dict(session.current.files)
        files[STATISTICS] = self._save_statistics()
        flagged = self._flagged_rows()
        files[VALIDITY] = save_validity(session.folder, session.disk, flagged)
        packed = session.journal.packed()
        part = session.current.parts[0].model_copy(
            update={
                "journal": session.journal.name, "n_batches": len(session.journal.records),
                "records": pack_text(packed), "records_digest": digest_hex(packed),
            }
        )  # fmt: skip
        counts = session.current.counts.model_copy(update={"flagged_rows": len(flagged)} | self._value_counts())
        sealed = self._manifest(status="complete", files=files, parts=(part,), counts=counts)
        session.disk.sync_folder(session.folder)
        session.manifest.publish_twice(sealed)
        self._free_reserve()
        self._done = True

    def _value_counts(self) -> dict[str, dict[str, int]]:
        records = self._session.journal.records
        names = [tap.name for tap in self._plan.taps]
        return {
            kind: {name: sum(getattr(record.taps[at], kind) for record in records) for at, name in enumerate(names)}
            for kind in ("non_finite", "saturated")
        }

    def _flagged_rows(self) -> NDArray[np.int64]:
        session = self._session
        return flagged_rows(session.folder, self._manifest(), session.journal.records)

    def _free_reserve(self) -> None:
        with contextlib.suppress(OSError):
            self._session.disk.unlink(self.path / RESERVE)

    def _seal_with_reserve(self) -> None:
        """Seal; on a full disk once more, in the room that the reserve file kept."""
        try:
            self._seal()
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            self._free_reserve()
            self._seal()


@dataclass(frozen=True, slots=True)
class _Shape:
    rows: int
    width: int

    @property
    def shape(self) -> tuple[int, ...]:
        return self.rows, self.width
