from collections import deque
from types import SimpleNamespace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from workbench.runtime import BatchPlan, plan_batches, run_plan

lengths_of = st.lists(st.integers(1, 128), min_size=1, max_size=300).map(lambda x: np.array(x, dtype=np.int64))
plans = st.builds(
    BatchPlan,
    tokens_per_pass=st.integers(128, 2048),
    tokens_per_window=st.integers(128, 9000),
    rows_per_window=st.integers(1, 4000),
    padding=st.floats(0, 0.2),
    least_tokens=st.integers(0, 300),
)


@given(lengths_of, plans)
def test_every_prompt_is_in_exactly_one_pass_of_its_window(lengths, plan):
    at = 0
    for window in plan_batches(lengths, lengths, plan):
        assert window.first == at
        at = window.stop
        assert sorted(np.concatenate(window.passes).tolist()) == list(range(window.first, window.stop))
    assert at == len(lengths)


@given(lengths_of, plans)
def test_a_pass_keeps_its_budget_and_its_share_of_padding(lengths, plan):
    for window in plan_batches(lengths, lengths, plan):
        for members in window.passes:
            sizes = lengths[members]
            padded = sizes.max() * len(sizes)
            assert padded <= max(plan.tokens_per_pass, sizes.max())
            tight = padded - sizes.sum() <= plan.padding * padded
            assert tight or sizes.sum() <= plan.least_tokens or len(sizes) == 1


@given(lengths_of, plans)
def test_a_window_keeps_its_rows_and_a_resume_continues_the_same_plan(lengths, plan):
    windows = list(plan_batches(lengths, lengths, plan))
    for window in windows:
        assert window.stop - window.first == 1 or lengths[window.first : window.stop].sum() <= plan.rows_per_window
    middle = windows[len(windows) // 2]
    again = list(plan_batches(lengths, lengths, plan, start=middle.first))
    assert [(w.first, w.stop) for w in again] == [(w.first, w.stop) for w in windows[len(windows) // 2 :]]
    for a, b in zip(again, windows[len(windows) // 2 :], strict=True):
        for one, other in zip(a.passes, b.passes, strict=True):
            np.testing.assert_array_equal(one, other)


def test_equal_lengths_give_no_padding_and_full_passes():
    lengths = np.full(100, 8, dtype=np.int64)
    (window,) = plan_batches(lengths, np.ones(100, dtype=np.int64), BatchPlan(tokens_per_pass=400))
    assert [len(p) for p in window.passes] == [50, 50]


class Echo:
    """Rows that encode the token and the prompt length that they came from."""

    def __init__(self, last):
        self.last = last
        self.flight = deque()

    def submit(self, prompts):
        """The rows hold until two more passes were launched, as a GPU's page-locked buffers do."""
        rows = [np.stack([p, np.full(len(p), len(p))], axis=1).astype(np.float32) for p in prompts]
        made = np.concatenate([r[-1:] if self.last else r for r in rows])
        self.flight.append(made)
        if len(self.flight) > 2:
            self.flight.popleft()[:] = np.nan
        assert len(self.flight) <= 2
        return lambda: {"tap": made}


class Keep:
    def __init__(self):
        self.parts = []

    def commit(self, first, stop, rows):
        self.parts.append((first, stop, rows["tap"]))


@given(lengths_of, plans, st.booleans())
def test_rows_return_in_prompt_order(lengths, plan, last):
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    ids = np.arange(offsets[-1], dtype=np.int32)
    counts = np.ones_like(lengths) if last else lengths
    row_offsets = np.concatenate([[0], np.cumsum(counts)])
    sink, done = Keep(), []
    run_plan(
        Echo(last),
        SimpleNamespace(ids=ids, offsets=offsets),
        plan_batches(lengths, counts, plan),
        sink,
        row_offsets=row_offsets,
        progress=done.append,
    )
    rows = np.concatenate([part for _, _, part in sink.parts])
    expected = offsets[1:] - 1 if last else ids
    np.testing.assert_array_equal(rows[:, 0], expected)
    np.testing.assert_array_equal(rows[:, 1], lengths if last else np.repeat(lengths, lengths))
    assert sum(done) == len(ids)
