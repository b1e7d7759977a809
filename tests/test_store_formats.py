"""F19: runs of every format that was ever published open for good; newer ones are refused, older ones never written."""

from __future__ import annotations

import hashlib
import shutil
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

from workbench.analysis import head_from
from workbench.errors import StoreError
from workbench.store import StoreWarning, layout, open_run, resuming
from workbench.store.manifest import load_manifest
from workbench.store.verifying import verify_run

OLD = Path(__file__).parent / "old_formats"
sys.path.insert(0, str(OLD))
from make_run import NAN_ROW, TAPS, N, head, rows_of  # noqa: E402
from store_toys import make_prompts, make_tokens, new_run  # noqa: E402

FORMATS = {1: "12a2c74764a92ffc"}


def tree_digest(folder: Path) -> str:
    hasher = hashlib.sha256()
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        hasher.update(f"{file.relative_to(folder)}\0{file.stat().st_size}\0".encode() + file.read_bytes())
    return hasher.hexdigest()[:16]


def copy(number: int, name: str, to: Path) -> Path:
    return Path(shutil.copytree(OLD / f"format_{number}" / name, to))


@pytest.mark.parametrize("number", FORMATS)
def test_the_fixture_is_that_which_was_published(number: int) -> None:
    assert tree_digest(OLD / f"format_{number}") == FORMATS[number]
    assert load_manifest(OLD / f"format_{number}" / "complete").format == number


@pytest.mark.parametrize("number", FORMATS)
def test_a_complete_run_of_an_old_format_reads_whole(number: int, tmp_path: Path) -> None:
    run = open_run(copy(number, "complete", tmp_path / "run"))
    assert (run.status, run.n_prompts, run.taps) == ("complete", N, tuple(tap.name for tap in TAPS))
    tokens, prompts = make_tokens(N), make_prompts(N)
    np.testing.assert_array_equal(run.tokens, tokens.ids)
    np.testing.assert_array_equal(run.offsets, tokens.offsets)
    assert run.prompts.content_hash == prompts.content_hash
    assert run.prompts.columns == prompts.columns
    np.testing.assert_array_equal(run.flag("truncated"), tokens.truncated)
    assert run.flagged_rows.tolist() == [NAN_ROW]
    for tap in TAPS:
        want = rows_of(tap, 0, run.n_rows)
        np.testing.assert_array_equal(run.tap(tap.name, checked=True)[:], want)
        good = want[np.isfinite(want).all(axis=1)]
        np.testing.assert_allclose(run.statistics(tap.name).mean, good.mean(axis=0, dtype=np.float64), rtol=1e-12)
    np.testing.assert_array_equal(head_from(run).unembed, head()["unembed"])
    assert verify_run(run.path)


@pytest.mark.parametrize("number", FORMATS)
def test_an_unfinished_run_of_an_old_format_reads_to_its_watermark(number: int, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", StoreWarning)
        run = open_run(copy(number, "unfinished", tmp_path / "run"))
    assert (run.status, run.n_prompts) == ("writing", 14)
    for tap in TAPS:
        np.testing.assert_array_equal(run.tap(tap.name, checked=True)[:], rows_of(tap, 0, run.n_rows))
    assert verify_run(run.path)


def test_a_run_of_an_older_format_is_read_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = copy(1, "unfinished", tmp_path / "run")
    before = tree_digest(path)
    monkeypatch.setattr(resuming, "FORMAT", layout.FORMAT + 1)
    with pytest.raises(StoreError, match="read only"):
        new_run(path, N, TAPS, resume=True)
    assert tree_digest(path) == before
