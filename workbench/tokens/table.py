"""From prompts to the flat table of ids that a run reads."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.errors import TokenError, shown
from workbench.prompts.promptset import show
from workbench.tokens.templates import ChatTemplate, template_digest
from workbench.tokens.tokenizer import Tokenizer, check_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from workbench.prompts import PromptSet

_CHUNK = 1024


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class TokenTable:
    """Token ids of all prompts, one after the other.

    Attributes
    ----------
    ids : int32 [token]
        Ids of all prompts, without padding.
    offsets : int64 [prompt + 1]
        Where each prompt's ids begin.
    truncated : bool [prompt]
        Whether tokens of a prompt were left out.
    original_lengths : int64 [prompt]
        Number of tokens before any were left out.
    lossy : bool [prompt]
        Whether the ids of a prompt, before any were left out, do not decode to its text.
    provenance : dict
        How the ids were made, plain JSON values: digest of the tokenizer, template and its digest, added tokens,
        `special_in_text`, limit.
    """

    ids: NDArray[np.int32]
    offsets: NDArray[np.int64]
    truncated: NDArray[np.bool_]
    original_lengths: NDArray[np.int64]
    lossy: NDArray[np.bool_]
    provenance: dict[str, Any] = field(default_factory=dict)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Number of tokens of each prompt, int64 [prompt]."""
        return np.diff(self.offsets)

    def __len__(self) -> int:
        return len(self.truncated)


def tokenize(
    prompts: PromptSet,
    tokenizer: Tokenizer | None,
    *,
    max_tokens: int,
    truncate: bool = False,
    template: str | None = None,
    vocab_size: int | None = None,
    progress: Callable[[int], object] | None = None,
) -> TokenTable:
    """Turn prompts into token ids.

    BOS and EOS are added as the checkpoint declares, and names of special tokens in a text become those tokens. Ids
    that a prompt set brings along are taken as they are. A chat template writes its own BOS, so none is added to it.

    Parameters
    ----------
    prompts : PromptSet
        Texts or token ids.
    tokenizer : Tokenizer or None
        Needed for texts only.
    max_tokens : int
        Most tokens a prompt may have.
    truncate : bool
        Whether a longer prompt keeps its first tokens, and EOS where the checkpoint adds one, instead of being
        refused. A prompt of token ids keeps its first ids.
    template : str, optional
        Name of a chat template of the tokenizer to put around each text.
    vocab_size : int, optional
        Ids that the model has; the tokenizer's own number if not given.
    progress : callable, optional
        Called with a number of prompts each time so many more are done.

    Returns
    -------
    TokenTable
        Ids in the order of the prompts.

    Raises
    ------
    TokenError
        If a prompt has no token (an empty text is fine where the checkpoint adds BOS), is too long, or has an id that
        the model lacks; or a text comes without a tokenizer, or a template that there is not. It names the prompt.
    """
    if max_tokens < 1:
        raise TokenError("max_tokens must be at least 1", str(max_tokens), "Give the limit of the engine.")
    size = vocab_size if vocab_size is not None else tokenizer.vocab_size if tokenizer else None
    maker = _Maker(prompts, max_tokens=max_tokens, truncate=truncate, vocab_size=size)
    if prompts.token_ids is not None:
        if template is not None:
            raise TokenError("a template is for texts", "token ids", "Leave template out, or pass texts.")
        for first in range(0, len(prompts), _CHUNK):
            given = [row.tolist() for row in prompts.token_ids[first : first + _CHUNK]]
            maker.add(first, given, (0, 0), [False] * len(given))
            _tell(progress, len(given))
        return maker.table({"source": "token_ids", "max_tokens": max_tokens, "truncate": truncate})
    if tokenizer is None:
        raise TokenError("texts need a tokenizer", "a checkpoint without one", "Pass token_ids=[[...], ...].")
    chat = _chat(tokenizer, template)
    for first in range(0, len(prompts), _CHUNK):
        texts = [_rendered(prompts, chat, row) for row in range(first, min(first + _CHUNK, len(prompts)))]
        maker.check_sizes(first, texts, tokenizer)
        rows = _encoded(prompts, tokenizer, first, texts, add_special=chat is None)
        lossy = [tokenizer.decode(ids, added=chat is None) != text for ids, text in zip(rows, texts, strict=True)]
        ends = (len(tokenizer.prefix), len(tokenizer.suffix)) if chat is None else (0, 0)
        maker.add(first, rows, ends, lossy)
        _tell(progress, len(rows))
    return maker.table(
        {
            "source": "texts",
            "tokenizer_digest": tokenizer.digest,
            "template": template,
            "template_digest": None if template is None else template_digest(tokenizer.chat_templates[template]),
            "added_before": list(tokenizer.prefix) if chat is None else [],
            "added_after": list(tokenizer.suffix) if chat is None else [],
            "special_in_text": "parsed",
            "max_tokens": max_tokens,
            "truncate": truncate,
        }
    )


class _Maker:
    """Gathers rows, and holds each to the limits with a message that names its prompt."""

    def __init__(self, prompts: PromptSet, *, max_tokens: int, truncate: bool, vocab_size: int | None) -> None:
        self._prompts, self._max, self._truncate, self._vocab_size = prompts, max_tokens, truncate, vocab_size
        self._ids = array("i")
        self._lengths: list[int] = []
        self._original: list[int] = []
        self._lossy: list[bool] = []

    def check_sizes(self, first: int, texts: Sequence[str], tokenizer: Tokenizer) -> None:
        """Refuse a text that cannot fit before any time goes into it: a token covers only so many bytes."""
        if self._truncate:
            return
        for row, text in enumerate(texts, start=first):
            if len(text) > 8 * self._max and (fewest := tokenizer.fewest_tokens(text)) > self._max:
                raise self._too_long(row, f"at least {fewest} tokens")

    def add(self, first: int, rows: Sequence[Any], ends: tuple[int, int], lossy: Sequence[bool]) -> None:
        before, after = ends
        for row, ids in enumerate(rows, start=first):
            count = len(ids)
            if not count:
                raise self._empty(row)
            kept = ids
            if count > self._max:
                if not self._truncate:
                    raise self._too_long(row, f"{count} tokens")
                if before + after >= self._max:
                    got = f"{self._max} for prompt {show(self._prompts.ids[row])}"
                    what = f"max_tokens must leave room beside the {before + after} tokens that are added"
                    raise TokenError(what, got, "Raise max_tokens.")
                kept = [*ids[: self._max - after], *ids[count - after :]]
            self._check_range(row, ids)
            self._ids.extend(kept)
            self._lengths.append(len(kept))
            self._original.append(count)
        self._lossy.extend(lossy)

    def table(self, provenance: dict[str, Any]) -> TokenTable:
        lengths = np.asarray(self._lengths, dtype=np.int64)
        original = np.asarray(self._original, dtype=np.int64)
        return TokenTable(
            ids=np.array(self._ids, dtype=np.int32),
            offsets=np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)]),
            truncated=lengths < original,
            original_lengths=original,
            lossy=np.asarray(self._lossy, dtype=np.bool_),
            provenance=provenance,
        )

    def _check_range(self, row: int, ids: Sequence[int]) -> None:
        if self._vocab_size is None:
            return
        if (worst := max(ids)) >= self._vocab_size or (worst := min(ids)) < 0:
            got = f"{worst} in prompt {show(self._prompts.ids[row])} (row {row})"
            what = f"a token id must lie in the model's vocabulary of {self._vocab_size}"
            raise TokenError(what, got, "Check that the ids come from the tokenizer of this checkpoint.")

    def _too_long(self, row: int, length: str) -> TokenError:
        got = f"{length} in prompt {show(self._prompts.ids[row])} (row {row})"
        what = f"a prompt must have at most {self._max} tokens"
        return TokenError(what, got, "Pass truncate=True to keep its first tokens, or build with a larger max_tokens.")

    def _empty(self, row: int) -> TokenError:
        text = self._prompts.texts[row]
        text = None if self._prompts.token_ids is not None else text
        kind = "no token ids" if text is None else "an empty text" if not text else "no token for any of its characters"
        got = f"{kind} in prompt {show(self._prompts.ids[row])} (row {row})"
        do = "Drop it; an empty text is allowed only where the checkpoint adds BOS, and this one does not."
        return TokenError("a prompt must have at least one token", got, do if text == "" else "Drop it.")


def _encoded(
    prompts: PromptSet, tokenizer: Tokenizer, first: int, texts: Sequence[str], *, add_special: bool
) -> list[Sequence[int]]:
    for row, text in enumerate(texts, start=first):
        try:
            check_text(text)
        except TokenError as error:
            got = f"{error.got} in prompt {show(prompts.ids[row])} (row {row})"
            raise TokenError(error.what, got, error.do) from None
    return tokenizer.encode_batch(texts, add_special=add_special)


def _chat(tokenizer: Tokenizer, template: str | None) -> ChatTemplate | None:
    if template is None:
        return None
    source = tokenizer.chat_templates.get(template)
    if source is None:
        known = ", ".join(map(shown, tokenizer.chat_templates)) or "none"
        raise TokenError(f"the template must be one that the checkpoint has: {known}", shown(template), "Name one.")
    return ChatTemplate(source, tokenizer.special_names())


def _rendered(prompts: PromptSet, chat: ChatTemplate | None, row: int) -> str:
    text = prompts.texts[row] or ""
    return text if chat is None else chat.render(text)


def _tell(progress: Callable[[int], object] | None, count: int) -> None:
    if progress is not None:
        progress(count)
