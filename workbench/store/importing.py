"""Rows from elsewhere become runs, each labelled with what is unknown about it. Nothing is executed."""

from __future__ import annotations

import os
import re
import shutil
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.errors import ContractError, RunExists, StoreError
from workbench.store.creating import create_run
from workbench.store.files import explain
from workbench.store.layout import (
    LOCK,
    MANIFEST,
    RESERVE,
    TAPS,
    TensorPlace,
    is_name,
    is_own_file,
    is_segment_file,
    parse_json,
    read_header,
)
from workbench.store.manifest import TapSpec, read_small
from workbench.store.opening import open_inside
from workbench.store.reader import Run, open_run
from workbench.store.verifying import verify_run

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from workbench.prompts import PromptSet
    from workbench.tokens import TokenTable

UNKNOWN_TOKEN = -1
MAX_NPY_HEADER = 10_000
MAX_ZIP_FILES = 200_000
_BLOCK_ROWS = 1 << 14
_NPY_HEADER = re.compile(
    rb"\{'descr': '(<f[248])', 'fortran_order': False, 'shape': \((\d{1,15}), (\d{1,9})\), \} *\n?"
)
_HOOK = re.compile(r"blocks\.(\d+)\.hook_(resid_pre|resid_post|attn_out|mlp_out)")


def _unknown(**notes: str) -> dict[str, str]:
    told = {
        "norm_point": "not recorded by the source", "padding_side": "not recorded by the source",
        "position_ids": "not recorded by the source", "tokenizer": "not recorded by the source",
        "precision": "not recorded by the source",
    }  # fmt: skip
    return told | notes


def token_table(ids: Sequence[NDArray[np.int32]]) -> TokenTable:
    """Build a token table from the ids of each prompt."""
    from workbench.tokens import TokenTable

    lengths = np.array([len(row) for row in ids], dtype=np.int64)
    offsets = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(lengths)])
    flat = np.concatenate([np.asarray(row, dtype=np.int32) for row in ids]) if len(ids) else np.empty(0, np.int32)
    no = np.zeros(len(ids), dtype=np.bool_)
    return TokenTable(ids=flat, offsets=offsets, truncated=no, original_lengths=lengths, lossy=no)


def _create(
    out: str | Path, source: str, unknown: Mapping[str, str], *, prompts: PromptSet, tokens: TokenTable,
    taps: Sequence[TapSpec], positions: str,
) -> Any:  # fmt: skip
    contract = {"engine_id": None, "source": source, "taps": [tap.name for tap in taps]}
    provenance = {"imported_from": source, "unknown": dict(unknown)}
    return create_run(
        out, prompts=prompts, tokens=tokens, taps=taps, positions=positions, contract=contract, provenance=provenance
    )


def read_npy(path: Path) -> NDArray[Any]:
    """Map a `.npy` file of float rows, after checking its header against its size.

    Raises
    ------
    StoreError
        If it is no npy file of 2-dimensional float16, float32 or float64, or has another size than it says.
    """
    fd, size = _open(path)
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


def _open(path: Path) -> tuple[int, int]:
    try:
        return open_inside(path)
    except FileNotFoundError:
        raise StoreError(f"{str(path)!r} must be a file", "none", "Check the path.") from None


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
    unknown = _unknown(**({"tokens": "ids are not known"} if prompts.token_ids is None else {}))
    want = len(tokens.ids) if positions == "all" else len(prompts)
    if len(rows) != want:
        must = f"positions {positions!r} of these prompts need {want} rows"
        raise ContractError(must, f"{len(rows)} in {Path(path).name!r}", "Give the prompts that the rows are of.")
    spec = TapSpec(tap, kind, int(rows.shape[1]))
    writer = _create(
        out, f"npy {rows.dtype}", unknown, prompts=prompts, tokens=tokens, taps=[spec], positions=positions
    )
    return _fill(writer, {tap: rows})


def _fill(writer: Any, rows: Mapping[str, NDArray[Any]]) -> Run:
    with writer:
        first = 0
        while first < writer.n_prompts:
            limit = writer.row_offsets[first] + _BLOCK_ROWS
            stop = max(first + 1, int(np.searchsorted(writer.row_offsets, limit, side="right")) - 1)
            part = slice(int(writer.row_offsets[first]), int(writer.row_offsets[stop]))
            writer.commit(first, stop, {name: _float(values[part]) for name, values in rows.items()})
            first = stop
    return open_run(writer.path)


def _float(values: NDArray[Any]) -> NDArray[Any]:
    return np.asarray(values) if values.dtype in (np.float16, np.float32) else np.asarray(values, dtype=np.float32)


def _tensor(path: Path, name: str, dtypes: Mapping[str, str]) -> tuple[NDArray[Any], TensorPlace]:
    fd, _ = _open(path)
    try:
        place = read_header(fd, path.name).tensors.get(name)
        if place is None or place.dtype not in dtypes:
            got = "nothing" if place is None else place.dtype
            raise StoreError(f"{path.name!r} must hold {name!r} as {', '.join(dtypes)}", got, "It is another format.")
        data = os.pread(fd, place.stop - place.start, place.start)
    finally:
        os.close(fd)
    return np.frombuffer(data, dtype=dtypes[place.dtype]).reshape(place.shape), place


def import_vllm(
    paths: Sequence[str | Path] | str | Path, *, layers: Sequence[int], out: str | Path,
    prompts: PromptSet | None = None,
) -> Run:  # fmt: skip
    """Import files of vLLM's `extract_hidden_states` method, one request each.

    Each holds `hidden_states` [token, layer, d_model] and `token_ids` [token]; which layers they are is not in the
    file. Layer id `i` there is the residual stream before block `i`, and the number of layers is the last block's
    output, before the final norm.

    Parameters
    ----------
    paths : path or sequence of paths
        Files, or a folder whose `.safetensors` files are taken in name order.
    layers : sequence of int
        The `eagle_aux_hidden_state_layer_ids` that were asked for, in that order.
    out : str or Path
        Run folder to make.
    prompts : PromptSet, optional
        Prompts in file order; their texts become labels.

    Raises
    ------
    ContractError
        If files and prompts or layers do not fit together.
    StoreError
        If a file is broken, or not of this kind.
    """
    files = _vllm_files(paths)
    kinds = {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}
    shapes = {"I64": "<i8", "I32": "<i4"}
    ids = [_tensor(file, "token_ids", shapes)[0].astype(np.int32) for file in files]
    first, place = _tensor(files[0], "hidden_states", kinds)
    if first.ndim != 3 or first.shape[1] != len(layers):
        must = f"hidden_states must be [token, layer={len(layers)}, d_model]"
        raise ContractError(
            must, f"{list(first.shape)} in {files[0].name!r}", "Give the layer ids that were asked for."
        )
    taps = [TapSpec("embed" if not i else f"blocks.{i - 1}.resid_post", place.dtype, first.shape[2]) for i in layers]
    unknown = _unknown(norm_point="before the final norm at every layer, as the source documents")
    writer = _create(
        out, "vllm extract_hidden_states", unknown, prompts=_labelled(ids, prompts), tokens=token_table(ids), taps=taps,
        positions="all",
    )  # fmt: skip
    with writer:
        for at, file in enumerate(files):
            states, this = _tensor(file, "hidden_states", kinds)
            if states.shape != (len(ids[at]), *first.shape[1:]) or this.dtype != place.dtype:
                must = f"{file.name!r} must hold {place.dtype} {[len(ids[at]), *first.shape[1:]]}"
                raise ContractError(must, f"{this.dtype} {list(states.shape)}", "Fewer states than tokens: cache hits?")
            writer.commit(at, at + 1, {tap.name: _typed(states[:, j], place.dtype) for j, tap in enumerate(taps)})
    return open_run(writer.path)


def _typed(values: NDArray[Any], dtype: str) -> NDArray[Any]:
    from workbench.store.dtypes import storage_type

    kind = storage_type(dtype)
    return np.ascontiguousarray(values).view(kind.array)


def _vllm_files(paths: Sequence[str | Path] | str | Path) -> list[Path]:
    if isinstance(paths, str | Path):
        folder = Path(paths)
        files = sorted(folder.glob("*.safetensors")) if folder.is_dir() else [folder]
    else:
        files = [Path(path) for path in paths]
    if not files:
        raise StoreError("there must be safetensors files to import", "none", "Give the folder that vLLM wrote to.")
    return files


def _labelled(ids: Sequence[NDArray[np.int32]], prompts: PromptSet | None) -> PromptSet:
    from workbench.prompts import PromptSet

    if prompts is None:
        return PromptSet(texts=(None,) * len(ids), token_ids=tuple(ids))
    if len(prompts) != len(ids):
        raise ContractError(f"there must be {len(ids)} prompts", str(len(prompts)), "Give them in file order.")
    return PromptSet(texts=prompts.texts, token_ids=tuple(ids), columns=prompts.columns, ids=prompts.ids)


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
    unknown = _unknown(padding_side="none: windows are packed", **({} if known else {"tokens": "ids are not known"}))
    taps = [TapSpec(names[hook], "F32", windows[hook][0].shape[2]) for hook in hooks]
    writer = _create(
        out, "SAELens activation store", unknown | {"hooks": ", ".join(hooks)},
        prompts=_labelled(_known_or_zero(ids), None), tokens=token_table(ids), taps=taps, positions="all",
    )  # fmt: skip
    rows = {names[hook]: np.concatenate(blocks).reshape(-1, blocks[0].shape[2]) for hook, blocks in windows.items()}
    return _fill(writer, rows)


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

    fd, _ = _open(path)
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


def import_zip(path: str | Path, *, out: str | Path) -> Run:
    """Unpack a run that was sent as a zip file, and check every byte of it.

    Raises
    ------
    StoreError
        If the archive holds anything but the files of one run, or the run is damaged.
    RunExists
        If `out` is there.
    """
    path, out = Path(path), Path(out)
    fd, _ = _open(path)
    if os.path.lexists(out):
        os.close(fd)
        raise RunExists(f"{str(out)!r} must not exist", "a file or folder", "Choose another folder.")
    with os.fdopen(fd, "rb") as file:
        try:
            with zipfile.ZipFile(file) as archive:
                members = _members(archive, path)
                _unpack(archive, members, out)
        except (zipfile.BadZipFile, zipfile.LargeZipFile, NotImplementedError, EOFError) as error:
            raise StoreError(f"{path.name!r} must be a zip file", str(error)[:120], "It is damaged.") from None
        except OSError as error:
            raise explain(error, out, "the run must be unpacked") from error
    if not (verification := verify_run(out)):
        shutil.rmtree(out)
        raise StoreError("the run that was sent must be sound", str(verification)[:400], "Ask for it again.")
    return open_run(out)


def _members(archive: zipfile.ZipFile, path: Path) -> dict[str, zipfile.ZipInfo]:
    infos = [info for info in archive.infolist() if not info.is_dir()]
    if len(infos) > MAX_ZIP_FILES:
        raise StoreError(f"{path.name!r} must hold at most {MAX_ZIP_FILES} files", str(len(infos)), "It is no run.")
    members: dict[str, zipfile.ZipInfo] = {}
    top = infos[0].filename.partition("/")[0] if infos else ""
    for info in infos:
        first, _, name = info.filename.partition("/")
        folder, _, last = name.rpartition("/")
        fine = (folder == "" and is_own_file(last)) or (folder == TAPS and is_segment_file(last.removesuffix(".part")))
        fine = fine and first == top not in ("", ".", "..")
        if not fine or name in members or last in (LOCK, RESERVE) or info.compress_type != zipfile.ZIP_STORED:
            raise StoreError(
                f"{path.name!r} must hold only the files of one run", ascii(info.filename)[:120], "It is not used."
            )
        members[name] = info
    if MANIFEST not in members:
        raise StoreError(f"{path.name!r} must hold a {MANIFEST}", "none", "It is no run.")
    return members


def _unpack(archive: zipfile.ZipFile, members: Mapping[str, zipfile.ZipInfo], out: Path) -> None:
    (out / TAPS).mkdir(parents=True)
    try:
        for name, info in members.items():
            with archive.open(info) as source, (out / name).open("xb") as target:
                shutil.copyfileobj(source, target, 1 << 20)
                target.flush()
                os.fsync(target.fileno())
    except BaseException:
        shutil.rmtree(out)
        raise
