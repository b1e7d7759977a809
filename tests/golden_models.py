"""Checkpoints with golden taps, and a session that runs a graph as a backend would."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnxruntime as ort

from workbench.checkpoint.families import resolve
from workbench.checkpoint.safetensors_file import open_safetensors
from workbench.graph import build_graph

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from workbench.checkpoint import DecoderConfig, Weights
    from workbench.graph import Graph

GOLDEN = Path(__file__).parent / "golden"
TINY = sorted(path.parent for path in GOLDEN.glob("tiny*/*/golden.npz"))
OFFSETS = (0, -1)
MAX_TOKENS = 32


@dataclass(frozen=True, eq=False)
class Toy:
    """One small checkpoint with its golden taps."""

    config: DecoderConfig
    weights: Weights
    golden: dict[str, NDArray[Any]]

    @property
    def ids(self) -> NDArray[np.int32]:
        return self.golden["input_ids"].astype(np.int32)

    @property
    def lengths(self) -> NDArray[np.int64]:
        return self.golden["lengths"].astype(np.int64)

    @property
    def taps(self) -> tuple[str, ...]:
        return tuple(name for name in self.golden if name not in ("input_ids", "lengths"))


@cache
def toy(folder: Path) -> Toy:
    config, weights = resolve(
        open_safetensors(folder / "model.safetensors"), json.loads((folder / "config.json").read_text())
    )
    with np.load(folder / "golden.npz") as arrays:
        return Toy(config, weights, dict(arrays))


def named(name: str) -> Toy:
    return toy(next(path for path in TINY if path.name == name))


def session(graph: Graph, threads: int = 1) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    arrays = {name: tensor.load() for name, tensor in graph.initialisers.items()}
    values = [ort.OrtValue.ortvalue_from_numpy(array) for array in arrays.values()]
    options.add_external_initializers(list(arrays), values)
    made = ort.InferenceSession(graph.model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    made.kept = arrays  # the session reads them where they lie
    return made


def run(graph: Graph, ids: NDArray[np.int32], lengths: NDArray[np.int64]) -> dict[str, NDArray[np.float32]]:
    outputs = session(graph).run(None, feed(graph, ids, lengths))
    return dict(zip(graph.taps, outputs, strict=True))


def feed(graph: Graph, ids: NDArray[np.int32], lengths: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
    second: NDArray[np.int64]
    if graph.positions == "all":
        second = flat_rows(lengths, ids.shape[1])
    elif graph.positions == "last":
        second = lengths - 1
    elif graph.positions == "mean":
        second = lengths
    else:
        second = np.stack([np.where(np.array(p) < 0, lengths + p, p) for p in graph.positions], axis=1)
    return {"input_ids": ids, graph.inputs[1].name: second}


def flat_rows(lengths: NDArray[np.int64], width: int) -> NDArray[np.int64]:
    return np.concatenate([np.arange(n) + i * width for i, n in enumerate(lengths)])


def expected(
    golden: NDArray[np.float32], positions: str | tuple[int, ...], lengths: NDArray[np.int64]
) -> NDArray[np.float32]:
    real = [row[:n] for row, n in zip(golden, lengths, strict=True)]
    if positions == "all":
        return np.concatenate(real)
    if positions == "last":
        return np.stack([row[-1] for row in real])
    if positions == "mean":
        return np.stack([row.astype(np.float64).mean(axis=0).astype(np.float32) for row in real])
    return np.stack([row[list(positions)] for row in real])


def relative(got: NDArray[np.float32], want: NDArray[np.float32]) -> float:
    """Largest relative error of a row."""
    assert got.shape == want.shape
    size = np.linalg.norm(want.astype(np.float64), axis=-1)
    return float((np.linalg.norm(got.astype(np.float64) - want, axis=-1) / np.maximum(size, 1e-30)).max())


def graph_of(model: Toy, positions: str | tuple[int, ...] = "all", **options: Any) -> Graph:
    options.setdefault("taps", model.taps)
    options.setdefault("max_tokens", MAX_TOKENS)
    return build_graph(model.config, model.weights, positions=positions, **options)
