"""Churn of clusters between builds: rows are joined by content, never by place."""

import numpy as np
import pytest
from analysis_runs import make_run

from workbench import cluster
from workbench.analysis import churn
from workbench.errors import AnalysisError

QUIET = {"progress": False}


def blobs(n=60, seed=0):
    rng = np.random.default_rng(seed)
    kind = np.arange(n) % 3
    return (10 * np.eye(8)[kind] + rng.standard_normal((n, 8))).astype(np.float32)


def test_two_builds_in_another_order_are_joined(tmp_path):
    states = blobs()
    order = np.random.default_rng(1).permutation(60)
    texts = [f"prompt {at}" for at in range(60)]
    tokens = np.arange(180)
    a = make_run(tmp_path / "a", states, texts=texts, tokens=tokens)
    b = make_run(
        tmp_path / "b", states[order], texts=[texts[at] for at in order], letter="b",
        tokens=tokens.reshape(60, 3)[order].ravel(),
    )  # fmt: skip
    first, second = cluster(a, "final_norm", k=3, **QUIET), cluster(b, "final_norm", k=3, **QUIET)
    found = churn(first, second, runs=(a, b))
    assert (found.adjusted_rand, found.stayed) == (1, 1)
    with pytest.raises(AnalysisError, match="another order"):
        churn(first, second)  # by place it would look like chance
    assert churn(first.labels, second.labels).adjusted_rand < 0.3


def test_rows_that_one_side_lacks_are_left_out(tmp_path):
    states = blobs()
    broken = states.copy()
    broken[[3, 7]] = np.nan
    a, b = make_run(tmp_path / "a", states), make_run(tmp_path / "b", broken, letter="b")
    first, second = cluster(a, "final_norm", k=3, **QUIET), cluster(b, "final_norm", k=3, **QUIET)
    with pytest.raises(AnalysisError, match="runs="):
        churn(first, second)
    found = churn(first, second, runs=(a, b))
    assert found.stayed == 1
    assert found.table.sum() == 58
