"""Figures of the store: write speed against dd, checksum cost, gather and sequential read against np.memmap, opening.

Run: python benchmarks/bench_store.py [--folder DIR] [--gigabytes 2]
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from workbench.prompts import PromptSet
from workbench.store import TapSpec, WriterOptions, checksums, committing, create_run, open_run
from workbench.tokens import TokenTable

RESULTS = Path(__file__).parent / "results" / "store.json"
BLOCK = 64 << 20
PAIRS = 15  # one write varies by a tenth on a shared machine


def best(call: Callable[[], Any], times: int = 3) -> float:
    """Seconds of the fastest of several calls."""
    found = []
    for _ in range(times):
        start = time.perf_counter()
        call()
        found.append(time.perf_counter() - start)
    return min(found)


def inputs(n_rows: int, tokens: int = 128) -> tuple[PromptSet, TokenTable]:
    """Prompts of `tokens` tokens each, the last one shorter, with one row a token."""
    offsets = np.append(np.arange(0, n_rows, tokens, dtype=np.int64), n_rows)
    n = len(offsets) - 1
    prompts = PromptSet(texts=tuple(f"prompt {at}" for at in range(n)), ids=tuple(range(n)))
    no, ids = np.zeros(n, dtype=np.bool_), np.zeros(n_rows, dtype=np.int32)
    return prompts, TokenTable(ids=ids, offsets=offsets, truncated=no, original_lengths=np.diff(offsets), lossy=no)


def dd(folder: Path, blocks: int, flag: str) -> float:
    """Bytes a second that one dd writes in blocks of 64 MiB, from a file in memory; synced at its end or each block."""
    source, target = folder / "source", folder / "dd"
    if not source.exists() or source.stat().st_size != blocks * BLOCK:
        block = np.random.default_rng(0).bytes(BLOCK)
        with source.open("wb") as file:
            for _ in range(blocks):
                file.write(block)
    subprocess.run(["cat", str(source)], check=True, stdout=subprocess.DEVNULL)
    start = time.perf_counter()
    command = ["dd", f"if={source}", f"of={target}", "bs=64M", flag]
    subprocess.run(command, check=True, capture_output=True)
    took = time.perf_counter() - start
    target.unlink()
    return blocks * BLOCK / took


def store_write(
    folder: Path, width: int, n_rows: int, inputs_: Any, rows: np.ndarray, *, hashed: bool = True
) -> dict[str, float]:
    """Write bf16 rows with full durability; bytes a second from the first commit to the sealed run."""
    path = folder / "run"
    shutil.rmtree(path, ignore_errors=True)
    prompts, tokens = inputs_
    writer = create_run(
        path, prompts=prompts, tokens=tokens, taps=[TapSpec("final_norm", "BF16", width)], positions="all",
        contract={}, provenance={}, options=WriterOptions(),
    )  # fmt: skip
    step = len(rows) // 128  # prompts a commit
    committing.start_checksum = checksums.start_checksum if hashed else Unhashed
    start, busy = time.perf_counter(), time.process_time()
    for first in range(0, len(prompts), step):
        stop = min(first + step, len(prompts))
        here = int(writer.row_offsets[stop] - writer.row_offsets[first])
        writer.commit(first, stop, {"final_norm": rows[:here]})
    writer.flush()
    written, busy = time.perf_counter() - start, time.process_time() - busy
    run = writer.close()
    small = sum((path / name).stat().st_size for name in ("manifest.json", "manifest.prev.json", "journal"))
    return {
        "bytes_per_s": n_rows * width * 2 / written, "seconds": written, "cpu_seconds": busy,
        "close_s": time.perf_counter() - start - written,
        "commits": len(run.batches), "manifest_and_journal_bytes": small,
        "manifest_and_journal_share": small / (n_rows * width * 2), "files": sum(1 for _ in path.rglob("*")),
    }  # fmt: skip


class Unhashed:
    """Stands for the hasher where the cost of hashing is measured; such a run is thrown away."""

    def __init__(self, identity: Any) -> None: ...

    def update(self, piece: Any) -> None: ...

    def digest(self) -> bytes:
        return bytes(16)


def checksum_cost(folder: Path, width: int, n_rows: int, inputs_: Any, rows: np.ndarray) -> dict[str, Any]:
    """Time of a write over that of one without checksums, pair by pair; each is first in turn.

    `checksum_share` is the processor time that hashing adds, as a share of the write's seconds.
    """
    found: dict[bool, list[dict[str, float]]] = {True: [], False: []}
    for turn in range(PAIRS):
        for hashed in (turn % 2 == 0, turn % 2 == 1):
            found[hashed].append(store_write(folder, width, n_rows, inputs_, rows, hashed=hashed))
    ratios = sorted(one["seconds"] / other["seconds"] for one, other in zip(found[True], found[False], strict=True))
    busy = [statistics.median(write["cpu_seconds"] for write in found[hashed]) for hashed in (True, False)]
    seconds = statistics.median(write["seconds"] for write in found[True])
    return {
        "checksum_share": (busy[0] - busy[1]) / seconds, "seconds_over_unhashed": statistics.median(ratios),
        "unhashed_ratios": ratios,
    }  # fmt: skip


def memmap_of(run: Any, name: str) -> np.memmap:
    file = run.path / "taps" / f"{name}.safetensors"
    array = run.tap(name)
    return np.memmap(file, dtype=ml_dtypes.bfloat16, mode="r", offset=4096, shape=array.shape)


def reading(folder: Path, n_rows: int, width: int) -> dict[str, float]:
    """Gather and sequential read against np.memmap of the same file, both to float32, pages in memory."""
    run = open_run(folder / "run")
    array, bare = run.tap("final_norm"), memmap_of(run, "final_norm")
    rows = np.random.default_rng(1).integers(0, n_rows, 10_000)
    gather = best(lambda: array[rows], 7), best(lambda: bare[rows].astype(np.float32), 7)
    raw = best(lambda: array.gather_raw(rows), 7), best(lambda: bare.view(np.uint16)[rows], 7)

    def sequential_ours() -> None:
        for _, block in array.blocks():
            block.max()

    def sequential_bare() -> None:
        step = (16 << 20) // (width * 4)
        for start in range(0, n_rows, step):
            bare[start : start + step].astype(np.float32).max()

    first = best(sequential_ours, 1)  # checks every batch
    again = best(sequential_ours, 3), best(sequential_bare, 3)
    return {
        "gather_10000_ratio": gather[0] / gather[1], "gather_10000_s": gather[0],
        "gather_bits_ratio": raw[0] / raw[1], "sequential_ratio": again[1] / again[0],
        "sequential_first_ratio": again[1] / first,
    }  # fmt: skip


def opening(folder: Path) -> float:
    """Seconds to open the run in a process that has the package loaded."""
    return best(lambda: open_run(folder / "run").tap("final_norm")[0], 5)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=None, help="where to write (default: the temporary folder)")
    parser.add_argument("--gigabytes", type=float, default=2.0, help="bytes of each write (default: 2)")
    parser.add_argument("--rows", type=int, default=10_000_000, help="rows of the reading part (default: ten million)")
    options = parser.parse_args()
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(dir=options.folder) as made:
        folder = Path(made)
        blocks = max(1, round(options.gigabytes * 1e9 / BLOCK))
        for width in (576, 4096):
            n_rows = blocks * BLOCK // (2 * width) // 128 * 128
            rows = (
                np.random.default_rng(0)
                .normal(size=(BLOCK // (2 * width) // 128 * 128, width))
                .astype(ml_dtypes.bfloat16)
            )
            both = inputs(n_rows)
            pairs = []
            for _ in range(5):  # one after the other, so that a busy disk hits all
                one = dd(folder, blocks, "conv=fdatasync")
                pairs.append((one, dd(folder, blocks, "oflag=dsync"), store_write(folder, width, n_rows, both, rows)))
            plain, dsync, ours = sorted(pairs, key=lambda pair: pair[2]["bytes_per_s"] / pair[0])[2]
            ratios = sorted(pair[2]["bytes_per_s"] / pair[0] for pair in pairs)
            synced = sorted(pair[2]["bytes_per_s"] / pair[1] for pair in pairs)
            found[f"write_{width}"] = {
                "dd_fdatasync_bytes_per_s": plain, "dd_dsync_bytes_per_s": dsync, **ours,
                "ratio_to_dd_fdatasync": ratios[2], "ratio_to_dd_dsync": synced[2],
                "ratios": ratios, "dsync_ratios": synced,
                **checksum_cost(folder, width, n_rows, both, rows),
            }  # fmt: skip
            print(f"width {width}:", json.dumps(found[f"write_{width}"], indent=1), flush=True)
        if options.rows:
            width = 64
            rows = np.random.default_rng(0).normal(size=(1 << 18, width)).astype(ml_dtypes.bfloat16)
            found["ten_million"] = store_write(folder, width, options.rows, inputs(options.rows), rows)
            found["reading"] = reading(folder, options.rows, width)
            found["open_s"] = opening(folder)
            print(json.dumps({name: found[name] for name in ("ten_million", "reading", "open_s")}, indent=1))
    found["about"] = {
        "command": " ".join(["python", *sys.argv]), "date": dt.datetime.now(dt.UTC).isoformat(timespec="minutes"),
        "cpu": cpu(), "system": platform.platform(), "load": os.getloadavg(),
        "python": platform.python_version(), "numpy": np.__version__,
        "note": "machine and disk shared with other work while measured; ratios are medians of pairs measured in turn",
    }  # fmt: skip
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")


def cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{len(names)} x {names[0]}" if names else platform.processor()


if __name__ == "__main__":
    main()
