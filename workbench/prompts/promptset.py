"""`PromptSet`: prompts with ids, metadata columns and content hashes, checked once."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from workbench.errors import PromptError

if TYPE_CHECKING:
    from numpy.typing import NDArray

PromptId: TypeAlias = str | int

_MAX_ID = 2**31 - 1


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class PromptSet:
    """Prompts in order.

    Repeated texts are fine, repeated ids are not. An empty text is kept here; tokenising it gives what the checkpoint
    puts before every text (BOS), or an error that names the prompt.

    Attributes
    ----------
    texts : tuple of str or None
        Text of each prompt: what is run, or the label of `token_ids`; None where there is neither.
    token_ids : tuple of int32 [token], or None
        Ids to run in place of the texts, exactly as given; nothing is added to them.
    columns : dict of str to list
        Metadata, one value a prompt, None where there is none.
    ids : tuple of str or int
        Id of each prompt: its `id` column, or its row number from 0.

    Raises
    ------
    PromptError
        If there is no prompt, lengths differ, a text is no valid Unicode, a token id is no int32 from 0 on, or an id
        is missing, repeated or of two types.
    """

    texts: tuple[str | None, ...]
    token_ids: tuple[NDArray[np.int32], ...] | None = None
    columns: dict[str, list[Any]] = field(default_factory=dict)
    ids: tuple[PromptId, ...] = ()
    _hashes: list[str] = field(default_factory=list, init=False, repr=False)

    def __post_init__(self) -> None:
        count = len(self.texts)
        if not count:
            raise PromptError("a prompt set must hold at least one prompt", "none", "Pass a list of texts or a file.")
        object.__setattr__(self, "texts", tuple(self.texts))
        object.__setattr__(self, "ids", tuple(self.ids) if len(self.ids) else tuple(range(count)))
        object.__setattr__(self, "columns", {name: list(values) for name, values in self.columns.items()})
        lengths = {"ids": len(self.ids)} | {f"column {name!r}": len(v) for name, v in self.columns.items()}
        if self.token_ids is not None:
            lengths["token_ids"] = len(self.token_ids)
        for name, length in lengths.items():
            if length != count:
                raise PromptError(f"{name} must have one value for each of {count} prompts", str(length), "Check it.")
        _check_ids(self.ids)
        if self.token_ids is None:
            _check_texts(self.texts, self.ids)
        else:
            _check_labels(self.texts, self.ids)
            arrays = tuple(_check_tokens(row, i) for row, i in zip(self.token_ids, self.ids, strict=True))
            object.__setattr__(self, "token_ids", arrays)

    def __len__(self) -> int:
        return len(self.texts)

    def __repr__(self) -> str:
        kind = "texts" if self.token_ids is None else "rows of token ids"
        columns = ", ".join(map(repr, self.columns)) or "none"
        return f"PromptSet of {len(self)} {kind}; columns: {columns}; content {self.content_hash[:12]}"

    @property
    def hashes(self) -> tuple[str, ...]:
        """SHA-256 of what each prompt runs, in hexadecimal: equal texts have equal hashes, in any set and order."""
        if not self._hashes:
            if self.token_ids is None:
                self._hashes.extend(hash_text(text or "") for text in self.texts)
            else:
                self._hashes.extend(hash_tokens(row) for row in self.token_ids)
        return tuple(self._hashes)

    @property
    def content_hash(self) -> str:
        """SHA-256 over what is run, labels and ids, in order, in hexadecimal. Columns are no part of it."""
        digest = hashlib.sha256(b"workbench-prompts/1\0")
        for content, text, prompt_id in zip(self.hashes, self.texts, self.ids, strict=True):
            label = b"" if self.token_ids is None else b"-" if text is None else b"+" + text.encode()
            name = f"{type(prompt_id).__name__}:{prompt_id}".encode()
            for part in (bytes.fromhex(content), label, name):
                digest.update(len(part).to_bytes(8, "little") + part)
        return digest.hexdigest()

    def column(self, name: str) -> list[Any]:
        """Values of a metadata column; also `text` and `id`.

        Raises
        ------
        PromptError
            If there is no such column; the message names those that exist.
        """
        if name in self.columns:
            return list(self.columns[name])
        own: dict[str, Sequence[Any]] = {"text": self.texts, "id": self.ids}
        if name in own:
            return list(own[name])
        known = ", ".join(map(repr, [*self.columns, *own]))
        raise PromptError(f"a column must be one of {known}", repr(name), "Name one of these.")

    def select(self, indices: Iterable[int] | NDArray[Any] | slice) -> PromptSet:
        """Prompts at the given rows, or where a boolean mask is true, with their ids and columns.

        Raises
        ------
        PromptError
            If a row lies outside the set, stands twice, or none is left.
        """
        rows = self._rows(indices)
        return PromptSet(
            texts=tuple(self.texts[row] for row in rows),
            token_ids=None if self.token_ids is None else tuple(self.token_ids[row] for row in rows),
            columns={name: [values[row] for row in rows] for name, values in self.columns.items()},
            ids=tuple(self.ids[row] for row in rows),
        )

    def _rows(self, indices: Iterable[int] | NDArray[Any] | slice) -> list[int]:
        count = len(self)
        if isinstance(indices, slice):
            return list(range(count))[indices]
        chosen = np.asarray(indices if isinstance(indices, np.ndarray) else list(indices))
        if chosen.dtype == np.bool_ and chosen.shape == (count,):
            return [int(row) for row in np.flatnonzero(chosen)]
        if chosen.size and (chosen.ndim != 1 or chosen.dtype.kind not in "iu"):
            got = f"{chosen.dtype} of shape {chosen.shape}"
            raise PromptError(f"rows must be integers or a mask of {count}", got, "Pass row numbers from 0.")
        for row in chosen:
            if not -count <= row < count:
                raise PromptError(f"a row must lie in a set of {count} prompts", str(row), "Pass row numbers from 0.")
        return [int(row) % count for row in chosen]


def hash_text(text: str) -> str:
    """SHA-256 of a text as a prompt, in hexadecimal."""
    return hashlib.sha256(b"text\0" + text.encode()).hexdigest()


def hash_tokens(ids: NDArray[np.int32]) -> str:
    """SHA-256 of a row of token ids as a prompt, in hexadecimal."""
    return hashlib.sha256(b"tokens\0" + np.ascontiguousarray(ids, dtype="<i4").tobytes()).hexdigest()


def show(value: object) -> str:
    """`repr` of a value from outside, at most 60 characters, printable."""
    text = ascii(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _check_ids(ids: Sequence[object]) -> None:
    first: dict[object, int] = {}
    for row, prompt_id in enumerate(ids):
        if not isinstance(prompt_id, str | int) or isinstance(prompt_id, bool):
            raise PromptError(
                "a prompt id must be text or an integer", f"{show(prompt_id)} at row {row}", "Fill it in."
            )
        if type(prompt_id) is not type(ids[0]):
            got = f"{show(ids[0])} at row 0 and {show(prompt_id)} at row {row}"
            raise PromptError("prompt ids must be all text or all integers", got, "Make them one type.")
        if isinstance(prompt_id, str):
            _check_unicode(prompt_id, f"the id at row {row}")
        if first.setdefault(prompt_id, row) != row:
            got = f"{show(prompt_id)} at rows {first[prompt_id]} and {row}"
            raise PromptError("prompt ids must differ", got, "Rename the column, or make its values unique.")


def _check_texts(texts: Sequence[object], ids: Sequence[PromptId]) -> None:
    for row, text in enumerate(texts):
        if not isinstance(text, str):
            got = f"{type(text).__name__} in prompt {show(ids[row])} (row {row})"
            raise PromptError("a prompt must be text", got, "Convert it, or drop the row.")
        _check_unicode(text, f"prompt {show(ids[row])} (row {row})")


def _check_labels(texts: Sequence[object], ids: Sequence[PromptId]) -> None:
    for row, text in enumerate(texts):
        if text is not None:
            _check_texts((text,), (ids[row],))


def _check_unicode(text: str, where: str) -> None:
    if text.isascii():
        return
    try:
        text.encode()
    except UnicodeEncodeError as error:
        got = f"the lone surrogate U+{ord(text[error.start]):04X} at character {error.start} of {where}"
        do = "Remove it, or decode the source with errors='replace'."
        raise PromptError("a text must be valid Unicode", got, do) from None


def _check_tokens(row: object, prompt_id: PromptId) -> NDArray[np.int32]:
    where = f"prompt {show(prompt_id)}"
    do = "Pass one list of integers a prompt."
    if isinstance(row, str | bytes) or not isinstance(row, Iterable):
        raise PromptError("token ids of a prompt must be a list", f"{type(row).__name__} in {where}", do)
    listed = row.tolist() if isinstance(row, np.ndarray) else list(row)
    if not isinstance(listed, list):
        raise PromptError("token ids of a prompt must be a list", f"a scalar in {where}", do)
    for index in listed:
        if not isinstance(index, int | np.integer) or isinstance(index, bool):
            raise PromptError("a token id must be an integer", f"{show(index)} in {where}", do)
        if not 0 <= index <= _MAX_ID:
            raise PromptError(f"a token id must lie between 0 and {_MAX_ID}", f"{index} in {where}", do)
    array = np.array(listed, dtype=np.int32)
    array.flags.writeable = False
    return array


def columns_of_rows(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Columns of a list of rows, in order of first appearance; a key that a row lacks is None there."""
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name) for row in rows] for name in names}
