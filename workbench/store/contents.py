"""Prompts and tokens of a run: `prompts.parquet` and `tokens.safetensors`, written whole before the first row."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash

from workbench.errors import ChecksumMismatch, StoreError
from workbench.store.checksums import digest_hex
from workbench.store.layout import PROMPTS, safetensors_header

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa
    from numpy.typing import NDArray

    from workbench.prompts import PromptSet
    from workbench.tokens import TokenTable

OWN_COLUMNS = ("id", "text", "length", "truncated", "original_length", "lossy", "token_ids")
_PREFIX = "column."
_JSON = {b"encoding": b"json"}


def column_name(name: str) -> str:
    """Name a metadata column in the file; only names that clash with ours get a prefix."""
    return _PREFIX + name if name in OWN_COLUMNS or name.startswith(_PREFIX) else name


def _column(name: str, values: list[Any]) -> tuple[pa.Field, pa.Array]:
    import pyarrow as pa

    try:
        array = pa.array(values)
    except (pa.ArrowException, OverflowError, ValueError):
        array = None
    if array is not None and _same(array.to_pylist(), values):
        return pa.field(name, array.type), array
    try:  # mixed types: each value as JSON
        array = pa.array([json.dumps(_plain(value)) for value in values], type=pa.string())
    except TypeError as error:
        raise StoreError(f"column {name!r} must hold plain values", str(error), "Use text, numbers or None.") from None
    return pa.field(name, array.type, metadata=_JSON), array


def _same(left: list[Any], right: list[Any]) -> bool:
    return all(type(a) is type(b) and (a == b or repr(a) == repr(b)) for a, b in zip(left, right, strict=True))


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def prompts_bytes(prompts: PromptSet, tokens: TokenTable) -> bytes:
    """Write `prompts.parquet`: id, text, lengths, flags and metadata columns, one row a prompt.

    Raises
    ------
    StoreError
        If a text or column cannot be kept exactly.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    own: dict[str, Any] = {
        "length": np.diff(tokens.offsets), "truncated": tokens.truncated,
        "original_length": tokens.original_lengths, "lossy": tokens.lossy,
    }  # fmt: skip
    try:
        columns = [
            _column("id", list(prompts.ids)),
            (pa.field("text", pa.string()), pa.array(prompts.texts, pa.string())),
        ]
    except (UnicodeEncodeError, pa.ArrowException) as error:
        raise StoreError("every prompt must be valid text", str(error)[:120], "Remove lone surrogates.") from None
    columns += [(pa.field(name, (array := pa.array(values)).type), array) for name, values in own.items()]
    if prompts.token_ids is not None:
        array = pa.array([ids.tolist() for ids in prompts.token_ids], type=pa.list_(pa.int32()))
        columns.append((pa.field("token_ids", array.type), array))
    columns += [_column(column_name(name), list(values)) for name, values in prompts.columns.items()]
    schema = pa.schema([field for field, _ in columns], metadata={"prompts_hash": prompts.content_hash})
    sink = io.BytesIO()
    table = pa.Table.from_arrays([array for _, array in columns], schema=schema)
    pq.write_table(table, sink, write_page_checksum=True, compression="zstd")
    return sink.getvalue()


def prompts_table(folder: Path, checksum: str) -> pa.Table:
    """Read `prompts.parquet` after checking the whole file.

    Raises
    ------
    ChecksumMismatch
        If its bytes changed; page checksums do not cover the footer.
    StoreError
        If it is no such file.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    from workbench.store.manifest import read_small

    try:
        data = read_small(folder / PROMPTS, 1 << 40)
    except FileNotFoundError:
        raise StoreError(f"{PROMPTS} must be in the run", "no such file", "Restore it from a copy.") from None
    if (found := digest_hex(data)) != checksum:
        raise ChecksumMismatch(f"{PROMPTS} must have checksum {checksum}", found, "Restore it from a copy.")
    try:
        table = pq.read_table(in_arrow(data), page_checksum_verification=True, use_threads=len(data) > 1 << 20)
        table.validate(full=True)
    except (pa.ArrowException, OSError) as error:
        raise StoreError(f"{PROMPTS} must be a table", str(error)[:120], "Restore it from a copy.") from None
    return table


def in_arrow(data: bytes) -> pa.BufferReader:
    """Copy bytes into memory of Arrow's own, for its readers.

    Threads of Arrow let go of what they read from after the reader has returned. Were it an object of Python's, a
    process that ends just then would abort.
    """
    import pyarrow as pa

    stream = pa.BufferOutputStream()
    stream.write(data)
    return pa.BufferReader(stream.getvalue())


def prompts_from(table: pa.Table) -> PromptSet:
    """Build the prompt set that a table was written from."""
    from workbench.prompts import PromptSet

    values = {name: _values(table, name) for name in table.column_names}
    ids = None
    if "token_ids" in values:
        ids = tuple(np.asarray(row, dtype=np.int32) for row in values["token_ids"])
    columns = {
        name.removeprefix(_PREFIX): column
        for name, column in values.items()
        if name not in OWN_COLUMNS
    }  # fmt: skip
    return PromptSet(texts=tuple(values["text"]), token_ids=ids, columns=columns, ids=tuple(values["id"]))


def _values(table: pa.Table, name: str) -> list[Any]:
    values = table.column(name).to_pylist()
    if (table.schema.field(name).metadata or {}).get(b"encoding") == b"json":
        return [json.loads(value) for value in values]
    return list(values)


def tokens_bytes(ids: NDArray[np.int32], offsets: NDArray[np.int64]) -> list[Any]:
    """Give `tokens.safetensors` in pieces: header, offsets int64 [prompt + 1], ids int32 [token]."""
    offsets = np.ascontiguousarray(offsets, dtype="<i8")
    ids = np.ascontiguousarray(ids, dtype="<i4")
    header = safetensors_header(
        {"offsets": ("I64", offsets.shape, offsets.nbytes), "ids": ("I32", ids.shape, ids.nbytes)}, {}
    )
    return [header, offsets, ids]


class InputHasher:
    """Hashes what went into a batch: ids and tokens of its prompts, so that another order is found.

    Parameters
    ----------
    ids : tuple of str or int
        Prompt ids.
    tokens : int32 [token]
        Tokens of all prompts.
    offsets : int64 [prompt + 1]
        Where the tokens of each prompt begin.
    """

    def __init__(self, ids: tuple[Any, ...], tokens: NDArray[np.int32], offsets: NDArray[np.int64]) -> None:
        self._ids, self._tokens, self._offsets = ids, tokens, offsets

    def of(self, first: int, stop: int) -> bytes:
        """Hash the prompts `first` to `stop - 1`; 16 bytes."""
        ends = np.ascontiguousarray(self._offsets[first : stop + 1], dtype="<i8")
        hasher = xxhash.xxh3_128(json.dumps(self._ids[first:stop]).encode())
        hasher.update((ends - ends[0]).tobytes())
        hasher.update(self._tokens[int(ends[0]) : int(ends[-1])].astype("<i4").tobytes())
        return hasher.digest()
