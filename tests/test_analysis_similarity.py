"""Similarity: Gram-form oracle, closed forms, the traps that plain measures fall into."""

import numpy as np
import pytest

from workbench.analysis.drift import measure_drift
from workbench.analysis.similarity import (
    cosine_distance,
    debiased_linear_cka,
    neighbour_overlap,
    neighbour_sets,
    permuted_cosine,
)
from workbench.errors import AnalysisError
from workbench.index.blocks import rows_of


def gram_form(x, y):
    """Debiased CKA by its definition: Gram matrices with an empty diagonal (Song et al. 2012)."""

    def hsic(k, m):
        n = len(k)
        one = np.ones(n)
        value = (
            np.trace(k @ m)
            + (one @ k @ one) * (one @ m @ one) / ((n - 1) * (n - 2))
            - 2 / (n - 2) * (one @ k @ m @ one)
        )
        return value / (n * (n - 3))

    grams = []
    for side in (x, y):
        centred = side.astype(np.float64) - side.mean(axis=0, dtype=np.float64)
        gram = centred @ centred.T
        np.fill_diagonal(gram, 0)
        grams.append(gram)
    k, m = grams
    return hsic(k, m) / np.sqrt(hsic(k, k) * hsic(m, m))


def zscored(x):
    x = x.astype(np.float64)
    return (x - x.mean(axis=0)) / x.std(axis=0)


@pytest.mark.parametrize(("n", "d", "e"), [(4, 3, 2), (30, 5, 5), (25, 60, 40), (200, 16, 33)])
def test_cka_equals_its_gram_form(n, d, e):
    rng = np.random.default_rng(n)
    x = rng.standard_normal((n, d))
    y = np.hstack([x, rng.standard_normal((n, e))])[:, :e] + 0.3 * rng.standard_normal((n, e))
    x, y = x.astype(np.float32), y.astype(np.float32)
    found = debiased_linear_cka(x, y)
    assert found.raw == pytest.approx(gram_form(x, y), rel=1e-9, abs=1e-9)
    assert found.zscored == pytest.approx(gram_form(zscored(x), zscored(y)), rel=1e-7, abs=1e-7)


def test_cka_of_unrelated_wide_data_is_about_zero_where_the_biased_one_is_not():
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal((64, 4096)).astype(np.float32) for _ in range(2))
    a, b = x - x.mean(axis=0), y - y.mean(axis=0)
    k, m = a @ a.T, b @ b.T
    biased = (k * m).sum() / np.sqrt((k * k).sum() * (m * m).sum())
    assert biased > 0.9
    assert abs(debiased_linear_cka(x, y).raw) < 0.1


def test_cka_is_blind_to_rotation_scale_and_shift():
    rng = np.random.default_rng(1)
    x = rng.standard_normal((80, 12))
    turn = np.linalg.qr(rng.standard_normal((12, 12)))[0]
    assert debiased_linear_cka(x, 3 * x @ turn + 7).raw == pytest.approx(1, abs=1e-5)


def test_one_massive_dimension_fools_the_raw_value_and_not_its_twin():
    rng = np.random.default_rng(2)
    x, y = rng.standard_normal((2, 500, 64)).astype(np.float32)
    x[:, 0] = y[:, 0] = 200 * rng.standard_normal(500)
    found = debiased_linear_cka(x, y)
    assert found.raw > 0.99
    assert abs(found.zscored) < 0.1


def test_constant_dimensions_are_left_out_and_counted():
    rng = np.random.default_rng(3)
    x, y = rng.standard_normal((2, 60, 8)).astype(np.float32)
    padded = np.hstack([x, np.full((60, 2), 1e4, np.float32)])
    assert debiased_linear_cka(padded, y).constant_dims == (2, 0)
    assert debiased_linear_cka(padded, y).zscored == pytest.approx(debiased_linear_cka(x, y).zscored, abs=1e-6)


def test_cka_refuses_too_few_or_equal_rows():
    x = np.random.default_rng(0).standard_normal((5, 3))
    with pytest.raises(AnalysisError, match="at least 4"):
        debiased_linear_cka(x[:3], x[:3])
    with pytest.raises(AnalysisError, match="same rows"):
        debiased_linear_cka(x, x[:4])
    with pytest.raises(AnalysisError, match="rows that differ"):
        debiased_linear_cka(x, np.ones((5, 2)))


def test_cosine_distance_keeps_digits_that_float32_dots_lose():
    rng = np.random.default_rng(4)
    a = rng.standard_normal((50, 200))
    b = a + 1e-6 * rng.standard_normal((50, 200))
    truth = 1 - np.sum(a * b, axis=1) / np.sqrt((a**2).sum(axis=1) * (b**2).sum(axis=1))
    float32 = lambda v: (v.astype(np.float32) ** 2).sum(axis=1).astype(np.float64)  # noqa: E731
    found = cosine_distance(float32(b - a), float32(a), float32(b))
    np.testing.assert_allclose(found, truth, rtol=0.02, atol=1e-15)
    assert np.isnan(cosine_distance(np.array([1.0]), np.array([0.0]), np.array([1.0])))[0]


def test_the_cosine_floor_is_high_where_states_share_a_mean():
    rng = np.random.default_rng(5)
    a = (rng.standard_normal((300, 32)) + 3).astype(np.float32)
    assert permuted_cosine(a, a) == pytest.approx(0.9, abs=0.03)
    assert abs(permuted_cosine(a - a.mean(axis=0), a - a.mean(axis=0))) < 0.05


def test_neighbour_sets_equal_brute_force():
    rng = np.random.default_rng(6)
    states, groups = rng.standard_normal((40, 7)).astype(np.float32), np.arange(40) // 4
    unit = states / np.linalg.norm(states, axis=1, keepdims=True)
    for barred in (np.arange(40), groups):
        found = neighbour_sets(states, 5, barred)
        for row in range(40):
            score = unit @ unit[row]
            score[barred == barred[row]] = -2
            assert set(found[row]) == set(np.argsort(-score)[:5])


def test_overlap_is_one_for_equal_spaces_and_chance_for_unrelated_ones():
    rng = np.random.default_rng(7)
    a, b = rng.standard_normal((2, 400, 20)).astype(np.float32)
    assert neighbour_overlap(a, a).mean == 1
    unrelated = neighbour_overlap(a, b)
    assert unrelated.chance == pytest.approx(10 / 399)
    assert unrelated.mean == pytest.approx(unrelated.chance, abs=0.01)


def test_measures_of_blocks_equal_their_formulas(monkeypatch):
    from workbench.analysis import similarity

    monkeypatch.setattr(similarity, "BLOCK_BYTES", 2000)
    rng = np.random.default_rng(8)
    a = (rng.standard_normal((90, 10)) * np.r_[20, np.ones(9)] + 2).astype(np.float32)
    b = (a + 0.1 * rng.standard_normal((90, 10))).astype(np.float32)
    found = measure_drift("t", rows_of(a), rows_of(b), sample=np.arange(90))
    x, y = a.astype(np.float64), b.astype(np.float64)
    error = np.linalg.norm(y - x, axis=1) / np.linalg.norm(x, axis=1)
    np.testing.assert_allclose(found.errors, error, rtol=1e-5)
    assert found.error_mean == pytest.approx(error.mean(), rel=1e-5)
    assert found.error_worst == pytest.approx(error.max(), rel=1e-5)
    assert found.worst[0] == error.argmax()
    z, w = (x - x.mean(axis=0)) / x.std(axis=0), (y - x.mean(axis=0)) / x.std(axis=0)
    assert found.zscored_error_mean == pytest.approx(
        (np.linalg.norm(z - w, axis=1) / np.linalg.norm(z, axis=1)).mean(), rel=1e-5
    )
    cosine = lambda p, q: np.sum(p * q, axis=1) / np.linalg.norm(p, axis=1) / np.linalg.norm(q, axis=1)  # noqa: E731
    assert found.cosine_mean == pytest.approx(cosine(x, y).mean(), rel=1e-6)
    assert found.centred_cosine_worst == pytest.approx(cosine(x - x.mean(axis=0), y - x.mean(axis=0)).min(), rel=1e-5)
    assert found.zscored_cosine_mean == pytest.approx(cosine(z, w).mean(), rel=1e-5)
    assert found.cka == pytest.approx(gram_form(a, b), abs=1e-6)
    assert found.cka_zscored == pytest.approx(gram_form(zscored(a), zscored(b)), abs=1e-5)
    assert found.massive_a[0][0] == 0
    rms = np.sqrt(((y - x) ** 2).mean(axis=0)) / x.std(axis=0)
    assert found.worst_dims[0] == (int(rms.argmax()), pytest.approx(rms.max(), rel=1e-5))


def test_a_shift_of_all_rows_shows_in_the_cosine_without_the_mean():
    rng = np.random.default_rng(9)
    a = rng.standard_normal((200, 16)).astype(np.float32)
    shifted = measure_drift("t", rows_of(a), rows_of(a + 2), sample=np.arange(200))
    assert shifted.centred_cosine_mean < 0.7  # the reference's mean serves both sides
    assert shifted.cka == pytest.approx(1, abs=1e-5)  # spaces are centred each by itself


def test_taps_of_other_width_are_compared_as_spaces_only():
    rng = np.random.default_rng(10)
    a = rng.standard_normal((50, 8)).astype(np.float32)
    found = measure_drift("t", rows_of(a), rows_of(np.hstack([a, a])), sample=np.arange(50))
    assert np.isnan(found.error_mean)
    assert found.cka == pytest.approx(1, abs=1e-5)


def test_rows_that_are_all_equal_leave_spaces_undefined():
    a = np.ones((20, 4), np.float32)
    found = measure_drift("t", rows_of(a), rows_of(a), sample=np.arange(20))
    assert found.equal_rows == 20
    assert found.error_mean == 0
    assert np.isnan(found.cka)
