"""Kinds of lower precision: types of values and products, and the steps of codes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, kw_only=True, slots=True)
class Kind:
    """A precision: the type of values, and the type of products with weights where that differs.

    Parameters
    ----------
    values : str
        NumPy's or ml_dtypes' name.
    products : str or None
        Type that weights and activations are quantised to.
    largest : float
        Largest finite value of `products`.
    per_channel : bool
        Whether each output of a matrix has a scale of its own.
    """

    values: str
    products: str | None = None
    largest: float = 0.0
    per_channel: bool = False


KINDS = {
    "bf16": Kind(values="bfloat16"),
    "fp16": Kind(values="float16"),
    "fp8": Kind(values="bfloat16", products="float8_e4m3fn", largest=448.0),
    "int8": Kind(values="bfloat16", products="int8", largest=127.0, per_channel=True),
}


def narrow_dtype(name: str) -> np.dtype[Any]:
    """NumPy's dtype of a name, the narrow floats of ml_dtypes included."""
    if name in ("bfloat16", "float8_e4m3fn"):
        import ml_dtypes

        narrow: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
        return narrow
    return np.dtype(name)


def step_of(largest: float, kind: Kind) -> float:
    """Scale of one quantised tensor: bf16, rounded up, so that the largest value still fits."""
    import ml_dtypes

    exact = max(largest, 1e-12) / kind.largest
    step = float(np.asarray(exact, dtype=np.float32).astype(ml_dtypes.bfloat16))
    return step if step >= exact else float(step * (1 + 2.0**-7))
