"""Work behind a view: one step after the other in one thread, with progress on screen, each step can be cancelled.

Heavy fits run in the worker process of the analysis room: a cancel ends them at once and never costs the kernel.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from workbench.errors import WorkbenchError

Progress = Callable[[int, int], None]
EVERY_S = 0.2
START_S = 2.0  # how long work waits for a browser to draw the first map


@dataclass(frozen=True, slots=True)
class Step:
    """One piece of work: what it is, and a function of (progress, cancel event)."""

    text: str
    work: Callable[[Progress, threading.Event], None]


class Jobs:
    """Runs steps in the background, in the order in which they are added, and says how far they are.

    Parameters
    ----------
    say : callable (dict)
        Told the state: text, done, total, running.
    """

    def __init__(self, say: Callable[[dict[str, Any]], None]) -> None:
        self._say = say
        self._lock = threading.Lock()
        self._waiting: deque[Step] = deque()
        self._cancel = threading.Event()
        self._drawn = threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, steps: Sequence[Step]) -> None:
        """Queue steps behind those that wait already; a cancel of earlier ones does not touch them."""
        with self._lock:
            if self._cancel.is_set():
                self._cancel = threading.Event()
            self._waiting.extend(steps)
            if self._waiting and self._thread is None:
                self._thread = threading.Thread(target=self._run, name="workbench view", daemon=True)
                self._thread.start()

    def begin(self) -> None:
        """Start now: the first map is on screen, and what follows may take the processor."""
        self._drawn.set()

    def cancel(self) -> None:
        """End the step that runs, and forget those that wait."""
        with self._lock:
            self._waiting.clear()
            self._cancel.set()

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait until nothing runs and nothing waits; TimeoutError if that takes longer."""
        self.begin()
        end = None if timeout_s is None else time.monotonic() + timeout_s
        while (thread := self._thread) is not None:
            thread.join(None if end is None else max(0.0, end - time.monotonic()))
            if thread.is_alive():
                raise TimeoutError(f"still running after {timeout_s} s")

    def _run(self) -> None:
        self._drawn.wait(START_S)
        said = ""
        while True:
            with self._lock:
                cancel = self._cancel
                step = self._waiting.popleft() if self._waiting else None
                if step is None:
                    self._thread = None
            if step is None:
                break
            self._tell(step.text, 0, 0, running=True)
            failed = self._one(step, cancel)
            said = "Cancelled; what is on screen stays." if cancel.is_set() else failed or said
        self._tell(said, 0, 0, running=False)

    def _one(self, step: Step, cancel: threading.Event) -> str:
        told = [0.0]

        def progress(done: int, total: int) -> None:
            now = time.monotonic()
            if now - told[0] >= EVERY_S:
                told[0] = now
                text = step.text if total else f"{step.text}: waits until another fit ends"
                self._tell(text, done, total, running=True)

        try:
            step.work(progress, cancel)
        except WorkbenchError as error:
            return "" if cancel.is_set() else f"{step.text}: {error}"
        except Exception as error:  # noqa: BLE001 - a thread has nobody else to tell
            return f"{step.text} failed ({type(error).__name__}: {error}). What is on screen stays valid."
        return ""

    def _tell(self, text: str, done: int, total: int, *, running: bool) -> None:
        more = len(self._waiting)
        queued = f" ({more} more to come)" if running and more else ""
        with contextlib.suppress(OSError, RuntimeError):  # the kernel is going away
            self._say({"text": text + queued, "done": done, "total": total, "running": running})
