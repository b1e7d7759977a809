"""The vocabulary of a GGUF file: tokens, their kinds and the ids with a role, checked before anything uses them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from workbench.errors import TokenError, shown


class Kind(IntEnum):
    """Kind of a token, as `tokenizer.ggml.token_type` numbers it."""

    UNDEFINED = 0
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6

    @property
    def is_named(self) -> bool:
        """Whether text is searched for the token's name."""
        return self in (Kind.UNKNOWN, Kind.CONTROL, Kind.USER_DEFINED)


NO_TOKEN = 0xFFFFFFFF  # what converters write for "none" where the field is unsigned

# Tokens that llama.cpp takes for control tokens by their text, whatever the file says of their kind.
_CONTROL_ROWS = (
    "<|eot_id|> <|im_end|> <|end|> <|return|> <|call|> <|flush|> <|calls|> <end_of_turn> <|endoftext|> </s> <|eom_id|>",
    "<EOT> _<EOT> [EOT] [EOS] <|end_of_text|> <end_of_utterance> <eos> <turn|> <|tool_response> [e~[",
    "<\uff5cend\u2581of\u2581sentence\uff5c> <\uff5cfim\u2581begin\uff5c>",
    "<\uff5cfim\u2581hole\uff5c> <\uff5cfim\u2581end\uff5c>",
    "<|fim_prefix|> <fim-prefix> <fim_prefix> <PRE> \u2581<PRE> <|code_prefix|> <|prefix|>",
    "<|fim_suffix|> <fim-suffix> <fim_suffix> <SUF> \u2581<SUF> <|code_suffix|> <|suffix|>",
    "<|fim_middle|> <fim-middle> <fim_middle> <MID> \u2581<MID> <|code_middle|> <|middle|>",
    "<|fim_pad|> <fim-pad> <fim_pad> <PAD> [PAD] <|fim_repo|> <|repo_name|> <fim-repo> <REPO> <reponame> <|file_sep|>",
)
_CONTROL_TEXTS = frozenset(name for row in _CONTROL_ROWS for name in row.split())
_USER_TEXTS = frozenset({"<|channel|>", "<|message|>", "<|start|>", "<|constrain|>"})
_BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Vocabulary:
    """Tokens of a checkpoint by id.

    Attributes
    ----------
    tokens : tuple of str
        Text of each token, as the file spells it.
    kinds : tuple of Kind
        Kind of each token.
    scores : tuple of float or None
        Score of each token, where the file has scores; higher merges first.
    bos_id, eos_id, pad_id, unk_id : int or None
        Ids with a role, None where the file names none.
    add_bos, add_eos : bool
        Whether every prompt starts with BOS, ends with EOS.
    """

    tokens: tuple[str, ...]
    kinds: tuple[Kind, ...]
    scores: tuple[float, ...] | None
    bos_id: int | None
    eos_id: int | None
    pad_id: int | None
    unk_id: int | None
    add_bos: bool
    add_eos: bool

    def id_of(self) -> dict[str, int]:
        """Id of each token text."""
        return {token: index for index, token in enumerate(self.tokens)}


def read_vocabulary(
    metadata: Mapping[str, object],
    *,
    add_bos: bool,
    bos_id: int | None = None,
    eos_id: int | None = None,
    unk_id: int | None = None,
) -> Vocabulary:
    """Read and check the `tokenizer.ggml` fields that every model shares.

    Parameters
    ----------
    metadata : mapping
        GGUF metadata, arrays as lists or NumPy arrays.
    add_bos : bool
        Whether BOS comes first where the file does not say.
    bos_id, eos_id, unk_id : int, optional
        Ids where the file does not say.

    Returns
    -------
    Vocabulary
        The checked vocabulary.

    Raises
    ------
    TokenError
        If a field has another type, arrays differ in length, a token stands twice, an id lies outside the vocabulary,
        or BOS or EOS is asked for and not named.
    """
    tokens = _named(array(metadata, "tokenizer.ggml.tokens", str))
    size = len(tokens)
    types = _matching(metadata, "tokenizer.ggml.token_type", int, size)
    scores = _matching(metadata, "tokenizer.ggml.scores", float, size)
    if scores is not None and not all(map(math.isfinite, scores)):
        raise _broken("tokenizer.ggml.scores must be finite", "NaN or infinity")

    def role(key: str, default: int | None) -> int | None:
        return special_id(metadata, f"tokenizer.ggml.{key}_token_id", size, default)

    vocabulary = Vocabulary(
        tokens=tokens,
        kinds=_kinds(tokens, types),
        scores=scores,
        bos_id=role("bos", bos_id),
        eos_id=role("eos", eos_id),
        pad_id=role("padding", None),
        unk_id=role("unknown", unk_id),
        add_bos=flag(metadata, "tokenizer.ggml.add_bos_token", default=add_bos),
        add_eos=flag(metadata, "tokenizer.ggml.add_eos_token", default=False),
    )
    missing = [
        name
        for name, added, index in (
            ("bos", vocabulary.add_bos, vocabulary.bos_id),
            ("eos", vocabulary.add_eos, vocabulary.eos_id),
        )
        if added and index is None
    ]
    for name in missing:
        raise _broken(f"tokenizer.ggml.{name}_token_id must be set where add_{name}_token is true", "nothing")
    return vocabulary


def array(metadata: Mapping[str, object], key: str, kind: type) -> tuple[Any, ...]:
    """Read an array field whose elements are all of one kind (`str`, `int` or `float`)."""
    value = metadata.get(key)
    if value is None:
        raise _broken(f"{key} must be an array", "no such field")
    if isinstance(value, str | bytes) or not (isinstance(value, Sequence) or hasattr(value, "tolist")):
        raise _broken(f"{key} must be an array", type(value).__name__)
    listed: Any = value
    items = listed.tolist() if hasattr(listed, "tolist") else list(listed)  # NumPy scalars become Python's own
    accepted = {int: (int,), float: (int, float), str: (str,)}[kind]
    for index, item in enumerate(items):
        if not isinstance(item, accepted) or isinstance(item, bool):
            raise _broken(f"{key}[{index}] must be {kind.__name__}", type(item).__name__)
    return tuple(map(float, items)) if kind is float else tuple(items)


def flag(metadata: Mapping[str, object], key: str, *, default: bool) -> bool:
    """Read a boolean field."""
    value = metadata.get(key, default)
    value = value.item() if hasattr(value, "item") else value
    if not isinstance(value, bool):
        raise _broken(f"{key} must be a boolean", type(value).__name__)
    return value


def text(metadata: Mapping[str, object], key: str) -> str | None:
    """Read an optional text field."""
    value = metadata.get(key)
    if value is not None and not isinstance(value, str):
        raise _broken(f"{key} must be a string", type(value).__name__)
    return value


def special_id(metadata: Mapping[str, object], key: str, size: int, default: int | None) -> int | None:
    """Read an optional token id and hold it to the vocabulary."""
    value = metadata.get(key, default)
    value = value.item() if hasattr(value, "item") else value
    if value is None or value in (NO_TOKEN, -1):
        return None
    if not isinstance(value, int) or isinstance(value, bool):
        raise _broken(f"{key} must be an integer", type(value).__name__)
    if not 0 <= value < size:
        if key not in metadata:
            return None
        raise _broken(f"{key} must lie in a vocabulary of {size} tokens", str(value))
    return value


def byte_value(token: str) -> int | None:
    """Byte that a token such as `<0x0A>` stands for."""
    match = _BYTE_TOKEN.fullmatch(token)
    return int(match[1], 16) if match else None


def _named(tokens: tuple[str, ...]) -> tuple[str, ...]:
    if not tokens:
        raise _broken("tokenizer.ggml.tokens must hold tokens", "an empty array")
    named = tuple(token or f"[EMPTY_{index}]" for index, token in enumerate(tokens))
    seen: dict[str, int] = {}
    for index, token in enumerate(named):
        if seen.setdefault(token, index) != index:
            raise _broken(
                "every token must stand once in tokenizer.ggml.tokens",
                f"{shown(token)} twice, ids {seen[token]} and {index}",
            )
    return named


def _matching(metadata: Mapping[str, object], key: str, kind: type, size: int) -> tuple[Any, ...] | None:
    if key not in metadata:
        return None
    items = array(metadata, key, kind)
    if len(items) != size:
        raise _broken(f"{key} must have one element for each of {size} tokens", str(len(items)))
    return items


def _kinds(tokens: tuple[str, ...], types: tuple[int, ...] | None) -> tuple[Kind, ...]:
    kinds = [Kind.NORMAL] * len(tokens) if types is None else [_kind(number) for number in types]
    present = set(tokens)
    harmony = "<|end|>" in present and (
        {"<|return|>", "<|call|>"} <= present
        or ({"<|flush|>"} <= present and bool({"<|call|>", "<|calls|>"} & present))
    )
    for index, name in enumerate(tokens):
        if kinds[index] is Kind.BYTE and byte_value(name) is None:
            raise _broken(f"byte token {index} must read like <0x0A>", shown(name))
        if name in _USER_TEXTS or (harmony and name == "<|end|>"):
            kinds[index] = Kind.USER_DEFINED
        elif name in _CONTROL_TEXTS:
            kinds[index] = Kind.NORMAL if name == "</s>" and "<|tool_response>" in present else Kind.CONTROL
    return tuple(kinds)


def _kind(number: int) -> Kind:
    return Kind(number) if number in Kind._value2member_map_ else Kind.UNDEFINED


def _broken(what: str, got: str) -> TokenError:
    return TokenError(what, got, "Convert the checkpoint again, or pass token_ids.")
