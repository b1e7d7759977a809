"""Smoothing: channels with outliers are divided before a product and its weights multiplied, so that both fit.

The factors go into weights alone: the norm before queries, keys and values and before gate and up, and the rows of `up`
before `down`. In exact arithmetic nothing changes, and no tap moves.

References
----------
Xiao et al. (2023), arXiv:2211.10438.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from workbench.checkpoint.weights import ChangedWeights, Weights

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from workbench.checkpoint.config import DecoderConfig

_LEAST = 1e-5


class Smoothed(ChangedWeights):
    """Weights with factors applied when they are read.

    Parameters
    ----------
    weights : Weights
        Of the checkpoint.
    columns : mapping of str to float32 [in]
        What the inputs of a matrix are multiplied with, by tensor name.
    rows : mapping of str to float32 [out]
        What the outputs of a matrix, or a vector, are divided by.
    """

    def __init__(
        self,
        weights: Weights,
        columns: Mapping[str, NDArray[np.float32]],
        rows: Mapping[str, NDArray[np.float32]],
    ) -> None:
        super().__init__(weights)
        self.columns, self.rows = columns, rows

    def __getitem__(self, name: str) -> NDArray[np.float32]:
        array = self._weights[name]
        if name in self.columns:
            array = array * self.columns[name]
        if name in self.rows:
            factor = self.rows[name]
            array = array / (factor[:, None] if array.ndim == 2 else factor)
        return np.asarray(array, dtype=np.float32)

    def raw(self, name: str) -> NDArray[np.uint8] | None:
        """Bytes as they lie in the file, or None where they were smoothed."""
        return None if name in self.columns or name in self.rows else self._weights.raw(name)


def smooth(
    config: DecoderConfig, weights: Weights, largest: Mapping[str, NDArray[np.float32]], strength: float
) -> tuple[Weights, dict[str, NDArray[np.float32]]]:
    """Choose factors from calibration and weights.

    Parameters
    ----------
    config : DecoderConfig
        The decoder.
    weights : Weights
        Of the checkpoint.
    largest : mapping of str to float32 [in]
        Largest absolute input of each channel, by module.
    strength : float
        How much of the outliers moves into the weights: 0 none, 1 all.

    Returns
    -------
    weights : Weights
        With the factors applied.
    factors : dict of str to float32 [in]
        By the first module that reads the channels.
    """
    columns: dict[str, NDArray[np.float32]] = {}
    rows: dict[str, NDArray[np.float32]] = {}
    factors: dict[str, NDArray[np.float32]] = {}
    if strength <= 0:
        return weights, factors
    for readers, sources in _groups(config, weights):
        present = [module for module in readers if module in largest]
        if len(present) != len(readers):
            continue
        factor = _factor(weights, present, largest[present[0]], strength)
        factors[present[0]] = factor
        columns.update({f"{module}.weight": factor for module in present})
        rows.update(dict.fromkeys(sources, factor))
    return Smoothed(weights, columns, rows), factors


def _groups(config: DecoderConfig, weights: Weights) -> Iterator[tuple[Sequence[str], Sequence[str]]]:
    """Modules that read one value, and the tensors that scale it."""
    for block in range(config.n_layers):
        prefix = f"blocks.{block}"
        plain = config.layers[block].experts is None
        shared = config.parallel and not config.mlp_norm
        if config.attn_norm and config.norm_weight and not shared:
            norm = [name for name in (f"{prefix}.attn_norm.weight", f"{prefix}.attn_norm.bias") if name in weights]
            yield [f"{prefix}.{name}" for name in ("q", "k", "v")], norm
        if not plain:
            continue
        first = ["up", "gate"] if config.gated else ["up"]
        if config.mlp_norm and config.norm_weight:
            norm = [name for name in (f"{prefix}.mlp_norm.weight", f"{prefix}.mlp_norm.bias") if name in weights]
            yield [f"{prefix}.{name}" for name in first], norm
        if config.gated:
            source = [name for name in (f"{prefix}.up.weight", f"{prefix}.up.bias") if name in weights]
            yield [f"{prefix}.down"], source


def _factor(
    weights: Weights, modules: Sequence[str], largest: NDArray[np.float32], strength: float
) -> NDArray[np.float32]:
    inputs = np.maximum(largest.astype(np.float64), _LEAST)
    matrices = [np.abs(weights[f"{module}.weight"]).max(axis=0) for module in modules]
    weight = np.maximum(np.max(matrices, axis=0).astype(np.float64), _LEAST)
    factor = inputs**strength / weight ** (1 - strength)
    factor /= np.exp(np.log(factor).mean())  # the mean stays, so that other scales stay in range
    return np.asarray(np.clip(factor, 1e-2, 1e2), dtype=np.float32)
