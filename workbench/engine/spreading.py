"""Spreading: what stands out in one channel of a head is spread over all of them before the output's product.

Values leave turned by an orthogonal matrix whose entries are all of one size (Hadamard's), and the output's matrix is
turned back. Attention mixes tokens and never channels, so in exact arithmetic nothing changes, and no tap moves.

References
----------
Ashkboos et al. (2024), arXiv:2404.00456.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from workbench.checkpoint.weights import ChangedWeights, Weights

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from workbench.checkpoint.config import DecoderConfig


class Spread(ChangedWeights):
    """Weights of values and outputs, turned head by head.

    Parameters
    ----------
    weights : Weights
        Of the checkpoint, smoothed or not.
    turn : float32 [head_dim, head_dim]
        Orthogonal and symmetric.
    """

    def __init__(self, weights: Weights, turn: NDArray[np.float32]) -> None:
        super().__init__(weights)
        self._turn = turn

    def __getitem__(self, name: str) -> NDArray[np.float32]:
        array, size = self._weights[name], len(self._turn)
        if name.endswith((".v.weight", ".v.bias")):
            rows = array.reshape(len(array) // size, size, -1)
            return np.ascontiguousarray((self._turn @ rows).reshape(array.shape), dtype=np.float32)
        if name.endswith(".o.weight"):
            columns = array.reshape(len(array), -1, size)
            return np.ascontiguousarray((columns @ self._turn).reshape(array.shape), dtype=np.float32)
        return array


def spread(config: DecoderConfig, weights: Weights) -> Weights:
    """Turn values and outputs, where a head has a power of two of channels and nothing bends its values."""
    size = config.head_dim
    if size & (size - 1) or config.clip_qkv is not None:
        return weights
    turn = np.ones((1, 1), dtype=np.float32)
    while len(turn) < size:
        turn = np.block([[turn, turn], [turn, -turn]])
    return Spread(weights, turn / np.float32(np.sqrt(size)))
