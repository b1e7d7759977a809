"""Statistics against NumPy over the whole array; merging in any order gives the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from store_toys import SMALL, TAPS, new_run, windows

from workbench.store import TapSpec, open_run
from workbench.store.dtypes import storage_type
from workbench.store.statistics import NORM_EDGES, empty_statistics, merge_statistics, rows_statistics
from workbench.store.writer import WriterOptions

if TYPE_CHECKING:
    from pathlib import Path


def check_against_numpy(found: object, rows: np.ndarray) -> None:
    good = rows[np.isfinite(rows).all(axis=1)].astype(np.float64)
    assert found.n_rows == len(good)
    assert found.n_flagged == len(rows) - len(good)
    np.testing.assert_array_equal(found.non_finite, (~np.isfinite(rows)).sum(axis=0))
    if not len(good):
        return
    scale = np.abs(good).max()
    np.testing.assert_allclose(found.mean, good.mean(axis=0), rtol=1e-12, atol=1e-12 * scale)
    np.testing.assert_allclose(found.variance, good.var(axis=0), rtol=1e-10, atol=1e-13 * scale**2)
    np.testing.assert_array_equal(found.minimum, good.min(axis=0))
    np.testing.assert_array_equal(found.maximum, good.max(axis=0))
    norms = np.linalg.norm(good, axis=1)
    np.testing.assert_allclose(found.norm_moments[[0, 2, 3]], [norms.mean(), norms.min(), norms.max()], rtol=1e-12)
    assert found.norm_histogram.sum() == len(good)
    inner, _ = np.histogram(norms, bins=NORM_EDGES)
    if not np.isin(norms, NORM_EDGES).any():
        np.testing.assert_array_equal(found.norm_histogram[1:-1], inner)


@settings(deadline=None)
@given(seed=st.integers(0, 1000), n=st.integers(1, 700), cut=st.floats(0, 1), massive=st.booleans(), bad=st.booleans())
def test_statistics_equal_those_of_the_whole_array(seed: int, n: int, cut: float, massive: bool, bad: bool) -> None:
    generator = np.random.default_rng(seed)
    rows = (generator.normal(size=(n, 9)) * 3 + generator.normal(size=9)).astype(np.float32)
    if massive:
        rows[:, 4] = 20000 + rows[:, 4]
    if bad:
        rows[generator.integers(n), generator.integers(9)] = [np.nan, np.inf][seed % 2]
    kind = storage_type("F32")
    raw = rows.view(np.uint32)
    at = int(cut * n)
    pieces = [rows_statistics(piece, kind) for piece in (raw[:at], raw[at:])]
    check_against_numpy(merge_statistics(*pieces), rows)
    check_against_numpy(merge_statistics(merge_statistics(pieces[1], empty_statistics(9)), pieces[0]), rows)
    if massive and merge_statistics(*pieces).n_rows:
        assert merge_statistics(*pieces).massive_dims().tolist() == [4]
    else:
        assert merge_statistics(*pieces).massive_dims().tolist() == []


def test_a_run_keeps_them_and_flags_bad_rows(tmp_path: Path) -> None:
    taps = (TapSpec("final_norm", "BF16", 12), TapSpec("embed", "F8_E4M3", 6))
    writer = new_run(tmp_path / "run", taps=taps, options=SMALL)
    generator = np.random.default_rng(3)
    stored = {
        tap.name: generator.normal(size=(int(writer.row_offsets[-1]), tap.width)).astype(np.float32) for tap in taps
    }
    stored["final_norm"][17, 3] = np.nan
    stored["embed"][20, 1] = 1e6
    stored["embed"][21, 1] = -np.inf
    for first, stop in windows(40):
        rows = slice(int(writer.row_offsets[first]), int(writer.row_offsets[stop]))
        writer.commit(first, stop, {name: values[rows] for name, values in stored.items()})
    run = writer.close()
    for tap in taps:
        check_against_numpy(run.statistics(tap.name), np.array(run.tap(tap.name)[:]))
    assert run.flagged_rows.tolist() == [17, 21]
    assert np.flatnonzero(~run.valid).tolist() == [17, 21]
    assert run.manifest.counts.flagged_rows == 2
    assert run.manifest.counts.non_finite == {"final_norm": 1, "embed": 1}
    assert run.manifest.counts.saturated == {"final_norm": 0, "embed": 1}
    assert open_run(tmp_path / "run").tap("embed")[20, 1] == 448


def test_the_policy_fail_refuses_bad_rows(tmp_path: Path) -> None:
    from workbench.errors import ContractError

    writer = new_run(tmp_path / "run", options=WriterOptions(non_finite="fail", reserve_bytes=0))
    n_rows = int(writer.row_offsets[7])
    rows = {tap.name: np.full((n_rows, tap.width), np.nan, dtype=np.float32) for tap in TAPS}
    with pytest.raises(ContractError, match="finite"):
        writer.commit(0, 7, rows)
    writer.abort()
