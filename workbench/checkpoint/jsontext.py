"""JSON of files that others made: size, depth, keys and numbers are bounded, and nothing has two meanings."""

from __future__ import annotations

import json
import math
from typing import Any

from workbench.errors import CheckpointError, shown

MAX_ITEMS = 3 << 19  # 1.5 Mi: at most about 150 MB of Python objects; 100,000 safetensors tensors need 1.3 M
MAX_KEYS = 450_000
_DO = "Get the file again from where the checkpoint was published."


class _RefusedError(ValueError):
    """Raised inside the parser: what must hold, and what was got."""


def load_json(data: bytes, label: str, *, max_bytes: int, wide: bool = False) -> dict[str, Any]:
    """Parse one JSON object.

    Parameters
    ----------
    data : bytes
        UTF-8 text.
    label : str
        What errors call the file.
    max_bytes : int
        Longest text that is parsed.
    wide : bool
        Whether an integer beyond 64 bits becomes a float: tokenizer configs say 10^30 for "no limit".

    Returns
    -------
    dict
        The object at the top level.

    Raises
    ------
    CheckpointError
        If it is too long, too deep or too rich, not UTF-8, not JSON, no object, has a key twice, or holds a number that
        is not finite or an integer beyond 64 bits.
    """
    if len(data) > max_bytes:
        raise CheckpointError(f"{label} must hold at most {max_bytes} bytes", f"{len(data)}", _DO)
    keys = data.count(b":")
    items = keys + sum(data.count(mark) for mark in (b",", b"[", b"{"))
    if keys > MAX_KEYS:
        raise CheckpointError(f"{label} must hold at most {MAX_KEYS} keys", f"about {keys}", _DO)
    if items > MAX_ITEMS:
        raise CheckpointError(f"{label} must hold at most {MAX_ITEMS} values", f"about {items}", _DO)
    try:
        value = json.loads(
            data.decode(),
            object_pairs_hook=_unique,
            parse_constant=_constant,
            parse_float=_finite,
            parse_int=_wide if wide else _int64,
        )
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{label} must be UTF-8", f"byte {error.start} that is not", _DO) from None
    except RecursionError:
        raise CheckpointError(f"{label} must not be nested deeply", "more levels than the parser takes", _DO) from None
    except _RefusedError as error:
        raise CheckpointError(f"{label}: {error.args[0]}", error.args[1], _DO) from None
    except json.JSONDecodeError as error:
        where = f"{shown(error.msg)} at line {error.lineno}, column {error.colno}"
        raise CheckpointError(f"{label} must be JSON", where, _DO) from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{label} must be one JSON object", f"a {type(value).__name__}", _DO)
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise _RefusedError("each key must stand once", f"{shown(key)} twice")
            seen.add(key)
    return found


def _constant(text: str) -> float:
    raise _RefusedError("numbers must be finite", shown(text))


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise _RefusedError("numbers must be finite", shown(text, 40))
    return value


def _wide(text: str) -> float:
    return int(text) if len(text) <= 18 else _finite(text) if len(text) <= 40 else _int64(text)


def _int64(text: str) -> int:
    if len(text) <= 20:
        value = int(text)
        if -(1 << 63) <= value < 1 << 64:
            return value
    raise _RefusedError("integers must fit in 64 bits", shown(text, 40))
