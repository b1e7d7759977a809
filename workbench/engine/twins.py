"""Twins: the numbers of a low-precision engine on the reference backend, for the three-way split of its error."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from workbench.engine.quantising import Rounded, calibrated, channels8, quantised_graph
from workbench.graph.naming import is_named

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from workbench.engine.ort_session import OrtSession
    from workbench.engine.quantising import Calibrated
    from workbench.engine.recipe import Recipe

ROUNDED = "its rounded weights in the float32 graph, on ONNX Runtime without graph optimisation"
EMULATED = "the same precision emulated on ONNX Runtime: float32 kernels, rounded after each operator"


def rounded_twin(recipe: Recipe) -> tuple[OrtSession, str]:
    """Give the float32 reference graph with the recipe's rounded weights."""
    found = calibrated(recipe)
    return rounded_with(recipe, found, lambda matrix: round_matrix(matrix, recipe.precision))


def rounded_with(
    recipe: Recipe, found: Calibrated, rounder: Callable[[NDArray[np.float32]], NDArray[np.float32]]
) -> tuple[OrtSession, str]:
    """Give the float32 reference graph with weights that a function rounds."""
    from workbench.engine.ort_session import session_of
    from workbench.graph import build_graph

    checkpoint = recipe.checkpoint
    plain = build_graph(
        checkpoint.config,
        found.weights,
        taps=recipe.taps,
        positions=recipe.positions,
        lowering="primitive",
        max_tokens=recipe.max_tokens,
    )
    modules = frozenset(module for module in plain.policy if not is_named(module, found.keep))
    rounded = Rounded(found.weights, modules, lambda _name, matrix: rounder(matrix))
    graph = build_graph(
        checkpoint.config,
        rounded,
        taps=recipe.taps,
        positions=recipe.positions,
        lowering="primitive",
        max_tokens=recipe.max_tokens,
    )
    return session_of(graph, optimise=False), ROUNDED


def emulated_twin(recipe: Recipe) -> tuple[OrtSession, str]:
    """Give the recipe's graph in its own precision, emulated."""
    from workbench.engine.ort_session import session_of

    return session_of(quantised_graph(recipe, calibrated(recipe))), EMULATED


def round_matrix(matrix: NDArray[np.float32], precision: str, group: int = 32) -> NDArray[np.float32]:
    """Round a matrix [out, in] as an engine of this precision stores it; `group` is that of 8-bit blocks."""
    from workbench.graph.blocks import dequantise, quantise
    from workbench.graph.kinds import narrow_dtype

    if precision in ("int8-dynamic", "int8-static"):
        return channels8(matrix)
    if precision == "bf16":
        return matrix.astype(narrow_dtype("bfloat16")).astype(np.float32)
    if precision == "int8":
        return dequantise(*quantise(matrix, group), matrix.shape[1])
    return matrix  # what was fitted to 4 bits has the fitted values
