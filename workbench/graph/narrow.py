"""Lower precision: a float32 graph in primitive operators becomes one in bf16, fp16, FP8 or INT8.

Every value takes the narrow type, except where float32 is needed: norms, the mean over tokens, and masks made from
integers. FP8 and INT8 are written as pairs of QuantizeLinear and DequantizeLinear around each product with weights,
over bf16; strongly typed runtimes read types from the graph alone. The same graph runs on a CPU: `emulate` keeps
float32 kernels and rounds after every operator, since ONNX Runtime has none for bf16 there.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.errors import ContractError, UnsupportedError
from workbench.graph.artefact import LazyTensor, external
from workbench.graph.fused import ADD_NORM, ATTENTION, GATE, OWN, attribute
from workbench.graph.kinds import KINDS, narrow_dtype, step_of
from workbench.graph.naming import is_named

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from workbench.graph.artefact import Graph, TensorSpec

LARGEST = 30000.0  # fp16 ends at 65,504; only masks hold larger constants
LOWERINGS = ("primitive", "packed", "fused", "fused_gate", "fused_norm")
_FLOAT = 1
_TABLES = frozenset({ATTENTION})  # operators whose second and further inputs stay float32
_POINTWISE = frozenset({"Mul", "Neg", "Split", "Concat", "Sigmoid", "Relu"})
_MOVES = frozenset({"MatMul", "Reshape", "Transpose", "Softmax", "Gather", ATTENTION, GATE})
_INTEGERS_OUT = frozenset(
    {"Shape", "NonZero", "Equal", "Less", "LessOrEqual", "Greater", "And", "Range", "Size", "ArgMax"}
)
_WIDE, _NARROW = "wide", "narrow"
PACKED = {"qkv": ("q", "k", "v"), "gate_up": ("gate", "up")}  # products of several matrices side by side


def narrow(
    graph: Graph,
    precision: str,
    *,
    ranges: Mapping[str, float] | None = None,
    weight_ranges: Mapping[str, float] | None = None,
    keep: Sequence[str] = (),
    stored: bool = True,
    emulate: bool = False,
) -> Graph:
    """Give a graph in lower precision.

    Parameters
    ----------
    graph : Graph
        Float32, primitive lowering.
    precision : str
        A key of `KINDS`.
    ranges : mapping of str to float
        Largest absolute input of each product, by canonical module; a module without one is not quantised.
    weight_ranges : mapping of str to float, optional
        Largest absolute weight of each matrix, where it is known already; else it is read.
    keep : sequence of str
        Modules whose products are not quantised; `*` and `?` stand for any part of a name.
    stored : bool
        Whether quantised weights are stored as such; else the graph quantises them, for runtimes that take no FP8
        weights and fold them while building.
    emulate : bool
        Keep float32 kernels and round after each operator.

    Returns
    -------
    Graph
        Taps leave in the narrow type, the mean over tokens in float32.

    Raises
    ------
    ContractError
        If the precision is not known, or the graph is not float32 in primitive operators.
    UnsupportedError
        If the decoder has position biases that would not survive the narrow type.
    """
    if precision not in KINDS or graph.lowering not in LOWERINGS or graph.precision != "fp32":
        raise ContractError(
            f"a graph to be narrowed must be float32 and primitive, the precision one of {', '.join(KINDS)}",
            f"{graph.precision}, {graph.lowering} and {precision!r}",
            "Build the graph with lowering='primitive'.",
        )
    if graph.config.alibi is not None:
        raise UnsupportedError(
            "lower precision must not blur position biases", "a decoder with alibi", "Build it in fp32."
        )
    quantised = {}
    if KINDS[precision].products is not None:
        chosen = [module for module in graph.policy if module in (ranges or {}) and not is_named(module, keep)]
        quantised = {module: float((ranges or {})[module]) for module in chosen}
    return _Narrower(graph, precision, quantised, weight_ranges or {}, emulate=emulate, stored=stored).write()


def packed(graph: Graph, quantised: Mapping[str, float]) -> dict[str, float]:
    """Give matrices that stand side by side in one product one range; where one is not quantised, none is."""
    found = dict(quantised)
    for name in graph.initialisers:
        prefix, _, module = name.removesuffix(".weight").rpartition(".")
        parts = [f"{prefix}.{part}" for part in PACKED.get(module, ())]
        if not parts or not name.endswith(".weight"):
            continue
        if all(part in quantised for part in parts):
            found[f"{prefix}.{module}"] = max(quantised[part] for part in parts)
        else:
            found = {name: value for name, value in found.items() if name not in parts}
    return found


class _Narrower:
    """Writes the narrow graph node by node."""

    def __init__(
        self,
        graph: Graph,
        precision: str,
        quantised: Mapping[str, float],
        weight_ranges: Mapping[str, float],
        *,
        emulate: bool,
        stored: bool,
    ) -> None:
        from onnx import TensorProto, numpy_helper

        self.graph, self.kind, self.precision = graph, KINDS[precision], precision
        self.quantised = packed(graph, quantised)
        self.weight_ranges, self.emulate, self.stored = weight_ranges, emulate, stored
        self.values = np.dtype(np.float32) if emulate else narrow_dtype(self.kind.values)
        self.module_of = {f"{module}.weight": module for module in self.quantised}
        self.constants = {
            tensor.name: numpy_helper.to_array(tensor)
            for tensor in graph.model.graph.initializer
            if tensor.data_location != TensorProto.EXTERNAL
        }
        self.types: dict[str, str] = {}
        self.nodes: list[Any] = []
        self.small: dict[str, NDArray[Any]] = {}
        self.lazy: dict[str, LazyTensor] = {}
        self.made: dict[object, str] = {}
        self.islands, self.shores = norms_of(graph.model)
        self.users = Counter(name for node in graph.model.graph.node for name in node.input)
        self.users.update(output.name for output in graph.model.graph.output)
        # sums in float32 halve the error of bf16; beside that of FP8 it does not show, and costs traffic
        self.stream = stream_of(graph.model) if self.kind.products is None else frozenset()
        self.cache = {spec.name for spec in graph.outputs} - set(graph.taps)  # is kept as products read it: narrow

    def write(self) -> Graph:
        from onnx import helper, numpy_helper

        source = self.graph.model
        for node in source.graph.node:
            self._node(node)
        for node in self.nodes:
            if node.op_type in OWN:
                attribute(node, "half").i = int(self.kind.values == "float16")
        outputs = tuple(replace(spec, dtype=self._dtype_name(spec)) for spec in self.graph.outputs)
        infos = [
            helper.make_tensor_value_info(s.name, helper.np_dtype_to_tensor_dtype(narrow_dtype(s.dtype)), list(s.axes))
            for s in outputs
        ]
        tensors = [numpy_helper.from_array(array, name) for name, array in self.small.items()]
        tensors += [external(name, tensor) for name, tensor in self.lazy.items()]
        body = helper.make_graph(self.nodes, source.graph.name, list(source.graph.input), infos, tensors)
        model = helper.make_model(
            body, opset_imports=list(source.opset_import), ir_version=source.ir_version, producer_name="workbench"
        )
        base = {"float16": "fp16", "bfloat16": "bf16"}[self.kind.values]
        policy = {module: self.precision if module in self.quantised else base for module in self.graph.policy}
        return replace(
            self.graph,
            model=model,
            initialisers=self.lazy,
            outputs=outputs,
            precision=self.precision,
            policy=policy,
        )

    def _dtype_name(self, spec: TensorSpec) -> str:
        if spec.name not in self.types:  # a token id
            return spec.dtype
        return "float32" if self.types[spec.name] == _WIDE else str(self.values)

    # Nodes --------------------------------------------------------------------------------------------------------

    def _node(self, node: Any) -> None:
        if node.op_type == ADD_NORM:
            return self._add_norm(node)
        wide = id_of(node) in self.islands or self._is_mean(node) or self._is_pointwise(node)
        kinds = {self.types[name] for name in node.input if name in self.types}
        moved = node.op_type in _MOVES and id_of(node).startswith("blocks.")
        if kinds == {_WIDE} and (moved or node.output[0] in self.cache):
            kinds = {_NARROW}  # what is moved or multiplied in full is narrow
        floats = [name for name in node.input if name in self.types or self._is_float(name)]
        if node.op_type == "Cast" or (kinds == {_WIDE} and not wide):
            return self._copy(node, list(node.input), _WIDE if self._casts_to_float(node) or kinds else None)
        if not floats:
            return self._copy(node, list(node.input), None)
        target = _WIDE if wide else _NARROW
        typed = floats if node.op_type not in _TABLES else node.input[:1]
        inputs = [self._typed(name, target) if name in typed else name for name in node.input]
        if node.op_type == "MatMul" and node.input[1] in self.module_of:
            inputs = self._quantised(node, inputs[0])
        self._copy(node, inputs, None if node.op_type in _INTEGERS_OUT else target)
        return None

    def _add_norm(self, node: Any) -> None:
        """Keep the stream in float32 where products are not quantised, as its sums are; the norm leaves narrow."""
        stream = _WIDE if self.kind.products is None else _NARROW
        kinds = zip(node.input, (stream, _NARROW, _WIDE), strict=True)
        self._copy(node, [self._typed(name, kind) for name, kind in kinds], None)
        attribute(self.nodes[-1], "wide").i = int(stream == _WIDE)
        self.types.update(zip(node.output, (stream, _NARROW), strict=True))

    def _casts_to_float(self, node: Any) -> bool:
        return node.op_type == "Cast" and any(a.name == "to" and a.i == _FLOAT for a in node.attribute)

    def _is_pointwise(self, node: Any) -> bool:
        """Whether a node belongs to a chain that is computed in registers: rope, and the activation of the MLP."""
        if node.op_type in ("Slice", "Gather") and node.input[0].startswith("angle"):
            return True
        if node.op_type == "Add" and node.output[0] in self.stream:
            return True
        if node.op_type not in _POINTWISE or not id_of(node).startswith("blocks."):
            return False
        if node.op_type == "Split" and len(node.output) > 2:
            return False
        return not any(self.constants[name].size == 1 for name in node.input if self._is_scalar(name))

    def _is_scalar(self, name: str) -> bool:
        array = self.constants.get(name)
        return array is not None and array.dtype == np.float32

    def _is_mean(self, node: Any) -> bool:
        return node.op_type == "MatMul" and id_of(node).startswith("rows/")

    def _is_float(self, name: str) -> bool:
        array = self.constants.get(name)
        return array.dtype == np.float32 if array is not None else name in self.graph.initialisers

    def _copy(self, node: Any, inputs: list[str], kind: str | None) -> None:
        from onnx import NodeProto

        copy = NodeProto()
        copy.CopyFrom(node)
        del copy.input[:]
        copy.input.extend(self._plain(name) for name in inputs)
        self.nodes.append(copy)
        outputs = [name for name in node.output if name]
        floats = outputs[:1] if node.op_type == "TopK" else outputs
        if kind is not None:
            self.types.update(dict.fromkeys(floats, kind))
        if id_of(node) in self.shores:
            self._leave_island(copy, node.output[0])
        elif kind == _NARROW and self.emulate and node.op_type not in ("Identity", "Reshape", "Transpose", "Slice"):
            for index, name in enumerate(node.output):
                if name in floats:
                    copy.output[index] = f"{name}/exact"
                    self._round(f"{name}/exact", name)

    def _leave_island(self, copy: Any, name: str) -> None:
        copy.output[0] = f"{name}/exact"
        self.types[name] = _NARROW
        if self.emulate:
            self._round(f"{name}/exact", name)
        else:
            self._add("Cast", [f"{name}/exact"], name, to=self._code(self.values))

    def _round(self, wide: str, name: str) -> None:
        self._add("Cast", [wide], f"{name}/rounded", to=self._code(narrow_dtype(self.kind.values)))
        self._add("Cast", [f"{name}/rounded"], name, to=_FLOAT)

    def _add(self, op: str, inputs: list[str], output: str, **attributes: Any) -> str:
        from onnx import helper

        self.nodes.append(helper.make_node(op, inputs, [output], name=f"{output}:{op}", **attributes))
        return output

    def _code(self, dtype: np.dtype[Any]) -> int:
        from onnx import helper

        return int(helper.np_dtype_to_tensor_dtype(dtype))

    # Values -------------------------------------------------------------------------------------------------------

    def _plain(self, name: str) -> str:
        """Declare a constant that keeps its type."""
        if name in self.constants and name not in self.small:
            self.small[name] = self.constants[name]
        return name

    def _typed(self, name: str, target: str) -> str:
        """Give a float value in the wide or narrow type."""
        if name in self.types:
            return name if self.types[name] == target else self._cast(name, target)
        if target == _WIDE:
            if name in self.graph.initialisers:
                self.lazy[name] = self.graph.initialisers[name]
            return self._plain(name)
        return self._narrow_constant(name)

    def _cast(self, name: str, target: str) -> str:
        if self.emulate and target == _WIDE:
            return name
        made = f"{name}/{target}"
        if made not in self.types:
            if self.emulate:
                self._round(name, made)
            else:
                self._add("Cast", [name], made, to=_FLOAT if target == _WIDE else self._code(self.values))
            self.types[made] = target
        return made

    def _narrow_constant(self, name: str) -> str:
        if name in self.graph.initialisers:
            if self._module(name) is None:
                self.lazy[name] = self._narrowed(self.graph.initialisers[name])
            return name
        made = f"{name}/narrow"
        if made not in self.small:
            self.small[made] = self._rounded(np.clip(self.constants[name], -LARGEST, LARGEST))
        return made

    def _module(self, name: str) -> str | None:
        return self.module_of.get(name)

    def _rounded(self, array: NDArray[np.float32]) -> NDArray[Any]:
        rounded = array.astype(narrow_dtype(self.kind.values))
        return rounded.astype(np.float32) if self.emulate else rounded

    def _narrowed(self, tensor: LazyTensor) -> LazyTensor:
        return LazyTensor(dtype=self.values, shape=tensor.shape, make=lambda: self._rounded(tensor.load()))

    # Products -----------------------------------------------------------------------------------------------------

    def _quantised(self, node: Any, x: str) -> list[str]:
        name = node.input[1]
        module = self.module_of[name]
        return [self._activation(x, step_of(self.quantised[module], self.kind)), self._matrix(name, module)]

    def _scalar(self, value: float, dtype: np.dtype[Any]) -> str:
        name = f"step.{value!r}.{dtype}"
        self.small[name] = np.array(value, dtype=dtype)
        return name

    def _activation(self, x: str, step: float) -> str:
        key = (x, step)
        if key not in self.made:
            assert self.kind.products is not None
            scale = self._scalar(step, self.values)
            codes = self._codes_of_kernel(x, step)
            if codes:
                self.made[key] = self._add("DequantizeLinear", [codes, scale], f"{codes}/values")
                return self.made[key]
            zero = self._scalar(0, narrow_dtype(self.kind.products))
            codes = self._add("QuantizeLinear", [x, scale, zero], f"{x}/codes.{len(self.made)}")
            self.made[key] = self._add("DequantizeLinear", [codes, scale], f"{codes}/values")
        return self.made[key]

    def _codes_of_kernel(self, x: str, step: float) -> str:
        """Let an own kernel write the codes itself, where a product is all that reads its result."""
        node = next((node for node in reversed(self.nodes) if x in node.output), None)
        if node is None or node.op_type not in OWN or self.kind.products != "float8_e4m3fn":
            return ""
        if self.users[x] > 1 or x != node.output[-1]:
            return ""
        attribute(node, "step").f = step
        node.output[-1] = f"{x}/codes"
        return str(node.output[-1])

    def _matrix(self, name: str, module: str) -> str:
        made = f"{name}/values"
        if name not in self.lazy:
            codes, steps, attributes = self._codes(module, self.graph.initialisers[name])
            self.lazy[name], self.lazy[f"{name}.step"] = codes, steps
            source = name
            if not self.stored:
                self.lazy[name] = self._narrowed(self.graph.initialisers[name])
                zero = self._zero(codes.dtype, steps.shape)
                source = self._add("QuantizeLinear", [name, f"{name}.step", zero], f"{name}/codes", **attributes)
            self._add("DequantizeLinear", [source, f"{name}.step"], made, **attributes)
        return made

    def _zero(self, dtype: np.dtype[Any], shape: tuple[int, ...]) -> str:
        name = f"zero.{dtype}.{shape}"
        self.small[name] = np.zeros(shape, dtype=dtype)
        return name

    def _codes(self, module: str, tensor: LazyTensor) -> tuple[LazyTensor, LazyTensor, dict[str, int]]:
        """Codes and steps of a matrix [in, out]: one step, or one an output."""
        kind = self.kind
        assert kind.products is not None
        target = narrow_dtype(kind.products)
        known = self.weight_ranges.get(module)

        @cache
        def steps() -> NDArray[np.float32]:
            if kind.per_channel:
                largest = np.abs(tensor.load()).max(axis=0)
                return np.array([step_of(float(value), kind) for value in largest], dtype=np.float32)
            largest_of_all = known if known is not None else float(np.abs(tensor.load()).max())
            return np.array(step_of(largest_of_all, kind), dtype=np.float32)

        def codes() -> NDArray[Any]:
            scaled = np.clip(tensor.load() / steps(), -kind.largest, kind.largest)
            return (np.rint(scaled) if kind.products == "int8" else scaled).astype(target)

        shape = (tensor.shape[1],) if kind.per_channel else ()
        return (
            LazyTensor(dtype=target, shape=tensor.shape, make=codes),
            LazyTensor(dtype=self.values, shape=shape, make=_once(steps, self.values)),
            {"axis": 1} if kind.per_channel else {},
        )


def _once(steps: Callable[[], NDArray[np.float32]], dtype: np.dtype[Any]) -> Callable[[], NDArray[Any]]:
    return lambda: steps().astype(dtype)


def id_of(node: Any) -> str:
    """Name of a node, which `Emitter` makes unique."""
    return str(node.name)


def norms_of(model: Any) -> tuple[set[str], set[str]]:
    """Find the nodes of norms, which are computed in float32, and those whose result goes back to the narrow type."""
    users: dict[str, list[Any]] = {}
    makers = {name: node for node in model.graph.node for name in node.output}
    for node in model.graph.node:
        for name in node.input:
            users.setdefault(name, []).append(node)
    islands, shores = set(), set()
    for node in model.graph.node:
        if node.op_type == "LayerNormalization":
            islands.add(id_of(node))
            shores.add(id_of(node))
        if node.op_type != "ReduceMean":
            continue
        square = makers[node.input[0]]
        plus = users[node.output[0]][0]
        root = users[plus.output[0]][0]
        ratio = users[root.output[0]][0]
        scaled = users[ratio.output[0]][0]
        islands.update(id_of(part) for part in (square, node, plus, root, ratio, scaled))
        shores.add(id_of(scaled))
    return islands, shores


def stream_of(model: Any) -> frozenset[str]:
    """Name the sums of the residual stream: what is added and not a mask, so that no softmax reads it."""
    masked = {node.input[0] for node in model.graph.node if node.op_type == "Softmax"}
    return frozenset(n.output[0] for n in model.graph.node if n.op_type == "Add" and n.output[0] not in masked)
