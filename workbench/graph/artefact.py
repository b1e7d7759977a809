"""What `build_graph` gives: an ONNX model without its weights, and the weights one by one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from workbench.checkpoint.config import DecoderConfig

WEIGHTS_FILE = "weights.bin"


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorSpec:
    """One input or output of a graph.

    Parameters
    ----------
    name : str
        In the graph; an output has the name of its tap.
    dtype : str
        NumPy's name of it.
    axes : tuple of str or int
        Axis names from slowest to fastest; a number where the size is fixed.
    """

    name: str
    dtype: str
    axes: tuple[str | int, ...]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class LazyTensor:
    """A weight that is made when it is asked for, so that a build never holds two copies of all of them.

    Parameters
    ----------
    dtype : numpy.dtype
        Of the array that `load` gives.
    shape : tuple of int
        Of that array.
    make : callable
        Gives the array; called once for each `load`.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    make: Callable[[], NDArray[Any]]

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize

    def load(self) -> NDArray[Any]:
        """Make the array: C-contiguous, of `dtype` and `shape`; it may be a read-only view of the checkpoint."""
        array = np.asarray(self.make(), order="C")
        if array.shape != self.shape or array.dtype != self.dtype:
            raise AssertionError(f"a lazy tensor of {self.dtype} {self.shape} gave {array.dtype} {array.shape}")
        return array


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Graph:
    """A decoder with taps, ready for a backend.

    Parameters
    ----------
    model : onnx.ModelProto
        Its large initialisers are external: location "weights.bin", offset and length for the writer to fill in.
    initialisers : mapping of str to LazyTensor
        Exactly the external ones, in the order in which the graph uses them.
    inputs, outputs : tuple of TensorSpec
        In the order of the graph.
    config : DecoderConfig
        What was built.
    taps : tuple of str
        Outputs, as asked for.
    positions : str or tuple of int
        Which rows leave the graph.
    precision, lowering : str
        As asked for.
    policy : mapping of str to str
        Precision of every matrix of weights by its canonical name.
    n_layers : int
        How many blocks the graph computes, at most `config.n_layers`.
    max_tokens : int
        Longest prompt that the graph takes.
    """

    model: Any
    initialisers: Mapping[str, LazyTensor]
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    config: DecoderConfig
    taps: tuple[str, ...]
    positions: str | tuple[int, ...]
    precision: str
    lowering: str
    policy: Mapping[str, str]
    n_layers: int
    max_tokens: int

    @property
    def weight_bytes(self) -> int:
        """Size of all external initialisers in bytes, without padding between them."""
        return sum(tensor.nbytes for tensor in self.initialisers.values())


def external(name: str, tensor: LazyTensor) -> Any:
    """Declare an initialiser whose bytes lie in the file of weights."""
    from onnx import TensorProto, helper

    proto = TensorProto()
    proto.name = name
    proto.data_type = helper.np_dtype_to_tensor_dtype(tensor.dtype)
    proto.dims.extend(tensor.shape)
    proto.data_location = TensorProto.EXTERNAL
    proto.external_data.add(key="location", value=WEIGHTS_FILE)
    return proto
