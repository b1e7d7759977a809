"""The tokenizer that lies in the metadata of a GGUF file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workbench.errors import TokenError, UnsupportedError
from workbench.tokens.pretokenizers import pre_tokenizer
from workbench.tokens.vocabulary import Vocabulary, array, flag, read_vocabulary, text
from workbench.tokens.vocabulary_tokenizers import BytePairTokenizer, SentencePieceTokenizer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from workbench.tokens.tokenizer import Tokenizer

_FIELDS = (
    "general.name",
    "tokenizer.ggml.add_bos_token",
    "tokenizer.ggml.add_eos_token",
    "tokenizer.ggml.add_space_prefix",
    "tokenizer.ggml.bos_token_id",
    "tokenizer.ggml.eos_token_id",
    "tokenizer.ggml.merges",
    "tokenizer.ggml.model",
    "tokenizer.ggml.padding_token_id",
    "tokenizer.ggml.pre",
    "tokenizer.ggml.scores",
    "tokenizer.ggml.token_type",
    "tokenizer.ggml.tokens",
    "tokenizer.ggml.unknown_token_id",
)
_TEMPLATE = "tokenizer.chat_template"


def tokenizer_from_gguf(metadata: Mapping[str, object]) -> Tokenizer:
    """Make the tokenizer that a GGUF file declares.

    Parameters
    ----------
    metadata : mapping of str to object
        Metadata of the file, arrays as lists or NumPy arrays. Only `tokenizer.*` and `general.name` are read.

    Returns
    -------
    Tokenizer
        Gives the ids that llama.cpp gives, special tokens parsed.

    Raises
    ------
    UnsupportedError
        If the vocabulary's model or pre-tokeniser rule is not one that is followed here; it is named.
    TokenError
        If the vocabulary is broken.
    """
    model = text(metadata, "tokenizer.ggml.model")
    if model in ("gpt2", "gemma4"):
        return _byte_pair(metadata, model)
    if model == "llama":
        return _sentence_piece(metadata)
    raise UnsupportedError(
        "tokenizer.ggml.model must be gpt2 (byte-level BPE), gemma4 or llama (SentencePiece)",
        "no such field" if model is None else repr(model[:80]),
        "Pass token_ids made with the model's own tokenizer.",
    )


def _byte_pair(metadata: Mapping[str, object], model: str) -> BytePairTokenizer:
    name = "gemma4" if model == "gemma4" else text(metadata, "tokenizer.ggml.pre")
    if not name:
        raise UnsupportedError(
            "tokenizer.ggml.pre must name the rule that cuts words",
            "no such field",
            "Convert the checkpoint with a converter of May 2024 or later, or pass token_ids.",
        )
    rule = pre_tokenizer(name)
    vocabulary = read_vocabulary(metadata, add_bos=rule.add_bos)
    absent = name == "kimi-k2" and "tokenizer.ggml.merges" not in metadata  # its converters leave merges out
    merges = () if absent else array(metadata, "tokenizer.ggml.merges", str)
    return BytePairTokenizer(
        vocabulary,
        _source(metadata),
        _templates(metadata),
        _strip_right(metadata, vocabulary),
        rule=rule,
        merges=merges,
    )


def _sentence_piece(metadata: Mapping[str, object]) -> SentencePieceTokenizer:
    vocabulary = read_vocabulary(metadata, add_bos=True, bos_id=1, eos_id=2, unk_id=0)
    if vocabulary.scores is None:
        raise TokenError(
            "a SentencePiece vocabulary must have tokenizer.ggml.scores",
            "no such field",
            "Convert the checkpoint again, or pass token_ids.",
        )
    return SentencePieceTokenizer(
        vocabulary,
        _source(metadata),
        _templates(metadata),
        _strip_right(metadata, vocabulary),
        space_prefix=flag(metadata, "tokenizer.ggml.add_space_prefix", default=True),
    )


def _source(metadata: Mapping[str, object]) -> dict[str, object]:
    templates = [key for key in metadata if key == _TEMPLATE or key.startswith(_TEMPLATE + ".")]
    return {key: _plain(metadata[key]) for key in (*_FIELDS, *templates) if key in metadata}


def _plain(value: object) -> object:
    if hasattr(value, "tolist"):
        return value.tolist()
    return list(value) if isinstance(value, tuple) else value


def _templates(metadata: Mapping[str, object]) -> dict[str, str]:
    templates = {}
    for key in metadata:
        if key == _TEMPLATE or key.startswith(_TEMPLATE + "."):
            source = text(metadata, key)
            if source is not None:
                templates[key.removeprefix(_TEMPLATE).removeprefix(".") or "default"] = source
    return templates


def _strip_right(metadata: Mapping[str, object], vocabulary: Vocabulary) -> frozenset[int]:
    """Special tokens that swallow the spaces after them: those of Phi-3, which llama.cpp knows by the model's name."""
    model = (text(metadata, "general.name") or "").lower()
    if "phi-3" not in model and "phi3" not in model:
        return frozenset()
    keep = {"<unk>", "<s>", "<|endoftext|>"}
    return frozenset(
        i
        for i, (name, kind) in enumerate(zip(vocabulary.tokens, vocabulary.kinds, strict=True))
        if name not in keep and (kind.is_named or name == "</s>")
    )
