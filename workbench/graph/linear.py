"""The one place where a product with weights is emitted, in the precision that the policy gives its layer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from workbench.errors import ContractError
from workbench.graph.artefact import LazyTensor
from workbench.graph.blocks import BLOCK, quantise
from workbench.graph.emitter import CONTRIB, Emitter
from workbench.graph.naming import is_named

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

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

    def __call__(self, x: str, *modules: str, biased: bool = False, name: str = "") -> str:
        """Emit `x @ W.T + b`; several modules stand side by side in one product.

        Parameters
        ----------
        x : str
            Value [..., in].
        *modules : str
            Canonical names without ".weight"; one that `keep` names keeps all of them.
        biased : bool
            Whether any of them has a bias; those without one get zeros.
        name : str
            Of the weights, where there are several.
        """
        name = name or modules[0]
        precision = FULL if any(self._kept(module) for module in modules) else self.precision
        self.used.update(dict.fromkeys(modules, precision))
        y = PRECISIONS[precision](self, x, modules, name)
        if not biased:
            return y
        n_out, _ = self.shape(modules)
        bias = LazyTensor(
            dtype=np.dtype(np.float32),
            shape=(n_out,),
            make=lambda: np.concatenate([self._bias(module) for module in modules]),
        )
        return self.emitter.op("Add", y, self.emitter.weight(f"{name}.bias", bias))

    def _kept(self, module: str) -> bool:
        return is_named(module, self.keep)

    def _bias(self, module: str) -> NDArray[np.float32]:
        stated = f"{module}.bias"
        if stated in self.weights:
            return self.weights[stated]
        return np.zeros(self.weights.shape(f"{module}.weight")[0], dtype=np.float32)

    def matrix(self, modules: Sequence[str]) -> NDArray[np.float32]:
        """Read matrices as one, [out, in]."""
        parts = [self.weights[f"{module}.weight"] for module in modules]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def shape(self, modules: Sequence[str]) -> tuple[int, int]:
        """Size of the matrices side by side, (out, in)."""
        shapes = [self.weights.shape(f"{module}.weight") for module in modules]
        return sum(shape[0] for shape in shapes), shapes[0][1]


def _full(linear: Linear, x: str, modules: Sequence[str], name: str) -> str:
    n_out, n_in = linear.shape(modules)
    tensor = LazyTensor(
        dtype=np.dtype(np.float32), shape=(n_in, n_out), make=lambda: np.ascontiguousarray(linear.matrix(modules).T)
    )
    return linear.emitter.op("MatMul", x, linear.emitter.weight(f"{name}.weight", tensor))


def _int8(linear: Linear, x: str, modules: Sequence[str], name: str) -> str:
    """Emit blocks of 32 weights with one float32 scale; activations stay float32."""
    n_out, n_in = linear.shape(modules)
    n_blocks = -(-n_in // BLOCK)
    codes = LazyTensor(
        dtype=np.dtype(np.uint8), shape=(n_out, n_blocks, BLOCK), make=lambda: quantise(linear.matrix(modules))[0]
    )
    scales = LazyTensor(
        dtype=np.dtype(np.float32), shape=(n_out, n_blocks), make=lambda: quantise(linear.matrix(modules))[1]
    )
    return linear.emitter.op(
        "MatMulNBits",
        x,
        linear.emitter.weight(f"{name}.codes", codes),
        linear.emitter.weight(f"{name}.scales", scales),
        domain=CONTRIB,
        K=n_in,
        N=n_out,
        bits=8,
        block_size=BLOCK,
        accuracy_level=1,  # products in float32
    )


PRECISIONS: dict[str, Callable[[Linear, str, Sequence[str], str], str]] = {FULL: _full, "int8": _int8}


def check_precision(precision: str) -> None:
    """Check that a precision can be emitted.

    Raises
    ------
    ContractError
        If it cannot.
    """
    if precision not in PRECISIONS:
        raise ContractError(f"precision must be one of {', '.join(PRECISIONS)}", repr(precision), "Use one of these.")
