"""Every stored type becomes the float32 that its format says, to the last bit."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.checkpoint.quants import TYPES, decode, gguf_type
from workbench.checkpoint.source import MappedTensors, TensorEntry
from workbench.errors import CheckpointError, UnsupportedError

GOLDEN_TYPES = (
    *("F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "IQ4_NL", "MXFP4"),
    *("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS"),
)


def same_bits(a, b):
    """Equal bit for bit, any NaN equal to any NaN."""
    return np.array_equal(a.view(np.uint32) * ~np.isnan(a), b.view(np.uint32) * ~np.isnan(b)) and np.array_equal(
        np.isnan(a), np.isnan(b)
    )


@pytest.fixture(scope="module")
def blocks(golden):
    with np.load(golden / "quants" / "blocks.npz") as arrays:
        return dict(arrays)


@pytest.mark.parametrize("name", GOLDEN_TYPES)
def test_decodes_as_llama_cpp_does(blocks, name):
    assert same_bits(decode(blocks[f"{name}.raw"], name, "x"), blocks[f"{name}.values"])


@pytest.mark.parametrize("name", GOLDEN_TYPES)
def test_slices_make_no_difference(blocks, name):
    raw = blocks[f"{name}.raw"]
    assert same_bits(decode(raw, name, "x", slice_bytes=1), decode(raw, name, "x", slice_bytes=1 << 30))


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("F8_E4M3", ml_dtypes.float8_e4m3fn), ("F8_E5M2", ml_dtypes.float8_e5m2), ("BF16", ml_dtypes.bfloat16)],
)
def test_every_code_of_the_short_floats(name, dtype):
    codes = np.arange(1 << 8 * np.dtype(dtype).itemsize).astype(f"<u{np.dtype(dtype).itemsize}").view(np.uint8)
    assert same_bits(decode(codes, name, "x"), codes.view(dtype).astype(np.float32))


def test_q8_k_is_scale_times_code():
    block = np.zeros(2, TYPES["Q8_K"].block)
    block["d"] = [0.5, -3.0]
    block["qs"] = np.arange(-128, 128)
    block["bsums"] = 77  # sums of codes for dot products, no part of the values
    expected = (np.array([[0.5], [-3.0]], np.float32) * np.arange(-128, 128, dtype=np.float32)).reshape(-1)
    assert np.array_equal(decode(block.view(np.uint8), "Q8_K", "x"), expected)


@pytest.mark.parametrize("name", ["I8", "I16", "I32", "I64", "U8", "U16", "U32", "U64", "BOOL"])
def test_integers_keep_their_value(name):
    dtype = TYPES[name].block
    edge = min(int(np.iinfo(dtype).max), 1 << 24)
    values = np.array([0, 1, 3, edge, max(int(np.iinfo(dtype).min), -(1 << 24))], dtype)
    assert np.array_equal(decode(values.view(np.uint8), name, "x"), values.astype(np.float64))


@pytest.mark.parametrize("name", ["I32", "I64", "U32", "U64"])
@pytest.mark.parametrize("value", [(1 << 24) + 1, -(1 << 24) - 1])
def test_integers_that_float32_would_change_are_refused(name, value):
    if value < 0 and name.startswith("U"):
        return
    with pytest.raises(CheckpointError, match="2\\^24"):
        decode(np.array([value], TYPES[name].block).view(np.uint8), name, "x")


def test_f64_is_rounded_to_nearest():
    values = np.array([0.1, -1e300, 1e-300, np.nan])
    with np.errstate(over="ignore"):
        assert same_bits(decode(values.view(np.uint8), "F64", "x"), values.astype(np.float32))


def test_f32_is_a_view_and_its_misaligned_twin_a_copy():
    raw = np.zeros(17, np.uint8)
    assert np.shares_memory(decode(raw[:16], "F32", "x"), raw)
    apart = decode(raw[1:], "F32", "x")
    assert apart.flags.aligned
    assert not np.shares_memory(apart, raw)


def test_no_blocks_give_no_values():
    for name in TYPES:
        assert decode(np.empty(0, np.uint8), name, "x").shape == (0,)


def test_types_have_the_sizes_of_ggml():
    # bytes of a block: ggml-common.h
    sizes = {"Q4_0": 18, "Q4_1": 20, "Q5_0": 22, "Q5_1": 24, "Q8_0": 34, "Q2_K": 84, "Q3_K": 110, "Q4_K": 144}
    sizes |= {"Q5_K": 176, "Q6_K": 210, "Q8_K": 292, "IQ4_NL": 18, "IQ4_XS": 136, "MXFP4": 17}
    assert {name: TYPES[name].block_bytes for name in sizes} == sizes


def test_a_type_that_is_not_read_is_refused_by_name():
    with pytest.raises(UnsupportedError, match="IQ2_XXS"):
        gguf_type(16, "x")


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(sorted(TYPES)),
    st.tuples(st.integers(1, 5), st.integers(1, 3)),
    st.tuples(st.integers(-7, 7), st.integers(-7, 7)),
    st.data(),
)
def test_read_rows_is_a_slice_of_read(name, sizes, bounds, data):
    (rows, blocks_a_row), (start, stop) = sizes, bounds
    kind = TYPES[name]
    size = rows * blocks_a_row * kind.block_bytes
    raw = np.frombuffer(data.draw(st.binary(min_size=size, max_size=size)), np.uint8) & 1  # small integers are exact
    shape = (rows, blocks_a_row * kind.block_values)
    if kind.block.kind in "iu" and kind.block_bytes > 2:
        raw = np.zeros_like(raw)
    file = MappedTensors("x", [TensorEntry(name="t", shape=shape, type=name, data=raw)], {})
    assert same_bits(file.read_rows("t", start, stop), file.read("t")[start:stop])


def test_read_rows_of_a_vector():
    raw = np.arange(64, dtype=np.float16).view(np.uint8)
    file = MappedTensors("x", [TensorEntry(name="t", shape=(64,), type="F16", data=raw)], {})
    assert np.array_equal(file.read_rows("t", 3, 9), np.arange(3, 9, dtype=np.float32))
    quantised = MappedTensors("x", [TensorEntry(name="t", shape=(32,), type="Q8_0", data=np.ones(34, np.uint8))], {})
    assert np.array_equal(quantised.read_rows("t", 30, 40), quantised.read("t")[30:])
