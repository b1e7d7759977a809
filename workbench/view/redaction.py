"""What a page may say: everything, the first characters of each text, or no text at all.

Redaction happens before anything is packed, so that what is left out is nowhere in the file.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass
from typing import TYPE_CHECKING

from workbench.errors import ViewError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from workbench.prompts import PromptSet

ALL = "all"


@dataclass(frozen=True, kw_only=True, slots=True)
class Redaction:
    """A rule for texts.

    Attributes
    ----------
    keep : int or None
        Characters of each text that stay; None for all of them, 0 for none.
    columns : frozenset of str
        Metadata columns whose values stay whatever the rule.
    key : bytes
        Salt of the hashes that stand for ids.
    """

    keep: int | None
    columns: frozenset[str]
    key: bytes

    @property
    def active(self) -> bool:
        """Whether anything is left out."""
        return self.keep is not None

    def text(self, text: str | None) -> str | None:
        """Shorten a prompt."""
        if text is None or self.keep is None:
            return text
        return text[: self.keep] or None

    def texts(self, texts: Iterable[str | None]) -> list[str | None]:
        """Shorten prompts."""
        return [self.text(text) for text in texts]

    def word(self, text: str) -> str | None:
        """Give a token, a cluster name or a free text: as it is, or nothing, because it was made of prompts."""
        return text if self.keep is None else None

    def labels(self, column: str, labels: Sequence[str]) -> list[str]:
        """Give the classes of a metadata column: as they are, or numbered."""
        if self.keep is None or column in self.columns:
            return list(labels)
        return [f"value {number}" for number in range(1, len(labels) + 1)]

    def column(self, name: str, number: int) -> str:
        """Give the name of a metadata column."""
        return name if self.keep != 0 or name in self.columns else f"column {number + 1}"

    def token(self, value: str) -> str:
        """Give an id or a hash: as it is, or salted, because a plain hash of a short text can be guessed."""
        if self.keep is None:
            return value
        return hmac.new(self.key, value.encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()[:16]

    def sentence(self) -> str | None:
        """Say on the page what was left out."""
        if self.keep is None:
            return None
        what = "all texts" if self.keep == 0 else f"all but the first {self.keep} characters of each prompt"
        kept = f" Columns shown in full: {', '.join(sorted(self.columns))}." if self.columns else ""
        return (
            f"This page is redacted: {what}, tokens and labels made of them are left out; ids are salted hashes.{kept}"
        )


def redaction(
    redact: int | str | None, *, columns: Collection[str], prompts: Iterable[PromptSet], salt: Iterable[str] = ()
) -> Redaction:
    """Make the rule.

    Parameters
    ----------
    redact : int, "all" or None
        Characters of each prompt to keep, "all" to leave out every text, None to keep everything.
    columns : collection of str
        Metadata columns to show in full.
    prompts : iterable of PromptSet
        Their texts are the salt: only who has them all can compute the hash of an id.
    salt : iterable of str
        In their place, for a page of results alone.

    Raises
    ------
    ViewError
        If `redact` is anything else.
    """
    if redact is not None and redact != ALL and (isinstance(redact, bool) or not isinstance(redact, int) or redact < 1):
        do = 'Give the number of characters to keep, "all" to leave out every text, or None.'
        raise ViewError('redact must be a positive number, "all" or None', repr(redact), do)
    key = hashlib.sha256(b"workbench redaction")
    texts = (text or ids for some in prompts for text, ids in zip(some.texts, some.hashes, strict=True))
    for part in (*texts, *salt):
        key.update(part.encode("utf-8", "surrogatepass") + b"\0")
    keep = None if redact is None else 0 if redact == ALL else int(redact)
    return Redaction(keep=keep, columns=frozenset(columns), key=key.digest())
