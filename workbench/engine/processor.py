"""What this processor can do, as far as low precision is faster on it than float32."""

from __future__ import annotations

import platform
from functools import cache
from pathlib import Path

# Feature of the processor that a precision needs to be fast, as Linux names it, and what runs without it
WANTED = {
    "bf16": (("amx_bf16",), "float32 kernels over bfloat16 weights"),  # avx512_bf16 has half the rate of float32
    "int8": (("avx512_vnni", "avx_vnni", "amx_int8"), "kernels without dot products of bytes"),
}


@cache
def cpu_features() -> frozenset[str]:
    """Features that the system tells of; empty where it tells nothing."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return frozenset()
    line = next((line for line in text.splitlines() if line.startswith(("flags", "Features"))), "")
    return frozenset(line.partition(":")[2].split())


def what_runs(precision: str) -> str:
    """Say in words which kernels a precision gets on this processor.

    Parameters
    ----------
    precision : str
        "bf16" or "int8"; others need nothing.
    """
    if precision not in WANTED:
        return f"float32 kernels on {platform.machine()}"
    wanted, instead = WANTED[precision]
    found = [name for name in wanted if name in cpu_features()]
    return f"{precision} kernels ({', '.join(found)})" if found else f"{instead}: this processor has no {wanted[0]}"


def missing_features() -> dict[str, str]:
    """Give each precision that is not fast here, and what runs instead."""
    return {
        precision: what_runs(precision)
        for precision, (wanted, _) in WANTED.items()
        if not cpu_features().intersection(wanted)
    }
