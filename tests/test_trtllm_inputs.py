"""Every input tensor of an engine of TensorRT-LLM: right values, right place, and nothing else passes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.engine.trtllm.engine_config import TensorRtLlmPart
from workbench.engine.trtllm.input_table import input_table, place_of
from workbench.engine.trtllm.inputs import check_inputs, output_shapes, prepare_inputs, real_rows
from workbench.errors import ContractError

PART = TensorRtLlmPart(
    version="0.16.0",
    architecture="LlamaForCausalLM",
    dtype="float16",
    logits_dtype="float32",
    n_layers=3,
    d_model=4,
    d_vocab=1000,
    layout="packed",
    kv_cache_type="DISABLED",
    max_batch_size=8,
    max_input_len=16,
    max_seq_len=20,
    max_num_tokens=64,
    opt_num_tokens=64,
    gpt_attention_plugin="auto",
    gemm_plugin=None,
    context_fmha=True,
    quant_algo=None,
    kv_cache_quant_algo=None,
    tp_size=1,
    strongly_typed=True,
)
LENGTHS = np.array([3, 1, 2])
IDS = np.array([5, 6, 7, 8, 9, 10], np.int32)


def part(**changes: Any) -> TensorRtLlmPart:
    return PART.model_copy(update=changes)


def test_packed_inputs_value_by_value() -> None:
    got = prepare_inputs(IDS, LENGTHS, part=PART)
    want = {
        "input_ids": [5, 6, 7, 8, 9, 10],
        "position_ids": [0, 1, 2, 0, 0, 1],
        "last_token_ids": [3, 4, 6],
        "context_lengths": [3, 1, 2],
        "host_context_lengths": [3, 1, 2],
        "host_request_types": [0, 0, 0],
        "host_max_attention_window_sizes": [20, 20, 20],
        "host_sink_token_length": [0],
        "host_runtime_perf_knobs": [1, 1] + [-1] * 14,
        "host_context_progress": [0],
    }
    assert {name: array.tolist() for name, array in got.items()} == want
    assert {name for name, array in got.items() if array.dtype == np.int64} == {
        "host_runtime_perf_knobs",
        "host_context_progress",
    }
    assert all(array.dtype in (np.int32, np.int64) for array in got.values())


def test_plain_inputs_value_by_value() -> None:
    got = prepare_inputs(IDS, LENGTHS, part=part(layout="plain", max_num_tokens=None))
    assert {name: array.tolist() for name, array in got.items()} == {
        "input_ids": [[5, 6, 7], [8, 0, 0], [9, 10, 0]],
        "position_ids": [[0, 1, 2]] * 3,
        "last_token_ids": [3, 1, 2],
        "attention_mask": [[1, 1, 1], [1, 0, 0], [1, 1, 0]],
    }


def test_padded_has_the_plugins_tensors_but_no_host_lengths() -> None:
    got = prepare_inputs(IDS, LENGTHS, part=part(layout="padded"))
    assert "host_context_lengths" not in got
    assert "attention_mask" not in got
    assert got["last_token_ids"].tolist() == got["context_lengths"].tolist() == [3, 1, 2]


@pytest.mark.parametrize(
    ("version", "knobs", "progress"),
    [
        ("0.11.0", False, False),
        ("0.12.0", True, False),
        ("0.15.0.dev2024101500", True, False),
        ("0.15.0", True, True),
        ("1.2.1", True, True),
    ],
)
def test_versions_differ_in_two_tensors(version: str, knobs: bool, progress: bool) -> None:
    names = {spec.name for spec in input_table(part(version=version))}
    assert ("host_runtime_perf_knobs" in names) is knobs
    assert ("host_context_progress" in names) is progress


def test_pointers_by_name() -> None:
    places = {spec.name: spec.place for spec in input_table(PART)}
    assert all((place == "host") == name.startswith("host_") for name, place in places.items())
    assert place_of("final_hidden_states") == "device"


def test_a_cache_is_refused() -> None:
    with pytest.raises(ContractError, match="kv_cache_type PAGED"):
        prepare_inputs(IDS, LENGTHS, part=part(kv_cache_type="PAGED"))


@given(st.lists(st.integers(1, 16), min_size=1, max_size=8).filter(lambda sizes: sum(sizes) <= 64), st.data())
def test_both_layouts_hold_the_same_tokens(sizes: list[int], data: st.DataObject) -> None:
    lengths = np.array(sizes)
    n = int(lengths.sum())
    ids = np.array(data.draw(st.lists(st.integers(0, 999), min_size=n, max_size=n)), np.int32)
    packed = prepare_inputs(ids, lengths, part=PART)
    plain_part = part(layout="plain")
    plain = prepare_inputs(ids, lengths, part=plain_part)
    for name in ("input_ids", "position_ids"):
        assert real_rows(plain[name][..., None], lengths, part=plain_part)[:, 0].tolist() == packed[name].tolist()
    assert np.diff(packed["last_token_ids"], prepend=0).tolist() == plain["last_token_ids"].tolist() == sizes
    assert plain["attention_mask"].sum() == n
    check_inputs(packed, ids, lengths, part=PART)
    check_inputs(plain, ids, lengths, part=plain_part)
    assert output_shapes(lengths, part=PART)["final_hidden_states"] == (n, 4)
    assert output_shapes(lengths, part=plain_part) == {
        "logits": (len(sizes), 1000),
        "final_hidden_states": (len(sizes), max(sizes), 4),
    }


@pytest.mark.parametrize(
    ("ids", "lengths", "message"),
    [
        ([1] * 17, [17], "at most 16 tokens; got 17"),
        ([1] * 9, [1] * 9, "1 to 8 prompts; got 9"),
        ([1, 2], [2, 0], "an empty prompt"),
        ([1, 2], [1], "1 and 2"),
        ([1000], [1], "between 0 and 999; got 0 to 1000"),
        ([-1], [1], "between 0 and 999; got -1"),
        ([1] * 65, [13] * 5, "at most 64 tokens; got 65"),
        ([], [], "1 to 8 prompts; got 0"),
    ],
)
def test_limits(ids: list[int], lengths: list[int], message: str) -> None:
    with pytest.raises(ContractError, match=message):
        prepare_inputs(np.array(ids, np.int32), np.array(lengths, np.int64), part=PART)


def broken(name: str, value: Any) -> dict[str, np.ndarray]:
    arrays = prepare_inputs(IDS, LENGTHS, part=PART)
    return {**arrays, name: value}


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("last_token_ids", np.array([3, 1, 2], np.int32), r"last_token_ids\[1\] must be 4; got 1"),
        ("last_token_ids", np.array([2, 3, 5], np.int32), r"last_token_ids\[0\] must be 3; got 2"),
        ("position_ids", np.arange(6, dtype=np.int32), r"position_ids\[3\] must be 0; got 3"),
        ("host_max_attention_window_sizes", np.zeros(3, np.int32), "must be 20; got 0"),
        ("host_request_types", np.ones(3, np.int32), "must be 0; got 1"),
        ("host_runtime_perf_knobs", np.full(16, -1, np.int64), r"perf_knobs\[0\] must be 1"),
        ("context_lengths", LENGTHS, r"int32 \[3\]; got int64 \[3\]"),
        ("input_ids", IDS[:5], r"int32 \[6\]; got int32 \[5\]"),
        ("input_ids", np.repeat(IDS, 2)[::2], "C-contiguous"),
        ("surplus", IDS, "the inputs must be"),
    ],
)
def test_a_wrong_tensor_is_named(name: str, value: Any, message: str) -> None:
    with pytest.raises(ContractError, match=message):
        check_inputs(broken(name, value), IDS, LENGTHS, part=PART)


def test_a_missing_tensor_or_a_pointer_on_the_wrong_side_is_named() -> None:
    arrays = prepare_inputs(IDS, LENGTHS, part=PART)
    check_inputs(arrays, IDS, LENGTHS, part=PART, places={name: place_of(name) for name in arrays})
    with pytest.raises(ContractError, match="host_request_types must live on the host; got a pointer of the device"):
        check_inputs(arrays, IDS, LENGTHS, part=PART, places={"host_request_types": "device"})
    del arrays["host_context_progress"]
    with pytest.raises(ContractError, match="host_context_progress"):
        check_inputs(arrays, IDS, LENGTHS, part=PART)


def test_the_table_knows_every_tensor_that_is_made() -> None:
    for layout in ("packed", "padded", "plain"):
        this = part(layout=layout)
        made = prepare_inputs(IDS, LENGTHS, part=this)
        sizes = {"prompt": 3, "token": 6, "column": 3, "layer": 3, "one": 1, "knob": 16}
        for spec in input_table(this):
            assert made[spec.name].shape == tuple(sizes[axis] for axis in spec.axes), spec.name
            assert made[spec.name].dtype == spec.dtype
