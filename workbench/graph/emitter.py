"""Nodes, constants and lazy weights of a graph while it is written; what no output needs is dropped at the end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.graph.artefact import LazyTensor, TensorSpec, external

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

CONTRIB = "com.microsoft"


class Emitter:
    """Collects a graph.

    Parameters
    ----------
    opset, ir_version : int
        Versions that the model declares.
    """

    def __init__(self, *, opset: int, ir_version: int) -> None:
        self._opset = opset
        self._ir_version = ir_version
        self._nodes: list[Any] = []
        self._constants: dict[str, NDArray[Any]] = {}
        self._by_value: dict[tuple[str, tuple[int, ...], bytes], str] = {}
        self._lazy: dict[str, LazyTensor] = {}
        self._inputs: list[TensorSpec] = []
        self._outputs: list[tuple[str, TensorSpec]] = []
        self._memo: dict[object, Any] = {}
        self._scope = ""
        self._count = 0

    # Values -------------------------------------------------------------------------------------------------------

    def input(self, spec: TensorSpec) -> str:
        """Declare an input; its name is its value."""
        self._inputs.append(spec)
        return spec.name

    def output(self, value: str, spec: TensorSpec) -> None:
        """Let a value leave the graph under the name of its tap."""
        self._outputs.append((value, spec))

    def output_value(self, name: str) -> str:
        """Give the value that leaves under a name."""
        return next(value for value, spec in self._outputs if spec.name == name)

    def drop_output(self, name: str) -> None:
        """Let an output stay inside after all."""
        self._outputs = [(value, spec) for value, spec in self._outputs if spec.name != name]

    def scope(self, name: str) -> None:
        """Name the part of the decoder that the next nodes belong to."""
        self._scope = f"{name}/" if name else ""

    def constant(self, array: NDArray[Any], name: str = "constant") -> str:
        """Write a small array into the model; equal arrays share one."""
        array = np.asarray(array, order="C")  # a scalar stays without axes
        key = (str(array.dtype), array.shape, array.tobytes())
        if key not in self._by_value:
            self._by_value[key] = f"{name}.{len(self._by_value)}"
            self._constants[self._by_value[key]] = array
        return self._by_value[key]

    def integers(self, *values: int) -> str:
        """Write a short list of int64, as shapes and axes are given."""
        return self.constant(np.array(values, dtype=np.int64), "int64")

    def scalar(self, value: float) -> str:
        """Write one float32 without axes."""
        return self.constant(np.array(value, dtype=np.float32), "float32")

    def weight(self, name: str, tensor: LazyTensor) -> str:
        """Declare an external initialiser; the same name gives the same one."""
        self._lazy.setdefault(name, tensor)
        return name

    def memo(self, key: object, make: Any) -> Any:
        """Emit a value once for the whole graph; it must depend on inputs and constants alone."""
        if key not in self._memo:
            scope, self._scope = self._scope, ""
            self._memo[key] = make()
            self._scope = scope
        return self._memo[key]

    def op(self, kind: str, *inputs: str, domain: str = "", **attributes: Any) -> str:
        """Emit a node with one output and give its value."""
        return self.ops(kind, *inputs, domain=domain, n=1, **attributes)[0]

    def ops(
        self, kind: str, *inputs: str, n: int, domain: str = "", used: Sequence[int] = (), **attributes: Any
    ) -> list[str]:
        """Emit a node with n outputs; where `used` is given, only those are named."""
        from onnx import helper

        self._count += 1
        name = f"{self._scope}{kind}.{self._count}"
        values = [name if n == 1 else f"{name}.{i}" if not used or i in used else "" for i in range(n)]
        self._nodes.append(helper.make_node(kind, list(inputs), values, name=name, domain=domain, **attributes))
        return values

    # Model --------------------------------------------------------------------------------------------------------

    def finish(self, name: str) -> tuple[Any, dict[str, LazyTensor]]:
        """Give the model without its external weights, and these in the order of their use."""
        from onnx import helper, numpy_helper

        for value, spec in self._outputs:
            self._nodes.append(helper.make_node("Identity", [value], [spec.name], name=f"tap/{spec.name}"))
        nodes = self._needed()
        used = dict.fromkeys(name for node in nodes for name in node.input)
        lazy = {name: self._lazy[name] for name in used if name in self._lazy}
        tensors = [numpy_helper.from_array(self._constants[name], name) for name in used if name in self._constants]
        tensors += [external(name, tensor) for name, tensor in lazy.items()]
        graph = helper.make_graph(
            nodes, name, [_info(spec) for spec in self._inputs], [_info(spec) for _, spec in self._outputs], tensors
        )
        domains = sorted({node.domain for node in nodes})
        opsets = [helper.make_opsetid(domain, self._opset if not domain else 1) for domain in domains]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=self._ir_version, producer_name="workbench")
        return model, lazy

    def _needed(self) -> list[Any]:
        wanted = {spec.name for _, spec in self._outputs}
        kept = []
        for node in reversed(self._nodes):
            if wanted.intersection(node.output) - {""}:
                kept.append(node)
                wanted.update(node.input)
        return kept[::-1]


def _info(spec: TensorSpec) -> Any:
    from onnx import helper

    dtype = helper.np_dtype_to_tensor_dtype(np.dtype(spec.dtype))
    return helper.make_tensor_value_info(spec.name, dtype, list(spec.axes))
