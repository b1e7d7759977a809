"""Chat templates: text around a prompt, by name, and only when asked for."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, NoReturn

from workbench.errors import TokenError, shown


def templates_of(value: object) -> dict[str, str]:
    """Read the `chat_template` of tokenizer_config.json: a string, or a list of named ones.

    Raises
    ------
    TokenError
        If it is neither.
    """
    if value is None:
        return {}
    if isinstance(value, str):
        return {"default": value}
    pairs = value.items() if isinstance(value, Mapping) else map(_named, value if isinstance(value, list) else [value])
    templates = dict(pairs)
    if not all(isinstance(part, str) for pair in templates.items() for part in pair):
        raise _not_read(value)
    return templates


def template_digest(source: str) -> str:
    """SHA-256 of a template's source, in hexadecimal."""
    return hashlib.sha256(source.encode()).hexdigest()


class ChatTemplate:
    """One template, compiled in a sandbox that can neither reach attributes of Python nor change what it is given.

    Parameters
    ----------
    source : str
        Jinja source.
    names : mapping of str to str
        Texts of `bos_token`, `eos_token` and so on.

    Raises
    ------
    TokenError
        If jinja2 is not installed, or the source is no template.
    """

    def __init__(self, source: str, names: Mapping[str, str]) -> None:
        try:
            from jinja2 import TemplateError
            from jinja2.sandbox import ImmutableSandboxedEnvironment
        except ImportError:
            raise TokenError("a chat template needs jinja2", "no such package", "Run `pip install jinja2`.") from None
        # Autoescaping stays off: the result is read by a tokenizer, and shown as text only.
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"], autoescape=False
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise
        self._names = dict(names)
        self._failures = (TemplateError, TypeError, ValueError, KeyError, RecursionError, OverflowError, MemoryError)
        try:
            self._template = environment.from_string(source)
        except self._failures as error:
            raise _failed(error) from None

    def render(self, text: str) -> str:
        """Put a prompt into the template as one message of the user, the answer to be generated next.

        Raises
        ------
        TokenError
            If the template does not run, for instance because it asks for the time of day.
        """
        messages = [{"role": "user", "content": text}]
        try:
            return str(self._template.render(messages=messages, add_generation_prompt=True, **self._names))
        except self._failures as error:
            raise _failed(error) from None


def _named(entry: object) -> tuple[Any, Any]:
    if not isinstance(entry, Mapping):
        raise _not_read(entry)
    return entry.get("name"), entry.get("template")


def _to_json(value: object, indent: int | None = None) -> str:
    import json

    return json.dumps(value, ensure_ascii=False, indent=indent)


def _raise(message: str) -> NoReturn:
    raise ValueError(message)


def _not_read(value: object) -> TokenError:
    return TokenError("chat_template must be text or a list of named texts", type(value).__name__, "Mend the file.")


def _failed(error: BaseException) -> TokenError:
    do = "Render the texts yourself and pass the result as prompts."
    return TokenError(
        "the chat template must render a single user message", shown(f"{type(error).__name__}: {error}"), do
    )
