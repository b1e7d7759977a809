"""What this processor can do, as far as low precision is faster on it than float32."""

from __future__ import annotations

import os
import platform
from functools import cache
from pathlib import Path

# Feature of the processor that a precision needs to be fast, as Linux names it, and what runs without it
WANTED = {
    "bf16": (("amx_bf16",), "float32 kernels over bfloat16 weights"),  # avx512_bf16 has half the rate of float32
    "int8": (("avx512_vnni", "avx_vnni", "amx_int8"), "kernels without dot products of bytes"),
}


def this_processor() -> str:
    """Name the processor and the threads that engines run with on it: what a speed measured on a CPU depends on."""
    return f"{_model()}, threads: {thread_count()}"


@cache
def _model() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    pairs = (line.partition(":") for line in reversed(text.splitlines()))  # the first core has the last word
    facts = {key.strip(): value.strip() for key, _, value in pairs}
    name = facts.get("model name") or platform.processor() or platform.machine()
    # numbers too: a virtual machine may give a name that many processors have, and ARM gives none
    numbers = [f"{key} {facts[key]}" for key in ("cpu family", "model", "CPU implementer", "CPU part") if key in facts]
    return f"{name} ({', '.join(numbers)})" if numbers else name


def thread_count() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


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
