"""What products with weights read, and its largest value, which calibration takes from a graph."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from workbench.graph.artefact import Graph


def products(graph: Graph) -> dict[str, str]:
    """Name the value that each product with weights reads, by canonical module."""
    matrices = {f"{module}.weight": module for module in graph.policy}
    nodes = (node for node in graph.model.graph.node if node.op_type == "MatMul")
    return {matrices[node.input[1]]: node.input[0] for node in nodes if node.input[1] in matrices}


def watch(graph: Graph) -> dict[str, str]:
    """Let the largest absolute input of every product with weights leave a graph row by row, beside its taps.

    Parameters
    ----------
    graph : Graph
        Float32, primitive lowering; its model is changed.

    Returns
    -------
    dict of str to str
        Output, float32 [..., row], of each value that a product reads; an expert that no token chose has no rows.
    """
    from onnx import TensorProto, helper, numpy_helper

    body = graph.model.graph
    body.initializer.append(numpy_helper.from_array(np.array([-1], dtype=np.int64), "largest/axis"))
    found = {}
    for value in dict.fromkeys(products(graph).values()):
        name = f"largest/{value}"
        body.node.append(helper.make_node("Abs", [value], [f"{name}/abs"], name=f"{name}/abs"))
        # over the width alone: the largest of no rows at all would be left to the runtime
        body.node.append(helper.make_node("ReduceMax", [f"{name}/abs", "largest/axis"], [name], name=name, keepdims=0))
        body.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, None))
        found[value] = name
    return found
