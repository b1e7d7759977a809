"""The process that may die: it loads an engine, runs its self-test, and answers with one line of JSON."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.engine.backends.protocol import get_backend
from workbench.engine.batch import make_feeds
from workbench.engine.contract import Contract
from workbench.engine.selftest import run_selftest
from workbench.engine.tensors import check_tensors
from workbench.errors import EngineRefused

if TYPE_CHECKING:
    from workbench.engine.backends.protocol import Session


def main() -> int:
    """Read the task from standard input, and answer on standard output."""
    task = json.loads(sys.stdin.buffer.read())
    try:
        answer = _try(task)
    except EngineRefused as error:
        answer = {"refused": list(error.args)}
    sys.stdout.write("\n" + json.dumps(answer) + "\n")
    return 0


def _try(task: dict[str, Any]) -> dict[str, Any]:
    contract, folder = Contract.model_validate(task["contract"]), Path(task["folder"])
    backend = get_backend(task["backend"])
    backend.available()  # imports the runtime, so that its own size is no part of the engine's
    before, start = resident_bytes(), time.perf_counter()
    session = backend.load(folder)
    seconds = time.perf_counter() - start
    check_tensors(session, contract)
    worst = run_selftest(session, folder / contract.self_test.file, contract)
    loaded = resident_bytes() - before
    tokens, sizes = _full_pass(session, contract, task["pass_tokens"]) if task["pass_tokens"] else (0, {})
    return {
        "worst": worst,
        "load_seconds": round(seconds, 3),
        "loaded_bytes": loaded,
        "peak_bytes": resident_bytes("VmHWM") - before,
        "pass_tokens": tokens,
        "output_bytes": sizes,
    }


def _full_pass(session: Session, contract: Contract, tokens: int) -> tuple[int, dict[str, int]]:
    count = max(1, tokens // contract.limits.max_tokens)
    shape = (count, contract.limits.max_tokens)
    ids = np.random.default_rng(1).integers(0, contract.checkpoint.d_vocab, shape)
    outputs = session.run(make_feeds(list(ids), contract.positions, contract.inputs[0].dtype))
    return ids.size, {name: int(np.asarray(array).nbytes) for name, array in outputs.items()}


def resident_bytes(field: str = "VmRSS") -> int:
    """Memory of this process: now, or the most it was (`VmHWM`); 0 where the system does not tell."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:")), 0)


if __name__ == "__main__":
    sys.exit(main())
