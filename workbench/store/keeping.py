"""Statistics of a run on disk: a snapshot now and then while writing, the whole at the end."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.errors import StoreError
from workbench.store.checksums import digest_hex
from workbench.store.layout import STATISTICS, safetensors_header
from workbench.store.opening import TensorFile
from workbench.store.statistics import TapStatistics

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from workbench.store.files import Disk
    from workbench.store.manifest import TapSpec

_ARRAYS = {
    "mean": "F64", "second_moment": "F64", "minimum": "F64", "maximum": "F64",
    "non_finite": "I64", "norm_histogram": "I64", "norm_moments": "F64",
}  # fmt: skip
assert {"n_rows", "n_flagged", *_ARRAYS} == {field.name for field in fields(TapStatistics)}


def statistics_bytes(statistics: Mapping[str, TapStatistics], run_id: str, n_batches: int) -> bytes:
    """Write statistics as a safetensors file that says how many batches it covers."""
    arrays: dict[str, Any] = {}
    for tap, numbers in statistics.items():
        arrays[f"{tap}/counts"] = np.array([numbers.n_rows, numbers.n_flagged], dtype="<i8")
        arrays |= {f"{tap}/{name}": getattr(numbers, name) for name in _ARRAYS}
    payload = b"".join(np.ascontiguousarray(array).tobytes() for array in arrays.values())
    tensors = {
        name: ("I64" if array.dtype.kind == "i" else "F64", array.shape, array.nbytes) for name, array in arrays.items()
    }
    metadata = {"run": run_id, "batches": str(n_batches), "checksum": digest_hex(payload)}
    return safetensors_header(tensors, metadata) + payload


def save_statistics(
    folder: Path, disk: Disk, statistics: Mapping[str, TapStatistics], run_id: str, n_batches: int
) -> str:
    """Replace the statistics file; return its checksum. The caller syncs the folder."""
    data = statistics_bytes(statistics, run_id, n_batches)
    disk.replace_file(folder / STATISTICS, data)
    return digest_hex(data)


def load_statistics(
    folder: Path, taps: Sequence[TapSpec], checksum: str | None, run_id: str | None = None
) -> tuple[dict[str, TapStatistics], int]:
    """Read statistics and the number of batches that they cover.

    Raises
    ------
    StoreError
        If the file is damaged or of another run.
    """
    file = TensorFile(folder / STATISTICS, checksum)
    found = {tap.name: _one(file, tap.name) for tap in taps}
    metadata = file.header.metadata
    if run_id is not None and metadata.get("run") != run_id:
        raise StoreError(f"{STATISTICS} must be of run {run_id}", repr(metadata.get("run"))[:60], "It is not used.")
    names = [name for tap in taps for name in (f"{tap.name}/counts", *(f"{tap.name}/{part}" for part in _ARRAYS))]
    payload = [file.array(name, file.header.tensors[name].dtype) for name in names]
    if metadata.get("checksum") != digest_hex(*payload):
        raise StoreError(f"{STATISTICS} must match its checksum", "other bytes", "It is not used.")
    return found, int(metadata.get("batches", "0"))


def _one(file: TensorFile, tap: str) -> TapStatistics:
    n_rows, n_flagged = (int(count) for count in file.array(f"{tap}/counts", "I64"))
    arrays: dict[str, Any] = {name: file.array(f"{tap}/{name}", dtype) for name, dtype in _ARRAYS.items()}
    return TapStatistics(n_rows=n_rows, n_flagged=n_flagged, **arrays)
