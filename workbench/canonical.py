"""Canonical JSON and its digest: the same content gives the same bytes, so that a digest names it."""

from __future__ import annotations

import hashlib
import json


def canonical_json(value: object) -> bytes:
    """Write plain data as canonical JSON: sorted keys, no spaces, ASCII only, no NaN.

    Parameters
    ----------
    value : object
        Dictionaries with string keys, lists, tuples, strings, numbers, booleans and None.

    Returns
    -------
    bytes
        The one form of `value`.

    Raises
    ------
    ValueError
        If a number is not finite.
    TypeError
        If something else than plain data is inside.
    """
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return text.encode("ascii")


def digest_of(value: object) -> str:
    """Name plain data by the sha256 of its canonical JSON, in hexadecimal."""
    return hashlib.sha256(canonical_json(value)).hexdigest()
