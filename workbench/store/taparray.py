"""The rows of one tap as an array that is never loaded whole."""

from __future__ import annotations

import mmap
import os
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.errors import StoreError
from workbench.store.dtypes import StorageType, storage_type, widen
from workbench.store.filesystem import is_network
from workbench.store.layout import ROWS_AT, TAPS
from workbench.store.opening import open_inside
from workbench.store.segments import Origin, check_header

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from numpy.typing import DTypeLike, NDArray

    from workbench.store.manifest import Manifest, SegmentEntry, TapSpec

ARRAY_LIMIT_BYTES = 1 << 30
BLOCK_BYTES = 16 << 20
AHEAD_BYTES = 64 << 20  # checked before they are asked for: about a batch


class SegmentReader:
    """Rows of one segment file, mapped on first use; on a network file system they are read instead."""

    def __init__(self, folder: Path, entry: SegmentEntry, tap: TapSpec, origin: Origin, stop_row: int) -> None:
        self.entry = entry
        self.stop_row = min(entry.stop_row, stop_row)
        self._folder, self._tap, self._origin = folder / TAPS, tap, origin
        self._kind = storage_type(tap.dtype)
        self._fd = -1
        self._size = 0
        self._rows: NDArray[Any] | None = None

    def rows(self) -> NDArray[Any]:
        """Map the rows below the watermark; unsigned integers [row, d_model].

        Raises
        ------
        StoreError
            If the file is missing, cut, or of another run.
        """
        if self._rows is None:
            self.open()
            if is_network(self._folder):
                raise StoreError("rows on a network file system must be read", "a map", "Report this.")
            data = mmap.mmap(self._fd, self._size, access=mmap.ACCESS_READ)
            n_rows = self.stop_row - self.entry.first_row
            flat = np.frombuffer(data, dtype=self._kind.bits, count=n_rows * self._tap.width, offset=ROWS_AT)
            self._rows = flat.reshape(n_rows, self._tap.width)
        elif os.fstat(self._fd).st_size < self._size:  # a map of a cut file would end the process
            raise StoreError(f"{self.entry.file} must keep {self._size} bytes", "fewer", "Restore it from a copy.")
        return self._rows

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Read rows of the run by pread; unsigned integers [row, d_model]."""
        self.open()
        row_bytes = self._tap.width * self._kind.itemsize
        out = np.empty((stop - start, self._tap.width), dtype=self._kind.bits)
        view = memoryview(out.data).cast("B")
        at = ROWS_AT + (start - self.entry.first_row) * row_bytes
        while len(view):
            done = os.preadv(self._fd, [view], at)
            if not done:
                raise StoreError(f"{self.entry.file} must hold row {stop - 1}", "its end", "Restore it from a copy.")
            view, at = view[done:], at + done
        return out

    def open(self) -> None:
        """Open the file and check its header and size."""
        if self._fd >= 0:
            return
        names = [self.entry.file] if self.entry.state == "sealed" else [f"{self.entry.file}.part", self.entry.file]
        if self._folder.is_symlink():
            raise StoreError(f"{TAPS} must be a folder of the run", "a link", "Do not open runs with links inside.")
        for name in names:
            try:
                self._fd, self._size = open_inside(self._folder / name)
                break
            except FileNotFoundError:  # sealed after the manifest was read
                continue
        else:
            raise StoreError(f"{self.entry.file} must be in the run", "no such file", "Restore it from a copy.")
        try:
            check_header(self._fd, self.entry, self._tap, self._origin)
        except StoreError:
            self.close()
            raise

    def close(self) -> None:
        """Close the descriptor; a map stays valid as long as arrays use it."""
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1

    def __del__(self) -> None:
        self.close()


class TapArray:
    """Rows of one tap, float32 to the reader whatever the file holds.

    Slices of an F32 tap are read-only views of the file; everything else is a copy. Nothing is checked on slicing
    unless the array was made with `checked=True`; `blocks` always checks.

    Parameters
    ----------
    name : str
        Tap.
    spec : TapSpec
        Dtype and width.
    segments : sequence of SegmentReader
        Files in row order.
    check : callable (start, stop), optional
        Verifies the batches that hold rows `start` to `stop - 1`, each once.
    checked : bool
        Whether slices and gathers call it.
    """

    def __init__(
        self, spec: TapSpec, segments: Sequence[SegmentReader], n_rows: int, *, network: bool,
        check: Callable[[str, int, int], None] | None = None, checked: bool = False,
    ) -> None:  # fmt: skip
        self.name = spec.name
        self.kind: StorageType = storage_type(spec.dtype)
        self.shape = (n_rows, spec.width)
        self._segments = list(segments)
        self._network = network
        self._check = check
        self._checked = checked
        self._sound = False  # whether every batch has been checked
        self._starts = np.array([segment.entry.first_row for segment in segments], dtype=np.int64)

    ndim = 2
    dtype = np.dtype(np.float32)

    @property
    def storage_dtype(self) -> str:
        """Dtype in the file, by its safetensors name."""
        return self.kind.name

    @property
    def size_bytes(self) -> int:
        """Bytes of all rows in the file."""
        return self.shape[0] * self.shape[1] * self.kind.itemsize

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        return f"TapArray({self.name!r}, [row={self.shape[0]}, d_model={self.shape[1]}], stored as {self.kind.name})"

    def __getitem__(self, index: Any) -> NDArray[np.float32]:
        """Read rows as float32.

        Parameters
        ----------
        index : int, slice, int array, bool mask [row], or a tuple of one of these and a column index
            As in NumPy; a row or column out of range is an IndexError.

        Returns
        -------
        float32 [row, d_model], or [d_model] for one row
        """
        if isinstance(index, tuple):
            rows, *columns = index
            picked = self[rows]
            return np.asarray(picked[(slice(None), *columns)] if picked.ndim == 2 else picked[tuple(columns)])
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            if step == 1:
                self._maybe_check(start, stop)
                return widen(self.raw(start, stop), self.kind)
            index = np.arange(start, stop, step)
        rows = np.asarray(index)
        if rows.dtype == np.bool_:
            if rows.shape != (len(self),):
                raise IndexError(f"a mask must have shape [row={len(self)}]; got {list(rows.shape)}")
            rows = np.flatnonzero(rows)
        if rows.size and rows.dtype.kind not in "iu":
            raise IndexError(f"rows are chosen by whole numbers, slices or masks; got {rows.dtype}")
        return widen(self.gather_raw(rows.astype(np.int64)), self.kind)

    def gather_raw(self, rows: NDArray[np.int64]) -> NDArray[Any]:
        """Copy rows in any order as stored bits; unsigned integers [*rows.shape, d_model]."""
        flat = rows.reshape(-1)
        flat = np.where(flat < 0, flat + len(self), flat)
        if flat.size and (flat.min() < 0 or flat.max() >= len(self)):
            raise IndexError(f"{self.name!r} has rows 0 to {len(self) - 1}; got {int(rows.min())} to {int(rows.max())}")
        if self._checked and self._check is not None:
            for row in np.unique(flat):
                self._check(self.name, int(row), int(row) + 1)
        out = self._gather(flat)
        return out.reshape(*rows.shape, self.shape[1])

    def _gather(self, flat: NDArray[np.int64]) -> NDArray[Any]:
        if len(self._segments) == 1 and not self._network:
            return np.asarray(self._segments[0].rows().take(flat, axis=0))
        out = np.empty((len(flat), self.shape[1]), dtype=self.kind.bits)
        where = np.searchsorted(self._starts, flat, side="right") - 1
        for at in np.unique(where):
            mine = np.flatnonzero(where == at)
            segment = self._segments[at]
            if self._network:
                for place in mine:
                    out[place] = segment.read(int(flat[place]), int(flat[place]) + 1)[0]
            else:
                out[mine] = segment.rows().take(flat[mine] - segment.entry.first_row, axis=0)
        return out

    def raw(self, start: int = 0, stop: int | None = None) -> NDArray[Any]:
        """Give rows as stored bits; unsigned integers [row, d_model], a read-only view where one file holds them."""
        start, stop, _ = slice(start, stop).indices(len(self))
        pieces = []
        for segment in self._segments:
            begin, end = max(start, segment.entry.first_row), min(stop, segment.stop_row)
            if begin < end:
                pieces.append(self._piece(segment, begin, end))
        if len(pieces) == 1:
            return pieces[0]
        empty = np.empty((0, self.shape[1]), dtype=self.kind.bits)
        return np.concatenate(pieces) if pieces else empty

    def _piece(self, segment: SegmentReader, begin: int, end: int) -> NDArray[Any]:
        if self._network:
            return segment.read(begin, end)
        return segment.rows()[begin - segment.entry.first_row : end - segment.entry.first_row]

    def open_files(self) -> None:
        """Open and check every segment file that holds rows of this array.

        Raises
        ------
        StoreError
            If one is missing, cut, or of another run.
        """
        for segment in self._segments:
            segment.open()

    def blocks(self, size_bytes: int = BLOCK_BYTES) -> Iterator[tuple[int, NDArray[np.float32]]]:
        """Go through all rows in order, checking each batch before its first row is given.

        Parameters
        ----------
        size_bytes : int
            Most bytes of a block in memory, at least one row.

        Yields
        ------
        start, rows : int, float32 [row, d_model]
            First row of the block, and the block.

        Raises
        ------
        ChecksumMismatch
            If stored bytes changed.
        """
        step = max(1, size_bytes // (self.shape[1] * 4))
        spans = [(start, min(start + step, len(self))) for start in range(0, len(self), step)]
        if self._check is None or self._sound or not spans:
            for start, stop in spans:
                yield start, widen(self.raw(start, stop), self.kind)
            return
        ahead = 1 + AHEAD_BYTES // (step * self.shape[1] * self.kind.itemsize)
        with ThreadPoolExecutor(1) as pool:  # hashing frees the interpreter: it goes on while a block is used
            checks = deque(pool.submit(self._check, self.name, *span) for span in spans[:ahead])
            for at, (start, stop) in enumerate(spans):
                checks.popleft().result()
                if at + ahead < len(spans):
                    checks.append(pool.submit(self._check, self.name, *spans[at + ahead]))
                yield start, widen(self.raw(start, stop), self.kind)
        self._sound = True

    def _maybe_check(self, start: int, stop: int) -> None:
        if self._checked and self._check is not None and start < stop:
            self._check(self.name, start, stop)

    def to_numpy(self, limit_bytes: int = ARRAY_LIMIT_BYTES) -> NDArray[np.float32]:
        """Load all rows as one float32 array.

        Raises
        ------
        StoreError
            If they take more than `limit_bytes`.
        """
        need = self.shape[0] * self.shape[1] * 4
        if need > limit_bytes:
            do = f"Use slices or blocks(), or call to_numpy(limit_bytes={need})."
            raise StoreError(f"loading {self.name!r} whole is limited to {limit_bytes:,} bytes", f"{need:,}", do)
        return self[:]

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
        if copy is False and self.kind.name != "F32":
            raise ValueError(f"{self.kind.name} rows cannot be read as an array without a copy")
        array = np.asarray(self.to_numpy(), dtype=dtype)
        return array.copy() if copy else array


def open_tap(
    folder: Path, manifest: Manifest, name: str, n_rows: int, *,
    check: Callable[[str, int, int], None] | None = None, checked: bool = False,
) -> TapArray:  # fmt: skip
    """Open one tap of a run up to a watermark; no file is touched before its rows are asked for.

    Raises
    ------
    StoreError
        If the segments of the manifest do not cover the rows.
    """
    spec = manifest.tap(name)
    entries = sorted((entry for entry in manifest.segments if entry.tap == name), key=lambda entry: entry.first_row)
    at, segments = 0, []
    for entry in entries:
        if entry.first_row >= n_rows or entry.first_row == entry.stop_row:
            continue
        if entry.first_row != at:
            raise StoreError(f"segments of {name!r} must go on at row {at}", str(entry.first_row), "It is damaged.")
        part = manifest.parts[entry.part]
        origin = Origin(store_id=part.store_id, run_id=part.run_id)
        segments.append(SegmentReader(folder, entry, spec, origin, n_rows))
        at = entry.stop_row
    if at < n_rows:
        raise StoreError(f"segments of {name!r} must hold {n_rows} rows", str(at), "The manifest is damaged.")
    network = is_network(folder)
    return TapArray(spec, segments, n_rows, network=network, check=check, checked=checked)
