"""Reading back what `Tokenizer.dump` writes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from workbench.errors import TokenError, shown
from workbench.tokens.files import FileTokenizer
from workbench.tokens.gguf import tokenizer_from_gguf

if TYPE_CHECKING:
    from workbench.tokens.tokenizer import Tokenizer

MAX_DUMP_BYTES = 256 << 20


def load_tokenizer(data: bytes) -> Tokenizer:
    """Make a tokenizer from the bytes that `dump` gave; its digest is theirs.

    The bytes are trusted to have passed the checks of the checkpoint they come from: an engine's contract holds their
    digest.

    Raises
    ------
    TokenError
        If they are no such bytes.
    """
    do = "Build the engine again."
    if len(data) > MAX_DUMP_BYTES:
        raise TokenError(f"a tokenizer must have at most {MAX_DUMP_BYTES:,} bytes", f"{len(data):,}", do)
    try:
        document: Any = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise TokenError("a tokenizer must be JSON", shown(error), do) from None
    if not isinstance(document, dict) or document.get("format") != "workbench-tokenizer/1":
        got = document.get("format") if isinstance(document, dict) else type(document).__name__
        raise TokenError("a tokenizer must be of format workbench-tokenizer/1", shown(got), do)
    tokenizer: Tokenizer
    if document.get("kind") == "gguf" and isinstance(document.get("metadata"), dict):
        tokenizer = tokenizer_from_gguf(document["metadata"])
    elif document.get("kind") == "huggingface" and isinstance(document.get("tokenizer"), str):
        tokenizer = FileTokenizer(document["tokenizer"], document.get("config") or {})
    else:
        raise TokenError("a tokenizer must be of kind gguf or huggingface", shown(document.get("kind")), do)
    if tokenizer.dump() != data:
        raise TokenError("a tokenizer must be in canonical form", "other bytes", do)
    return tokenizer
