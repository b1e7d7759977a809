"""Groups stay together: in folds, in shuffles, in the bootstrap."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.analysis.folds import bootstrap_weights, group_numbers, grouped_folds, shuffled_by_group
from workbench.analysis.sampling import rows_without_tokens, sample_rows
from workbench.errors import AnalysisError


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 30), min_size=12, max_size=200), st.integers(2, 5), st.integers(0, 99))
def test_no_group_is_ever_on_both_sides(groups, n_folds, seed):
    if len(set(groups)) < n_folds:
        return
    folds = grouped_folds(groups, n_folds, seed=seed)
    for group in set(groups):
        assert len(set(folds[np.array(groups) == group])) == 1
    assert set(folds) == set(range(n_folds))
    sizes = np.bincount(folds)
    assert sizes.max() - sizes.min() <= np.bincount(groups).max()


def test_folds_differ_with_the_seed_and_repeat_without():
    groups = np.arange(50)
    assert (grouped_folds(groups, 5, seed=1) == grouped_folds(groups, 5, seed=1)).all()
    assert (grouped_folds(groups, 5, seed=1) != grouped_folds(groups, 5, seed=2)).any()


def test_fewer_groups_than_folds_are_refused():
    with pytest.raises(AnalysisError, match="group for each"):
        grouped_folds([0, 0, 1, 1], 3)


def test_group_numbers_keep_types_apart():
    assert list(group_numbers(["a", 1, "1", "a", 1, None])) == [0, 1, 2, 0, 1, 3]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 8), min_size=1, max_size=60), st.integers(0, 99))
def test_a_shuffle_keeps_labels_equal_within_groups(groups, seed):
    groups = np.array(groups)
    label = groups * 10  # equal within groups
    shuffled = label[shuffled_by_group(groups, np.random.default_rng(seed))]
    for group in np.unique(groups):
        assert len(set(shuffled[groups == group])) == 1
    if len(np.unique(groups)) == len(groups):  # groups of one: the same labels in another order
        assert sorted(shuffled) == sorted(label)


def test_the_bootstrap_draws_whole_groups():
    weights, numbers = bootstrap_weights([5, 5, 9, 2], 200, seed=0)
    assert weights.shape == (200, 3)
    np.testing.assert_array_equal(weights.sum(axis=1), 3)
    assert numbers[0] == numbers[1]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=40), st.integers(1, 60), st.integers(0, 99))
def test_samples_are_spread_over_prompts(lengths, n, seed):
    prompts = np.repeat(np.arange(len(lengths)), lengths)
    rows = sample_rows(prompts, n, seed=seed)
    assert len(rows) == min(n, len(prompts)) == len(set(rows))
    assert (np.diff(rows) > 0).all()
    taken = np.bincount(prompts[rows], minlength=len(lengths))
    open_prompts = taken < np.array(lengths)  # a prompt with rows to spare is never two rows behind another
    assert taken.max(initial=0) - taken[open_prompts].min(initial=taken.max(initial=0)) <= 1


def test_special_tokens_are_left_out_by_id():
    assert list(rows_without_tokens([1, 7, 1, 9], [1, 9])) == [1]
