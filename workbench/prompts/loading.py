"""`load_prompts`: lists, files, tables and token ids to a `PromptSet`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from workbench.errors import PromptError
from workbench.prompts.files import read_file
from workbench.prompts.frames import columns_of_frame, is_frame
from workbench.prompts.promptset import PromptSet, columns_of_rows, show

TEXT_COLUMNS = ("text", "prompt")
"""Columns that hold the text, in order of preference; the other one stays a metadata column."""


def load_prompts(texts_or_path: Any = None, *, token_ids: Iterable[Any] | None = None) -> PromptSet:
    """Load prompts from a list, a file, a table, or token ids.

    Parameters
    ----------
    texts_or_path : list of str, path, table, or None
        A list of texts; the path of a `.txt`, `.csv`, `.tsv`, `.jsonl` or `.parquet` file; a pandas DataFrame, a
        mapping of columns, or a list of mappings (rows). In a table the column `text`, or else `prompt`, is the text,
        `id` the id of each prompt (its row number where there is none), and every other column is kept as metadata
        with its type. Missing values become None; the text `NA` is a text.
    token_ids : iterable of sequences of int, optional
        Ids to run in place of texts; the texts, if any, are kept as labels. Nothing is added to them, BOS included.

    Returns
    -------
    PromptSet
        The prompts in their order.

    Raises
    ------
    PromptError
        If there is no prompt, the file is not there or broken (the message names the line), no column holds the text
        (the message names the columns), an id is repeated, or a text is no valid Unicode.

    Notes
    -----
    Files are UTF-8; a byte-order mark at their start is dropped, one elsewhere is text. A text file has one prompt a
    line and is split at line feeds only, every other character is text; where every line ends in CR LF, that is the
    line ending. In a CSV file a column whose cells all read as integers, or all as decimal numbers, is read as such
    (`007` is text), an empty cell is None, and an empty cell of the text column is the empty text.
    """
    if token_ids is not None:
        return _with_tokens(texts_or_path, list(token_ids))
    if texts_or_path is None:
        raise PromptError("prompts must be given", "neither texts nor token_ids", "Pass a list of texts, or a path.")
    return _from_columns(*_columns(texts_or_path))


def _columns(source: Any) -> tuple[dict[str, list[Any]], str]:
    """Columns of a source, and its name in messages."""
    if isinstance(source, PromptSet):
        own: dict[str, list[Any]] = {"text": list(source.texts), "id": list(source.ids)}
        return own | source.columns, "the prompt set"
    if isinstance(source, str | os.PathLike):
        path = Path(source)
        return read_file(path), show(str(path))
    if is_frame(source):
        return columns_of_frame(source), "the frame"
    if isinstance(source, Mapping):
        return _checked({name: list(values) for name, values in source.items()}), "the mapping"
    if isinstance(source, bytes) or not isinstance(source, Iterable):
        what = "prompts must be a list of texts, a path or a table"
        raise PromptError(what, type(source).__name__, "Wrap a single text in a list.")
    rows = list(source)
    if rows and all(isinstance(row, Mapping) for row in rows):
        return _checked(columns_of_rows(rows)), "the rows"
    return {"text": rows}, "the list"


def _checked(columns: dict[Any, list[Any]]) -> dict[str, list[Any]]:
    for name in columns:
        if not isinstance(name, str):
            raise PromptError("a column name must be text", show(name), "Rename the column.")
    return columns


def _from_columns(columns: dict[str, list[Any]], where: str) -> PromptSet:
    text = next((name for name in TEXT_COLUMNS if name in columns), None)
    if text is None:
        raise PromptError(
            f"{where} must have a column called 'text' or 'prompt'",
            ", ".join(map(show, columns)) or "no columns",
            "Rename the column that holds the texts.",
        )
    rest = {name: values for name, values in columns.items() if name not in (text, "id")}
    return PromptSet(texts=tuple(columns[text]), columns=rest, ids=_ids(columns))


def _ids(columns: Mapping[str, Sequence[Any]]) -> tuple[Any, ...]:
    return tuple(columns.get("id", ()))


def _with_tokens(source: Any, token_ids: list[Any]) -> PromptSet:
    if source is None:
        return PromptSet(texts=(None,) * len(token_ids), token_ids=tuple(token_ids))
    columns, _ = _columns(source)
    text = next((name for name in TEXT_COLUMNS if name in columns), None)
    rest = {name: values for name, values in columns.items() if name not in (text, "id")}
    count = len(next(iter(columns.values()), ()))
    if count != len(token_ids):
        got = f"{count} texts and {len(token_ids)} rows of token ids"
        raise PromptError("texts and token_ids must be of one length", got, "Give one label a prompt, or none.")
    texts = tuple(columns[text]) if text is not None else (None,) * count
    return PromptSet(texts=texts, token_ids=tuple(token_ids), columns=rest, ids=_ids(columns))
