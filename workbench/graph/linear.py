"""The one place where a product with weights is emitted, in the precision that the policy gives its layer."""

from __future__ import annotations

from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

import numpy as np

from workbench.errors import ContractError
from workbench.graph.artefact import LazyTensor
from workbench.graph.blocks import BLOCK, quantise
from workbench.graph.emitter import CONTRIB, Emitter

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from workbench.checkpoint.weights import Weights

FULL = "fp32"


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Linear:
    """Emits products with weights.

    Parameters
    ----------
    emitter : Emitter
        Of the graph.
    weights : Weights
        Of the checkpoint.
    precision : str
        Of every matrix that `keep` does not name: a key of `PRECISIONS`.
    keep : sequence of str
        Canonical modules that stay in float32, such as "blocks.11.down"; `*` and `?` stand for any part of a name.
    used : dict of str to str
        Precision that each matrix got.
    """

    emitter: Emitter
    weights: Weights
    precision: str
    keep: Sequence[str]
    used: dict[str, str] = field(default_factory=dict)

    def __call__(self, x: str, module: str, *, biased: bool = False) -> str:
        """Emit `x @ W.T + b`.

        Parameters
        ----------
        x : str
            Value [..., in].
        module : str
            Canonical name, without ".weight".
        biased : bool
            Whether it has a bias.
        """
        precision = FULL if self._kept(module) else self.precision
        self.used[module] = precision
        y = PRECISIONS[precision](self, x, module)
        if not biased:
            return y
        name = f"{module}.bias"
        bias = LazyTensor(dtype=np.dtype(np.float32), shape=self.weights.shape(name), make=lambda: self.weights[name])
        return self.emitter.op("Add", y, self.emitter.weight(name, bias))

    def _kept(self, module: str) -> bool:
        return any(fnmatchcase(module, pattern) or fnmatchcase(f"{module}.weight", pattern) for pattern in self.keep)


def _full(linear: Linear, x: str, module: str) -> str:
    name = f"{module}.weight"
    n_out, n_in = linear.weights.shape(name)
    tensor = LazyTensor(
        dtype=np.dtype(np.float32), shape=(n_in, n_out), make=lambda: np.ascontiguousarray(linear.weights[name].T)
    )
    return linear.emitter.op("MatMul", x, linear.emitter.weight(name, tensor))


def _int8(linear: Linear, x: str, module: str) -> str:
    """Emit blocks of 32 weights with one float32 scale; activations stay float32."""
    name = f"{module}.weight"
    n_out, n_in = linear.weights.shape(name)
    n_blocks = -(-n_in // BLOCK)
    codes = LazyTensor(
        dtype=np.dtype(np.uint8), shape=(n_out, n_blocks, BLOCK), make=lambda: quantise(linear.weights[name])[0]
    )
    scales = LazyTensor(
        dtype=np.dtype(np.float32), shape=(n_out, n_blocks), make=lambda: quantise(linear.weights[name])[1]
    )
    return linear.emitter.op(
        "MatMulNBits",
        x,
        linear.emitter.weight(f"{module}.codes", codes),
        linear.emitter.weight(f"{module}.scales", scales),
        domain=CONTRIB,
        K=n_in,
        N=n_out,
        bits=8,
        block_size=BLOCK,
        accuracy_level=1,  # products in float32
    )


PRECISIONS: dict[str, Callable[[Linear, str, str], str]] = {FULL: _full, "int8": _int8}


def check_precision(precision: str) -> None:
    """Check that a precision can be emitted.

    Raises
    ------
    ContractError
        If it cannot.
    """
    if precision not in PRECISIONS:
        raise ContractError(f"precision must be one of {', '.join(PRECISIONS)}", repr(precision), "Use one of these.")
