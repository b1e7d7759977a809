"""Write jobs that are killed: run in children forked from a small process that has everything imported.

The parent sends one JSON line a job; the child says what was acknowledged through a file, appended line by line.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


def work(job: dict[str, Any]) -> None:
    """Write a run to its end, telling each acknowledgement; the writer may be broken on purpose."""
    from store_disks import KillingDisk
    from store_toys import SMALL, TAPS, new_run, rows_of_batch, windows

    told = os.open(job["acks"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    broken = job.get("broken")
    if broken:
        import store_broken

        store_broken.BREAK[broken]()
    if job.get("traced"):
        wait_for_tracer()
    disk = KillingDisk(job["kill_at"]) if "kill_at" in job else None
    options = replace(SMALL, group_bytes=job.get("group_bytes", 1 << 12), shard_bytes=job.get("shard_bytes", 1 << 30))
    writer = new_run(Path(job["path"]), job["n"], resume=True, disk=disk, options=options)
    os.write(told, b"created 0\n")
    for first, stop in windows(job["n"], writer.next_prompt, job.get("step", 7)):
        writer.commit(first, stop, rows_of_batch(writer, TAPS, first, stop))
        if job.get("flush", True):
            writer.flush()
        if job.get("pause_s"):
            time.sleep(job["pause_s"])
        os.write(told, f"acked {writer.next_prompt}\n".encode())
    writer.close()
    os.write(told, f"closed {disk.count if disk else 0}\n".encode())


def wait_for_tracer() -> None:
    ctypes.CDLL(None).prctl(0x59616D61, ctypes.c_ulong(-1 & (2**64 - 1)), 0, 0, 0)  # PR_SET_PTRACER, any
    for _ in range(5000):
        status = Path("/proc/self/status").read_text()
        if "TracerPid:\t0" not in status:
            return
        time.sleep(0.001)
    os._exit(99)


def main() -> None:
    """Fork a child a line, and print its process id and then its exit."""
    import pyarrow.parquet  # noqa: F401 - imported once, before any fork
    import store_disks  # noqa: F401
    import store_toys

    import workbench.store.reader
    import workbench.store.resuming  # noqa: F401
    from workbench.store.contents import prompts_bytes

    prompts_bytes(store_toys.make_prompts(3), store_toys.make_tokens(3))  # pyarrow imports pandas on first use

    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            try:
                work(json.loads(line))
            except BaseException:  # noqa: BLE001 - a child must not go on as a parent
                import traceback

                traceback.print_exc()
                os._exit(3)
            os._exit(0)
        print(child, flush=True)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


class Jobs:
    """Starts jobs and waits for them."""

    def __init__(self) -> None:
        environment = dict(os.environ, PYTHONPATH=os.pathsep.join([str(HERE), str(HERE.parent), *sys.path]))
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "store_jobs.py")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env=environment,
        )  # fmt: skip

    def start(self, **job: Any) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def wait(self) -> int:
        assert self._process.stdout is not None
        return int(self._process.stdout.readline())

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=10)
        assert self._process.stdout is not None
        self._process.stdout.close()


def acks_of(path: Path) -> tuple[bool, int, int | None]:
    """Whether the run was created, the last acknowledged prompt, and the number of changes if it was closed."""
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    acked = max([int(line.split()[1]) for line in lines if line.startswith("acked")], default=0)
    closed = [int(line.split()[1]) for line in lines if line.startswith("closed")]
    return bool(lines), acked, closed[0] if closed else None


if __name__ == "__main__":
    main()
