"""Rows of a `.npy` file."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.errors import ContractError, StoreError
from workbench.store.importing.foreign import UNKNOWN_TOKEN, create_foreign, fill, open_source, token_table, unknowns
from workbench.store.manifest import TapSpec

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from workbench.prompts import PromptSet
    from workbench.store.reader import Run
    from workbench.tokens import TokenTable

MAX_NPY_HEADER = 10_000
_NPY_HEADER = re.compile(
    rb"\{'descr': '(<f[248])', 'fortran_order': False, 'shape': \((\d{1,15}), (\d{1,9})\), \} *\n?"
)


def import_npy(
    path: str | Path, *, out: str | Path, tap: str, prompts: PromptSet, tokens: TokenTable | None = None,
    positions: str = "last",
) -> Run:  # fmt: skip
    """Import rows from a `.npy` file.

    Parameters
    ----------
    path : str or Path
        The file, [row, d_model]; float16, float32 or float64 (stored as float32).
    out : str or Path
        Run folder to make.
    tap : str
        What the rows are, as far as you know.
    prompts : PromptSet
        Prompts in row order.
    tokens : TokenTable, optional
        Their tokens; without, each prompt has one token of id -1.
    positions : str
        "last" or "mean" (one row a prompt) or "all" (one row a token; needs `tokens` or prompts with token ids).

    Raises
    ------
    ContractError
        If the number of rows is not what the prompts and positions ask for.
    StoreError
        If the file is broken, or not what it says.
    """
    rows = read_npy(Path(path))
    if tokens is None:
        ids = prompts.token_ids or [np.array([UNKNOWN_TOKEN], dtype=np.int32)] * len(prompts)
        tokens = token_table(ids)
    kind = "F16" if rows.dtype.itemsize == 2 else "F32"
    unknown = unknowns(**({"tokens": "ids are not known"} if prompts.token_ids is None else {}))
    want = len(tokens.ids) if positions == "all" else len(prompts)
    if len(rows) != want:
        must = f"positions {positions!r} of these prompts need {want} rows"
        raise ContractError(must, f"{len(rows)} in {Path(path).name!r}", "Give the prompts that the rows are of.")
    spec = TapSpec(tap, kind, int(rows.shape[1]))
    writer = create_foreign(
        out, f"npy {rows.dtype}", unknown, prompts=prompts, tokens=tokens, taps=[spec], positions=positions
    )
    return fill(writer, {tap: rows})


def read_npy(path: Path) -> NDArray[Any]:
    """Map a `.npy` file of float rows, after checking its header against its size.

    Raises
    ------
    StoreError
        If it is no npy file of 2-dimensional float16, float32 or float64, or has another size than it says.
    """
    fd, size = open_source(path)
    try:
        dtype, shape, start = _npy_header(os.pread(fd, MAX_NPY_HEADER, 0), path)
    finally:
        os.close(fd)
    if start + shape[0] * shape[1] * dtype.itemsize != size:
        raise StoreError(
            f"{path.name!r} must have {start + shape[0] * shape[1] * dtype.itemsize} bytes", str(size), "It is cut."
        )
    if not shape[0] * shape[1]:
        raise StoreError(f"{path.name!r} must hold rows", "none", "Save at least one row.")
    return np.memmap(path, dtype=dtype, mode="r", offset=start, shape=shape)


def _npy_header(data: bytes, path: Path) -> tuple[np.dtype[Any], tuple[int, int], int]:
    """Read an npy header by its one written form; nothing is evaluated."""
    width = {b"\x01": 2, b"\x02": 4, b"\x03": 4}.get(data[6:7], 0)
    length = int.from_bytes(data[8 : 8 + width], "little")
    match = _NPY_HEADER.fullmatch(data[8 + width : 8 + width + length])
    if data[:6] != b"\x93NUMPY" or not width or 8 + width + length > MAX_NPY_HEADER or match is None:
        must = f"{path.name!r} must be an npy file of floats [row, d_model] in C order"
        raise StoreError(must, f"{data[:80]!a}", "Save the rows with numpy.save, as float32.")
    return np.dtype(match[1].decode()), (int(match[2]), int(match[3])), 8 + width + length
