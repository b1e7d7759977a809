"""Long fits in a process of their own, which can be cancelled at any moment without harm to the caller.

One warm process for each Python process, started afresh (never forked), so that two UMAP fits never run side by side:
numba's threads would abort. It is told its jobs as JSON lines with file paths, and answers with JSON lines: progress,
then done or an error. Cancelling kills it; the next job starts a new one. `python -m workbench.analysis.worker` is its
inside.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from workbench.errors import AnalysisError

Progress = Callable[[int, int], None]
Arrays = dict[str, npt.NDArray[Any]]


class Cancelled(AnalysisError):
    """A fit was cancelled; nothing of it is left."""

    def __init__(
        self, what: str = "the fit must run to its end", got: str = "a cancel", do: str = "Start it again."
    ) -> None:
        super().__init__(what, got, do)


class Worker:
    """A warm process that runs one job at a time; further jobs wait for their turn."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._turn = threading.Lock()

    def run(
        self,
        job: str,
        arrays: Mapping[str, npt.NDArray[Any]],
        parameters: Mapping[str, Any],
        *,
        progress: Progress | None = None,
        cancel: threading.Event | None = None,
    ) -> Arrays:
        """Run a job and give back the arrays that it made.

        Parameters
        ----------
        job : str
            A key of `jobs.JOBS`.
        arrays : mapping of str to array
            Inputs; they go by files, which are removed afterwards.
        parameters : mapping
            Plain JSON values.
        progress : callable (done, total), optional
            Told 0 of 0 while another job has its turn.
        cancel : threading.Event, optional
            Once set, the process is killed within a fifth of a second.

        Raises
        ------
        Cancelled
            If `cancel` was set.
        AnalysisError
            If the job failed; the message is the job's own.
        """
        while not self._turn.acquire(timeout=0.2):
            if progress:
                progress(0, 0)
            if cancel and cancel.is_set():
                raise Cancelled
        try:
            if cancel and cancel.is_set():
                raise Cancelled
            with tempfile.TemporaryDirectory(prefix="workbench-") as folder:
                for name, value in arrays.items():
                    np.save(Path(folder) / f"{name}.npy", value, allow_pickle=False)
                made = self._ask({"job": job, "folder": folder, "inputs": list(arrays), "parameters": dict(parameters)},
                                 progress, cancel)  # fmt: skip
                return {name: np.load(Path(folder) / f"out-{name}.npy", allow_pickle=False) for name in made}
        finally:
            self._turn.release()

    def _ask(self, request: dict[str, Any], progress: Progress | None, cancel: threading.Event | None) -> list[str]:
        process = self._alive()
        assert process.stdin
        assert process.stdout
        over = threading.Event()
        watch = threading.Thread(target=self._watch, args=(process, cancel, over), daemon=True)
        try:
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
            if cancel:
                watch.start()
            return self._answers(process.stdout, progress, cancel)
        except (BrokenPipeError, OSError) as error:
            self.stop()
            raise AnalysisError("the worker process must live", str(error), "Start the fit again.") from error
        except AnalysisError:  # the job's own, or the end of the process, which is cleared away already
            raise
        except BaseException:  # Ctrl-C included: a fit that nobody waits for must not go on
            self.stop()
            raise
        finally:
            over.set()
            if watch.is_alive():
                watch.join()

    def _answers(self, lines: IO[str], progress: Progress | None, cancel: threading.Event | None) -> list[str]:
        for line in lines:
            answer = json.loads(line)
            if "progress" in answer and progress:
                progress(*answer["progress"])
            if "error" in answer:
                raise AnalysisError(*answer["error"])
            if "done" in answer:
                return list(answer["done"])
        self.stop()
        if cancel and cancel.is_set():
            raise Cancelled
        raise AnalysisError("the worker process must finish its job", "its end", "Use fewer rows if memory ran out.")

    def _watch(self, process: subprocess.Popen[str], cancel: threading.Event | None, over: threading.Event) -> None:
        while not over.wait(0.1):
            if cancel and cancel.is_set():
                process.kill()
                return

    def _alive(self) -> subprocess.Popen[str]:
        if self._process is None or self._process.poll() is not None:
            self.stop()
            self._process = subprocess.Popen(
                [sys.executable, "-W", "ignore", "-m", "workbench.analysis.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(_import_path())},
            )
        return self._process

    def stop(self) -> None:
        """End the process; the next job starts another."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe:
                with contextlib.suppress(OSError):
                    pipe.close()


def _import_path() -> list[str]:
    """Find this package again from the new process, even where it is imported from a folder."""
    here = str(Path(__file__).resolve().parents[2])
    return [here, *(part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part)]


_WORKER = Worker()
atexit.register(_WORKER.stop)


def worker() -> Worker:
    """Give the one worker of this process."""
    return _WORKER


Made = TypeVar("Made")


class Fit(Generic[Made]):
    """A fit that runs in the background.

    Parameters
    ----------
    work : callable (progress, cancel event) -> result
    """

    def __init__(self, work: Callable[[Progress, threading.Event], Made]) -> None:
        self.progress = (0, 0)
        self._cancel = threading.Event()
        self._made: list[Made] = []
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(work,), daemon=True)
        self._thread.start()

    def _run(self, work: Callable[[Progress, threading.Event], Made]) -> None:
        try:
            self._made.append(work(self._report, self._cancel))
        except BaseException as error:  # noqa: BLE001 - raised again by result()
            self._error = error

    def _report(self, done: int, total: int) -> None:
        self.progress = (done, total)

    def cancel(self) -> None:
        """End the fit; `result()` then raises `Cancelled`."""
        self._cancel.set()

    def done(self) -> bool:
        """Tell whether the fit has ended, in whatever way."""
        return not self._thread.is_alive()

    def result(self, timeout_s: float | None = None) -> Made:
        """Wait for the result.

        Raises
        ------
        TimeoutError
            If the fit runs longer than `timeout_s` seconds.
        AnalysisError
            What ended the fit.
        """
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            raise TimeoutError(f"the fit still runs after {timeout_s} s")
        if self._error is not None:
            raise self._error
        return self._made[0]


def main() -> None:
    """Answer jobs from standard input until it closes."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a library prints goes to the error stream
    from workbench.analysis.jobs import JOBS

    def say(value: Mapping[str, Any]) -> None:
        answers.write(json.dumps(value) + "\n")
        answers.flush()

    for line in sys.stdin:
        request = json.loads(line)
        folder = Path(request["folder"])
        try:
            inputs = {
                name: np.load(folder / f"{name}.npy", allow_pickle=False, mmap_mode="r") for name in request["inputs"]
            }
            made = JOBS[request["job"]](inputs, request["parameters"], lambda a, b: say({"progress": [a, b]}))
            for name, value in made.items():
                np.save(folder / f"out-{name}.npy", value, allow_pickle=False)
            say({"done": list(made)})
        except AnalysisError as error:
            say({"error": [error.what, error.got, error.do]})
        except Exception as error:  # noqa: BLE001 - it must reach the caller, whatever it is
            say(
                {
                    "error": [
                        f"the {request['job']} fit must succeed",
                        f"{type(error).__name__}: {error}",
                        "See the error.",
                    ]
                }
            )


if __name__ == "__main__":
    main()
