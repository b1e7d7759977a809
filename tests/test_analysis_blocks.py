"""Blocks: any cut of the rows gives the same numbers, in float64 sums of float32 blocks."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.errors import AnalysisError
from workbench.index.blocks import as_rows, moments, pick_rows, rows_of


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 40), st.integers(1, 9), st.integers(1, 400), st.integers(0, 2**32 - 1))
def test_blocks_of_any_size_join_to_the_rows(n, width, size_bytes, seed):
    rng = np.random.default_rng(seed)
    states = rng.standard_normal((n, width)).astype(np.float32)
    pick = rng.integers(0, n, size=n)
    for rows in (rows_of(states), rows_of(states, rows=pick), rows_of(states, states[:3])):
        blocks = list(rows.blocks(size_bytes))
        assert [first for first, _ in blocks] == list(np.cumsum([0] + [len(b) for _, b in blocks[:-1]]))
        np.testing.assert_array_equal(np.concatenate([b for _, b in blocks]), rows.take())
    assert len(rows_of(states, states[:3])) == n + min(3, n)


def test_take_gathers_in_the_order_asked_over_parts():
    a, b = np.arange(6, dtype=np.float32).reshape(3, 2), -np.arange(8, dtype=np.float32).reshape(4, 2)
    both = rows_of(a, b)
    np.testing.assert_array_equal(both.take([6, 0, 3]), [b[3], a[0], b[0]])
    np.testing.assert_array_equal(pick_rows(both, [0, 2, 5]).take(), [a[0], a[2], b[2]])


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 60), st.integers(1, 6), st.floats(-1e4, 1e4), st.integers(0, 2**32 - 1))
def test_moments_equal_those_of_float64_whatever_the_offset(n, width, offset, seed):
    states = (np.random.default_rng(seed).standard_normal((n, width)) + offset).astype(np.float32)
    rows = rows_of(states)
    found = moments(rows)
    np.testing.assert_allclose(found.mean, states.astype(np.float64).mean(axis=0), rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(found.variance, states.astype(np.float64).var(axis=0), rtol=2e-4, atol=1e-9)


def test_a_constant_dimension_is_found_and_divides_by_one():
    states = np.full((50, 3), 7.25, np.float32)
    states[:, 1] += np.arange(50)
    found = moments(states)
    np.testing.assert_array_equal(found.constant, [True, False, True])
    np.testing.assert_array_equal(found.scale[[0, 2]], 1.0)
    assert found.massive(1) == [(1, 1.0)]


def test_float16_is_summed_in_wider_numbers():
    states = np.full((5000, 1), 60_000, np.float16)  # float16 ends at 65,504
    states[::2] = 50_000
    assert moments(states).mean[0] == pytest.approx(float(states.astype(np.float64).mean()), rel=1e-7)


@pytest.mark.parametrize("rows", [[-1], [5], [[0]], np.ones(4, bool)])
def test_row_ids_out_of_range_are_refused(rows):
    with pytest.raises(AnalysisError, match="row"):
        as_rows(rows, 5)


def test_widths_that_differ_are_refused():
    with pytest.raises(AnalysisError, match="one width"):
        rows_of(np.zeros((2, 3)), np.zeros((2, 4)))
