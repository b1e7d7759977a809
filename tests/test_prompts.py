"""Prompt sets: what is loaded, what is refused, and what the hashes stand for."""

from __future__ import annotations

import datetime as dt
import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.errors import PromptError
from workbench.prompts import PromptSet, load_prompts

if TYPE_CHECKING:
    from pathlib import Path

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
SPLITTERS = "\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"


def write(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


# --- sources


def test_a_list_keeps_order_and_numbers_its_rows() -> None:
    prompts = load_prompts(["b", "a", "b", ""])
    assert prompts.texts == ("b", "a", "b", "")
    assert prompts.ids == (0, 1, 2, 3)
    assert len(prompts) == 4
    assert prompts.columns == {}
    assert prompts.token_ids is None
    assert load_prompts(text for text in ("b", "a", "b", "")).content_hash == prompts.content_hash


@pytest.mark.parametrize("splitter", SPLITTERS)
def test_a_text_file_is_split_at_line_feeds_only(tmp_path: Path, splitter: str) -> None:
    path = write(tmp_path, "a.txt", f"one{splitter}two\n\nthree")
    assert load_prompts(path).texts == (f"one{splitter}two", "", "three")
    assert load_prompts(str(path)).texts == load_prompts(path).texts


def test_line_endings_and_byte_order_mark_of_a_file_are_no_text(tmp_path: Path) -> None:
    assert load_prompts(write(tmp_path, "a.txt", "\ufeffone\r\n\ufefftwo\r\n")).texts == ("one", "\ufefftwo")
    assert load_prompts(write(tmp_path, "b.txt", "one\r\ntwo\n")).texts == ("one\r", "two")


def test_csv_columns_keep_their_types(tmp_path: Path) -> None:
    content = '\ufeffid,text,iso,population,latitude,zip\na,"x, ""y""\nz",NA,1,1.5,007\nb,,,,2,100\nc,w,NaN,-3,-1e3,1\n'
    prompts = load_prompts(write(tmp_path, "a.csv", content))
    assert prompts.texts == ('x, "y"\nz', "", "w")
    assert prompts.ids == ("a", "b", "c")
    assert prompts.columns == {
        "iso": ["NA", None, "NaN"],
        "population": [1, None, -3],
        "latitude": [1.5, 2.0, -1000.0],
        "zip": ["007", "100", "1"],
    }
    assert load_prompts(write(tmp_path, "b.tsv", "prompt\tn\na,b\t1\n")).texts == ("a,b",)


def test_a_numeric_text_column_stays_text(tmp_path: Path) -> None:
    assert load_prompts(write(tmp_path, "a.csv", "text\n1\n2\n")).texts == ("1", "2")


def test_jsonl_columns_keep_their_types(tmp_path: Path) -> None:
    rows = [{"text": "a\u2028b", "n": 1, "tags": ["x"], "code": "NA"}, {"text": "b", "ok": True, "n": None}]
    content = "\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n\n"
    prompts = load_prompts(write(tmp_path, "a.jsonl", content))
    assert prompts.texts == ("a\u2028b", "b")
    assert prompts.columns == {"n": [1, None], "tags": [["x"], None], "code": ["NA", None], "ok": [None, True]}


def test_arrow_reads_parquet_from_a_file_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread of Arrow that lets go of a Python file while the process ends aborts it."""
    sources, read = [], pq.read_table
    monkeypatch.setattr(pq, "read_table", lambda source, **asked: sources.append(source) or read(source, **asked))
    path = tmp_path / b"caf\xe9.parquet".decode("utf-8", "surrogateescape")
    with path.open("wb") as file:
        pq.write_table(pa.table({"text": ["one"]}), file)
    assert load_prompts(path).texts == ("one",)
    assert [type(source) for source in sources] == [pa.OSFile]


def test_parquet_columns_keep_their_types(tmp_path: Path) -> None:
    day = dt.date(2020, 1, 2)
    columns = {"prompt": ["a", "b"], "n": [1, None], "x": [0.5, float("nan")], "code": ["NA", None], "day": [day, None]}
    pq.write_table(pa.table(columns), tmp_path / "a.parquet", write_page_checksum=True)
    prompts = load_prompts(tmp_path / "a.parquet")
    assert prompts.texts == ("a", "b")
    assert prompts.columns == {"n": [1, None], "x": [0.5, None], "code": ["NA", None], "day": [day, None]}


def test_a_frame_keeps_types_and_loses_missing_values() -> None:
    frame = pd.DataFrame(
        {"text": ["a", "b"], "code": ["NA", None], "n": [1, None], "k": np.array([1, 2], np.int8), "ok": [True, False]},
        index=[7, 9],
    )
    frame["big"] = pd.array([2**60, None], dtype="Int64")
    prompts = load_prompts(frame)
    assert prompts.columns == {
        "code": ["NA", None],
        "n": [1, None],
        "k": [1, 2],
        "ok": [True, False],
        "big": [2**60, None],
    }
    assert prompts.ids == (0, 1)
    assert [type(value) for value in prompts.columns["k"]] == [int, int]


def test_rows_and_columns_of_plain_python_do_as_well() -> None:
    columns = load_prompts({"text": ["a", "b"], "n": [1, 2]})
    rows = load_prompts([{"text": "a", "n": 1}, {"text": "b", "n": 2}])
    assert columns.columns == rows.columns == {"n": [1, 2]}
    assert columns.content_hash == rows.content_hash


def test_pandas_is_not_imported() -> None:
    code = (
        "import sys, workbench.prompts as p; p.load_prompts(['a']); assert not {'pandas', 'pyarrow'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_text_wins_over_prompt_which_stays_a_column() -> None:
    prompts = load_prompts({"prompt": ["p"], "text": ["t"]})
    assert prompts.texts == ("t",)
    assert prompts.columns == {"prompt": ["p"]}


# --- token ids


def test_token_ids_run_and_texts_label_them() -> None:
    prompts = load_prompts(["one", "two"], token_ids=[[1, 2], np.array([3], np.int64)])
    assert prompts.token_ids is not None
    assert [row.tolist() for row in prompts.token_ids] == [[1, 2], [3]]
    assert all(row.dtype == np.int32 and not row.flags.writeable for row in prompts.token_ids)
    assert prompts.texts == ("one", "two")
    alone = load_prompts(token_ids=[[1, 2], [3]])
    assert alone.texts == (None, None)
    assert alone.hashes == prompts.hashes
    assert alone.content_hash != prompts.content_hash
    assert alone.hashes != load_prompts(["one", "two"]).hashes


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([[-1]], "between 0 and"),
        ([[2**31]], "between 0 and"),
        ([[1.0]], "must be an integer"),
        ([[True]], "must be an integer"),
        (["12"], "must be a list"),
        ([3], "must be a list"),
        ([np.array(3)], "must be a list"),
        ([], "at least one prompt"),
    ],
)
def test_broken_token_ids_are_refused(rows: list[Any], message: str) -> None:
    with pytest.raises(PromptError, match=message):
        load_prompts(token_ids=rows)


def test_labels_and_ids_are_of_one_length() -> None:
    with pytest.raises(PromptError, match="2 texts and 1 rows"):
        load_prompts(["a", "b"], token_ids=[[1]])


# --- columns, selection, hashes


def test_a_missing_column_names_those_that_exist() -> None:
    prompts = load_prompts({"text": ["a"], "country": ["NA"]})
    assert prompts.column("country") == ["NA"]
    assert prompts.column("text") == ["a"]
    with pytest.raises(PromptError, match=r"'country', 'text', 'id'; got 'city'"):
        prompts.column("city")
    with pytest.raises(PromptError, match="'text' or 'prompt'; got 'sentence', 'n'"):
        load_prompts({"sentence": ["a"], "n": [1]})


def test_selection_keeps_ids_columns_and_hashes() -> None:
    prompts = load_prompts({"text": ["a", "b", "c"], "id": ["x", "y", "z"], "n": [1, 2, 3]})
    chosen = prompts.select([2, 0])
    assert (chosen.texts, chosen.ids, chosen.columns) == (("c", "a"), ("z", "x"), {"n": [3, 1]})
    assert chosen.hashes == (prompts.hashes[2], prompts.hashes[0])
    assert prompts.select(np.array([True, False, True])).ids == ("x", "z")
    assert prompts.select(slice(1, None)).ids == ("y", "z")
    assert prompts.select([-1]).ids == ("z",)
    for rows in ([3], [[0]], [0.5], [], [0, 0]):
        with pytest.raises(PromptError):
            prompts.select(rows)


@given(texts=st.lists(TEXT, min_size=2, max_size=6), other=TEXT)
def test_hashes_see_content_and_order_and_nothing_else(texts: list[str], other: str) -> None:
    prompts = load_prompts(texts)
    assert load_prompts({"text": texts, "n": range(len(texts))}).content_hash == prompts.content_hash
    swapped = texts[::-1]
    assert (load_prompts(swapped).content_hash == prompts.content_hash) == (swapped == texts)
    assert sorted(load_prompts(swapped).hashes) == sorted(prompts.hashes)
    changed = [other, *texts[1:]]
    assert (load_prompts(changed).content_hash == prompts.content_hash) == (changed == texts)
    assert load_prompts({"text": texts, "id": list(map(str, range(len(texts))))}).content_hash != prompts.content_hash
    assert load_prompts(["".join(texts)]).content_hash != prompts.content_hash


def test_hashes_are_stable_across_versions() -> None:
    prompts = load_prompts(["The capital of France is"])
    assert prompts.hashes == ("57c8d004986c203e16deea550fbebd384c6bc5e32351d8a2a33d3f2b92441521",)
    assert prompts.content_hash == "5b232799ca6befd8c489ba16dafedcaa63fa5a6b515555353d1ddabdafd4174e"


@given(texts=st.lists(TEXT.filter(lambda text: "\n" not in text), min_size=1, max_size=5))
def test_a_text_file_gives_back_its_lines(tmp_path_factory: pytest.TempPathFactory, texts: list[str]) -> None:
    content = "\n".join([*texts, "last"])
    path = write(tmp_path_factory.mktemp("lines"), "a.txt", content)
    assert load_prompts(path).texts == tuple(content.removeprefix("\ufeff").split("\n"))


# --- bad input


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (None, "must be given"),
        ([], "at least one prompt"),
        ({"text": []}, "at least one prompt"),
        (["a", None], "NoneType in prompt 1"),
        (["a", 3], "int in prompt 1"),
        ([b"a"], "bytes in prompt 0"),
        (["ok", "a\ud800"], r"U\+D800 at character 1 of prompt 1"),
        (3, "a list of texts, a path or a table; got int"),
        (b"a.txt", "got bytes"),
        ({"text": ["a", "a"], "id": ["x", "x"]}, "'x' at rows 0 and 1"),
        ({"text": ["a"], "id": [None]}, "None at row 0"),
        ({"text": ["a", "b"], "id": [1, "1"]}, "one type"),
        ({"text": ["a"], "id": [1.5]}, "text or an integer"),
        ({"text": ["a", "b"], "n": [1]}, "one value for each of 2"),
        ({1: ["a"]}, "a column name must be text"),
        (pd.DataFrame([["a", "b"]], columns=["text", "text"]), "differ"),
        ("a single text", "must end in .txt"),
        ("no/such/file.csv", "No such file"),
        ("nul\0.txt", "readable file"),
    ],
)
def test_bad_input_says_what_and_what_to_do(source: Any, message: str) -> None:
    with pytest.raises(PromptError, match=message) as caught:
        load_prompts(source)
    assert caught.value.do.endswith(".")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"one\ntw\xffo\n", "byte 0xFF at line 2"),
        ("a.txt", "one".encode("utf-16"), "UTF-8"),
        ("a.txt", b"", "at least one prompt"),
        ("a.csv", b"", "header"),
        ("a.csv", b"text,text\na,b\n", "must differ"),
        ("a.csv", b"text,n\na\n", "1 at line 2"),
        ("a.csv", b'text\n"a" b\n', "valid CSV"),
        ("a.csv", b'text\n"a', "valid CSV"),
        ("a.csv", b"sentence\na\n", "'text' or 'prompt'; got 'sentence'"),
        ("a.jsonl", b'{"text": "a"}\nnope\n', "at line 2"),
        ("a.jsonl", b'"a"\n', "str at line 1"),
        ("a.jsonl", b'{"text": NaN}\n', "NaN"),
        ("a.jsonl", b'{"text": "a", "text": "b"}\n', "twice"),
        ("a.jsonl", b'{"text": "\\ud800"}\n', r"U\+D800"),
        ("a.jsonl", b'{"text": ' + b"[" * 10**5, "at line 1"),
        ("a.parquet", b"PAR1 not", "valid Parquet"),
        ("a.xlsx", b"", "must end in"),
    ],
)
def test_a_broken_file_is_named_with_its_line(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    with pytest.raises(PromptError, match=message):
        load_prompts(write(tmp_path, name, content))


def test_a_folder_and_a_pipe_are_no_files(tmp_path: Path) -> None:
    import os

    (tmp_path / "folder.txt").mkdir()
    os.mkfifo(tmp_path / "pipe.txt")
    for name in ("folder.txt", "pipe.txt"):
        with pytest.raises(PromptError, match="must be a file"):
            load_prompts(tmp_path / name)


@pytest.mark.parametrize("text", ["a\x00b", "x" * 1_000_000, "\u202ex", "🗼", "\x1b[31m", "</script>", " \t"])
def test_odd_texts_come_through_every_format(tmp_path: Path, text: str) -> None:
    write(tmp_path, "a.txt", text)
    write(tmp_path, "a.jsonl", json.dumps({"text": text}))
    write(tmp_path, "a.csv", f'text\n"{text}"\n')
    pq.write_table(pa.table({"text": [text]}), tmp_path / "a.parquet")
    for name in ("a.txt", "a.jsonl", "a.csv", "a.parquet"):
        assert load_prompts(tmp_path / name).texts == (text,)


def test_messages_show_hostile_text_escaped() -> None:
    with pytest.raises(PromptError) as caught:
        load_prompts({"text": ["a", "b"], "id": ["\x1b[31m\u202e", "\x1b[31m\u202e"]})
    assert str(caught.value).isprintable()


def test_a_set_cannot_be_changed() -> None:
    prompts = load_prompts(["a"])
    with pytest.raises(AttributeError):
        prompts.texts = ("b",)  # type: ignore[misc]
    assert isinstance(prompts, PromptSet)
