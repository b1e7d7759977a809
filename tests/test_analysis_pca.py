"""Principal components: closed form, both algorithms against SVD, and in blocks."""

import numpy as np
import pytest

from workbench.analysis import pca as module
from workbench.analysis.pca import fit_pca, quick_pca
from workbench.errors import AnalysisError
from workbench.index.blocks import rows_of


def spread_rows(n, width, seed=0, decay=0.9):
    rng = np.random.default_rng(seed)
    basis = np.linalg.qr(rng.standard_normal((width, width)))[0]
    return ((rng.standard_normal((n, width)) * decay ** np.arange(width)) @ basis + 50).astype(np.float32)


def svd_oracle(states, keep):
    centred = states.astype(np.float64) - states.mean(axis=0, dtype=np.float64)
    _, s, v = np.linalg.svd(centred, full_matrices=False)
    return s[:keep] ** 2 / (len(states) - 1), v[:keep]


def test_points_on_a_line_have_one_component():
    t = np.arange(20, dtype=np.float32)[:, None]
    found = fit_pca(np.hstack([3 * t, 4 * t]), 2)
    np.testing.assert_allclose(found.components[0], [0.6, 0.8], atol=1e-7)
    np.testing.assert_allclose(found.variance, [25 * t.var(ddof=1), 0], atol=1e-4)
    np.testing.assert_allclose(found.transform(np.hstack([3 * t, 4 * t]))[:, 0], 5 * (t[:, 0] - 9.5), atol=1e-4)


@pytest.mark.parametrize("exact_width", [1280, 8])
def test_both_algorithms_equal_the_svd_and_say_how_exact_they_are(monkeypatch, exact_width):
    monkeypatch.setattr(module, "EXACT_WIDTH", exact_width)
    states = spread_rows(500, 120)
    found = fit_pca(states, 5)
    variance, axes = svd_oracle(states, 5)
    assert ("covariance" in found.algorithm) == (exact_width > 120)
    np.testing.assert_allclose(found.variance, variance, rtol=1e-4)
    np.testing.assert_allclose(np.abs(np.sum(found.components * axes, axis=1)), 1, atol=1e-3)
    assert found.residual < 1e-2
    assert found.total_variance == pytest.approx(states.astype(np.float64).var(axis=0, ddof=1).sum(), rel=1e-5)


def test_a_quick_fit_is_near_and_says_how_near(monkeypatch):
    monkeypatch.setattr(module, "QUICK_ROWS", 200)
    monkeypatch.setattr(module, "QUICK_WIDTH", 8)
    states = spread_rows(2_000, 300, decay=0.8)
    found = quick_pca(rows_of(states[:700], states[700:]), 2)
    variance, axes = svd_oracle(states, 2)
    np.testing.assert_allclose(found.variance, variance, rtol=1e-2)
    np.testing.assert_allclose(np.abs(np.sum(found.components * axes, axis=1)), 1, atol=1e-2)
    assert found.residual < 0.05
    flat = np.random.default_rng(0).standard_normal((2_000, 300)).astype(np.float32)
    assert quick_pca(flat, 2).residual > 10 * found.residual
    assert found.total_variance == pytest.approx(states.astype(np.float64).var(axis=0, ddof=1).sum(), rel=1e-5)
    states[1_500, 7] = np.nan
    with pytest.raises(AnalysisError, match="finite"):
        quick_pca(states, 2)


def test_the_residual_tells_an_inexact_fit(monkeypatch):
    monkeypatch.setattr(module, "EXACT_WIDTH", 8)
    states = np.random.default_rng(0).standard_normal((400, 300)).astype(np.float32)  # no gap between the variances
    good = fit_pca(spread_rows(400, 300), 3).residual
    assert fit_pca(states, 3).residual > 10 * good


def test_stored_blocks_give_the_same_as_an_array():
    states = spread_rows(300, 20)
    parts = rows_of(states[:100], states[100:])
    one, other = fit_pca(states, 4), fit_pca(parts, 4)
    np.testing.assert_allclose(one.components, other.components, atol=1e-5)


def test_few_or_broken_rows_are_refused():
    with pytest.raises(AnalysisError, match="two rows"):
        fit_pca(np.zeros((1, 3)), 1)
    broken = np.zeros((4, 3), np.float32)
    broken[1, 2] = np.inf
    with pytest.raises(AnalysisError, match="finite"):
        fit_pca(broken, 1)


def test_equal_rows_have_no_variance():
    found = fit_pca(np.ones((6, 3), np.float32), 2)
    assert found.total_variance == pytest.approx(0)
    np.testing.assert_array_equal(found.transform(np.ones((6, 3))), 0)
