"""Turning one PCA map onto another: rotation, reflection, scale and shift, and nothing else.

Allowed for principal components only, where the freedom between two fits is of just that kind. Two UMAP fits differ by
more, and no rotation makes them comparable.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

from workbench.errors import AnalysisError

if TYPE_CHECKING:
    from workbench.analysis.projection import Projection
    from workbench.index.blocks import F32, F64


def procrustes(moving: F32 | F64, fixed: F32 | F64) -> tuple[F64, float, F64]:
    """Find rotation, scale and shift that bring rows nearest to their partners, in the sense of least squares.

    Parameters
    ----------
    moving, fixed : float [row, component]

    Returns
    -------
    rotation : float64 [component, component]
    scale : float
    shift : float64 [component]
        So that `moving @ rotation * scale + shift` is near `fixed`.
    """
    a, b = np.asarray(moving, np.float64), np.asarray(fixed, np.float64)
    mean_a, mean_b = a.mean(axis=0), b.mean(axis=0)
    u, s, v = np.linalg.svd((a - mean_a).T @ (b - mean_b))
    rotation = u @ v
    spread = float(((a - mean_a) ** 2).sum())
    scale = float(s.sum() / spread) if spread > 0 else 1.0
    return rotation, scale, mean_b - mean_a @ rotation * scale


def align(moving: Projection, fixed: Projection, *, seed: int = 0) -> Projection:
    """Turn a PCA map onto another of the same rows; the turn is learned on half of the rows, and stated so.

    Raises
    ------
    AnalysisError
        If a map is no PCA, or they are not of the same rows.
    """
    if moving.method != "pca" or fixed.method != "pca":
        do = 'Fit one map for both: project([a, b], tap, together="joint").'
        raise AnalysisError("only PCA maps can be aligned", f"{moving.method} and {fixed.method}", do)
    if not np.array_equal(moving.rows, fixed.rows):
        raise AnalysisError("aligned maps must be of the same rows", "other rows", "Project the same rows of both.")
    half = np.random.default_rng(seed).permutation(len(fixed.rows))[: max(3, len(fixed.rows) // 2)]
    rotation, scale, shift = procrustes(moving.coordinates[half], fixed.coordinates[half])
    turned = (moving.coordinates @ rotation * scale + shift).astype(np.float32)
    parameters = {**moving.parameters, "aligned_on": len(half), "align_seed": seed}
    return dataclasses.replace(moving, coordinates=turned, badge="aligned", parameters=parameters)
