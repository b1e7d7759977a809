"""What every benchmark shares: the machine, versions, fair rounds and the result file."""

from __future__ import annotations

import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

RESULTS = Path(__file__).parent / "results"


def machine() -> dict[str, object]:
    """Describe the CPU and its cores; no host names, no paths."""
    text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    model = next((line.split(":", 1)[1].strip() for line in text.splitlines() if line.startswith("model name")), "")
    flags = set(next((line for line in text.splitlines() if line.startswith("flags")), "").split())
    wanted = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16")
    return {
        "cpu": model or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "features": [flag for flag in wanted if flag in flags],
        "system": platform.system(),
    }


def versions(*names: str) -> dict[str, str]:
    """Versions of Python and the named packages that are installed."""
    found = {"python": platform.python_version()}
    for name in names:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def rounds(contenders: dict[str, Callable[[], object]], *, n: int, warmup: int = 1) -> dict[str, list[float]]:
    """Time contenders in turn, round after round, so that a drifting machine hits all alike; seconds."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(warmup + n):
        for name, call in contenders.items():
            start = time.perf_counter()
            call()
            if turn >= warmup:
                times[name].append(time.perf_counter() - start)
    return times


def ratio(slow: list[float], fast: list[float]) -> float:
    """Median over rounds of slow / fast, pair by pair."""
    return statistics.median(a / b for a, b in zip(slow, fast, strict=True))


def save(name: str, figures: dict[str, object], *packages: str) -> Path:
    """Write a result file with the command, machine, versions and date, and print it."""
    result = {
        "command": "python benchmarks/" + Path(sys.argv[0]).name + "".join(f" {a}" for a in sys.argv[1:]),
        "date": datetime.now(UTC).date().isoformat(),
        "machine": machine(),
        "versions": versions(*packages),
        "figures": figures,
    }
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    text = json.dumps(result, indent=1, sort_keys=True)
    path.write_text(text + "\n", encoding="utf-8")
    print(text)
    return path
