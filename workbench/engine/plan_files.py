"""Plan files on the CPU: the ONNX graph and its weights, written in one pass and mapped at load."""

from __future__ import annotations

import hashlib
import mmap
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.graph.artefact import WEIGHTS_FILE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from workbench.graph import Graph

MODEL_FILE = "model.onnx"
ALIGNMENT = 4096  # one page: external data can be mapped


def write_plan(graph: Graph, folder: Path, progress: Callable[[int, int], None] | None = None) -> dict[str, str]:
    """Write `model.onnx` and `weights.bin` into a folder.

    Parameters
    ----------
    graph : Graph
        From `workbench.graph.build_graph`; its weights are loaded one at a time.
    folder : Path
        Existing folder of the engine.
    progress : callable, optional
        Called with bytes written and bytes in all.

    Returns
    -------
    dict of str to str
        The sha256 of each file, in hexadecimal.
    """
    total = sum(tensor.nbytes for tensor in graph.initialisers.values())
    digest = hashlib.sha256()
    at = 0
    places: dict[str, tuple[int, int]] = {}
    with (folder / WEIGHTS_FILE).open("xb") as file, ThreadPoolExecutor(1) as hashing:
        hashed = None
        for name, tensor in graph.initialisers.items():
            gap = bytes(-at % ALIGNMENT)
            data: NDArray[Any] = tensor.load()
            if hashed is not None:
                hashed.result()  # no more than two tensors are in memory
            for piece in (gap, data.reshape(-1).view(np.uint8).data):
                hashed = hashing.submit(digest.update, piece)
                file.write(piece)
            places[name] = (at + len(gap), data.nbytes)
            at += len(gap) + data.nbytes
            if progress:
                progress(at, max(total, at))
    fill_places(graph.model, places)
    model = graph.model.SerializeToString(deterministic=True)
    (folder / MODEL_FILE).write_bytes(model)
    return {MODEL_FILE: hashlib.sha256(model).hexdigest(), WEIGHTS_FILE: digest.hexdigest()}


def fill_places(model: Any, places: dict[str, tuple[int, int]]) -> None:
    """Write offset and length of each external initialiser into an ONNX model."""
    import onnx

    for tensor in model.graph.initializer:
        if tensor.data_location != onnx.TensorProto.EXTERNAL:
            continue
        offset, length = places[tensor.name]
        del tensor.external_data[:]
        for key, value in (("location", WEIGHTS_FILE), ("offset", str(offset)), ("length", str(length))):
            tensor.external_data.add(key=key, value=value)


def map_weights(model: Any, weights: Path) -> dict[str, NDArray[Any]]:
    """Map every external initialiser of a model whose bytes were checked before.

    Nothing but `weights` is opened, whatever location the model names.
    """
    import onnx

    if not weights.stat().st_size:
        return {}
    flat = np.frombuffer(_mapped(weights), dtype=np.uint8)
    found: dict[str, NDArray[Any]] = {}
    for tensor in model.graph.initializer:
        if tensor.data_location != onnx.TensorProto.EXTERNAL:
            continue
        entry = {item.key: item.value for item in tensor.external_data}
        offset, length = int(entry["offset"]), int(entry["length"])
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
        found[tensor.name] = flat[offset : offset + length].view(dtype).reshape(tuple(tensor.dims))
    return found


def _mapped(path: Path) -> mmap.mmap:
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def release_pages(arrays: Mapping[str, NDArray[Any]]) -> None:
    """Drop the resident pages of mapped weights; they are read again from the file where they are still needed.

    A runtime that packs its weights needs the file's own pages no more, and would hold both in memory.
    """
    for array in arrays.values():
        owner: Any = array
        while isinstance(owner, np.ndarray):
            owner = owner.base
        if isinstance(owner, memoryview):
            owner = owner.obj
        if isinstance(owner, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
            owner.madvise(mmap.MADV_DONTNEED)
            return
