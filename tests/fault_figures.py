"""What the fault tests did, kept: counts, seeds and seconds of the last run, in the file that FAULT_FIGURES names.

A test writes its line only at its end, so what stands there has passed. Tests that run without the variable only print.
"""

from __future__ import annotations

import fcntl
import json
import os
import platform
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

Note = Callable[..., None]


def keep(test: str, began: float, figures: dict[str, Any]) -> None:
    """Print the figures of a test that passed, and put them into the file."""
    line = figures | {"seconds": round(time.perf_counter() - began, 1)}
    print(f"{test}:", json.dumps(line))
    if not (name := os.environ.get("FAULT_FIGURES")):
        return
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "benchmarks"))
    from common import machine

    path = Path(name)
    path.touch()
    with path.open("r+", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        text = file.read()
        found = json.loads(text) if text else {"command": "make test-faults", "tests": {}}
        found["tests"][test] = line | {"date": datetime.now(UTC).date().isoformat()}
        found["machine"] = machine() | {"kernel": platform.release(), "python": platform.python_version()}
        file.seek(0)
        file.truncate()
        file.write(json.dumps(found, indent=1, sort_keys=True) + "\n")
