"""A product and the gate that alone reads it become one own operator, whose weights lie in tiles.

For a narrow graph, on a card whose kernel computes both at once: gate and up, the widest values of a block, then never
reach memory.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.graph.artefact import Graph, LazyTensor, external
from workbench.graph.fused import DOMAIN, GATE, GATED_PRODUCT, attribute

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

TILE = 128  # outputs of a program: so many rows of gate, then as many of up
PITCH = 16  # bytes: a line of the operands must be a multiple
WORD = 4  # weights are declared as int32 words, a type of constants that every TensorRT hands to a plugin


@dataclass(frozen=True, kw_only=True, slots=True)
class _Pair:
    """A product and its gate: what they read, and the nodes that go with them."""

    gate: Any
    spent: frozenset[str]
    x: str
    weight: str
    x_step: float
    weight_step: str | None
    width: int

    @property
    def codes(self) -> bool:
        """Whether the gate writes FP8 codes."""
        return bool(attribute(self.gate, "step").f > 0)


def join_gates(graph: Graph) -> Graph:
    """Give the graph with own operators in place of the products that a gate alone reads.

    Parameters
    ----------
    graph : Graph
        As `narrow` gives it, in bf16, fp16 or fp8. What does not fit the kernel stays: outputs that are no multiple of
        128, and products with a bias.

    Returns
    -------
    Graph
        Weights [2 * d_ff, d_model] of each joined product as int32 words, named `.tiles` instead of `.weight`.
    """
    body = graph.model.graph
    makers = {name: node for node in body.node for name in node.output}
    users = Counter(name for node in body.node for name in node.input)
    constants = {tensor.name: tensor for tensor in body.initializer}
    pairs = [
        pair
        for node in body.node
        if node.op_type == GATE and (pair := _pair(graph, node, (makers, users, constants))) is not None
    ]
    return _rewritten(graph, pairs) if pairs else graph


def _pair(graph: Graph, gate: Any, of: tuple[Mapping[str, Any], Counter[str], Mapping[str, Any]]) -> _Pair | None:
    from onnx import numpy_helper

    makers, users, constants = of
    product = makers[gate.input[0]]
    if product.op_type != "MatMul" or users[gate.input[0]] > 1:
        return None
    x, weight = product.input
    x_step, weight_step, spent = 1.0, None, {product.name}
    if weight in makers:  # codes and their step
        values = [makers[name] for name in product.input]
        if any(node.op_type != "DequantizeLinear" for node in values):
            return None
        spent |= {node.name for node in values if users[node.output[0]] == 1}
        (x, step), (weight, weight_step) = (node.input[:2] for node in values)
        x_step = float(numpy_helper.to_array(constants[step]).astype(np.float32))
    tensor = graph.initialisers.get(weight)
    width = int(attribute(gate, "width").i)
    if tensor is None or width % TILE or tensor.shape[0] * tensor.dtype.itemsize % PITCH:
        return None
    return _Pair(
        gate=gate, spent=frozenset(spent), x=x, weight=weight, x_step=x_step, weight_step=weight_step, width=width
    )


def _rewritten(graph: Graph, pairs: list[_Pair]) -> Graph:
    from onnx import ModelProto

    model = ModelProto()
    model.CopyFrom(graph.model)
    body, joined = model.graph, {pair.gate.name: pair for pair in pairs}
    spent = frozenset[str]().union(*(pair.spent for pair in pairs))
    tiles = {pair.weight: _tiles_of(graph.initialisers[pair.weight], pair) for pair in pairs}
    kept = [node for node in graph.model.graph.node if node.name not in spent]
    nodes = [_operator(joined[node.name]) if node.name in joined else node for node in kept]
    tensors = [
        external(tiled_name(tensor.name), tiles[tensor.name]) if tensor.name in tiles else tensor
        for tensor in graph.model.graph.initializer
    ]
    del body.node[:], body.initializer[:]
    body.node.extend(nodes)
    body.initializer.extend(tensors)
    initialisers = {
        tiled_name(name) if name in tiles else name: tiles.get(name, tensor)
        for name, tensor in graph.initialisers.items()
    }
    return replace(graph, model=model, initialisers=initialisers)


def _operator(pair: _Pair) -> Any:
    from onnx import helper

    inputs = [pair.x, tiled_name(pair.weight), *([pair.weight_step] if pair.weight_step else [])]
    return helper.make_node(
        GATED_PRODUCT,
        inputs,
        list(pair.gate.output),
        name=pair.gate.name.replace(GATE, GATED_PRODUCT),
        domain=DOMAIN,
        width=pair.width,
        coded=int(pair.weight_step is not None),
        half=attribute(pair.gate, "half").i,
        scale=pair.x_step,
        step=attribute(pair.gate, "step").f,
    )


def tiled_name(name: str) -> str:
    """Name of a matrix that lies in tiles."""
    return f"{name.removesuffix('.weight')}.tiles"


def _tiles_of(matrix: LazyTensor, pair: _Pair) -> LazyTensor:
    d_model, outputs = matrix.shape
    shape = (outputs, d_model * matrix.dtype.itemsize // WORD)
    return LazyTensor(dtype=np.dtype(np.int32), shape=shape, make=lambda: in_tiles(matrix.load(), codes=pair.codes))


def in_tiles(matrix: NDArray[Any], *, codes: bool) -> NDArray[np.int32]:
    """Lay weights as the kernel reads them.

    Parameters
    ----------
    matrix : array
        [d_model, 2 * d_ff], gate before up, in e4m3 codes, bfloat16 or float16.
    codes : bool
        Whether the kernel writes codes, 16 of which a thread stores at once, or values of two bytes, 8.

    Returns
    -------
    array
        int32 [2 * d_ff, d_model in words]: 128 rows of gate and the same 128 of up take turns; in each, a thread's
        outputs lie side by side.
    """
    raw = matrix.view(np.dtype(f"u{matrix.dtype.itemsize}"))
    order = (
        np.arange(raw.shape[1]).reshape(2, -1, TILE)[:, :, order_of(codes=codes)].swapaxes(0, 1).reshape(-1, 2 * TILE)
    )
    out = np.empty(raw.shape[::-1], raw.dtype)
    for rows, chosen in zip(out.reshape(len(order), 2 * TILE, -1), order, strict=True):
        rows[:] = np.take(raw, chosen, axis=1).T  # a tile at a time stays in the cache: a fourth of the time of all
    return out.view(np.int32)


def order_of(*, codes: bool) -> NDArray[np.int64]:
    """Output that stands at each of the 128 places of a tile: int64 [place].

    The instruction gives a thread two of every eight columns: of the run `place // 8`, those of its quarter of a warp's
    four threads. So many runs as fill 16 bytes are made neighbours.
    """
    runs = 8 if codes else 4
    place = np.arange(TILE)
    run, quarter, second = place // 8, place % 8 // 2, place % 2
    return run // runs * (8 * runs) + quarter * (2 * runs) + run % runs * 2 + second
