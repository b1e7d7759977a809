"""Tokenizers: the ids that a checkpoint was trained on, from the files that lie in it."""

from __future__ import annotations

from workbench.tokens.files import tokenizer_from_files
from workbench.tokens.gguf import tokenizer_from_gguf
from workbench.tokens.loading import load_tokenizer
from workbench.tokens.table import TokenTable, tokenize
from workbench.tokens.templates import template_digest
from workbench.tokens.tokenizer import MAX_TEXT_BYTES, Tokenizer

__all__ = [
    "MAX_TEXT_BYTES",
    "TokenTable",
    "Tokenizer",
    "load_tokenizer",
    "template_digest",
    "tokenize",
    "tokenizer_from_files",
    "tokenizer_from_gguf",
]
