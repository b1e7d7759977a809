"""Weights without a copy for a parser that would read them from the file: they enter the network as constants in place.

The graph that is parsed has its large weights as inputs; afterwards each is exchanged for a constant over the mapped
file. The builder then is the only one that holds weights in memory.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

from workbench.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from workbench.engine.tensorrt.api import Api

LEAST = 1 << 16  # bytes; what is smaller stays with the parser, scales among it, which must be known while it reads


def large(weights: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Choose the weights that are worth it."""
    return {name: array for name, array in weights.items() if array.nbytes >= LEAST}


def detached(model: Any, names: Mapping[str, object]) -> bytes:
    """Give an ONNX model whose named initialisers are inputs."""
    from onnx import ModelProto, helper

    copy = ModelProto()
    copy.CopyFrom(model)
    kept = [tensor for tensor in copy.graph.initializer if tensor.name not in names]
    moved = [tensor for tensor in copy.graph.initializer if tensor.name in names]
    inputs = [helper.make_tensor_value_info(t.name, t.data_type, list(t.dims)) for t in moved]
    copy.graph.input.extend(inputs)
    del copy.graph.initializer[:]
    copy.graph.initializer.extend(kept)
    return bytes(copy.SerializeToString())


def attach(api: Api, network: Any, weights: Mapping[str, NDArray[Any]]) -> None:
    """Exchange inputs for constants over mapped weights, which must live until the network is built.

    Raises
    ------
    EngineError
        If an input stays.
    """
    trt: Any = api.trt
    tensors = {network.get_input(i).name: network.get_input(i) for i in range(network.num_inputs)}
    constants = {}
    for name, array in weights.items():
        values = trt.Weights(tensors[name].dtype, array.ctypes.data, prod(array.shape))
        layer = network.add_constant(tuple(array.shape), values)
        layer.name = f"{name}/mapped"
        constants[name] = layer.get_output(0)
    for i in range(network.num_layers):
        layer = network.get_layer(i)
        for j in range(layer.num_inputs):
            tensor = layer.get_input(j)
            if tensor is not None and tensor.name in constants:
                layer.set_input(j, constants[tensor.name])
    for name in weights:
        network.remove_tensor(tensors[name])
    left = {network.get_input(i).name for i in range(network.num_inputs)} & set(weights)
    if left:
        raise EngineError("every weight must become a constant", ", ".join(sorted(left)[:3]), "Update TensorRT.")
