"""Which rows hold NaN or infinity: found again from the data, where the records say that there are some, and kept."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from workbench.store.checksums import digest_hex
from workbench.store.dtypes import special_rows
from workbench.store.layout import VALIDITY, safetensors_header
from workbench.store.taparray import open_tap

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from workbench.store.files import Disk
    from workbench.store.journal import Record
    from workbench.store.manifest import Manifest


def flagged_rows(folder: Path, manifest: Manifest, records: Sequence[Record], shift: int = 0) -> NDArray[np.int64]:
    """List rows with NaN or infinity at any tap.

    Parameters
    ----------
    folder : Path
        Run folder.
    manifest : Manifest
        What the run holds.
    records : sequence of Record
        Batches to look at; only those that count such values are read.
    shift : int
        Row of the run at which the records' rows begin.

    Returns
    -------
    int64 [n]
        Sorted, each once.
    """
    found: list[NDArray[np.int64]] = []
    for at, tap in enumerate(manifest.taps):
        suspects = [record for record in records if record.taps[at].non_finite]
        if not suspects:
            continue
        array = open_tap(folder, manifest, tap.name, shift + records[-1].stop_row)
        for record in suspects:
            raw = array.raw(shift + record.first_row, shift + record.stop_row)
            found.append(shift + record.first_row + special_rows(raw, array.kind))
    return np.unique(np.concatenate(found)) if found else np.empty(0, dtype=np.int64)


def save_validity(folder: Path, disk: Disk, flagged: NDArray[np.int64]) -> str:
    """Replace the file that lists flagged rows, int64 [n]; return its checksum. The caller syncs the folder."""
    data = safetensors_header({"flagged_rows": ("I64", flagged.shape, flagged.nbytes)}, {}) + flagged.tobytes()
    disk.replace_file(folder / VALIDITY, data)
    return digest_hex(data)
