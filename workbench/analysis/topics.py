"""Names for clusters, made of the prompts' own distinctive words; no model is asked.

Each word is scored by how much more often prompts of a cluster hold it than the other prompts do: the log ratio of the
two shares, with half a prompt added to each, times the share inside. A word counts once a prompt.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Sequence

WORD = re.compile(r"\w[\w'’-]*", re.UNICODE)
WORDS_A_NAME = 3


def words_of(text: str) -> set[str]:
    """Split a text into its distinct words, in lower case."""
    return {word.casefold() for word in WORD.findall(text[:4000])}


def name_clusters(labels: npt.ArrayLike, texts: Sequence[str | None]) -> dict[int, str]:
    """Name each cluster by its most distinctive words.

    Parameters
    ----------
    labels : int32 [row]
        Cluster of each row; -1 is noise and gets no words.
    texts : sequence of str or None
        Text of each row's prompt.

    Returns
    -------
    dict of int to str
        "word, word, word", or "cluster 3" where no word is distinctive.
    """
    codes = np.asarray(labels)
    inside: dict[int, Counter[str]] = {}
    size: Counter[int] = Counter()
    seen: set[tuple[int, str]] = set()
    for code, text in zip(codes.tolist(), texts, strict=True):
        if text is None or (code, text) in seen:
            continue
        seen.add((code, text))
        inside.setdefault(code, Counter()).update(words_of(text))
        size[code] += 1
    everywhere: Counter[str] = sum(inside.values(), Counter())
    total = sum(size.values())
    names = {}
    for code in np.unique(codes).tolist():
        if code < 0:
            names[code] = "noise"
            continue
        names[code] = _name(inside.get(code, Counter()), size[code], everywhere, total) or f"cluster {code}"
    return names


def _name(here: Counter[str], n_here: int, everywhere: Counter[str], total: int) -> str:
    n_there = total - n_here
    scores = {}
    for word, count in here.items():
        share = (count + 0.5) / (n_here + 1)
        other = (everywhere[word] - count + 0.5) / (n_there + 1)
        if count >= 2 and share > 1.5 * other:
            scores[word] = share * np.log(share / other)
    return ", ".join(sorted(scores, key=lambda word: (-scores[word], word))[:WORDS_A_NAME])
