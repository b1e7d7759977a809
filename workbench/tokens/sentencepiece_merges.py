"""SentencePiece merges by score: the pair whose joint token scores highest is joined first, leftmost at a tie.

Kudo and Richardson (2018), arXiv:1808.06226; the order of ties as in llama.cpp.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

SPACE = "\u2581"


class ScoreMerges:
    """Merges over a vocabulary with scores.

    Parameters
    ----------
    id_of : mapping of str to int
        Id of each token text.
    scores : tuple of float
        Score of each id.
    """

    def __init__(self, id_of: Mapping[str, int], scores: tuple[float, ...]) -> None:
        self._cost = {token: -scores[index] for token, index in id_of.items()}
        # A merge can only cross from a character into a space where some token does.
        self._bridges = {
            token[at - 1] for token in id_of for at in range(1, len(token)) if token[at] == SPACE != token[at - 1]
        }

    def words(self, text: str) -> list[str]:
        """Cut escaped text where no merge can cross; each word may then be merged, and remembered, on its own."""
        words: list[str] = []
        start = 0
        at = text.find(SPACE, 1)
        while at > 0:
            before = text[at - 1]
            if before != SPACE and before not in self._bridges:
                words.append(text[start:at])
                start = at
            at = text.find(SPACE, at + 1)
        words.append(text[start:])
        return words

    def split(self, word: str) -> list[int]:
        """Lengths in characters of the symbols that `word` ends up as."""
        size = len(word)
        cost = self._cost
        ahead, behind = list(range(1, size + 1)), list(range(-1, size - 1))
        alive = [True] * size
        queue = [(c, at, at + 2) for at in range(size - 1) if (c := cost.get(word[at : at + 2])) is not None]
        heapify(queue)
        while queue:
            _, at, stop = heappop(queue)
            if not alive[at]:
                continue
            right = ahead[at]
            if right == size or ahead[right] != stop:
                continue  # one side has grown since
            alive[right] = False
            ahead[at] = stop
            if stop < size:
                behind[stop] = at
                if (c := cost.get(word[at : ahead[stop]])) is not None:
                    heappush(queue, (c, at, ahead[stop]))
            before = behind[at]
            if before >= 0 and (c := cost.get(word[before:stop])) is not None:
                heappush(queue, (c, before, stop))
        return [ahead[at] - at for at in range(size) if alive[at]]
