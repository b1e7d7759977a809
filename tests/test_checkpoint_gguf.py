"""GGUF files: read as written, and refused where anything does not hold."""

import numpy as np
import pytest
from attacks import gguf_files as maker
from attacks.mapping import mapped, mutants
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.checkpoint.gguf import open_gguf, parse_gguf
from workbench.checkpoint.source import MappedTensors
from workbench.errors import CheckpointError

HOSTILE = list(maker.hostile())


def test_a_sound_file_is_read_as_written(tmp_path):
    path = tmp_path / "a.gguf"
    path.write_bytes(maker.build())
    file = open_gguf(path)
    assert file.metadata == {
        "general.architecture": "llama",
        "general.languages": ["en"],
        "llama.block_count": 1,
        "llama.rope.freq_base": 10000.0,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": ["a", "b", "<0x0A>"],
        "tokenizer.ggml.scores": [0.0, -1.0, -2.0],
        "tokenizer.ggml.token_type": [1, 1, 6],
        "tokenizer.ggml.add_bos_token": True,
    }
    assert [(name, file.shape(name), file.type(name)) for name in file.names] == [
        ("a", (2, 4), "F32"),
        ("b", (2, 32), "Q8_0"),
        ("c", (32,), "Q4_1"),
    ]
    assert np.array_equal(file.read("a"), np.arange(8, dtype=np.float32).reshape(2, 4))
    assert bytes(file.raw("b")) == bytes(range(68))
    assert "a" in file
    assert "z" not in file


def test_values_cannot_be_written_through(tmp_path):
    path = tmp_path / "a.gguf"
    path.write_bytes(maker.build())
    with pytest.raises(ValueError, match="read-only"):
        open_gguf(path).read("a")[0] = 1


def test_version_2_and_other_alignments_are_read():
    key = maker.key("general.alignment", maker.U32, 64)
    tensors = (maker.tensor("a", (4,), 0, 0), maker.tensor("b", (4,), 0, 64))
    data = maker.build((*maker.KEYS, key), tensors, bytes(80), version=2, alignment=64)
    _, entries = parse_gguf(mapped(data))
    assert [bytes(entry.data) for entry in entries] == [bytes(16)] * 2


def test_every_kind_of_number_is_read():
    kinds = {
        maker.U8: 255, maker.I8: -128, maker.U16: 65535, maker.I16: -32768, maker.U32: 2**32 - 1, maker.I32: -(2**31),
        maker.U64: 2**64 - 1, maker.I64: -(2**63), maker.F32: 0.5, maker.F64: 0.1,
    }  # fmt: skip
    keys = [maker.key(f"k{kind}", kind, value) for kind, value in kinds.items()]
    keys += [maker.key(f"a{kind}", [kind], [value, 0]) for kind, value in kinds.items()]
    metadata, _ = parse_gguf(mapped(maker.build(keys, (), b"")))
    assert metadata == {f"k{k}": v for k, v in kinds.items()} | {f"a{k}": [v, 0] for k, v in kinds.items()}


def test_text_that_is_only_shown_may_be_broken():
    metadata, _ = parse_gguf(mapped(maker.build((maker.key("general.author", maker.STRING, b"J\xfcrgen"),), (), b"")))
    assert metadata == {"general.author": "Jürgen"}


@pytest.mark.parametrize(("data", "words"), [row[1:] for row in HOSTILE], ids=[row[0] for row in HOSTILE])
def test_a_hostile_file_is_refused(tmp_path, data, words):
    path = tmp_path / "evil.gguf"
    path.write_bytes(data)
    with pytest.raises(CheckpointError) as refusal:
        open_gguf(path)
    assert words in str(refusal.value)
    assert "evil" in str(refusal.value)
    assert str(refusal.value).isprintable()


def _open_all(data):
    """Open and read everything, as a user would; only a refusal may come of it."""
    try:
        metadata, entries = parse_gguf(mapped(data))
    except CheckpointError as refusal:
        return None if str(refusal).isprintable() else pytest.fail(repr(refusal))
    file = MappedTensors("x", entries, metadata)
    return sum(file.read(name).size for name in file.names if not file.type(name).startswith("I"))


def test_ten_thousand_mutants_give_a_refusal_or_a_file():
    sound = maker.build()
    opened = sum(_open_all(data) is not None for data in mutants(sound, 10_000, seed=1))
    assert 100 < opened < 9_900  # else the mutants are too tame or too wild to test anything


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_arbitrary_bytes_behind_the_magic_give_a_refusal_or_a_file(data):
    sound = maker.build()
    keep = data.draw(st.integers(0, len(sound)))
    _open_all((sound[:keep] + data.draw(st.binary(max_size=64)) + sound[keep:])[:1000] or b"\0")


def test_every_cut_is_refused():
    sound = maker.build()
    for size in range(1, len(sound)):
        assert _open_all(sound[:size]) is None


def _parts(**changes):
    rows = {"no": [0, 1, 2], "count": [3, 3, 3], "total": 3} | changes
    for number in range(3):
        keys = [
            maker.key("split.no", maker.U16, rows["no"][number]),
            maker.key("split.count", maker.U16, rows["count"][number]),
        ]
        keys.append(maker.key("split.tensors.count", maker.I32, rows["total"]))
        name = rows.get("names", "abc")[number]
        yield maker.build(
            [*(maker.KEYS if number == 0 else ()), *keys],
            (maker.tensor(name, (4,), 0, 0),),
            np.full(4, number, "<f4").tobytes(),
        )


def _write_parts(folder, parts, of=3):
    for number, data in enumerate(parts):
        (folder / f"m-{number + 1:05}-of-{of:05}.gguf").write_bytes(data)
    return folder / f"m-00002-of-{of:05}.gguf"


def test_a_split_file_opens_whole_by_any_part(tmp_path):
    file = open_gguf(_write_parts(tmp_path, _parts()))
    assert {name: float(file.read(name)[0]) for name in file.names} == {"a": 0, "b": 1, "c": 2}
    assert file.metadata["general.architecture"] == "llama"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"no": [0, 2, 1]}, "split.no"),
        ({"no": [0, 1, 1]}, "split.no"),
        ({"count": [3, 3, 2]}, "split.count"),
        ({"count": [2, 3, 3]}, "of-00002"),
        ({"count": [1, 1, 1]}, "split.count"),
        ({"total": 4}, "4 tensors"),
        ({"names": "aba"}, "in two"),
    ],
)
def test_parts_that_do_not_belong_together_are_refused(tmp_path, changes, words):
    with pytest.raises(CheckpointError, match=words):
        open_gguf(_write_parts(tmp_path, _parts(**changes)))


def test_a_missing_part_is_named(tmp_path):
    path = _write_parts(tmp_path, _parts())
    (tmp_path / "m-00003-of-00003.gguf").unlink()
    with pytest.raises(CheckpointError, match="m-00003-of-00003"):
        open_gguf(path)
