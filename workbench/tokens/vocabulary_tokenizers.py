"""Tokenizers over the vocabulary of a GGUF file: byte-pair merges, and SentencePiece merges by score."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

from workbench.canonical import canonical_json
from workbench.tokens.byte_alphabet import ALPHABET, from_alphabet, to_alphabet
from workbench.tokens.pair_merges import PairMerges
from workbench.tokens.sentencepiece_merges import SPACE, ScoreMerges
from workbench.tokens.special import SpecialToken, SpecialTokens
from workbench.tokens.tokenizer import Span, Tokenizer
from workbench.tokens.vocabulary import Kind, Vocabulary, byte_value

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from workbench.tokens.pretokenizers import PreTokenizer

_CACHED_WORDS = 1 << 19
_CACHED_LENGTH = 64  # words of text are short; a long one is no word that comes again


class VocabularyTokenizer(Tokenizer):
    """What both share: special tokens by name, words from a cache, pieces to text.

    Parameters
    ----------
    vocabulary : Vocabulary
        Tokens and roles.
    source : mapping
        The GGUF fields that it was made from, plain JSON values; `dump` writes them.
    chat_templates : mapping of str to str
        Jinja sources by name.
    strip_right : frozenset of int
        Special tokens that swallow the spaces after them.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        source: Mapping[str, object],
        chat_templates: Mapping[str, str],
        strip_right: frozenset[int] = frozenset(),
    ) -> None:
        self.vocabulary = vocabulary
        self.vocab_size = len(vocabulary.tokens)
        self.bos_id, self.eos_id = vocabulary.bos_id, vocabulary.eos_id
        self.pad_id, self.unk_id = vocabulary.pad_id, vocabulary.unk_id
        self.prefix = (vocabulary.bos_id,) if vocabulary.add_bos and vocabulary.bos_id is not None else ()
        self.suffix = (vocabulary.eos_id,) if vocabulary.add_eos and vocabulary.eos_id is not None else ()
        self.chat_templates = dict(chat_templates)
        self._source = source
        self._id_of = vocabulary.id_of()
        self._cache: dict[str, tuple[int, ...]] = {}
        kinds = vocabulary.kinds
        self.special_ids = frozenset(i for i, kind in enumerate(kinds) if kind in (Kind.CONTROL, Kind.UNKNOWN))
        self._user_ids = frozenset(i for i, kind in enumerate(kinds) if kind is Kind.USER_DEFINED)
        by_name = [
            SpecialToken(index=i, text=vocabulary.tokens[i], strip_right=i in strip_right)
            for i in sorted(self.special_ids | self._user_ids)
        ]
        self._all_special = SpecialTokens(by_name)
        # Tokens that the vocabulary's author added as plain words are found in any case.
        self._user_special = SpecialTokens(token for token in by_name if token.index in self._user_ids)
        self._pieces = [self._read_piece(i) for i in range(self.vocab_size)]
        # A token stands for at most so many bytes of text; None where a name swallows the spaces after it.
        longest = max(max(len(p), len(t.encode())) for p, t in zip(self._pieces, vocabulary.tokens, strict=True))
        self._longest = None if strip_right else longest

    def dump(self) -> bytes:
        """Canonical JSON of the GGUF fields."""
        return canonical_json({"format": "workbench-tokenizer/1", "kind": "gguf", "metadata": self._source})

    def fewest_tokens(self, text: str) -> int:
        """Say how many tokens a text has at least, by the bytes that the longest token stands for."""
        dropped = self._dropped()
        if self._longest is None or dropped is None:
            return 0
        return -(-len(text.encode(errors="replace").translate(None, dropped)) // self._longest)

    def _ids(self, text: str, *, parse_special: bool) -> Sequence[int]:
        special = self._all_special if parse_special else self._user_special
        fragments = special.partition(text)
        if len(fragments) == 1 and fragments[0][2] < 0:
            return self._word_ids(self._words(text, after_special=True))
        ids: list[int] = []
        after_special = True
        for start, stop, index in fragments:
            if index < 0:
                ids += self._word_ids(self._words(text[start:stop], after_special=after_special))
            else:
                ids.append(index)
            after_special = index >= 0
        return ids

    def _word_ids(self, words: list[str]) -> list[int]:
        cache = self._cache
        ids: list[int] = []
        for word in words:
            known = cache.get(word)
            if known is None:
                known = tuple(index for _, _, index in self._word_spans(word))
                if len(word) <= _CACHED_LENGTH:
                    if len(cache) >= _CACHED_WORDS:
                        cache.clear()
                    cache[word] = known
            ids += known
        return ids

    def _spans(self, text: str, *, parse_special: bool) -> list[Span]:
        special = self._all_special if parse_special else self._user_special
        spans: list[Span] = []
        after_special = True
        for start, stop, index in special.partition(text):
            if index >= 0:
                spans.append((start, stop, index))
            else:
                at = start
                words = self._words(text[start:stop], after_special=after_special)
                at -= sum(map(len, words)) - (stop - start)  # an added space stands before the text
                for word in words:
                    spans += ((max(start, at + a), max(start, at + b), i) for a, b, i in self._word_spans(word))
                    at += len(word)
            after_special = index >= 0
        return spans

    def _text(self, ids: list[int]) -> str:
        return b"".join(map(self._pieces.__getitem__, ids)).decode(errors="replace")

    def _piece(self, index: int) -> bytes:
        return self._pieces[index]

    def _read_piece(self, index: int) -> bytes:
        token, kind = self.vocabulary.tokens[index], self.vocabulary.kinds[index]
        if kind in (Kind.CONTROL, Kind.UNKNOWN, Kind.USER_DEFINED):
            return token.encode()
        if kind is Kind.BYTE and (value := byte_value(token)) is not None:
            return bytes((value,))
        return self._plain_piece(token)

    @abstractmethod
    def _dropped(self) -> bytes | None:
        """Bytes that may be left out of the ids; None where that depends on what stands beside them."""

    @abstractmethod
    def _words(self, text: str, *, after_special: bool) -> list[str]:
        """Words of text without special tokens; together as long as the text, or longer by one space before it."""

    @abstractmethod
    def _word_spans(self, word: str) -> list[Span]:
        """Tokens of a word, their places in characters of the word."""

    @abstractmethod
    def _plain_piece(self, token: str) -> bytes: ...


class BytePairTokenizer(VocabularyTokenizer):
    """Byte-level BPE: a rule cuts words, merges join the bytes of each.

    A byte that has no token of its own is dropped, as llama.cpp drops it; the ids then do not decode to the text.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        source: Mapping[str, object],
        chat_templates: Mapping[str, str],
        strip_right: frozenset[int] = frozenset(),
        *,
        rule: PreTokenizer,
        merges: Sequence[str],
    ) -> None:
        self.rule = rule
        self._merges = PairMerges(merges)
        super().__init__(vocabulary, source, chat_templates, strip_right)
        whole = all(symbol in self._id_of for symbol in self._merges.joined_symbols())
        missing = bytes(byte for byte, c in enumerate(ALPHABET) if c not in self._id_of)
        self._dropped_bytes = missing if whole and not rule.raw else None

    def _words(self, text: str, *, after_special: bool) -> list[str]:  # noqa: ARG002
        return self.rule.words(text.replace(" ", SPACE) if self.rule.raw else text)

    def _word_spans(self, word: str) -> list[Span]:
        symbols = word if self.rule.raw else to_alphabet(word)
        whole = self._id_of.get(symbols) if self._whole(word) else None
        if whole is not None:
            return [(0, len(word), whole)]
        spans: list[Span] = []
        at = 0
        for length in self._merges.split(symbols):
            token = symbols[at : at + length]
            index = self._id_of.get(token)
            spans += ((at, at + length, index),) if index is not None else self._fallback(token, at)
            at += length
        return spans if self.rule.raw or word.isascii() else _in_characters(word, spans)

    def _whole(self, word: str) -> bool:
        return self.rule.ignore_merges or (self.rule.name == "gemma4" and not word.strip("\n"))

    def _fallback(self, token: str, at: int) -> list[Span]:
        """Tokens of a symbol that is none: byte by byte, those without a token left out."""
        if not self.rule.raw:  # llama.cpp looks bytes up as they are spelled, so only ASCII ones are found
            return [
                (at + i, at + i + 1, self._id_of[c]) for i, c in enumerate(token) if c.isascii() and c in self._id_of
            ]
        bytes_at = ((at + i, byte) for i, c in enumerate(token) for byte in c.encode())
        return [(i, i + 1, self._id_of[name]) for i, byte in bytes_at if (name := f"<0x{byte:02X}>") in self._id_of]

    def _plain_piece(self, token: str) -> bytes:
        return token.replace(SPACE, " ").encode() if self.rule.raw else from_alphabet(token)

    def _dropped(self) -> bytes | None:
        return self._dropped_bytes


class SentencePieceTokenizer(VocabularyTokenizer):
    """SentencePiece by score, with bytes for characters that have no token.

    Where the checkpoint declares it, a space is put before the text and after each special token. A byte without a
    token becomes the unknown token, or is dropped where there is none.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        source: Mapping[str, object],
        chat_templates: Mapping[str, str],
        strip_right: frozenset[int] = frozenset(),
        *,
        space_prefix: bool,
    ) -> None:
        self.space_prefix = space_prefix
        super().__init__(vocabulary, source, chat_templates, strip_right)
        self._merges = ScoreMerges(self._id_of, vocabulary.scores or (0.0,) * self.vocab_size)

    def _words(self, text: str, *, after_special: bool) -> list[str]:
        space = SPACE if self.space_prefix and after_special else ""
        return self._merges.words(space + text.replace(" ", SPACE))

    def _word_spans(self, word: str) -> list[Span]:
        spans: list[Span] = []
        at = 0
        for length in self._merges.split(word):
            token = word[at : at + length]
            index = self._id_of.get(token)
            ids = self._fallback(token) if index is None else (index,)
            spans += ((at, at + length, i) for i in ids)
            at += length
        return spans

    def _fallback(self, character: str) -> list[int]:
        ids = []
        for byte in character.encode():
            index = self._id_of.get(f"<0x{byte:02X}>", self._id_of.get(chr(byte)) if byte < 128 else None)
            index = self.unk_id if index is None else index
            if index is not None:
                ids.append(index)
        return ids

    def _text(self, ids: list[int]) -> str:
        if not self.space_prefix:
            return super()._text(ids)
        pieces: list[bytes] = []
        special = self.special_ids | self._user_ids
        after_special = True
        for index in ids:
            piece = self._pieces[index]
            pieces.append(piece.removeprefix(b" ") if after_special and index not in special else piece)
            after_special = index in special
        return b"".join(pieces).decode(errors="replace")

    def _plain_piece(self, token: str) -> bytes:
        return token.replace(SPACE, " ").encode()

    def _dropped(self) -> bytes | None:
        everything = self.unk_id is not None or all(f"<0x{byte:02X}>" in self._id_of for byte in range(256))
        return b"" if everything else None


def _in_characters(word: str, spans: list[Span]) -> list[Span]:
    """Spans in bytes of UTF-8 to spans in the characters that those bytes belong to."""
    character_of = [at for at, c in enumerate(word) for _ in range(len(c.encode()))]
    return [(character_of[a], character_of[b - 1] + 1, i) for a, b, i in spans]
