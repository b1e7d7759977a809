"""Activation stores of SAELens."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.errors import ContractError, StoreError
from workbench.store.importing.foreign import (
    UNKNOWN_TOKEN,
    create_foreign,
    fill,
    labelled,
    open_source,
    token_table,
    unknowns,
)
from workbench.store.layout import is_name, parse_json
from workbench.store.manifest import TapSpec, read_small

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from workbench.store.reader import Run

_HOOK = re.compile(r"blocks\.(\d+)\.hook_(resid_pre|resid_post|attn_out|mlp_out)")


def import_saelens(folder: str | Path, *, out: str | Path) -> Run:
    """Import an activation store of SAELens: a folder with `state.json` and Arrow stream files.

    Columns are one a hook, lists [context, d_in] of floats, and `token_ids`. Sequences there are packed from several
    texts, so that a prompt here is one context window.

    Parameters
    ----------
    folder : str or Path
        Folder that `CacheActivationsRunner` wrote.
    out : str or Path
        Run folder to make.

    Raises
    ------
    StoreError, ContractError
        If the folder is broken, or not of this kind.
    """
    folder = Path(folder)
    tables = [_arrow_table(folder / name) for name in _arrow_names(folder)]
    hooks = [name for name in tables[0].column_names if name != "token_ids"]
    if not hooks or any(table.column_names != tables[0].column_names for table in tables):
        raise ContractError("every file must have the same hook columns", f"{hooks}", "It is another format.")
    windows = {hook: [_windows(table.column(hook), hook) for table in tables] for hook in hooks}
    context = windows[hooks[0]][0].shape[1]
    count = sum(len(block) for block in windows[hooks[0]])
    ids = [np.full(context, UNKNOWN_TOKEN, dtype=np.int32)] * count
    known = "token_ids" in tables[0].column_names
    if known:
        flat = [np.asarray(row, dtype=np.int32) for table in tables for row in table.column("token_ids").to_pylist()]
        if any(row.shape != (context,) for row in flat):
            raise ContractError(f"token_ids must have {context} ids a window", "others", "It is another format.")
        ids = flat
    names = {hook: tap_of_hook(hook) for hook in hooks}
    unknown = unknowns(padding_side="none: windows are packed", **({} if known else {"tokens": "ids are not known"}))
    taps = [TapSpec(names[hook], "F32", windows[hook][0].shape[2]) for hook in hooks]
    writer = create_foreign(
        out, "SAELens activation store", unknown | {"hooks": ", ".join(hooks)},
        prompts=labelled(_known_or_zero(ids), None), tokens=token_table(ids), taps=taps, positions="all",
    )  # fmt: skip
    rows = {names[hook]: np.concatenate(blocks).reshape(-1, blocks[0].shape[2]) for hook, blocks in windows.items()}
    return fill(writer, rows)


def _known_or_zero(ids: Sequence[NDArray[np.int32]]) -> list[NDArray[np.int32]]:
    return [np.maximum(row, 0) for row in ids]  # a prompt set takes no negative ids


def tap_of_hook(hook: str) -> str:
    """Translate a TransformerLens hook name to a tap name; unknown ones keep their name in lower case."""
    if match := _HOOK.fullmatch(hook):
        return f"blocks.{match[1]}.{match[2]}"
    if hook == "hook_embed":
        return "embed"
    name = re.sub(r"[^a-z0-9._-]", "_", hook.lower())[:64].strip("._-")
    if not is_name(name):
        raise ContractError("a hook must have a name that can be a file name", ascii(hook)[:80], "Rename the column.")
    return name


def _arrow_names(folder: Path) -> list[str]:
    try:
        state = parse_json(read_small(folder / "state.json", 1 << 20), "state.json")
        names = [str(entry["filename"]) for entry in state["_data_files"]]
    except FileNotFoundError:
        raise StoreError(
            f"{str(folder)!r} must hold state.json", "none", "Give the folder with the data files."
        ) from None
    except (KeyError, TypeError) as error:
        raise StoreError("state.json must list _data_files", type(error).__name__, "It is another format.") from None
    if not names or not all(re.fullmatch(r"[A-Za-z0-9._-]{1,200}\.arrow", name) for name in names):
        raise StoreError("state.json must name Arrow files of its own folder", f"{names[:2]}"[:120], "It is not used.")
    return names


def _arrow_table(path: Path) -> Any:
    import pyarrow as pa

    fd, _ = open_source(path)
    with os.fdopen(fd, "rb") as file:
        try:
            table = pa.ipc.open_stream(file).read_all()
            table.validate(full=True)
        except (pa.ArrowException, OSError) as error:
            raise StoreError(f"{path.name!r} must be an Arrow stream", str(error)[:120], "It is damaged.") from None
    return table


def _windows(column: Any, hook: str) -> NDArray[np.float32]:
    """Read a column of lists of lists as float32 [window, context, d_in]."""
    import pyarrow as pa
    import pyarrow.compute as pc

    chunks = []
    for chunk in column.chunks:
        outer = chunk.storage if isinstance(chunk, pa.ExtensionArray) else chunk
        try:
            inner = outer.flatten()
            values = inner.flatten()
            shape = (len(outer), len(inner) // max(1, len(outer)), len(values) // max(1, len(inner)))
            numbers = np.asarray(values.to_numpy(zero_copy_only=False), dtype=np.float32)
            lengths = [pc.unique(pc.list_value_length(level)).to_pylist() for level in (outer, inner)]
            nulls = outer.null_count or inner.null_count or values.null_count
        except (AttributeError, ValueError, pa.ArrowException):
            lengths, nulls, numbers, shape = [], 1, np.empty(0, dtype=np.float32), (0, 0, 0)
        if nulls or lengths != [[shape[1]], [shape[2]]]:
            must = f"column {hook[:80]!r} must hold equal lists of floats"
            raise StoreError(must, str(column.type)[:80], "It is another format.")
        chunks.append(numbers.reshape(shape))
    if not chunks or not len(chunks[0]):
        raise StoreError(f"column {hook[:80]!r} must hold windows", "none", "The store is empty.")
    return np.concatenate(chunks)
