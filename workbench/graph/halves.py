"""Rotary pairs as halves of a head instead of neighbours: rows of queries and keys change places, and nothing else.

A product of a query with a key sums over the channels of a head, so their order is free. Kernels of rotary positions
want the first channels of all pairs in the first half of a head; many checkpoints have the two of a pair side by side.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.checkpoint.weights import ChangedWeights, Weights
from workbench.graph.grids import Fit, fit_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from workbench.checkpoint.config import DecoderConfig

_PARTS = ("q.weight", "q.bias", "k.weight", "k.bias", "q_norm.weight", "q_norm.bias", "k_norm.weight", "k_norm.bias")


def in_halves(config: DecoderConfig, weights: Weights) -> tuple[DecoderConfig, Weights]:
    """Give the same decoder with the pairs of every rotation in halves.

    Parameters
    ----------
    config : DecoderConfig
        The decoder.
    weights : Weights
        Of the checkpoint.

    Returns
    -------
    config : DecoderConfig
        None of its layers interleaves pairs.
    weights : Weights
        With rows of queries and keys in the new order, where there are pairs side by side.
    """
    moved, layers = {}, []
    for index, layer in enumerate(config.layers):
        rope = layer.rope
        if rope is None or not rope.interleaved:
            layers.append(layer)
            continue
        order = np.arange(config.head_dim)
        order[: rope.dims] = np.concatenate([order[0 : rope.dims : 2], order[1 : rope.dims : 2]])
        moved.update({f"blocks.{index}.{part}": order for part in _PARTS})
        layers.append(replace(layer, rope=replace(rope, interleaved=False)))
    return (replace(config, layers=tuple(layers)), Moved(weights, moved)) if moved else (config, weights)


class Moved(ChangedWeights):
    """Weights whose rows change places within each head.

    Parameters
    ----------
    weights : Weights
        Of the checkpoint, smoothed or not.
    orders : mapping of str to int64 [head_dim]
        Which row of a head comes at each place, by tensor name.
    """

    def __init__(self, weights: Weights, orders: dict[str, NDArray[Any]]) -> None:
        super().__init__(weights)
        self._orders = orders

    def __getitem__(self, name: str) -> NDArray[np.float32]:
        array = self._weights[name]
        if name not in self._orders:
            return array
        if "_norm" in name and array.ndim == 2:  # [head, head_dim]
            return np.ascontiguousarray(array[:, self._orders[name]])
        return np.ascontiguousarray(array[self._rows(name)])

    def _rows(self, name: str) -> NDArray[Any]:
        order = self._orders[name]
        heads = np.arange(self._weights.shape(name)[0] // len(order))
        rows: NDArray[Any] = (heads[:, None] * len(order) + order[None, :]).reshape(-1)
        return rows

    def raw(self, name: str) -> NDArray[np.uint8] | None:
        """Bytes as they lie in the file, row by row in the new order."""
        data = self._weights.raw(name)
        if data is None or name not in self._orders:
            return data
        rows = self._rows(name)
        return np.ascontiguousarray(np.asarray(data).reshape(len(rows), -1)[rows]).reshape(-1)

    def fit(self, name: str) -> Fit | None:
        """What a matrix was fitted to, row by row in the new order."""
        found = fit_of(self._weights, name)
        return found if found is None or name not in self._orders else found.rows(self._rows(name))
