"""One buffer for all arrays and texts of a page, and the list that says where each lies in it.

Arrays are little-endian and aligned to 8 bytes. Texts are JSON in ASCII, which keeps NUL, carriage returns and lone
surrogates as they are; they are packed with gzip unless the page must open in a browser without DecompressionStream.
"""

from __future__ import annotations

import gzip
import hashlib
import json
from typing import Any

import numpy as np
import numpy.typing as npt

_KINDS = {kind: np.dtype("<" + kind) for kind in ("f4", "f8", "i4", "u1", "u2", "u4")}
_ALIGN = 8


class Blocks:
    """Collects blocks; each addition gives the number by which the document names the block, equal ones the same."""

    def __init__(self, *, compress: bool = True) -> None:
        self.compress = compress
        self.table: list[dict[str, Any]] = []
        self._parts: list[bytes] = []
        self._size = 0
        self._known: dict[tuple[str, bool, bytes], int] = {}

    def array(self, values: npt.NDArray[Any]) -> int:
        """Add an array of float32, float64, int32 or unsigned integers, kept in C order."""
        kind = values.dtype.str.lstrip("<|=>")
        if kind not in _KINDS:
            raise TypeError(f"a block holds {', '.join(_KINDS)}; got {values.dtype}")
        return self._add(kind, np.ascontiguousarray(values, dtype=_KINDS[kind]).tobytes(), packed=False)

    def json(self, value: Any) -> int:
        """Add a JSON value, packed."""
        text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
        return self._add("json", text.encode("ascii"), packed=self.compress)

    def joined(self) -> bytes:
        """Give the whole buffer."""
        return b"".join(self._parts)

    def _add(self, kind: str, data: bytes, *, packed: bool) -> int:
        key = (kind, packed, hashlib.sha256(data).digest())
        if key not in self._known:  # views of one run share its texts
            self._known[key] = self._append(kind, data, packed=packed)
        return self._known[key]

    def _append(self, kind: str, data: bytes, *, packed: bool) -> int:
        if packed:
            data = gzip.compress(data, 9, mtime=0)  # no clock in the header: the same input gives the same bytes
        fill = -self._size % _ALIGN
        self._parts += [bytes(fill), data]
        self._size += fill
        self.table.append({"kind": kind, "at": self._size, "size": len(data), "gzip": packed})
        self._size += len(data)
        return len(self.table) - 1
