"""Figures of the weights and ranges that each backend makes in low precision.

`python tests/method_figures.py` keeps those of today. It is to be run once the versions in
`workbench/engine/methods.py` say that a way of making them has changed.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench import Recipe, open_checkpoint
from workbench.engine.backends import onnxruntime, openvino, tensorrt
from workbench.engine.methods import METHODS
from workbench.engine.quantising import calibrated, quantised_graph
from workbench.engine.twins import round_matrix

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

GOLDEN = Path(__file__).parent / "golden"
KEPT = GOLDEN / "methods.json"
# the levels of int4-grid are the file's own, to the bit, as other tests say
PAIRS = [(backend, precision) for backend, table in METHODS.items() for precision in table if precision != "int4-grid"]


def figures(backend: str, precision: str) -> list[float]:
    """Project everything that was made onto four fixed random directions, relative to its size."""
    recipe = Recipe(
        checkpoint=open_checkpoint(GOLDEN / "tiny" / "llama"),
        precision=precision,
        backend=backend,
        taps=("final_norm",),
        max_tokens=32,
    )
    sums, size = np.zeros(4), 0.0
    for at, (_, array) in enumerate(sorted(_made(recipe))):
        values = np.asarray(array, dtype=np.float64).reshape(-1)
        values = values / max(float(np.linalg.norm(values)), 1e-30)  # codes and scales count alike
        sums += np.random.default_rng(at).standard_normal((4, len(values))) @ values
        size += 1.0
    return [round(float(value), 4) for value in sums / np.sqrt(size)]


def _made(recipe: Recipe) -> Iterator[tuple[str, NDArray[Any]]]:
    if recipe.backend == "onnxruntime":
        if recipe.precision == "int8":
            yield from _arrays(onnxruntime._plain(recipe))
        else:
            found = calibrated(recipe)
            yield from _arrays(quantised_graph(recipe, found))
            yield from _ranges(found.largest)
    elif recipe.backend == "openvino":
        found = openvino._calibrated(recipe)
        for name in found.weights:
            array = found.weights[name]
            yield name, round_matrix(array, recipe.precision) if array.ndim == 2 else array
    else:
        plain, ranges = tensorrt.written(recipe)
        yield from _arrays(tensorrt.lowered(plain, recipe, ranges))
        yield from _ranges(ranges.largest)


def _arrays(graph: Any) -> Iterator[tuple[str, NDArray[Any]]]:
    return ((name, tensor.load()) for name, tensor in graph.initialisers.items())


def _ranges(largest: dict[str, float]) -> Iterator[tuple[str, NDArray[Any]]]:
    return ((f"{name}/range", np.array([1.0, value])) for name, value in largest.items())


if __name__ == "__main__":
    made = {f"{backend} {precision}": {"version": METHODS[backend][precision], "figures": figures(backend, precision)}
            for backend, precision in PAIRS}  # fmt: skip
    KEPT.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
