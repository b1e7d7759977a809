"""The output head beside the rows, so that a lens reads a run without its checkpoint.

`head.safetensors` holds the matrix of the head and the final norm, each tensor in the smallest of F32, BF16 and F16
that keeps every value, and the numbers that go with them as text in its header. Its checksum stands in the manifest.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.errors import ContractError, StoreError
from workbench.store.dtypes import STORAGE_TYPES
from workbench.store.layout import HEAD, safetensors_header
from workbench.store.opening import TensorFile

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from numpy.typing import NDArray

RANKS = {"unembed": 2, "norm_weight": 1, "norm_bias": 1, "bias": 1}
SETTINGS = ("norm", "norm_eps", "scale", "soft_cap")
_KEY = "head"


def head_bytes(head: Mapping[str, Any]) -> list[Any]:
    """Give `head.safetensors` in pieces.

    Parameters
    ----------
    head : mapping
        `unembed` float32 [d_vocab, d_model]; `norm_weight`, `norm_bias` float32 [d_model] and `bias` float32 [d_vocab],
        each None where there is none; the `SETTINGS`; and `checkpoint`, the digest of the weights it is of.

    Raises
    ------
    ContractError
        If an array is missing or of another rank.
    """
    tensors: dict[str, tuple[str, tuple[int, ...], int]] = {}
    pieces: list[Any] = []
    for name, rank in RANKS.items():
        if head.get(name) is None and name != "unembed":
            continue
        values = np.asarray(head.get(name))
        if values.ndim != rank:
            raise ContractError(f"{name} of a head must have rank {rank}", str(values.shape), "See analysis.Head.")
        dtype, stored = _smallest(values)
        tensors[name] = (dtype, stored.shape, stored.nbytes)
        pieces.append(stored)
    settings = {name: head.get(name) for name in SETTINGS}
    metadata = {_KEY: json.dumps(settings, sort_keys=True), "checkpoint": str(head.get("checkpoint", ""))}
    return [safetensors_header(tensors, metadata), *(piece.reshape(-1).view(np.uint8) for piece in pieces)]


def _smallest(values: NDArray[Any]) -> tuple[str, NDArray[Any]]:
    """Store values in two bytes where every one of them survives it."""
    wide = np.ascontiguousarray(values, dtype="<f4")
    for name in ("BF16", "F16"):
        kind = STORAGE_TYPES[name]
        with np.errstate(over="ignore"):
            small = wide.astype(kind.array)
        if np.array_equal(small.astype(np.float32), wide):
            return name, small.view(kind.bits)
    return "F32", wide


def load_head(folder: Path, checksum: str, checkpoint: str) -> dict[str, Any]:
    """Read the head of a run: what `head_bytes` was given, arrays over the mapped file.

    Parameters
    ----------
    folder : Path
        Run folder.
    checksum : str
        Of the file, from the manifest.
    checkpoint : str
        Digest of the weights that the run's engine was built from; "" where it is not known.

    Raises
    ------
    ChecksumMismatch, StoreError
        If the file is damaged, or the head of other weights.
    """
    file = TensorFile(folder / HEAD, checksum)
    found = file.header.metadata.get("checkpoint", "")
    if checkpoint and found != checkpoint:
        raise StoreError(f"{HEAD} must be of checkpoint {checkpoint}", found[:80], "It is not used.")
    try:
        settings = json.loads(file.header.metadata.get(_KEY, ""))
        known = {name: settings[name] for name in SETTINGS}
    except (ValueError, KeyError, TypeError) as error:
        raise StoreError(f"{HEAD} must name {', '.join(SETTINGS)}", str(error)[:80], "It is damaged.") from None
    arrays = {
        name: file.array(name, file.header.tensors[name].dtype, rank) if name in file.header.tensors else None
        for name, rank in RANKS.items()
    }
    if arrays["unembed"] is None:
        raise StoreError(f"{HEAD} must hold unembed", "none", "It is damaged.")
    return {**known, **arrays, "checkpoint": found}
