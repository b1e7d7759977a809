"""F54 and F55 for runs: a hostile folder ends in a typed error, soon, in little memory, with nothing outside opened."""

from __future__ import annotations

import resource
import shutil
import sys
import time
import warnings
from typing import TYPE_CHECKING

import pytest
from attacks.hostile_runs import MAKERS
from store_toys import fill, new_run

from workbench.errors import WorkbenchError
from workbench.store import StoreWarning, open_run
from workbench.store.verifying import verify_run

if TYPE_CHECKING:
    from pathlib import Path

MOST_GROWTH_BYTES = 256 << 20
OPENED: list[str] = []  # every path that Python opened since it was cleared
sys.addaudithook(lambda event, args: OPENED.append(str(args[0])) if event == "open" else None)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("hostile") / "run"
    writer = new_run(path, 24)
    fill(writer)
    writer.close()
    verify_run(path)
    return path


@pytest.mark.parametrize("name", sorted(MAKERS))
def test_a_hostile_run_is_refused(sound: Path, tmp_path: Path, name: str) -> None:
    path = tmp_path / "run"
    shutil.copytree(sound, path)
    MAKERS[name](path)
    OPENED.clear()
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", StoreWarning)
        found = False
        try:
            found = not verify_run(path)
            run = open_run(path)
            _ = [run.tap(tap, checked=True)[:] for tap in run.taps], run.tokens, run.prompts
        except WorkbenchError:
            found = True
    assert found, "nothing was said"
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < MOST_GROWTH_BYTES >> 10
    assert time.process_time() - start < 5, "bounded work"
    assert not [one for one in OPENED if "passwd" in one or one == "/dev/zero"]
