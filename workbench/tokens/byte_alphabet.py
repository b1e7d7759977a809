"""The printable alphabet that byte-level vocabularies write their tokens in: one character a byte.

Bytes that print keep their own character; the others get the next free one from U+0100 on (Radford et al., 2019, the
GPT-2 encoder).
"""

from __future__ import annotations


def _printable(byte: int) -> bool:
    return 0x21 <= byte <= 0x7E or 0xA1 <= byte <= 0xAC or 0xAE <= byte <= 0xFF


def _alphabet() -> str:
    spare = iter(range(0x100, 0x200))
    return "".join(chr(byte) if _printable(byte) else chr(next(spare)) for byte in range(256))


ALPHABET = _alphabet()
"""Character of each byte, in byte order."""

BYTE_OF = {character: byte for byte, character in enumerate(ALPHABET)}
"""Byte of each character."""


def to_alphabet(text: str) -> str:
    """Write the UTF-8 bytes of `text` in the alphabet: one character a byte."""
    return text.encode().decode("latin-1").translate(_FROM_LATIN)


def from_alphabet(token: str) -> bytes:
    """Bytes of a token written in the alphabet; characters outside it stand for their own UTF-8 bytes."""
    return b"".join(bytes((BYTE_OF[character],)) if character in BYTE_OF else character.encode() for character in token)


_FROM_LATIN = dict(enumerate(ALPHABET))
