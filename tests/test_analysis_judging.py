"""A floor measured on a sample judges a larger run without strictness: equal sizes are compared."""

from itertools import combinations

import numpy as np
import pytest
from analysis_runs import make_run

from workbench import compare
from workbench.analysis.drift import measure_drift
from workbench.analysis.floors import CLAIM, Floor, Repeat, metrics_of
from workbench.analysis.judging import comparable, judge, worst_of_as_many
from workbench.index.blocks import rows_of


@pytest.mark.parametrize("n", [1, 2, 5, 9, 12, 20])
def test_the_worst_of_a_draw_is_the_mean_over_every_draw(n):
    errors = np.random.default_rng(0).lognormal(size=12).astype(np.float32)
    draws = [max(draw) for draw in combinations(errors.tolist(), min(n, 12))]
    assert worst_of_as_many(errors, n) == pytest.approx(np.mean(draws), rel=1e-6)
    with_gap = np.concatenate([errors, [np.nan]]).astype(np.float32)
    assert worst_of_as_many(with_gap, n) == pytest.approx(np.mean(draws), rel=1e-6)


def test_the_worst_of_a_draw_stands_large_numbers():
    errors = np.linspace(0, 1, 1_000_000, dtype=np.float32)
    assert worst_of_as_many(errors, 500) == pytest.approx(500 / 501, rel=1e-5)


def floor_of(metrics, n_rows):
    repeat = Repeat(kind="order", run_id="", engine_id="", taps={"final_norm": metrics})
    return Floor(engine_id="", prompts_hash="", n_rows=n_rows, created="", workbench="", repeats=(repeat,))


def null_pair(n, seed):
    rng = np.random.default_rng(seed)
    base = rng.standard_normal((n, 12)).astype(np.float32)
    size = 1e-5 * np.exp(0.5 * rng.standard_normal((n, 1)))
    return base, (base * (1 + size * rng.standard_normal(base.shape))).astype(np.float32)


def drift_of(base, other, sample=20):
    return measure_drift("final_norm", rows_of(base), rows_of(other), sample=np.arange(sample))


def test_a_null_run_twenty_times_as_large_raises_no_alarm_over_its_worst_row_in_100_seeds():
    """A plain ratio of worst rows would: it grows with rows. Mean multiples stay about 1 here, alarms rare."""
    plain, fair = [], []
    for seed in range(100):
        floor = floor_of(metrics_of(drift_of(*null_pair(100, seed))), 100)
        drift = drift_of(*null_pair(2_000, 1_000 + seed))
        plain.append(drift.error_worst / floor.value("final_norm", "error_worst"))
        verdict = judge(drift, floor)
        fair.append(verdict.worst_multiple)
        assert verdict.text != "above the floor"
    assert np.median(plain) > 1.4
    assert np.median(fair) == pytest.approx(1.0, abs=0.1)
    assert np.mean(np.array(fair) > CLAIM) < 0.03
    assert np.mean(np.array(plain) > CLAIM) > 0.3


def test_metrics_that_depend_on_the_sample_are_left_out_where_sizes_differ():
    drift = drift_of(*null_pair(300, 0), sample=200)
    same = comparable(drift, floor_of(metrics_of(drift), 300))
    assert same == metrics_of(drift)
    smaller = comparable(drift, floor_of(metrics_of(drift), 100))
    assert set(same) - set(smaller) == {"cosine_distance_worst", "overlap_loss", "overlap_zscored_loss"}
    assert smaller["error_worst"] < same["error_worst"]
    assert smaller["error_mean"] == same["error_mean"]


def test_a_comparison_says_how_its_worst_rows_were_judged(tmp_path):
    base, other = null_pair(300, 1)
    a, b = make_run(tmp_path / "a", base), make_run(tmp_path / "b", other, letter="b")
    few = floor_of(metrics_of(drift_of(*null_pair(50, 2))), 50)
    found = compare(a, b, floor=few, progress=False)
    assert "as many as it has; up to 6 rows" in " ".join(found.notes)
    assert found.rows_above_by_chance == pytest.approx(300 / 51)
    assert found.verdicts["final_norm"].worst_of_as_many < found.taps[0].error_worst
    many = floor_of(metrics_of(drift_of(base, other)), 300)
    assert "as many as it has" not in " ".join(compare(a, b, floor=many, progress=False).notes)
    assert compare(a, b, progress=False).rows_above_by_chance is None
