"""Makes `format_1` beside it: runs of format 1, kept for good, so that every later version proves that it reads them.

Run once for a new format, from the repository root: python tests/old_formats/make_run.py
"""

import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent.parent)]

from store_toys import CONTRACT, SMALL, canary, new_run, windows  # noqa: E402

from workbench.store import TapSpec  # noqa: E402
from workbench.store.layout import FORMAT  # noqa: E402

N, NAN_ROW = 24, 17
TAPS = (
    TapSpec("final_norm", "F32", 8), TapSpec("blocks.0.resid_post", "BF16", 16), TapSpec("embed", "F16", 8),
    TapSpec("blocks.1.mlp_out", "F8_E4M3", 16),
)  # fmt: skip


def rows_of(tap: TapSpec, first: int, stop: int) -> np.ndarray:
    """Canary rows, with one NaN in F32; F8_E4M3 holds whole numbers up to 16 only."""
    rows = canary(tap, first, stop)
    if tap.dtype == "F8_E4M3":
        rows %= 16
    if tap.dtype == "F32" and first <= NAN_ROW < stop:
        rows[NAN_ROW - first, 3] = np.nan
    return rows


def head() -> dict:
    return {
        "unembed": canary(TAPS[0], 0, 20), "norm_weight": np.ones(8, np.float32), "norm": "rms", "norm_eps": 1e-5,
        "scale": 1.0, "checkpoint": "c" * 64,
    }  # fmt: skip


def main() -> None:
    for name, until in (("complete", N), ("unfinished", 14)):
        path = HERE / f"format_{FORMAT}" / name
        shutil.rmtree(path, ignore_errors=True)
        path.parent.mkdir(exist_ok=True)
        contract = CONTRACT | {"checkpoint": {"digest": "c" * 64}, "taps": [tap.name for tap in TAPS]}
        options = replace(SMALL, shard_bytes=700, group_bytes=900)
        writer = new_run(path, N, TAPS, contract=contract, options=options, head=head())
        for first, stop in windows(until, step=7):
            span = int(writer.row_offsets[first]), int(writer.row_offsets[stop])
            writer.commit(first, stop, {tap.name: rows_of(tap, *span) for tap in TAPS})
            writer.flush()
        if until == N:
            writer.close()
        else:
            writer.abort()
        for extra in ("lock", "reserve"):
            (path / extra).unlink(missing_ok=True)


if __name__ == "__main__":
    main()
