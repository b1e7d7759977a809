"""What every tokenizer of the workbench can do, whatever file its vocabulary comes from."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from workbench.errors import TokenError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

IntArray: TypeAlias = NDArray[np.int32]
Span: TypeAlias = tuple[int, int, int]
"""Start and end in characters, and the id."""

MAX_TEXT_BYTES = 1 << 20
"""Longest text that is tokenised, in bytes of UTF-8: one prompt is a short input, and merges take time."""


class Tokenizer(ABC):
    """Turns text into the ids that a checkpoint was trained on, and back.

    Attributes
    ----------
    vocab_size : int
        One more than the highest id.
    bos_id, eos_id, pad_id, unk_id : int or None
        Ids with a role, None where the checkpoint declares none.
    prefix, suffix : tuple of int
        What the checkpoint puts before and after every text: BOS and EOS in most.
    special_ids : frozenset of int
        Control tokens: markers that are no text.
    chat_templates : dict of str to str
        Jinja sources by name; the unnamed one is called `default`.
    """

    vocab_size: int
    bos_id: int | None
    eos_id: int | None
    pad_id: int | None
    unk_id: int | None
    prefix: tuple[int, ...]
    suffix: tuple[int, ...]
    special_ids: frozenset[int]
    chat_templates: dict[str, str]

    @property
    def add_bos(self) -> bool:
        """Whether every text starts with BOS."""
        return self.bos_id is not None and self.bos_id in self.prefix

    @property
    def add_eos(self) -> bool:
        """Whether every text ends with EOS."""
        return self.eos_id is not None and self.eos_id in self.suffix

    @property
    def digest(self) -> str:
        """SHA-256 of `dump()`, in hexadecimal: equal tokenizers have equal digests."""
        if not hasattr(self, "_digest"):
            self._digest = hashlib.sha256(self.dump()).hexdigest()
        return self._digest

    def encode(self, text: str, *, add_special: bool = True, parse_special: bool = True) -> IntArray:
        """Tokenise one text.

        Parameters
        ----------
        text : str
            Any text without lone surrogates, NUL included.
        add_special : bool
            Whether BOS and EOS are added as the checkpoint declares. They are added whether or not the text holds them.
        parse_special : bool
            Whether the name of a control token in the text, such as `<|im_start|>`, becomes that token (as in
            llama.cpp's and Hugging Face's own tools) or is spelled out as text.

        Returns
        -------
        int32 [token]
            The ids; empty for an empty text where the checkpoint declares neither BOS nor EOS.

        Raises
        ------
        TokenError
            If the text has a lone surrogate or more than 1 MiB.
        """
        check_text(text)
        ids = self._ids(text, parse_special=parse_special)
        return np.asarray([*self.prefix, *ids, *self.suffix] if add_special else ids, dtype=np.int32)

    def encode_with_offsets(
        self, text: str, *, add_special: bool = True, parse_special: bool = True
    ) -> tuple[IntArray, IntArray]:
        """Tokenise one text and say where each token stands in it.

        Parameters
        ----------
        text, add_special, parse_special
            As in `encode`.

        Returns
        -------
        ids : int32 [token]
            The ids.
        offsets : int32 [token, 2]
            Start and end in characters of the text. Tokens that share a character, as the bytes of one do, each span
            all of it. Added tokens are empty: (0, 0) before the text, (n, n) after it.

        Raises
        ------
        TokenError
            As in `encode`.
        """
        check_text(text)
        spans = self._spans(text, parse_special=parse_special)
        if add_special:
            end = len(text)
            spans = [*((0, 0, index) for index in self.prefix), *spans, *((end, end, index) for index in self.suffix)]
        table = np.asarray(spans, dtype=np.int32).reshape(-1, 3)
        return np.ascontiguousarray(table[:, 2]), np.ascontiguousarray(table[:, :2])

    def encode_batch(
        self, texts: Sequence[str], *, add_special: bool = True, parse_special: bool = True
    ) -> list[Sequence[int]]:
        """Tokenise many texts; equal to `encode` of each, and faster where the library works in parallel."""
        prefix, suffix = (self.prefix, self.suffix) if add_special else ((), ())
        batch: list[Sequence[int]] = []
        for text in texts:
            check_text(text)
            ids = self._ids(text, parse_special=parse_special)
            batch.append([*prefix, *ids, *suffix] if prefix or suffix else ids)
        return batch

    def decode(self, ids: Iterable[int], *, added: bool = True) -> str:
        """Text of ids.

        Parameters
        ----------
        ids : iterable of int
            Token ids; those of special tokens give their names.
        added : bool
            Whether the ids are as `encode` gives them: what it adds before and after is taken off again if present.

        Returns
        -------
        str
            The text; bytes that are no UTF-8 become U+FFFD.

        Raises
        ------
        TokenError
            If an id lies outside the vocabulary.
        """
        listed = check_ids(ids, self.vocab_size)
        return self._text(self._strip_added(listed) if added else listed)

    def token_text(self, index: int) -> str:
        r"""Printable form of one token: characters that do not print are escaped, a part of a character as `\xNN`."""
        return printable(self._piece(check_ids((index,), self.vocab_size)[0]))

    def fewest_tokens(self, text: str) -> int:
        """Say how many tokens a text has at least, without tokenising it."""
        del text  # a normaliser may shorten it by any factor
        return 0

    def special_names(self) -> dict[str, str]:
        """Texts of the tokens with a role, as chat templates call them."""
        roles = {"bos_token": self.bos_id, "eos_token": self.eos_id, "pad_token": self.pad_id, "unk_token": self.unk_id}
        return {name: self._piece(i).decode(errors="replace") for name, i in roles.items() if i is not None}

    def _strip_added(self, ids: list[int]) -> list[int]:
        prefix, suffix = list(self.prefix), list(self.suffix)
        if prefix and ids[: len(prefix)] == prefix:
            ids = ids[len(prefix) :]
        if suffix and ids[-len(suffix) :] == suffix:
            ids = ids[: -len(suffix)]
        return ids

    @abstractmethod
    def dump(self) -> bytes:
        """Canonical bytes that `load_tokenizer` reads back."""

    @abstractmethod
    def _ids(self, text: str, *, parse_special: bool) -> Sequence[int]: ...

    @abstractmethod
    def _spans(self, text: str, *, parse_special: bool) -> list[Span]: ...

    @abstractmethod
    def _text(self, ids: list[int]) -> str: ...

    @abstractmethod
    def _piece(self, index: int) -> bytes: ...


def check_text(text: str) -> None:
    """Refuse what no tokenizer takes.

    Raises
    ------
    TokenError
        If `text` is no string, has a lone surrogate, or is longer than `MAX_TEXT_BYTES`.
    """
    if not isinstance(text, str):
        raise TokenError("a text must be str", type(text).__name__, "Decode bytes first.")
    try:
        size = len(text) if text.isascii() else len(text.encode())
    except UnicodeEncodeError as error:
        raise TokenError(
            "a text must be valid Unicode",
            f"the lone surrogate U+{ord(text[error.start]):04X} at character {error.start}",
            "Remove it, or decode the source with errors='replace'.",
        ) from None
    if size > MAX_TEXT_BYTES:
        raise TokenError(
            f"a text must have at most {MAX_TEXT_BYTES:,} bytes of UTF-8", f"{size:,}", "Cut it into several prompts."
        )


def check_ids(ids: Iterable[int], vocab_size: int) -> list[int]:
    """Token ids as a list of Python integers, both ends of their range checked.

    Raises
    ------
    TokenError
        If one is no integer, negative, or at least `vocab_size`.
    """
    listed: list[int] = np.asarray(ids).tolist() if isinstance(ids, np.ndarray) else list(ids)
    for index in listed:
        if not isinstance(index, int | np.integer) or isinstance(index, bool) or not 0 <= index < vocab_size:
            raise TokenError(
                f"a token id must be an integer from 0 to {vocab_size - 1}", repr(index)[:40], "Take ids of this model."
            )
    return listed


def printable(piece: bytes) -> str:
    """Text of a piece, with everything that does not print escaped."""
    text = piece.decode(errors="backslashreplace")
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
