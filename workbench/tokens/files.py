"""The tokenizer of a Hugging Face folder: tokenizer.json through the `tokenizers` library."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from workbench.canonical import canonical_json
from workbench.errors import TokenError, shown
from workbench.tokens.byte_alphabet import from_alphabet
from workbench.tokens.guard import try_tokenizer
from workbench.tokens.templates import templates_of
from workbench.tokens.tokenizer import Span, Tokenizer, check_text

MAX_FILE_BYTES = 64 << 20
MAX_VOCABULARY = 1 << 24
_CONFIG_KEYS = ("add_bos_token", "add_eos_token", "bos_token", "eos_token", "pad_token", "unk_token", "chat_template")
_MEND = "Save it again with the library that made it, or pass token_ids."

# Expressions of common families, seen to run in linear time; others are tried in a child process first.
_KNOWN_EXPRESSIONS = frozenset(
    {
        *(
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
            + digits
            + r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
            for digits in ("", "{1,3}")
        ),
        r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
        r"\p{N}{1,3}",
        r"\p{N}",
        " {2,}",
    }
)


def tokenizer_from_files(tokenizer_json: bytes, tokenizer_config: Mapping[str, Any] | None = None) -> Tokenizer:
    """Make the tokenizer that a Hugging Face folder declares.

    The post-processor of tokenizer.json says what stands before and after a text. Where tokenizer_config.json says
    `add_bos_token` or `add_eos_token` itself, that counts. Truncation and padding that the file switches on are
    switched off.

    Parameters
    ----------
    tokenizer_json : bytes
        Content of tokenizer.json, at most 64 MiB.
    tokenizer_config : mapping, optional
        Content of tokenizer_config.json; its `chat_template` may come from a file of its own.

    Returns
    -------
    Tokenizer
        Gives the ids that the `tokenizers` library gives.

    Raises
    ------
    TokenError
        If a file is too long or broken, an id is out of range, or the tokenizer hangs or crashes on short texts.
    """
    text, document = _parsed(tokenizer_json)
    if not _KNOWN_EXPRESSIONS.issuperset(_expressions(document)):
        try_tokenizer(text)
    config = tokenizer_config or {}
    return FileTokenizer(text, {key: config[key] for key in _CONFIG_KEYS if key in config})


class FileTokenizer(Tokenizer):
    """A tokenizer.json, run by the `tokenizers` library.

    Parameters
    ----------
    text : str
        Content of tokenizer.json.
    config : mapping
        The part of tokenizer_config.json that matters here.
    """

    def __init__(self, text: str, config: Mapping[str, Any]) -> None:
        self._text_of_file, self._config = text, dict(config)
        self._library = _load(text)
        self._spelling: Any = None
        vocabulary = _call(lambda: self._library.get_vocab(with_added_tokens=True))
        self.vocab_size = _size(vocabulary)
        document = json.loads(text)
        self._byte_level = "ByteLevel" in _types(document.get("decoder"))
        self._byte_fallback = "ByteFallback" in _types(document.get("decoder"))
        added = document.get("added_tokens") or []
        self._added = {entry["id"]: entry["content"] for entry in added}
        self.bos_id, self.eos_id, self.pad_id, self.unk_id = (
            self._role(vocabulary, role) for role in ("bos_token", "eos_token", "pad_token", "unk_token")
        )
        roles = (self.bos_id, self.eos_id, self.pad_id, self.unk_id)
        self.special_ids = frozenset(
            [entry["id"] for entry in added if entry.get("special")] + [index for index in roles if index is not None]
        )
        self.prefix, self.suffix = self._ends()
        self.chat_templates = templates_of(config.get("chat_template"))

    def dump(self) -> bytes:
        """Canonical JSON that holds tokenizer.json as it is, and the fields of tokenizer_config.json in use."""
        return canonical_json(
            {
                "format": "workbench-tokenizer/1",
                "kind": "huggingface",
                "tokenizer": self._text_of_file,
                "config": self._config,
            }
        )

    def encode_batch(
        self, texts: Sequence[str], *, add_special: bool = True, parse_special: bool = True
    ) -> list[Sequence[int]]:
        """Tokenise many texts on all cores."""
        for text in texts:
            check_text(text)
        library = self._library if parse_special else self._speller()
        encodings = _call(lambda: library.encode_batch_fast(list(texts), add_special_tokens=False))
        if not add_special:
            return [encoding.ids for encoding in encodings]
        return [[*self.prefix, *encoding.ids, *self.suffix] for encoding in encodings]

    def _ids(self, text: str, *, parse_special: bool) -> Sequence[int]:
        library = self._library if parse_special else self._speller()
        ids: Sequence[int] = _call(lambda: library.encode(text, add_special_tokens=False)).ids
        return ids

    def _spans(self, text: str, *, parse_special: bool) -> list[Span]:
        library = self._library if parse_special else self._speller()
        encoding = _call(lambda: library.encode(text, add_special_tokens=False))
        spans: list[Span] = []
        at = before = 0
        for (first, stop), index in zip(encoding.offsets, encoding.ids, strict=True):
            # What the library trims, spaces mostly, goes to the token after it, so that offsets cover the text.
            start = max(before, min(first, at))
            at = max(at, stop)
            before = start
            spans.append((start, at, index))
        if spans:
            spans[-1] = (spans[-1][0], len(text), spans[-1][2])
        return spans

    def _text(self, ids: list[int]) -> str:
        text: str = _call(lambda: self._library.decode(ids, skip_special_tokens=False))
        return text

    def _piece(self, index: int) -> bytes:
        if index in self._added:
            return str(self._added[index]).encode()
        token = self._library.id_to_token(index)
        if token is None:
            return b""
        if self._byte_level:
            return from_alphabet(token)
        if self._byte_fallback and len(token) == 6 and token.startswith("<0x"):
            return bytes((int(token[3:5], 16),))
        return str(token).replace("\u2581", " ").encode()

    def _speller(self) -> Any:
        if self._spelling is None:
            self._spelling = _load(self._text_of_file)
            self._spelling.encode_special_tokens = True
        return self._spelling

    def _role(self, vocabulary: Mapping[str, int], role: str) -> int | None:
        value = self._config.get(role)
        content = value.get("content") if isinstance(value, Mapping) else value
        if content is None:
            return None
        if not isinstance(content, str) or content not in vocabulary:
            raise TokenError(
                f"{role} of tokenizer_config.json must be a token of tokenizer.json", shown(content), _MEND
            )
        return vocabulary[content]

    def _ends(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        prefix, suffix = self._processor_ends()
        for key, role in (("add_bos_token", self.bos_id), ("add_eos_token", self.eos_id)):
            wanted = self._config.get(key)
            if wanted is None:
                continue
            if not isinstance(wanted, bool):
                raise TokenError(f"{key} must be true or false", type(wanted).__name__, _MEND)
            if wanted and role is None:
                raise TokenError(f"{key} is true, so {key[4:]} must be named", "nothing", _MEND)
            ends = (role,) if wanted and role is not None else ()
            prefix, suffix = (ends, suffix) if key == "add_bos_token" else (prefix, ends)
        return prefix, suffix

    def _processor_ends(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """What the post-processor puts around a text, found by looking."""
        for probe in ("a", "1", ".", "\u4e00"):
            bare = tuple(_call(lambda p=probe: self._library.encode(p, add_special_tokens=False)).ids)
            full = tuple(_call(lambda p=probe: self._library.encode(p, add_special_tokens=True)).ids)
            for at in range(len(full) - len(bare) + 1):
                if bare and full[at : at + len(bare)] == bare:
                    return full[:at], full[at + len(bare) :]
        whole = tuple(_call(lambda: self._library.encode("", add_special_tokens=True)).ids)
        return whole, ()


def _parsed(data: bytes) -> tuple[str, dict[str, Any]]:
    if len(data) > MAX_FILE_BYTES:
        raise TokenError(f"tokenizer.json must have at most {MAX_FILE_BYTES:,} bytes", f"{len(data):,}", _MEND)
    try:
        text = data.decode()
        document = json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise TokenError("tokenizer.json must be valid JSON", shown(f"{error}"), _MEND) from None
    if not isinstance(document, dict):
        raise TokenError("tokenizer.json must be a JSON object", type(document).__name__, _MEND)
    return text, document


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) != len(pairs):
        raise ValueError("a key stands twice")
    return mapping


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def _load(text: str) -> Any:
    from tokenizers import Tokenizer as Library

    library = _call(lambda: Library.from_str(text))
    library.no_truncation()
    library.no_padding()
    return library


def _call(work: Any) -> Any:
    """Run native code; its panics are no `Exception`."""
    try:
        return work()
    except (KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:  # noqa: BLE001
        raise TokenError(
            "tokenizer.json must load and tokenise", shown(f"{type(error).__name__}: {error}"), _MEND
        ) from None


def _size(vocabulary: Mapping[str, int]) -> int:
    highest = max(vocabulary.values(), default=-1)
    if not 0 <= highest < MAX_VOCABULARY:
        raise TokenError(f"token ids must lie between 0 and {MAX_VOCABULARY - 1}", str(highest), _MEND)
    return highest + 1


def _expressions(node: object) -> Iterator[str]:
    """Every regular expression in a tokenizer.json; its vocabulary is passed over."""
    if isinstance(node, dict):
        for key, value in node.items():
            if key == "Regex" and isinstance(value, str):
                yield value
            elif key not in ("vocab", "merges"):
                yield from _expressions(value)
    elif isinstance(node, list):
        for value in node:
            yield from _expressions(value)


def _types(node: object) -> set[str]:
    """Types of a component and of those in it."""
    if isinstance(node, dict):
        own = {node["type"]} if isinstance(node.get("type"), str) else set()
        return own.union(*map(_types, node.values()))
    return set().union(*map(_types, node)) if isinstance(node, list) else set()
