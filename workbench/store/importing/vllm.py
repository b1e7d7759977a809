"""Files of vLLM's `extract_hidden_states` method."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.errors import ContractError, StoreError
from workbench.store.dtypes import storage_type
from workbench.store.importing.foreign import create_foreign, labelled, open_source, token_table, unknowns
from workbench.store.layout import TensorPlace, read_header
from workbench.store.manifest import TapSpec
from workbench.store.reader import Run, open_run

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from workbench.prompts import PromptSet


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
    unknown = unknowns(norm_point="before the final norm at every layer, as the source documents")
    writer = create_foreign(
        out, "vllm extract_hidden_states", unknown, prompts=labelled(ids, prompts), tokens=token_table(ids), taps=taps,
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


def _vllm_files(paths: Sequence[str | Path] | str | Path) -> list[Path]:
    if isinstance(paths, str | Path):
        folder = Path(paths)
        files = sorted(folder.glob("*.safetensors")) if folder.is_dir() else [folder]
    else:
        files = [Path(path) for path in paths]
    if not files:
        raise StoreError("there must be safetensors files to import", "none", "Give the folder that vLLM wrote to.")
    return files


def _tensor(path: Path, name: str, dtypes: Mapping[str, str]) -> tuple[NDArray[Any], TensorPlace]:
    fd, _ = open_source(path)
    try:
        place = read_header(fd, path.name).tensors.get(name)
        if place is None or place.dtype not in dtypes:
            got = "nothing" if place is None else place.dtype
            raise StoreError(f"{path.name!r} must hold {name!r} as {', '.join(dtypes)}", got, "It is another format.")
        data = os.pread(fd, place.stop - place.start, place.start)
    finally:
        os.close(fd)
    return np.frombuffer(data, dtype=dtypes[place.dtype]).reshape(place.shape), place


def _typed(values: NDArray[Any], dtype: str) -> NDArray[Any]:
    kind = storage_type(dtype)
    return np.ascontiguousarray(values).view(kind.array)
