"""Real disks that are small or read-only, and real strangers: what the tests of places need root for."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).parent
NOBODY = 65534


class SmallDisk:
    """A disk in memory of a given size."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def resize(self, size_bytes: int) -> None:
        mount("-o", f"remount,size={size_bytes}", str(self.path))

    def fill(self) -> Path:
        """Take all room that is left."""
        path = self.path / "filler"
        with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while file.write(bytes(1 << 16)):
                pass
        return path

    def read_only(self) -> None:
        mount("-o", "remount,ro", str(self.path))


def mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True, capture_output=True, text=True)


@contextlib.contextmanager
def small_disk(size_bytes: int, *options: str) -> Iterator[SmallDisk]:
    """Mount a tmpfs; raises OSError with the reason where that is not allowed."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "disk"
        place.mkdir()
        Path(folder).chmod(0o755)
        try:
            mount("-t", "tmpfs", "-o", ",".join([f"size={size_bytes}", *options]), "tmpfs", str(place))
        except (subprocess.CalledProcessError, FileNotFoundError) as error:
            raise OSError((getattr(error, "stderr", "") or str(error)).strip().splitlines()[0]) from error
        try:
            yield SmallDisk(place)
        finally:
            subprocess.run(["umount", "--lazy", str(place)], check=True)


def ask(steps: list[list[Any]], *, user: int | None = None, files: int | None = None) -> list[list[Any]]:
    """Take steps in another process, as another user or with a limit of open files; what each gave or raised."""
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join([str(HERE), str(HERE.parent), *sys.path]), HOME="/tmp")
    more: dict[str, Any] = {} if user is None else {"user": user, "group": user, "extra_groups": []}
    if files is not None:
        more["preexec_fn"] = lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    done = subprocess.run(
        [_python_for(user), "-B", "-m", "store_places"], input=json.dumps(steps), capture_output=True, text=True,
        env=environment, cwd="/", check=False, **more,
    )  # fmt: skip
    if done.returncode:
        raise OSError(done.stderr.strip().splitlines()[-1])
    return list(json.loads(done.stdout))


@functools.cache
def _python_for(user: int | None) -> str:
    """Find a Python of this version that a user may run: the one of this process can lie in a private folder."""
    if user is None:
        return sys.executable
    problem = ""
    for python in (sys.executable, f"/usr/bin/python{sys.version_info[0]}.{sys.version_info[1]}"):
        path = os.pathsep.join([str(HERE), str(HERE.parent), *sys.path])
        try:
            subprocess.run(
                [python, "-B", "-c", "import numpy, pyarrow, workbench.store"], check=True, capture_output=True,
                text=True, cwd="/", user=user, group=user, extra_groups=[], env={"PYTHONPATH": path},
            )  # fmt: skip
        except subprocess.CalledProcessError as error:
            problem = error.stderr.strip().splitlines()[-1]
        except OSError as error:
            problem = str(error)
        else:
            return python
    raise OSError(problem)


def _open(path: str) -> str:
    import numpy as np
    from store_toys import canary

    from workbench.store import open_run

    run = open_run(path)
    for tap in run.manifest.taps:
        np.testing.assert_array_equal(run.tap(tap.name, checked=True)[:], canary(tap, 0, run.n_rows))
    return run.status


def _create(path: str, **more: Any) -> str:
    from store_toys import fill, new_run

    writer = new_run(Path(path), 24, **more)
    fill(writer)
    return writer.close().status


def _many_taps(path: str, count: int) -> str:
    from store_toys import fill, new_run

    from workbench.store import TapSpec

    taps = [TapSpec(f"tap{at}", "F32", 4) for at in range(count)]
    writer = new_run(Path(path), 24, taps=taps)
    fill(writer, taps)
    return writer.close().status


def _out_of_files(path: str) -> int:
    """Take every descriptor while a run is written; what was acknowledged then."""
    from store_toys import TAPS, new_run, rows_of_batch, windows

    from workbench.errors import WorkbenchError

    writer = new_run(Path(path), 24)
    held = []
    with contextlib.suppress(OSError):
        while True:
            held.append(os.open("/dev/null", os.O_RDONLY))
    told = ""
    try:
        for first, stop in windows(24):
            writer.commit(first, stop, rows_of_batch(writer, TAPS, first, stop))
        writer.close()
    except WorkbenchError as error:
        told = str(error)
        writer.abort()
    for fd in held:
        os.close(fd)
    if not told:
        raise AssertionError("a writer without descriptors went to its end")
    raise type("Told", (WorkbenchError,), {})(told, f"acked {writer.next_prompt}", "")


def _extract(path: str) -> str:
    from workbench import extract, load_prompts

    extract(load_prompts(["x"]), "no-engine-is-here", out=path)
    return "extracted"


def steps_of() -> dict[str, Any]:
    from workbench.store import export_run, open_run, verify_run
    from workbench.store.housekeeping import list_runs, remove_run
    from workbench.store.importing.archive import import_zip
    from workbench.store.merging import merge_runs
    from workbench.store.splitting import split_run

    return {
        "open": _open, "create": _create, "resume": lambda path: _create(path, resume=True), "many taps": _many_taps,
        "out of files": _out_of_files, "extract": _extract, "remove": remove_run,
        "verify": lambda path: bool(verify_run(path)), "import": lambda path, out: str(import_zip(path, out=out).path),
        "merge": lambda paths, out: merge_runs(paths, out).status,
        "split": lambda path, outs: len(split_run(path, outs, [12])),
        "export": lambda path, out, kind: str(export_run(open_run(path), out, format=kind, taps=("final_norm",))),
        "list": lambda path: [[one.path.name, one.status, one.problem] for one in list_runs(path)],
    }  # fmt: skip


def main() -> None:
    from workbench.errors import WorkbenchError

    answers = []
    known = steps_of()
    for name, *arguments in json.load(sys.stdin):
        try:
            answers.append(["done", known[name](*arguments)])
        except WorkbenchError as error:
            answers.append([type(error).__name__, str(error)])
        except BaseException as error:  # noqa: BLE001 - an untyped error is what the tests look for
            answers.append(["untyped", f"{type(error).__name__}: {error}"])
    print(json.dumps(answers))


if __name__ == "__main__":
    main()
