"""Finding the names of special tokens in a text before anything else cuts it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable

Fragment: TypeAlias = tuple[int, int, int]
"""Start and end in characters, and the id of the special token, or -1 for text."""

_C_SPACES = " \t\n\v\f\r"


@dataclass(frozen=True, kw_only=True, slots=True)
class SpecialToken:
    """A token that is found by its name."""

    index: int
    text: str
    strip_right: bool = False


class SpecialTokens:
    """Special tokens of a vocabulary, longest name first, as llama.cpp looks for them."""

    def __init__(self, tokens: Iterable[SpecialToken]) -> None:
        ordered = sorted(tokens, key=lambda token: (-len(token.text.encode()), token.index))
        self._by_first: dict[str, list[tuple[int, SpecialToken]]] = {}
        for order, token in enumerate(ordered):
            self._by_first.setdefault(token.text[0], []).append((order, token))

    def partition(self, text: str) -> list[Fragment]:
        """Cut `text` at every special token; text between stays as it is."""
        if not text:
            return []
        found = (
            sorted(
                (order, token)
                for first, tokens in self._by_first.items()
                if first in text
                for order, token in tokens
                if token.text in text
            )
            if self._by_first
            else []
        )
        fragments = [(0, len(text), -1)]
        for _, token in found:
            fragments = [piece for fragment in fragments for piece in _cut(text, fragment, token)]
        return fragments


def _cut(text: str, fragment: Fragment, token: SpecialToken) -> list[Fragment]:
    start, stop, index = fragment
    if index >= 0:
        return [fragment]
    pieces: list[Fragment] = []
    while (at := text.find(token.text, start, stop)) >= 0:
        if at > start:
            pieces.append((start, at, -1))
        end = at + len(token.text)
        if token.strip_right:
            while end < stop and text[end] in _C_SPACES:
                end += 1
        pieces.append((at, end, token.index))
        start = end
    if start < stop:
        pieces.append((start, stop, -1))
    return pieces
