"""A network of TensorRT computed layer by layer on the CPU, where no card is at hand to build and run it.

Only the kinds of layers that a plain decoder is written in; any other is refused by name. Each layer computes in the
dtype of its inputs, as in a strongly typed network.
"""

from __future__ import annotations

from collections import Counter
from graphlib import TopologicalSorter
from typing import TYPE_CHECKING, Any

import ml_dtypes  # noqa: F401 - gives NumPy bfloat16
import numpy as np
from numpy.typing import NDArray

from workbench.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

Array = NDArray[Any]

DTYPES = {
    "FLOAT": "float32",
    "HALF": "float16",
    "BF16": "bfloat16",
    "INT32": "int32",
    "INT64": "int64",
    "BOOL": "bool",
}
CLASSES = {  # kind of a layer to the class of the bindings that shows its parameters
    "CONSTANT": "IConstantLayer",
    "SHAPE": "IShapeLayer",
    "CAST": "ICastLayer",
    "GATHER": "IGatherLayer",
    "CONCATENATION": "IConcatenationLayer",
    "SHUFFLE": "IShuffleLayer",
    "ELEMENTWISE": "IElementWiseLayer",
    "UNARY": "IUnaryLayer",
    "REDUCE": "IReduceLayer",
    "MATRIX_MULTIPLY": "IMatrixMultiplyLayer",
    "SLICE": "ISliceLayer",
    "SELECT": "ISelectLayer",
    "SOFTMAX": "ISoftMaxLayer",
    "ACTIVATION": "IActivationLayer",
}


def evaluate(tensorrt: Any, network: Any, feeds: Mapping[str, NDArray[Any]]) -> dict[str, Array]:
    """Compute every output of a network.

    Parameters
    ----------
    tensorrt : module
        The bindings that made the network.
    network : INetworkDefinition
        With its weights.
    feeds : mapping of str to array
        Every input by name.

    Returns
    -------
    dict of str to array
        Every output by name, in its own dtype.

    Raises
    ------
    EngineError
        If the network holds a layer, or a mode of one, that is not written here.
    """
    rules, values = _Layers(), dict(feeds)
    wanted = {network.get_output(i).name for i in range(network.num_outputs)}
    layers = [network.get_layer(i) for i in range(network.num_layers)]
    left = Counter(name for layer in layers for name in _inputs(layer))
    for layer in _in_order(layers):
        kind = _name(tensorrt.ILayer.type.__get__(layer))  # a class below has a field of that name too
        if kind not in CLASSES:
            raise _unknown("a kind of layer", kind)
        layer.__class__ = getattr(tensorrt, CLASSES[kind])
        names = _inputs(layer)
        rule: Callable[..., Any] = getattr(rules, kind.lower())
        values[layer.get_output(0).name] = rule(layer, *(values.get(name) for name in names))
        left.subtract(names)
        for name in names:
            if not left[name] and name not in wanted:
                values.pop(name, None)
    return {name: values[name] for name in wanted}


def _in_order(layers: list[Any]) -> list[Any]:
    """Put every layer behind those that it reads; a network lists them as they were added."""
    makers = {layer.get_output(0).name: layer for layer in layers}
    sorter = TopologicalSorter({name: _inputs(layer) for name, layer in makers.items()})
    return [makers[name] for name in sorter.static_order() if name in makers]


def _inputs(layer: Any) -> list[str]:
    """Name every input, `` where a place is empty."""
    tensors = (layer.get_input(i) for i in range(layer.num_inputs))
    return ["" if tensor is None else tensor.name for tensor in tensors]


def _name(value: Any) -> str:
    return str(value).rsplit(".", 1)[-1]


def _unknown(what: str, got: str) -> EngineError:
    return EngineError(f"a network must do without {what} like this to be computed here", got, "Run it on a card.")


def _axes(mask: int) -> tuple[int, ...]:
    return tuple(axis for axis in range(mask.bit_length()) if mask >> axis & 1)


class _Layers:
    """One method for each kind of layer: the layer and its inputs to its output."""

    def constant(self, layer: Any) -> Array:
        weights = layer.weights
        if not isinstance(weights, np.ndarray):  # the bindings show no bfloat16
            raise _unknown("weights", _name(weights.dtype))
        return weights.reshape(tuple(layer.shape))

    def shape(self, _layer: Any, x: Array) -> Array:
        return np.array(x.shape, np.int64)

    def cast(self, layer: Any, x: Array) -> Array:
        return x.astype(DTYPES[_name(layer.to_type)])

    def gather(self, layer: Any, x: Array, index: Array) -> Array:
        mode = _name(layer.mode)
        if mode == "ELEMENT":
            return np.take_along_axis(x, index, layer.axis)
        if mode != "DEFAULT" or layer.num_elementwise_dims:
            raise _unknown("a gather", f"{mode}, {layer.num_elementwise_dims} common axes")
        return np.take(x, index, layer.axis)

    def concatenation(self, layer: Any, *parts: Array) -> Array:
        return np.concatenate(parts, layer.axis)

    def shuffle(self, layer: Any, x: Array, wanted: Array | None = None) -> Array:
        x = x.transpose(tuple(layer.first_transpose)[: x.ndim])
        sizes = _sizes(layer) if wanted is None else [int(size) for size in wanted]
        if sizes is not None:
            keep = layer.zero_is_placeholder
            x = x.reshape([x.shape[i] if keep and size == 0 else size for i, size in enumerate(sizes)])
        return x.transpose(tuple(layer.second_transpose)[: x.ndim])

    def elementwise(self, layer: Any, a: Array, b: Array) -> Array:
        if _name(layer.op) == "DIV" and a.dtype.kind == "i":
            return np.trunc(a / b).astype(a.dtype)
        return np.asarray(_pick(PAIRS, layer.op)(a, b))

    def unary(self, layer: Any, x: Array) -> Array:
        return np.asarray(_pick(SINGLES, layer.op)(x))

    def reduce(self, layer: Any, x: Array) -> Array:
        wide = _pick(SUMS, layer.op)(_wide(x), axis=_axes(layer.axes), keepdims=layer.keep_dims)
        return np.asarray(wide, x.dtype)

    def matrix_multiply(self, layer: Any, a: Array, b: Array) -> Array:
        modes = [_name(mode) for mode in (layer.op0, layer.op1)]
        if "VECTOR" in modes:
            raise _unknown("a matrix product", "VECTOR")
        left, right = (x.swapaxes(-1, -2) if mode == "TRANSPOSE" else x for x, mode in zip((a, b), modes, strict=True))
        return np.asarray(np.matmul(_wide(left), _wide(right)), a.dtype)

    def slice(self, layer: Any, x: Array, *given: Array | None) -> Array:
        if _name(layer.mode) not in ("DEFAULT", "STRICT_BOUNDS"):
            raise _unknown("a slice", _name(layer.mode))
        fields = ("start", "shape", "stride")
        given = (*given, *(None,) * (len(fields) - len(given)))
        parts = [getattr(layer, field) if part is None else part for field, part in zip(fields, given, strict=True)]
        for axis, (start, size, stride) in enumerate(zip(*(map(int, part) for part in parts), strict=True)):
            x = np.take(x, start + stride * np.arange(size), axis)
        return x

    def select(self, _layer: Any, condition: Array, a: Array, b: Array) -> Array:
        return np.where(condition, a, b)

    def softmax(self, layer: Any, x: Array) -> Array:
        axis = _axes(layer.axes)
        wide = np.exp(_wide(x) - _wide(x).max(axis, keepdims=True))
        return np.asarray(wide / wide.sum(axis, keepdims=True), x.dtype)

    def activation(self, layer: Any, x: Array) -> Array:
        return np.asarray(_pick(CURVES, layer.type)(_wide(x)), x.dtype)


def _wide(x: Array) -> Array:
    """Give narrow floats as float32, in which sums are kept."""
    return x.astype(np.float32) if x.dtype.kind not in "iub" and x.dtype.itemsize < 4 else x


def _relu(x: Array) -> Array:
    return np.maximum(x, 0)


def _sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-np.clip(x, -80, None))))


PAIRS: dict[str, Any] = {
    "SUM": np.add,
    "SUB": np.subtract,
    "PROD": np.multiply,
    "DIV": np.divide,
    "FLOOR_DIV": np.floor_divide,
    "MAX": np.maximum,
    "MIN": np.minimum,
    "POW": np.power,
    "EQUAL": np.equal,
    "LESS": np.less,
    "GREATER": np.greater,
    "AND": np.logical_and,
    "OR": np.logical_or,
    "XOR": np.logical_xor,
}
SINGLES: dict[str, Any] = {
    "SQRT": np.sqrt,
    "EXP": np.exp,
    "NEG": np.negative,
    "ABS": np.abs,
    "SIN": np.sin,
    "COS": np.cos,
    "LOG": np.log,
    "FLOOR": np.floor,
    "CEIL": np.ceil,
    "NOT": np.logical_not,
    "RECIP": np.reciprocal,
}
SUMS: dict[str, Any] = {"SUM": np.sum, "AVG": np.mean, "MAX": np.max, "MIN": np.min}
CURVES: dict[str, Any] = {"SIGMOID": _sigmoid, "TANH": np.tanh, "RELU": _relu}


def _pick(table: dict[str, Any], operation: Any) -> Any:
    name = _name(operation)
    if name not in table:
        raise _unknown("an operation", name)
    return table[name]


def _sizes(layer: Any) -> list[int] | None:
    """Give the sizes of a reshape, None where a shuffle only transposes."""
    try:
        return [int(layer.reshape_dims[i]) for i in range(len(layer.reshape_dims))]
    except ValueError:  # their number is below 0 there
        return None
