"""T7 and T8: the store against a model in memory, with crashes as steps; ten thousand canary rows keep their place."""

from __future__ import annotations

import random
import shutil
import tempfile
import warnings
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from conftest import MEMORY
from hypothesis import HealthCheck, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from store_toys import CONTRACT, PROVENANCE, SMALL, TAPS, canary, make_prompts, make_tokens, new_run, rows_of_batch

from workbench.errors import ContractMismatch, RunExists, StoreLocked
from workbench.store import RunWriter, StoreWarning, open_run
from workbench.store.verifying import verify_run

if TYPE_CHECKING:
    from fault_figures import Note

N = 30


class StoreMachine(RuleBasedStateMachine):
    """A run that is written, crashed, resumed and read in any order; the model is two numbers."""

    steps = 0  # taken by all machines of a class

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(dir=MEMORY))
        self.writer: RunWriter | None = None
        self.given = 0  # prompts handed over
        self.acked = 0  # prompts known to be safe
        self.closed = False

    @property
    def path(self) -> Path:
        return self.folder / "run"

    @initialize(shard=st.sampled_from([200, 1000, 1 << 30]), group=st.sampled_from([100, 700, 1 << 20]))
    def create(self, shard: int, group: int) -> None:
        self.options = replace(
            SMALL, shard_bytes=shard, group_bytes=group, group_s=10.0, reserve_bytes=0, groups_in_flight=2
        )
        self.writer = self.open(resume=False)

    def open(self, *, resume: bool, **changes: Any) -> RunWriter:
        return new_run(self.path, N, resume=resume, options=self.options, durability="process-crash-only", **changes)

    @precondition(lambda self: self.writer is not None and self.given < N)
    @rule(count=st.integers(1, 9))
    def commit(self, count: int) -> None:
        stop = min(N, self.given + count)
        assert self.writer is not None
        self.writer.commit(self.given, stop, rows_of_batch(self.writer, TAPS, self.given, stop))
        self.given = stop

    @precondition(lambda self: self.writer is not None)
    @rule()
    def flush(self) -> None:
        assert self.writer is not None
        self.writer.flush()
        assert self.writer.next_prompt == self.given
        self.acked = self.given

    @precondition(lambda self: self.writer is not None and not self.closed)
    @rule()
    def crash(self) -> None:
        """Drop what is not written yet, as a dying process does."""
        assert self.writer is not None
        self.acked = max(self.acked, self.writer.next_prompt)
        self.writer._end()
        self.writer = None

    @precondition(lambda self: self.writer is None)
    @rule()
    def resume(self) -> None:
        self.writer = self.open(resume=True)
        assert self.acked <= self.writer.next_prompt <= self.given
        self.given = self.acked = self.writer.next_prompt

    @precondition(lambda self: self.writer is None)
    @rule(what=st.sampled_from(["contract", "provenance", "taps", "positions", "prompts", "tokens"]))
    def resume_with_another_setting(self, what: str) -> None:
        other = {
            "contract": {**CONTRACT, "engine_id": "0" * 64}, "provenance": {**PROVENANCE, "template": "chat"},
            "taps": TAPS[:1], "positions": "last", "prompts": make_prompts(N).select(list(reversed(range(N)))),
            "tokens": make_tokens(N, seed=5),
        }  # fmt: skip
        with pytest.raises(ContractMismatch, match=what):
            self.open(resume=True, **{what: other[what]})

    @precondition(lambda self: self.writer is not None and not self.closed)
    @rule()
    def second_writer(self) -> None:
        with pytest.raises(StoreLocked):
            self.open(resume=True)
        with pytest.raises(RunExists):
            self.open(resume=False)

    @precondition(lambda self: self.writer is not None and self.given == N)
    @rule()
    def close(self) -> None:
        assert self.writer is not None
        run = self.writer.close()
        self.writer, self.closed, self.acked = None, True, N
        assert run.status == "complete"
        assert verify_run(self.path)

    @rule()
    def read(self) -> None:
        run = open_run(self.path)
        assert self.acked <= run.n_prompts <= self.given
        assert run.n_rows == make_tokens(N).offsets[run.n_prompts]
        for tap in TAPS:
            np.testing.assert_array_equal(run.tap(tap.name, checked=True)[:], canary(tap, 0, run.n_rows))
            assert run.statistics(tap.name).n_rows == run.n_rows

    @invariant()
    def opens(self) -> None:
        type(self).steps += 1
        if self.path.exists():
            assert open_run(self.path).n_prompts >= self.acked

    def teardown(self) -> None:
        if self.writer is not None:
            self.writer._end()
        shutil.rmtree(self.folder, ignore_errors=True)


TestStore = StoreMachine.TestCase
TestStore.settings = settings(
    max_examples=12, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True
)


@pytest.mark.long
def test_ten_thousand_steps_agree_with_the_model(note: Note) -> None:
    class LongMachine(StoreMachine):
        pass

    number = 20261129
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        seed(number)(LongMachine),
        settings=settings(
            max_examples=260, stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck),
            database=None,
        ),
    )  # fmt: skip
    assert LongMachine.steps > 10_000
    note(steps=LongMachine.steps, seed=number, differences=0)


def test_ten_thousand_canary_rows_keep_their_place(tmp_path: Path) -> None:
    """Batches of one, of many and mixed, an interruption in between: row `i` says `i` at every tap."""
    n, generator = 4000, random.Random(8)
    options = replace(SMALL, group_bytes=1 << 16, shard_bytes=1 << 17)
    asked: dict[str, Any] = {"options": options, "durability": "process-crash-only"}
    writer = new_run(tmp_path / "run", n, **asked)
    for stop_at in (1500, n):
        first = writer.next_prompt
        while first < stop_at:
            stop = min(n, first + generator.choice([1, 1, 2, 50, 400]))
            writer.commit(first, stop, rows_of_batch(writer, TAPS, first, stop))
            first = stop
        if stop_at < n:
            writer.abort()
            with warnings.catch_warnings():
                warnings.simplefilter("error", StoreWarning)
                writer = new_run(tmp_path / "run", n, resume=True, **asked)
    run = writer.close()
    assert run.n_rows > 9_900
    for tap in TAPS:
        np.testing.assert_array_equal(run.tap(tap.name)[:], canary(tap, 0, run.n_rows))
    rows = np.random.default_rng(0).permutation(run.n_rows)
    np.testing.assert_array_equal(run.tap("final_norm")[rows], canary(TAPS[0], 0, run.n_rows)[rows])
    picked = [f"p{at:05d}" for at in (17, 3999, 0)]
    tokens = make_tokens(n)
    want = np.concatenate([np.arange(tokens.offsets[at], tokens.offsets[at + 1]) for at in (17, 3999, 0)])
    np.testing.assert_array_equal(run.rows_of(picked), want)
    assert verify_run(tmp_path / "run")
