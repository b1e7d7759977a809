"""Work behind a view: one step after the other in one thread, with progress on screen, each step can be cancelled.

Heavy fits run in the worker process of the analysis room: a cancel ends them at once and never costs the kernel.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from workbench.errors import WorkbenchError

Progress = Callable[[int, int], None]
EVERY_S = 0.2


@dataclass(frozen=True, slots=True)
class Step:
    """One piece of work: what it is, and a function of (progress, cancel event)."""

    text: str
    work: Callable[[Progress, threading.Event], None]


class Jobs:
    """Runs steps in the background and says how far they are.

    Parameters
    ----------
    steps : sequence of Step
    say : callable (dict)
        Told the state: text, done, total, running.
    """

    def __init__(self, steps: Sequence[Step], say: Callable[[dict[str, Any]], None]) -> None:
        self._steps = list(steps)
        self._say = say
        self._cancel = threading.Event()
        self._thread = threading.Thread(target=self._run, name="workbench view", daemon=True)
        self._thread.start()

    def cancel(self) -> None:
        """End the step that runs, and forget those to come."""
        self._cancel.set()

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait for all steps; TimeoutError if they take longer."""
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            raise TimeoutError(f"still running after {timeout_s} s")

    def _run(self) -> None:
        last = ""
        for step in self._steps:
            if self._cancel.is_set():
                break
            self._tell(step.text, 0, 0, running=True)
            last = self._one(step)
        stopped = "Cancelled; what is on screen stays." if self._cancel.is_set() else last
        self._tell(stopped, 0, 0, running=False)

    def _one(self, step: Step) -> str:
        told = [0.0]

        def progress(done: int, total: int) -> None:
            now = time.monotonic()
            if now - told[0] >= EVERY_S:
                told[0] = now
                self._tell(step.text, done, total, running=True)

        try:
            step.work(progress, self._cancel)
        except WorkbenchError as error:
            return "" if self._cancel.is_set() else f"{step.text}: {error}"
        except Exception as error:  # noqa: BLE001 - a thread has nobody else to tell
            return f"{step.text} failed ({type(error).__name__}: {error}). What is on screen stays valid."
        return ""

    def _tell(self, text: str, done: int, total: int, *, running: bool) -> None:
        with contextlib.suppress(OSError, RuntimeError):  # the kernel is going away
            self._say({"text": text, "done": done, "total": total, "running": running})
