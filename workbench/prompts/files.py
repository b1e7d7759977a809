"""Prompt files to columns: text, CSV, JSONL and Parquet."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import stat
import threading
from typing import TYPE_CHECKING, Any

from workbench.errors import PromptError
from workbench.prompts.frames import plain
from workbench.prompts.promptset import columns_of_rows, show

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

Columns = dict[str, list[Any]]

_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]{0,17})", re.ASCII)
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?", re.ASCII)
_CSV_LOCK = threading.Lock()  # the field size limit belongs to the process


def read_file(path: Path) -> Columns:
    """Read a prompt file; its ending says how.

    Raises
    ------
    PromptError
        If there is no such regular file, its ending is not known, or its content is broken.
    """
    read = _READERS.get(path.suffix.lower())
    if read is None:
        what = f"a prompt file must end in {', '.join(_READERS)}"
        raise PromptError(what, show(str(path)), "Rename the file; wrap a single text in a list.")
    try:
        regular = stat.S_ISREG(path.stat().st_mode)
    except (OSError, ValueError) as error:  # ValueError: NUL in a path
        reason = getattr(error, "strerror", None) or error
        raise PromptError(f"{show(str(path))} must be a readable file", str(reason), "Check the path.") from None
    if not regular:
        raise PromptError(f"{show(str(path))} must be a file", "a folder or device", "Name a file in it.")
    try:
        return read(path)
    except OSError as error:
        raise PromptError(f"{show(str(path))} must be a readable file", str(error.strerror), "Check it.") from None


def _text(path: Path) -> str:
    data = path.read_bytes().removeprefix(b"\xef\xbb\xbf")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        got = f"the byte 0x{data[error.start]:02X} at line {line}"
        what = f"{show(str(path))} must be UTF-8"
        raise PromptError(what, got, "Save it as UTF-8, or decode it yourself and pass a list.") from None


def _read_lines(path: Path) -> Columns:
    lines = _text(path).split("\n")
    if lines[-1] == "":
        lines.pop()  # the last line ends with a line feed, too
    if lines and all(line.endswith("\r") for line in lines):
        lines = [line[:-1] for line in lines]
    return {"text": lines}


def _read_csv(path: Path, delimiter: str = ",") -> Columns:
    rows = _csv_rows(path, delimiter)
    header = next(rows, None)
    if header is None:
        raise PromptError(f"{show(str(path))} must have a header line", "an empty file", "Add one with column names.")
    _, names = header
    if len(set(names)) != len(names):
        raise PromptError(f"columns of {show(str(path))} must differ", ", ".join(map(show, names)), "Rename them.")
    cells: list[list[str]] = []
    for line, row in rows:
        if not row:
            continue  # an empty line
        if len(row) != len(names):
            what = f"each line of {show(str(path))} must have {len(names)} cells"
            raise PromptError(what, f"{len(row)} at line {line}", "Quote cells that hold commas or line breaks.")
        cells.append(row)
    columns = {name: [row[at] for row in cells] for at, name in enumerate(names)}
    text = "text" if "text" in columns else "prompt"
    return {name: values if name == text else _typed(values) for name, values in columns.items()}


def _csv_rows(path: Path, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    text = _text(path)
    with _CSV_LOCK:
        before = csv.field_size_limit(max(len(text), 1))
        try:
            reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
            rows = [(reader.line_num, row) for row in reader]
        except csv.Error as error:
            what = f"{show(str(path))} must be valid CSV"
            raise PromptError(what, f"{error} at line {reader.line_num}", "Mend that line.") from None
        finally:
            csv.field_size_limit(before)
    return iter(rows)


def _typed(cells: list[str]) -> list[Any]:
    present = [cell for cell in cells if cell != ""]
    kind: Callable[[str], Any] = str
    if present and all(_INTEGER.fullmatch(cell) for cell in present):
        kind = int
    elif present and all(_NUMBER.fullmatch(cell) for cell in present):
        kind = float
    return [None if cell == "" else kind(cell) for cell in cells]


def _read_jsonl(path: Path) -> Columns:
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(_text(path).split("\n"), start=1):
        if not line.strip(" \t\r"):
            continue
        try:
            row = json.loads(line, object_pairs_hook=_unique, parse_constant=_no_constant)
        except (ValueError, RecursionError) as error:
            what = f"each line of {show(str(path))} must be one JSON object"
            raise PromptError(what, f"{str(error)[:80]} at line {number}", "Mend that line.") from None
        if not isinstance(row, dict):
            what = f"each line of {show(str(path))} must be one JSON object"
            got = f"{type(row).__name__} at line {number}"
            raise PromptError(what, got, 'Write {"text": ...} on each line.')
        rows.append(row)
    return columns_of_rows(rows)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    row = dict(pairs)
    if len(row) != len(pairs):
        raise ValueError("a key stands twice")
    return row


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def _read_parquet(path: Path) -> Columns:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pa.OSFile(os.fsencode(path)) as file:  # no file of Python's: threads of Arrow let go of it too late
            table = pq.read_table(file, page_checksum_verification=True)
        table.validate(full=True)
    except (pa.ArrowException, OSError) as error:
        what = f"{show(str(path))} must be valid Parquet"
        raise PromptError(what, str(error).partition("\n")[0][:120], "Write it again.") from None
    names = table.column_names
    if len(set(names)) != len(names):
        raise PromptError(f"columns of {show(str(path))} must differ", ", ".join(map(show, names)), "Rename them.")
    return {name: [plain(value) for value in table.column(name).to_pylist()] for name in names}


_READERS: dict[str, Callable[[Path], Columns]] = {
    ".txt": _read_lines,
    ".csv": _read_csv,
    ".tsv": lambda path: _read_csv(path, "\t"),
    ".jsonl": _read_jsonl,
    ".parquet": _read_parquet,
}
