"""safetensors files and shards: read as the safetensors package reads them, refused where anything does not hold."""

import json

import ml_dtypes
import numpy as np
import pytest
from attacks import safetensors_files as maker
from attacks.mapping import mapped, mutants
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError, deserialize
from safetensors.numpy import save_file

from workbench.checkpoint.paths import Folder
from workbench.checkpoint.safetensors_file import open_safetensors, parse_safetensors
from workbench.checkpoint.sharded import INDEX, sharded_in
from workbench.checkpoint.source import MappedTensors
from workbench.errors import CheckpointError

HOSTILE = list(maker.hostile())
DTYPES = (
    np.float64,
    np.float32,
    np.float16,
    ml_dtypes.bfloat16,
    np.int64,
    np.int32,
    np.int16,
    np.int8,
    np.uint8,
    np.bool_,
)


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(
        st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20).filter(
            lambda n: n != "__metadata__"
        ),
        st.tuples(st.sampled_from(DTYPES), st.lists(st.integers(0, 5), max_size=4)),
        max_size=5,
    )
)
def test_what_safetensors_wrote_is_read_back(tmp_path_factory, tensors):
    path = tmp_path_factory.mktemp("written") / "a.safetensors"
    random = np.random.default_rng(0)
    arrays = {name: random.integers(0, 2, shape).astype(dtype) for name, (dtype, shape) in tensors.items()}
    save_file(arrays, path, metadata={"format": "np"})
    file = open_safetensors(path)
    assert set(file.names) == set(arrays)
    assert file.metadata == {"format": "np"}
    for name, array in arrays.items():
        assert file.shape(name) == array.shape
        assert np.array_equal(file.read(name), array.astype(np.float32))
        assert bytes(file.raw(name)) == array.tobytes()


@pytest.mark.parametrize(("data", "words"), [row[1:] for row in HOSTILE], ids=[row[0] for row in HOSTILE])
def test_a_hostile_file_is_refused(tmp_path, data, words):
    path = tmp_path / "evil.safetensors"
    path.write_bytes(data)
    with pytest.raises(CheckpointError) as refusal:
        open_safetensors(path)
    assert words in str(refusal.value)
    assert "evil" in str(refusal.value)
    assert str(refusal.value).isprintable()


def test_whatever_safetensors_refuses_is_refused():
    """Not the other way round: caps, unknown fields and keys that stand twice are refused here alone."""
    n_refused = 0
    for data in mutants(maker.build(), 10_000, seed=3):
        try:
            deserialize(data)
        except SafetensorError:
            n_refused += 1
            assert _open_all(data) is None, data
    assert 1_000 < n_refused < 9_900


def _open_all(data):
    try:
        metadata, entries = parse_safetensors(mapped(data))
    except CheckpointError as refusal:
        return None if str(refusal).isprintable() else pytest.fail(repr(refusal))
    file = MappedTensors("x", entries, metadata)
    return sum(len(file.raw(name)) for name in file.names)


def test_ten_thousand_mutants_give_a_refusal_or_a_file():
    opened = sum(_open_all(data) is not None for data in mutants(maker.build(), 10_000, seed=2))
    assert 100 < opened < 9_900


@settings(max_examples=200, deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.dictionaries(
                st.sampled_from(["dtype", "shape", "data_offsets", "__metadata__", "F32", "x"]), inner, max_size=4
            )
        ),
        max_leaves=20,
    )
)
def test_any_json_as_header_gives_a_refusal_or_a_file(value):
    _open_all(maker.build(value, bytes(16)))


def test_every_cut_is_refused():
    sound = maker.build()
    for size in range(1, len(sound)):
        assert _open_all(sound[:size]) is None


def _shards(folder, where, **files):
    for name, arrays in files.items():
        save_file({key: np.float32([value]) for key, value in arrays.items()}, folder / f"{name}.safetensors")
    return json.dumps({"weight_map": {key: f"{name}.safetensors" for key, name in where.items()}}).encode()


def test_the_index_decides_which_file_holds_which_tensor(tmp_path):
    index = _shards(tmp_path, {"x": "s2", "y": "s1"}, s1={"x": 1, "y": 1}, s2={"x": 2, "y": 2, "z": 2})
    file, files = sharded_in(Folder(tmp_path), index)
    assert {name: float(file.read(name)[0]) for name in file.names} == {"x": 2, "y": 1}
    assert file.left_out == ("z",)
    assert [f.name for f in files] == ["s1.safetensors", "s2.safetensors"]


@pytest.mark.parametrize(
    ("where", "words"),
    [
        ({"x": "s1", "y": "s1"}, "'y'"),
        ({"x": "s3"}, "s3"),
        ({"x": "../s1"}, "bare name"),
        ({"x": "/etc/passwd"}, "bare name"),
        ({"x": "a/../s1"}, "bare name"),
        ({"x": "s1\x00"}, "bare name"),
        ({"x": ""}, "safetensors"),
        ({}, "weight_map"),
    ],
)
def test_an_index_that_does_not_fit_is_refused(tmp_path, where, words):
    index = _shards(tmp_path, where, s1={"x": 1})
    with pytest.raises(CheckpointError, match=words):
        sharded_in(Folder(tmp_path), index)


@pytest.mark.parametrize(
    "index", [b"[]", b"{}", b'{"weight_map":{"x":1}}', b'{"weight_map":[]}', b'{"weight_map":{"x":"a.bin"}}']
)
def test_an_index_that_is_none_is_refused(tmp_path, index):
    with pytest.raises(CheckpointError):
        sharded_in(Folder(tmp_path), index)


def test_an_index_holds_the_name_of_its_file_in_errors(tmp_path):
    with pytest.raises(CheckpointError, match=INDEX):
        sharded_in(Folder(tmp_path), b"{}")
