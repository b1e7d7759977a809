"""Where a checkpoint keeps its tokenizer; what turns it into one is `workbench.tokens`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from workbench.checkpoint.jsontext import load_json
from workbench.errors import CheckpointError, WorkbenchError, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from workbench.checkpoint.paths import Folder
    from workbench.tokens import Tokenizer

MAX_TOKENIZER_BYTES = 64 << 20
MAX_CONFIG_BYTES = 16 << 20
MAX_TEMPLATE_BYTES = 1 << 20

_JSON, _CONFIG, _TEMPLATE = "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"
# Tokenizers in forms that are not read here.
_OTHER_FORMS = ("tokenizer.model", "spiece.model", "vocab.json", "vocab.txt", "tekken.json")


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Vocabulary:
    """A tokenizer that has not been made yet."""

    make: Callable[[], Tokenizer]


def gguf_vocabulary(metadata: Mapping[str, object]) -> Vocabulary | None:
    """Find the tokenizer in GGUF metadata, or None where the file has none."""
    if metadata.get("tokenizer.ggml.model") in {None, "none", "no_vocab"}:
        return None

    def make() -> Tokenizer:
        from workbench.tokens import tokenizer_from_gguf

        return tokenizer_from_gguf(metadata)

    return Vocabulary(make=make)


def vocabulary_files(folder: Folder) -> tuple[Vocabulary | None, dict[str, bytes]]:
    """Find the tokenizer in a Hugging Face folder.

    Parameters
    ----------
    folder : Folder
        Where config.json lies.

    Returns
    -------
    Vocabulary or None, dict of str to bytes
        The tokenizer, and the files that it is made of.

    Raises
    ------
    CheckpointError
        If a file is too long, or tokenizer_config.json is no JSON.
    """
    caps = {_JSON: MAX_TOKENIZER_BYTES, _CONFIG: MAX_CONFIG_BYTES, _TEMPLATE: MAX_TEMPLATE_BYTES}
    files = {name: folder.read(name, max_bytes=cap) for name, cap in caps.items() if folder.has(name)}
    config: dict[str, Any] | None = None
    if _CONFIG in files:
        config = load_json(files[_CONFIG], shown(_CONFIG), max_bytes=MAX_CONFIG_BYTES, wide=True)
    if _TEMPLATE in files:
        config = {**(config or {}), "chat_template": _text(files[_TEMPLATE])}
    other = next((name for name in _OTHER_FORMS if folder.has(name)), None)
    if _JSON not in files:
        return None if other is None else Vocabulary(make=lambda: _refuse(other)), files

    def make() -> Tokenizer:
        from workbench.tokens import tokenizer_from_files

        return tokenizer_from_files(files[_JSON], config)

    return Vocabulary(make=make), files


def _text(template: bytes) -> str:
    try:
        return template.decode()
    except UnicodeDecodeError as error:
        raise CheckpointError(
            f"{shown(_TEMPLATE)} must be UTF-8", f"byte {error.start} that is not", "Get the file again."
        ) from None


def _refuse(name: str) -> Tokenizer:
    raise CheckpointError(
        "the tokenizer must be tokenizer.json", shown(name), "Save it again with a fast tokenizer, or give token ids."
    )


def vocabulary_of(vocabulary: Vocabulary | None) -> tuple[Tokenizer | None, str | None]:
    """Make the tokenizer, or say why there is none: a checkpoint without one runs on token ids."""
    if vocabulary is None:
        return None, "the checkpoint holds no tokenizer"
    try:
        return vocabulary.make(), None
    except WorkbenchError as error:
        return None, str(error)
