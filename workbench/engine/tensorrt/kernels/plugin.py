"""The plugins: what TensorRT asks of an own operator, and the launch of its kernel on TensorRT's stream."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.errors import EngineError
from workbench.graph.fused import ADD_NORM, ATTENTION, GATE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from workbench.engine.tensorrt.api import Api
    from workbench.engine.tensorrt.driver import Driver
    from workbench.engine.tensorrt.kernels.compiling import Kernel

_WHOLE, _REAL = np.int32, np.float32
# What each operator is told, in the order of the plan; `step` is 0 where it writes bf16 and no codes
FIELDS: dict[str, dict[str, type[Any]]] = {
    ATTENTION: {
        "heads": _WHOLE,
        "kv_heads": _WHOLE,
        "head_dim": _WHOLE,
        "interleaved": _WHOLE,
        "scale": _REAL,
        "step": _REAL,
    },
    GATE: {"width": _WHOLE, "step": _REAL},
    ADD_NORM: {"width": _WHOLE, "wide": _WHOLE, "eps": _REAL, "step": _REAL},
}


def sizes_of(operator: str, values: Mapping[str, Any]) -> dict[str, int]:
    """Give what a kernel is compiled for."""
    sizes = {name: int(values[name]) for name, kind in FIELDS[operator].items() if kind is _WHOLE}
    return sizes | {"codes": int(values["step"] > 0)}


def operators_of(model: Any) -> list[tuple[str, dict[str, int]]]:
    """List own operators of an ONNX model with their sizes, each once."""
    found = []
    for node in model.graph.node:
        if node.op_type in FIELDS:
            values = {a.name: a.f if FIELDS[node.op_type][a.name] is _REAL else a.i for a in node.attribute}
            entry = (node.op_type, sizes_of(node.op_type, values))
            if entry not in found:
                found.append(entry)
    return found


class Launcher:
    """Loaded kernels by shape; launches are asynchronous.

    Parameters
    ----------
    driver : Driver
        CUDA.
    """

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._functions: dict[tuple[object, ...], list[tuple[Kernel, int]]] = {}

    def add(self, kernels: tuple[Kernel, ...]) -> None:
        """Load kernels; the same operator and sizes again replace them."""
        for kernel in kernels:
            key = _key(kernel.operator, kernel.sizes)
            others = [pair for pair in self._functions.get(key, []) if pair[0].tile != kernel.tile]
            function = self._driver.load_function(kernel.code, kernel.name, shared_bytes=kernel.shared_bytes)
            self._functions[key] = sorted([*others, (kernel, function)], key=lambda pair: pair[0].tile)

    def launch(self, operator: str, values: Mapping[str, Any], dims: Any, addresses: list[int], stream: int) -> None:
        """Launch the smallest kernel that takes prompts of this length."""
        prompts, tokens = dims[0], dims[1]
        found = self._functions[_key(operator, sizes_of(operator, values))]
        kernel, function = next(pair for pair in found if pair[0].tile >= tokens or not pair[0].tile)
        step = values["step"]
        levels = 1 / step if step > 0 else 1.0
        arguments: list[Any] = [ctypes.c_void_p(address) for address in addresses]
        if operator == ATTENTION:
            arguments += [ctypes.c_int32(tokens), ctypes.c_float(values["scale"])]
        elif operator == ADD_NORM:
            arguments.append(ctypes.c_float(values["eps"]))
        arguments += [ctypes.c_float(levels), *[ctypes.c_void_p(0)] * kernel.extra]
        rows = prompts if operator == ATTENTION else prompts * tokens
        if rows:
            self._driver.launch_function(
                function, rows * kernel.programs_a_row, 32 * kernel.warps, kernel.shared_bytes, arguments, stream
            )


def _key(operator: str, sizes: Mapping[str, int]) -> tuple[object, ...]:
    return (operator, *sorted(sizes.items()))


@cache
def launcher(driver: Driver) -> Launcher:
    """The one launcher of a card."""
    return Launcher(driver)


@cache
def register(api: Api, driver: Driver) -> tuple[Any, ...]:
    """Make the plugins known to TensorRT, once."""
    creators = tuple(make_creator(api, launcher(driver), operator) for operator in FIELDS)
    registry = api.trt.get_plugin_registry()
    if not all(registry.register_creator(creator, "") for creator in creators):
        raise EngineError("TensorRT must take the workbench's plugins", "a refusal", "Leave the option kernels out.")
    return creators


def make_creator(api: Api, kernels: Launcher, operator: str) -> Any:  # noqa: C901 - one class in another, as the API is
    """Define plugin and creator of an operator over this TensorRT's base classes."""
    trt: Any = api.trt
    v3: Any = (trt.IPluginV3, trt.IPluginV3OneCore, trt.IPluginV3OneBuild, trt.IPluginV3OneRuntime)
    kinds = FIELDS[operator]
    alive: list[Any] = []  # TensorRT keeps addresses of what it was given, not the objects

    def fields(values: dict[str, Any]) -> Any:
        types = {np.int32: trt.PluginFieldType.INT32, np.float32: trt.PluginFieldType.FLOAT32}
        arrays = [np.array([values[name]], dtype=kind) for name, kind in kinds.items()]
        made = [trt.PluginField(*part) for part in zip(kinds, arrays, map(types.get, kinds.values()), strict=True)]
        collection = trt.PluginFieldCollection(made)
        alive.append((arrays, made, collection))
        return collection

    class Plugin(*v3):  # type: ignore[misc]
        def __init__(self, values: dict[str, Any]) -> None:
            trt.IPluginV3.__init__(self)
            trt.IPluginV3OneCore.__init__(self)
            trt.IPluginV3OneBuild.__init__(self)
            trt.IPluginV3OneRuntime.__init__(self)
            self.values = values
            self.num_outputs = 2 if operator == ADD_NORM else 1
            self.plugin_namespace, self.plugin_name, self.plugin_version = "", operator, "1"

        def get_capability_interface(self, _kind: Any) -> Any:
            return self

        def _types(self) -> list[Any]:
            kind = trt.DataType
            out = kind.FP8 if self.values["step"] > 0 else kind.BF16
            if operator == ATTENTION:
                return [kind.BF16, kind.FLOAT, kind.FLOAT, out]
            if operator == GATE:
                return [kind.BF16, out]
            stream = kind.FLOAT if self.values["wide"] else kind.BF16
            return [stream, kind.BF16, kind.FLOAT, stream, out]

        def get_output_data_types(self, _input_types: Any) -> Any:
            return self._types()[-self.num_outputs :]

        def get_output_shapes(self, inputs: Any, _shapes: Any, builder: Any) -> Any:
            if operator == ADD_NORM:
                return [trt.DimsExprs(inputs[0]), trt.DimsExprs(inputs[0])]
            out = trt.DimsExprs(inputs[0])
            width = self.values["heads"] * self.values["head_dim"] if operator == ATTENTION else self.values["width"]
            out[2] = builder.constant(width)
            return [out]

        def get_fields_to_serialize(self) -> Any:
            return fields(self.values)

        def configure_plugin(self, _inputs: Any, _outputs: Any) -> None:
            pass

        def on_shape_change(self, _inputs: Any, _outputs: Any) -> None:
            pass

        def supports_format_combination(self, pos: int, in_out: Any, _num_inputs: int) -> bool:
            found = in_out[pos].desc
            return bool(found.format == trt.TensorFormat.LINEAR and found.type == self._types()[pos])

        def enqueue(
            self, input_desc: Any, _output_desc: Any, inputs: Any, outputs: Any, _workspace: int, stream: int
        ) -> None:
            kernels.launch(operator, self.values, tuple(input_desc[0].dims), [*inputs, *outputs], stream)

        def attach_to_context(self, _context: Any) -> Any:
            made = self.clone()
            alive.append(made)
            return made

        def set_tactic(self, _tactic: int) -> None:
            pass

        def clone(self) -> Any:
            return Plugin(dict(self.values))

    class Creator(trt.IPluginCreatorV3One):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.IPluginCreatorV3One.__init__(self)
            self.name, self.plugin_namespace, self.plugin_version = operator, "", "1"
            self.field_names = fields(dict.fromkeys(kinds, 0))

        def create_plugin(self, _name: str, collection: Any, _phase: Any) -> Any:
            # the collection belongs to TensorRT: values are copied out of it
            read = {field.name: np.asarray(field.data).reshape(-1)[0] for field in collection}
            return Plugin({name: kind(read.get(name, 0)).item() for name, kind in kinds.items()})

    return Creator()
