"""Runs leave in plain formats: npy, Parquet, safetensors, and a zip to send. No pickle in any direction."""

from __future__ import annotations

import os
import zipfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from workbench.axes import bind_axes
from workbench.errors import ContractError, RunExists, StoreError
from workbench.store.files import explain
from workbench.store.layout import LOCK, RESERVE, TAPS, safetensors_header
from workbench.store.verifying import verify_run
from workbench.writing import whole_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import pyarrow as pa
    from numpy.typing import NDArray

    from workbench.store.reader import Run

_ROWS_A_GROUP = 1 << 14


@contextmanager
def new_file(out: Path) -> Iterator[BinaryIO]:
    """Write a file that must not exist yet, whole or not at all.

    Raises
    ------
    RunExists
        If there is a file of that name.
    StoreError
        If it cannot be written.
    """
    if os.path.lexists(out):
        raise RunExists(f"{str(out)!r} must not exist", "a file of that name", "Choose another name, or remove it.")
    try:
        with whole_file(out) as file:
            yield file
    except OSError as error:
        raise explain(error, out, f"{out.name} must be written") from error


def export_npy(run: Run, tap: str, out: str | Path) -> Path:
    """Write the rows of one tap as a float32 `.npy` file; lossless, whatever the storage dtype.

    Raises
    ------
    TapError, RunExists, ChecksumMismatch, StoreError
        If the tap or the place is wrong, or stored bytes changed.
    """
    array, out = run.tap(tap), Path(out)
    header = {"descr": "<f4", "fortran_order": False, "shape": array.shape}
    with new_file(out) as file:
        np.lib.format.write_array_header_1_0(file, header)
        for _, block in array.blocks():
            file.write(np.ascontiguousarray(block, dtype="<f4").data)
    return out


def export_safetensors(run: Run, out: str | Path, *, taps: tuple[str, ...] | None = None) -> Path:
    """Write taps in their storage dtype, tokens and row table as one safetensors file.

    The tensors are the taps by name, `tokens` int32 [token], `offsets` int64 [prompt + 1], `row_prompt` and
    `row_token` int64 [row].

    Raises
    ------
    TapError, RunExists, ChecksumMismatch, StoreError
        If a tap or the place is wrong, or stored bytes changed.
    """
    arrays = {name: run.tap(name) for name in taps or run.taps}
    extra: dict[str, tuple[str, NDArray[Any]]] = {
        "tokens": ("I32", run.tokens), "offsets": ("I64", run.offsets),
        "row_prompt": ("I64", run.prompt_of_rows()), "row_token": ("I64", run.token_index()),
    }  # fmt: skip
    tensors = {name: (array.storage_dtype, array.shape, array.size_bytes) for name, array in arrays.items()}
    tensors |= {name: (dtype, values.shape, values.nbytes) for name, (dtype, values) in extra.items()}
    metadata = {"engine_id": str(run.engine_id), "positions": str(run.positions), "format": "pt"}
    out = Path(out)
    with new_file(out) as file:
        file.write(safetensors_header(tensors, metadata))
        for array in arrays.values():
            for start, block in array.blocks():
                file.write(np.ascontiguousarray(array.raw(start, start + len(block))).data)
        for _, values in extra.values():
            file.write(np.ascontiguousarray(values).data)
    return out


def export_parquet(
    run: Run, out: str | Path, *, taps: tuple[str, ...] = (), coordinates: Mapping[str, NDArray[Any]] | None = None
) -> Path:
    """Write one line a row: prompt id, text, token, metadata columns, and coordinates or whole rows.

    Parameters
    ----------
    run : Run
        What to write.
    out : str or Path
        File to make.
    taps : tuple of str
        Taps whose rows become a column of float lists.
    coordinates : mapping of str to float [row, component], optional
        Such as `{"pca": projection.coordinates}`; becomes columns `pca.0`, `pca.1`.

    Raises
    ------
    ContractError
        If coordinates are not of this run's rows.
    TapError, RunExists, ChecksumMismatch, StoreError
        If a tap or the place is wrong, or stored bytes changed.
    """
    import pyarrow.parquet as pq

    for name, values in (coordinates or {}).items():
        bind_axes(
            do="Give one line a row of this run.",
            **{"rows": (run.prompt_of_rows(), "row"), name: (values, "row component")},
        )
    for tap in taps:
        run.tap(tap)
    with new_file(Path(out)) as file:
        writer = None
        for start in range(0, max(1, run.n_rows), _ROWS_A_GROUP):
            table = _row_table(run, start, min(start + _ROWS_A_GROUP, run.n_rows), taps, coordinates or {})
            if writer is None:
                writer = pq.ParquetWriter(file, table.schema, write_page_checksum=True, compression="zstd")
            writer.write_table(table)
        if writer is not None:
            writer.close()
    return Path(out)


def _row_table(
    run: Run, start: int, stop: int, taps: tuple[str, ...], coordinates: Mapping[str, NDArray[Any]]
) -> pa.Table:
    import pyarrow as pa

    prompts, tokens = run.prompt_of_rows()[start:stop], run.token_index()[start:stop]
    flat = np.where(tokens >= 0, run.offsets[prompts] + tokens, 0)
    ids = run.tokens[flat] if len(run.tokens) else np.zeros(stop - start, dtype=np.int32)
    columns: dict[str, Any] = {
        "prompt": prompts, "id": [run.prompts.ids[at] for at in prompts],
        "text": pa.array([run.prompts.texts[at] for at in prompts], pa.string()),
        "token_index": tokens, "token": pa.array(ids, mask=tokens < 0), "valid": run.valid[start:stop],
    }  # fmt: skip
    for name, values in run.prompts.columns.items():
        columns[name if name not in columns else f"column.{name}"] = [values[at] for at in prompts]
    for name, points in coordinates.items():
        columns |= {f"{name}.{at}": np.asarray(points)[start:stop, at] for at in range(points.shape[1])}
    for tap in taps:
        rows = run.tap(tap, checked=True)[start:stop]
        columns[f"rows.{tap}"] = pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), rows.shape[1])
    try:
        return pa.table(columns)
    except pa.ArrowException as error:
        raise StoreError("columns must hold one type each", str(error)[:120], "Export without that column.") from None


def export_zip(run: Run, out: str | Path) -> Path:
    """Write a whole run as one zip file to send, after checking it.

    Raises
    ------
    StoreError
        If the run is unfinished or damaged.
    RunExists
        If the file is there.
    """
    if run.status != "complete":
        raise StoreError("only a complete run is sent", run.status, "Finish it with resume=True.")
    if not (verification := verify_run(run.path)):
        raise StoreError("only a sound run is sent", str(verification), "Repair it, or extract again.")
    files = [file for folder in (run.path, run.path / TAPS) for file in sorted(folder.iterdir()) if file.is_file()]
    with new_file(Path(out)) as target, zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as archive:
        for file in files:
            if file.name not in (LOCK, RESERVE):
                archive.write(file, f"{run.path.name}/{file.relative_to(run.path)}")
    return Path(out)


EXPORTS: dict[str, Callable[..., Path]] = {
    "npy": export_npy, "safetensors": export_safetensors, "parquet": export_parquet, "zip": export_zip,
}  # fmt: skip


def export_run(
    run: Run, out: str | Path, *, format: str, taps: tuple[str, ...] = (),  # noqa: A002 - the word users know
    coordinates: Mapping[str, NDArray[Any]] | None = None,
) -> Path:  # fmt: skip
    """Write a run in a plain format.

    Parameters
    ----------
    run : Run
        What to write.
    out : str or Path
        File to make; it must not exist.
    format : str
        `npy` (one tap), `safetensors`, `parquet` or `zip`.
    taps : tuple of str
        Taps to write; for safetensors all by default, for npy exactly one.
    coordinates : mapping of str to float [row, component], optional
        For Parquet.

    Raises
    ------
    ContractError
        If the format is unknown or does not take what was given.
    """
    if format not in EXPORTS:
        raise ContractError(f"a format must be one of {', '.join(EXPORTS)}", repr(format)[:40], "Choose one.")
    if format == "npy":
        chosen = taps or run.taps
        if len(chosen) != 1:
            raise ContractError("an npy file holds one tap", f"{list(chosen)}", "Choose one with --tap.")
        return export_npy(run, chosen[0], out)
    if format == "zip":
        return export_zip(run, out)
    if format == "safetensors":
        return export_safetensors(run, out, taps=taps or None)
    return export_parquet(run, out, taps=taps, coordinates=coordinates)
