"""The exact index equals brute force, whatever the cut into blocks and the storage type."""

import numpy as np
import pytest
from analysis_runs import make_run
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.errors import AnalysisError
from workbench.index import ExactIndex, blocks, nearest_rows


def brute_force(states, queries, k, metric):
    states, queries = states.astype(np.float64), queries.astype(np.float64)
    score = {
        "cosine": lambda a, b: a @ b / np.sqrt((a @ a) * (b @ b)),
        "l2": lambda a, b: -((a - b) ** 2).sum(),
        "dot": lambda a, b: a @ b,
    }[metric]
    scores = np.array([[score(row, query) for row in states] for query in queries])
    rows = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    return rows, np.take_along_axis(scores, rows, axis=1)


@settings(max_examples=30, deadline=None)
@given(
    n=st.integers(1, 80), width=st.integers(2, 12), k=st.integers(1, 12),
    metric=st.sampled_from(["cosine", "l2", "dot"]), block=st.integers(1, 3000), seed=st.integers(0, 2**32 - 1),
)  # fmt: skip
def test_nearest_rows_equal_brute_force(n, width, k, metric, block, seed):
    rng = np.random.default_rng(seed)
    states, queries = (rng.standard_normal((m, width)).astype(np.float32) for m in (n, 3))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks.Rows.blocks, "__defaults__", (block,))
        found = nearest_rows(states, queries, k, metric=metric)
    rows, scores = brute_force(states, queries, min(k, n), metric)
    np.testing.assert_allclose(found.scores, scores, rtol=1e-4, atol=1e-4)
    far = np.abs(np.diff(scores, axis=1)).min(initial=1) > 1e-4
    if far:  # where no two scores are close, the order is certain
        np.testing.assert_array_equal(found.rows, rows)


def test_rows_of_the_querys_group_are_left_out_and_missing_ones_are_minus_one():
    states = np.eye(4, dtype=np.float32) + 0.5
    found = nearest_rows(states, states[:1], 4, groups=[0, 0, 1, 1], query_groups=[0])
    assert set(found.rows[0, :2]) == {2, 3}
    np.testing.assert_array_equal(found.rows[0, 2:], -1)
    assert np.isneginf(found.scores[0, 2:]).all()


def test_equal_scores_keep_the_earlier_row():
    states = np.ones((50, 3), np.float32)
    np.testing.assert_array_equal(nearest_rows(states, states[:1], 3).rows[0], [0, 1, 2])


def test_rows_with_nan_and_zero_rows_do_no_harm():
    states = np.array([[np.nan, 1], [0, 0], [1, 1]], np.float32)
    found = nearest_rows(states, [[1, 1]], 3)
    assert list(found.rows[0]) == [2, 1, -1]


@pytest.mark.parametrize("metric", ["cosine", "l2", "dot"])
def test_bfloat16_rows_are_searched_in_place_with_the_same_answer(tmp_path, metric):
    rng = np.random.default_rng(0)
    states = rng.standard_normal((300, 64)).astype(np.float32)
    tap = make_run(tmp_path / "run", states, dtype="BF16").tap("final_norm")
    index = ExactIndex(tap, metric=metric)
    assert index._is_paired()
    query = rng.standard_normal(64).astype(np.float32)
    found, plain = index.search(query, 7), nearest_rows(tap[:], query, 7, metric=metric)
    np.testing.assert_array_equal(found.rows, plain.rows)
    np.testing.assert_allclose(found.scores, plain.scores, rtol=1e-4, atol=1e-4)


def test_bad_questions_are_refused():
    states = np.zeros((4, 3), np.float32)
    for bad, match in [
        (([[1, 2]], 1), "d_model=3"),
        (([[1, 2, 3]], 0), "at least 1"),
        (([[1, 2, np.inf]], 1), "finite"),
    ]:
        with pytest.raises(AnalysisError, match=match):
            nearest_rows(states, *bad)
    with pytest.raises(AnalysisError, match="cosine, l2, dot"):
        ExactIndex(states, metric="manhattan")
    with pytest.raises(AnalysisError, match="go together"):
        nearest_rows(states, [[1, 2, 3]], 1, groups=[0, 0, 0, 0])
