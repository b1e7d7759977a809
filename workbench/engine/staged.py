"""Graphs run stage by stage: each stage ends where a value is ready that products with weights read.

What a stage computes is kept for as long as a later one needs it, so that every node runs once, with weights that may
have been changed by then. Only the weights of one stage are in memory.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.engine.batch import make_feeds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from workbench.graph import Graph

Read = tuple[str, tuple[str, ...]]


class Staged:
    """A graph, and how far prompts have come in it.

    Parameters
    ----------
    graph : Graph
        Float32, primitive lowering, all positions.
    prompts : sequence of int32 [token]
        Those of one length run together; none is padded.
    """

    def __init__(self, graph: Graph, prompts: Sequence[NDArray[np.int32]]) -> None:
        self._graph = graph
        self._nodes = list(graph.model.graph.node)
        self._reads, cuts = _reads(graph)
        self._spans = tuple(pairwise((0, *cuts)))
        self._last = {name: at for at, node in enumerate(self._nodes) for name in node.input}
        lengths = sorted({len(prompt) for prompt in prompts})
        alike = ([prompt for prompt in prompts if len(prompt) == length] for length in lengths)
        self._values = [make_feeds(group, "all", graph.inputs[0].dtype) for group in alike]

    def __len__(self) -> int:
        return len(self._reads)

    def stages(self, weights: Callable[[str], NDArray[Any]]) -> Iterator[tuple[tuple[str, ...], NDArray[np.float32]]]:
        """Run to each value that products read, in the order of the graph.

        Parameters
        ----------
        weights : callable
            Gives an initialiser of the graph by name; it is asked when its stage runs.

        Yields
        ------
        modules : tuple of str
            The products that read the value.
        rows : float32 [token, in]
            Of all prompts, those of one length together.
        """
        for (value, modules), span in zip(self._reads, self._spans, strict=True):
            self._run(span, weights)
            width = self._graph.initialisers[f"{modules[0]}.weight"].shape[0]
            rows = [np.asarray(values[value], dtype=np.float32).reshape(-1, width) for values in self._values]
            yield modules, np.concatenate(rows)

    def _run(self, span: tuple[int, int], weights: Callable[[str], NDArray[Any]]) -> None:
        nodes = self._nodes[slice(*span)]
        made = [name for node in nodes for name in node.output if name]
        gives = [name for name in made if self._last.get(name, -1) >= span[1]]
        if gives:
            session = self._session(nodes, frozenset(made), gives, weights)
            for values in self._values:
                values.update(session.run({name: values[name] for name in session.inputs}))
        for values in self._values:
            for name in [name for name in values if self._last.get(name, -1) < span[1]]:
                del values[name]

    def _session(
        self, nodes: Sequence[Any], made: frozenset[str], gives: Sequence[str], weights: Callable[[str], NDArray[Any]]
    ) -> Any:
        from onnx import ValueInfoProto, helper

        from workbench.engine.ort_session import OrtSession
        from workbench.engine.plan_files import fill_places
        from workbench.graph.artefact import external

        body, lazy = self._graph.model.graph, self._graph.initialisers
        used = {name for node in nodes for name in node.input}
        arrays = {name: weights(name) for name in lazy if name in used}
        tensors = [tensor for tensor in body.initializer if tensor.name in used and tensor.name not in lazy]
        tensors += [external(name, lazy[name]) for name in arrays]
        known = self._values[0]
        inputs = [
            helper.make_tensor_value_info(
                name, helper.np_dtype_to_tensor_dtype(known[name].dtype), [None] * known[name].ndim
            )
            for name in sorted((used - made) & known.keys())
        ]
        outputs = [ValueInfoProto(name=name) for name in gives]  # ONNX Runtime finds their types
        part = helper.make_graph(nodes, body.name, inputs, outputs, tensors)
        source = self._graph.model
        model = helper.make_model(part, opset_imports=source.opset_import, ir_version=source.ir_version)
        fill_places(model, {name: (0, array.nbytes) for name, array in arrays.items()})
        return OrtSession(model.SerializeToString(deterministic=True), arrays)


def _reads(graph: Graph) -> tuple[tuple[Read, ...], tuple[int, ...]]:
    """Values that products read, with the products of each, and where in the graph the first of them stands."""
    matrices = {f"{module}.weight": module for module in graph.policy}
    modules: dict[str, list[str]] = {}
    cuts: list[int] = []
    for at, node in enumerate(graph.model.graph.node):
        module = matrices.get(node.input[1]) if node.op_type == "MatMul" and len(node.input) > 1 else None
        if module is None:
            continue
        if node.input[0] not in modules:
            cuts.append(at)
        modules.setdefault(node.input[0], []).append(module)
    return tuple((value, tuple(names)) for value, names in modules.items()), tuple(cuts)
