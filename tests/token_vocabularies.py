"""Small vocabularies that the token tests share: cut from a real one, made by rule, or trained on the spot."""

from __future__ import annotations

import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Any

from workbench.tokens import Tokenizer, tokenizer_from_gguf
from workbench.tokens.byte_alphabet import ALPHABET

GOLDEN = Path(__file__).parent / "golden"
TRAINING = ["the quick brown fox jumps over the lazy dog"] * 3 + ["hello world, hello wörld 123 456", "naïve café 東京"]


def golden(name: str) -> Any:
    return json.loads((GOLDEN / "tokens" / name).read_text())


@cache
def smollm2_cut() -> dict[str, Any]:
    """Metadata of SmolLM2's vocabulary with the tokens that the golden texts need; the others are empty."""
    cut = golden("smollm2_cut.json")
    tokens = [cut["tokens"].get(str(index), "") for index in range(cut["size"])]
    kinds = [1] * cut["size"]
    for index in cut["control"]:
        kinds[index] = 3
    arrays = {"tokens": tokens, "token_type": kinds, "merges": cut["merges"]}
    return cut["fields"] | {f"tokenizer.ggml.{key}": value for key, value in arrays.items()}


@cache
def smollm2() -> Tokenizer:
    return tokenizer_from_gguf(smollm2_cut())


def pairs(pre: str = "gpt-2") -> dict[str, Any]:
    """Metadata of a vocabulary of all bytes and all pairs of bytes, which shows where words are cut."""
    merges = sorted((f"{a} {b}" for a in ALPHABET for b in ALPHABET), key=_sha256)
    tokens = [*ALPHABET, *(merge.replace(" ", "") for merge in merges), "<|im_end|>"]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [1] * (len(tokens) - 1) + [3],
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.add_bos_token": False,
    }


def toy(**fields: Any) -> dict[str, Any]:
    """Metadata of a byte-level vocabulary of 263 tokens."""
    tokens = ["<s>", "</s>", "<|im_start|>", *ALPHABET, "th", "the", "Ġthe", "<tool>"]
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3, 3, 3] + [1] * 259 + [4],
        "tokenizer.ggml.merges": ["t h", "th e", "Ġ the"],
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 1,
    }
    return metadata | {f"tokenizer.ggml.{key}": value for key, value in fields.items()}


def sentencepiece(*, space_prefix: bool = True, **fields: Any) -> dict[str, Any]:
    metadata = golden("sentencepiece.json")["metadata"] | {"tokenizer.ggml.add_space_prefix": space_prefix}
    return metadata | {f"tokenizer.ggml.{key}": value for key, value in fields.items()}


def byte_level_library() -> Any:
    """Train a byte-level BPE with the `tokenizers` library."""
    from tokenizers import Tokenizer as Library
    from tokenizers import decoders, models, pre_tokenizers, trainers

    library = Library(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    library.train_from_iterator(TRAINING, trainer)
    return library


def _sha256(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()
