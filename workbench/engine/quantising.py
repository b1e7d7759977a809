"""Quantised graphs from calibration: smoothing, scales, and the layers that must stay in higher precision."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.canonical import canonical_json
from workbench.checkpoint.weights import ChangedWeights, Weights
from workbench.engine.calibration import SCALES_FILE
from workbench.engine.compensating import DAMPING
from workbench.engine.fitting import METHOD, fit_products
from workbench.engine.observing import Observations, observe
from workbench.engine.smoothing import Smoothed, smooth
from workbench.errors import ContractError, EngineError
from workbench.graph.blocks import BLOCK, dequantise, quantise
from workbench.graph.grids import Fitted

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from workbench.engine.recipe import Recipe
    from workbench.graph import Graph
    from workbench.progress import Progress

SMOOTHING_FILE = "smoothing.safetensors"
OPTIONS = ("calibration", "smoothing", "layer_tolerance", "cache")
STRENGTH = {"int8-dynamic": 0.5, "int8-static": 0.5, "fp8": 0.0}
RANGED = frozenset({"int8-static", "fp8"})  # one range for all inputs of a product, known before them
LAYER_TOLERANCE = {"int8": 0.05, "int8-dynamic": 0.05, "int8-static": 0.05, "fp8": 0.031, "int4": 0.3}
_FP16_LARGEST = 65504.0


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Calibrated:
    """What calibration decided.

    Parameters
    ----------
    weights : Weights
        With smoothing applied.
    largest : mapping of str to float
        Largest input of each module after smoothing.
    keep : tuple of str
        Modules that stay in higher precision: those of the recipe, those that err or overflow, and experts whose range
        is not known since no token reached them.
    records : mapping of str to bytes
        Files for the engine folder.
    """

    weights: Weights
    largest: Mapping[str, float] = field(default_factory=dict)
    keep: tuple[str, ...] = ()
    records: Mapping[str, bytes] = field(default_factory=dict)

    def write(self, folder: Path) -> None:
        """Write the files of scales."""
        for name, data in self.records.items():
            (folder / name).write_bytes(data)


def check_options(options: Mapping[str, Any], known: tuple[str, ...] = OPTIONS) -> None:
    """Refuse options that nobody reads, and values that cannot be.

    Raises
    ------
    ContractError
        With the names that are known.
    """
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise ContractError(f"options are {', '.join(known)}", ", ".join(unknown), "Leave these out.")
    for name, most in (("smoothing", 1.0), ("layer_tolerance", 10.0)):
        value = options.get(name, 0.0)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= most:
            raise ContractError(f"option {name} must be a number from 0 to {most:g}", repr(value), "Leave it out.")


def calibrated(recipe: Recipe, progress: Progress | None = None) -> Calibrated:
    """Read the calibration prompts, smooth or fit the weights, and find the layers that must be kept.

    Raises
    ------
    EngineError
        If a value would overflow in fp16, with the layer's name.
    """
    precision, checkpoint = recipe.precision, recipe.checkpoint
    if precision == "fp16":
        seen = observe(recipe)
        _refuse_overflow(seen)
        return Calibrated(weights=checkpoint.weights, keep=recipe.keep)
    if precision == "int4":
        return _fitted(recipe, progress)
    if precision not in STRENGTH:
        return Calibrated(weights=checkpoint.weights, keep=recipe.keep)
    return calibrated_as(recipe, precision, float(recipe.options.get("smoothing", STRENGTH[precision])))


def _fitted(recipe: Recipe, progress: Progress | None) -> Calibrated:
    limit = float(recipe.options.get("layer_tolerance", LAYER_TOLERANCE["int4"]))
    found = fit_products(recipe, limit, progress)
    over = tuple(module for module in found.errors if module not in found.fits)
    facts = {
        "precision": "int4",
        "method": METHOD,
        "block": BLOCK,
        "damping": DAMPING,
        "prompts": found.prompts,
        "tokens": found.tokens,
        "digest": found.digest,
        "layer_tolerance": limit,
        "layer_errors": {module: _finite(error) for module, error in found.errors.items()},
        "kept": list(over),
    }
    fits = {f"{module}.weight": fit for module, fit in found.fits.items()}
    return Calibrated(
        weights=Fitted(recipe.checkpoint.weights, fits),
        keep=(*recipe.keep, *over),
        records={SCALES_FILE: canonical_json(facts)},
    )


def calibrated_as(recipe: Recipe, precision: str, strength: float) -> Calibrated:
    """Smooth with a given strength, and judge layers by the rounding of a given precision."""
    checkpoint, seen = recipe.checkpoint, observe(recipe)
    weights, factors = smooth(checkpoint.config, checkpoint.weights, seen.largest, strength)
    columns = {module: _columns(weights, module) for module in seen.largest}
    largest = {module: float((most / columns[module]).max()) for module, most in seen.largest.items()}
    errors = layer_errors(seen, weights, columns, largest, precision)
    limit = float(recipe.options.get("layer_tolerance", LAYER_TOLERANCE[precision]))
    unreached = {module for module, most in largest.items() if precision in RANGED and not most}
    over = tuple(module for module, error in errors.items() if not error <= limit or module in unreached)
    facts = {
        "precision": precision,
        "prompts": seen.prompts,
        "tokens": seen.tokens,
        "digest": seen.digest,
        "smoothing": strength,
        "layer_tolerance": limit,
        "largest": largest,
        "layer_errors": {module: _finite(error) for module, error in errors.items()},
        "kept": list(over),
    }
    records = {SCALES_FILE: canonical_json(facts)}
    if factors:
        from safetensors.numpy import save

        records[SMOOTHING_FILE] = save(dict(sorted(factors.items())))
    return Calibrated(weights=weights, largest=largest, keep=(*recipe.keep, *over), records=records)


def _columns(weights: Weights, module: str) -> NDArray[np.float32] | np.float32:
    found = weights.columns.get(f"{module}.weight") if isinstance(weights, Smoothed) else None
    return np.float32(1) if found is None else found


def _refuse_overflow(seen: Observations) -> None:
    for module, most in seen.largest.items():
        if not most.max() <= _FP16_LARGEST:
            raise EngineError(
                f"every input must be below {_FP16_LARGEST:g} in fp16",
                f"{most.max():.4g} at {module}",
                "Build in bf16, which has the range of float32.",
            )


def _finite(value: float) -> float:
    return value if np.isfinite(value) else 1e300


def layer_errors(
    seen: Observations,
    weights: Weights,
    columns: Mapping[str, Any],
    largest: Mapping[str, float],
    precision: str,
) -> dict[str, float]:
    """Error of each product alone, on the sampled inputs: Frobenius norm of the change over that of the result."""
    rounded = ROUNDERS[precision]
    found = {}
    for module, sample in seen.sample.items():
        matrix = weights[f"{module}.weight"]
        x = sample / columns[module]
        exact = x @ matrix.T
        change = rounded[0](x, largest[module]) @ rounded[1](matrix).T - exact
        size = float(np.linalg.norm(exact))
        found[module] = float(np.linalg.norm(change)) / size if size else 0.0
    return found


def _tokens8(x: NDArray[np.float32], _largest: float) -> NDArray[np.float32]:
    step = np.maximum(np.abs(x).max(axis=1, keepdims=True), np.float32(1e-12)) / np.float32(127)
    return np.asarray(np.rint(x / step) * step, dtype=np.float32)


def _groups8(x: NDArray[np.float32], _largest: float) -> NDArray[np.float32]:
    return dequantise(*quantise(x), x.shape[1])


def _tensor8(x: NDArray[np.float32], largest: float) -> NDArray[np.float32]:
    step = np.float32(max(largest, 1e-12) / 127)
    return np.asarray(np.clip(np.rint(x / step), -128, 127) * step, dtype=np.float32)


def _tensor_fp8(x: NDArray[np.float32], largest: float) -> NDArray[np.float32]:
    import ml_dtypes

    step = np.float32(max(largest, 1e-12) / 448)
    return np.asarray(np.clip(x / step, -448, 448).astype(ml_dtypes.float8_e4m3fn).astype(np.float32) * step)


def channels8(matrix: NDArray[np.float32]) -> NDArray[np.float32]:
    """Round a matrix [out, in] to 8 bits with one scale an output."""
    step = np.maximum(np.abs(matrix).max(axis=1, keepdims=True), np.float32(1e-12)) / np.float32(127)
    return np.asarray(np.rint(matrix / step) * step, dtype=np.float32)


def _matrix_fp8(matrix: NDArray[np.float32]) -> NDArray[np.float32]:
    return _tensor_fp8(matrix, float(np.abs(matrix).max()))


def blocks8(matrix: NDArray[np.float32]) -> NDArray[np.float32]:
    """Round a matrix [out, in] to 8 bits with one scale a block."""
    return dequantise(*quantise(matrix), matrix.shape[1])


ROUNDERS: dict[str, Any] = {
    "int8": (_groups8, blocks8),
    "int8-dynamic": (_tokens8, channels8),
    "int8-static": (_tensor8, channels8),
    "fp8": (_tensor_fp8, _matrix_fp8),
}


class Rounded(ChangedWeights):
    """Weights whose matrices of products are rounded, and nothing else: the twin of a quantised engine.

    Parameters
    ----------
    weights : Weights
        Of the checkpoint, smoothed or not.
    modules : collection of str
        Whose matrices are rounded.
    rounded : callable
        Gives the rounded matrix [out, in].
    """

    def __init__(
        self, weights: Weights, modules: frozenset[str], rounded: Callable[[str, NDArray[np.float32]], Any]
    ) -> None:
        super().__init__(weights)
        self._rounded = rounded
        self._names = frozenset(f"{module}.weight" for module in modules)

    def __getitem__(self, name: str) -> NDArray[np.float32]:
        array = self._weights[name]
        return np.asarray(self._rounded(name, array), dtype=np.float32) if name in self._names else array


def quantised_graph(recipe: Recipe, found: Calibrated, *, lowering: str = "opset23") -> Graph:
    """Write the recipe's graph in its integer or emulated precision."""
    from workbench.graph import build_graph
    from workbench.graph.compact import KINDS, compact
    from workbench.graph.narrow import narrow

    integer = recipe.precision in KINDS
    graph = build_graph(
        recipe.checkpoint.config,
        found.weights,
        taps=recipe.taps,
        positions=recipe.positions,
        lowering=lowering if integer else "primitive",
        max_tokens=recipe.max_tokens,
    )
    if integer:
        return compact(graph, recipe.precision, found.weights, largest=found.largest, keep=found.keep)
    return narrow(graph, recipe.precision, ranges=found.largest, keep=found.keep, emulate=True)
