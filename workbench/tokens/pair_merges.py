"""Byte-pair merges in the order of their rank: the pair that was learnt first is joined first, leftmost at a tie."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from itertools import pairwise
from typing import TYPE_CHECKING

from workbench.errors import TokenError

if TYPE_CHECKING:
    from collections.abc import Sequence

_SHORT = 48  # below it, looking at every pair beats a heap


class PairMerges:
    """The merge table of a vocabulary.

    Parameters
    ----------
    merges : sequence of str
        Two symbols with a space between, in the order in which they were learnt.

    Raises
    ------
    TokenError
        If an entry is no pair.
    """

    def __init__(self, merges: Sequence[str]) -> None:
        symbols: dict[str, int] = {}
        pairs: list[tuple[int, int, int]] = []
        for rank, merge in enumerate(merges):
            cut = merge.find(" ", 1)
            left, right = merge[:cut], merge[cut + 1 :]
            if cut < 0 or not right:
                raise TokenError(
                    f"tokenizer.ggml.merges[{rank}] must be two symbols with a space between",
                    repr(merge[:60]),
                    "Convert the checkpoint again, or pass token_ids.",
                )
            a, b, joined = (symbols.setdefault(s, len(symbols) + 1) for s in (left, right, left + right))
            pairs.append((a, b, joined))
        self._symbols = symbols
        self._stride = len(symbols) + 1  # symbol 0 is a character that no merge knows
        self._ranks: dict[int, int] = {}
        for rank, (a, b, _) in enumerate(pairs):
            self._ranks.setdefault(a * self._stride + b, rank)
        self._joined = [joined for _, _, joined in pairs]

    def joined_symbols(self) -> list[str]:
        """Every symbol that some merge makes."""
        made = set(self._joined)
        return [symbol for symbol, index in self._symbols.items() if index in made]

    def split(self, word: str) -> list[int]:
        """Lengths in characters of the symbols that `word` ends up as."""
        symbols = [self._symbols.get(character, 0) for character in word]
        if len(symbols) < 2:
            return [1] * len(symbols)
        return self._split_short(symbols) if len(symbols) < _SHORT else self._split_long(symbols)

    def _split_short(self, symbols: list[int]) -> list[int]:
        stride, ranks, joined = self._stride, self._ranks, self._joined
        lengths = [1] * len(symbols)
        none = len(joined)
        found = [ranks.get(a * stride + b, none) for a, b in pairwise(symbols)]
        while found:
            best = min(found)
            if best == none:
                break
            at = found.index(best)
            symbols[at] = joined[best]
            lengths[at] += lengths[at + 1]
            del symbols[at + 1], lengths[at + 1], found[at]
            if at:
                found[at - 1] = ranks.get(symbols[at - 1] * stride + symbols[at], none)
            if at < len(found):
                found[at] = ranks.get(symbols[at] * stride + symbols[at + 1], none)
        return lengths

    def _split_long(self, symbols: list[int]) -> list[int]:
        stride, ranks, joined, size = self._stride, self._ranks, self._joined, len(symbols)
        ahead, behind = list(range(1, size + 1)), list(range(-1, size - 1))
        queue = [
            rank * size + at
            for at, (a, b) in enumerate(pairwise(symbols))
            if (rank := ranks.get(a * stride + b)) is not None
        ]
        heapify(queue)  # one integer an entry: rank first, then position
        while queue:
            rank, at = divmod(heappop(queue), size)
            right = ahead[at]
            if symbols[at] < 0 or right == size or ranks.get(symbols[at] * stride + symbols[right]) != rank:
                continue  # one side has been merged since
            symbols[at], symbols[right] = joined[rank], -1
            ahead[at] = after = ahead[right]
            if after < size:
                behind[after] = at
                if (rank_after := ranks.get(symbols[at] * stride + symbols[after])) is not None:
                    heappush(queue, rank_after * size + at)
            before = behind[at]
            if before >= 0 and (rank_before := ranks.get(symbols[before] * stride + symbols[at])) is not None:
                heappush(queue, rank_before * size + before)
        return [ahead[at] - at for at, symbol in enumerate(symbols) if symbol >= 0]
