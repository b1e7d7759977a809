"""The plugin: what TensorRT asks of an own operator, and the launch of the kernel on TensorRT's stream."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.errors import EngineError
from workbench.graph.fused import KERNEL

if TYPE_CHECKING:
    from workbench.engine.tensorrt.api import Api
    from workbench.engine.tensorrt.attention.compiling import Kernel
    from workbench.engine.tensorrt.driver import Driver

_FIELDS = (
    ("heads", np.int32),
    ("kv_heads", np.int32),
    ("head_dim", np.int32),
    ("interleaved", np.int32),
    ("scale", np.float32),
)


class Launcher:
    """Loaded kernels by shape; launches are asynchronous.

    Parameters
    ----------
    driver : Driver
        CUDA.
    """

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._functions: dict[tuple[int, ...], list[tuple[Kernel, int]]] = {}

    def add(self, kernels: tuple[Kernel, ...]) -> None:
        """Load kernels; the same shape again replaces them."""
        for kernel in sorted(kernels, key=lambda kernel: kernel.tile):
            key = (kernel.heads, kernel.kv_heads, kernel.head_dim, kernel.interleaved)
            found = [pair for pair in self._functions.get(key, []) if pair[0].tile != kernel.tile]
            function = self._driver.load_function(kernel.code, kernel.name, shared_bytes=kernel.shared_bytes)
            self._functions[key] = sorted([*found, (kernel, function)], key=lambda pair: pair[0].tile)

    def launch(
        self, shape: tuple[int, ...], scale: float, prompts: int, tokens: int, addresses: list[int], stream: int
    ) -> None:
        """Launch the smallest kernel that takes prompts of this length."""
        kernel, function = next(pair for pair in self._functions[shape] if pair[0].tile >= tokens)
        values = [ctypes.c_void_p(address) for address in addresses]
        values += [ctypes.c_int32(tokens), ctypes.c_float(scale)]  # type: ignore[list-item]
        values += [ctypes.c_void_p(0)] * kernel.extra
        self._driver.launch_function(
            function, prompts * kernel.heads, 32 * kernel.warps, kernel.shared_bytes, values, stream
        )


@cache
def launcher(driver: Driver) -> Launcher:
    """The one launcher of a card."""
    return Launcher(driver)


@cache
def register(api: Api, driver: Driver) -> Any:
    """Make the plugin known to TensorRT, once."""
    creator = make_creator(api, launcher(driver))
    registry = api.trt.get_plugin_registry()
    if not registry.register_creator(creator, ""):
        raise EngineError("TensorRT must take the attention plugin", "a refusal", "Leave the option attention out.")
    return creator


def make_creator(api: Api, kernels: Launcher) -> Any:  # noqa: C901 - one class inside another, as the API wants it
    """Define plugin and creator over this TensorRT's base classes."""
    trt: Any = api.trt
    v3: Any = (trt.IPluginV3, trt.IPluginV3OneCore, trt.IPluginV3OneBuild, trt.IPluginV3OneRuntime)
    alive: list[Any] = []  # TensorRT keeps addresses of what it was given, not the objects

    def fields(values: dict[str, Any]) -> Any:
        kinds = {np.int32: trt.PluginFieldType.INT32, np.float32: trt.PluginFieldType.FLOAT32}
        arrays = [np.array([values[name]], dtype=kind) for name, kind in _FIELDS]
        made = [trt.PluginField(name, array, kinds[kind]) for (name, kind), array in zip(_FIELDS, arrays, strict=True)]
        collection = trt.PluginFieldCollection(made)
        alive.append((arrays, made, collection))
        return collection

    class RopeAttention(*v3):  # type: ignore[misc]
        def __init__(self, values: dict[str, Any]) -> None:
            trt.IPluginV3.__init__(self)
            trt.IPluginV3OneCore.__init__(self)
            trt.IPluginV3OneBuild.__init__(self)
            trt.IPluginV3OneRuntime.__init__(self)
            self.values = values
            self.num_outputs = 1
            self.plugin_namespace, self.plugin_name, self.plugin_version = "", KERNEL, "1"

        def get_capability_interface(self, _kind: Any) -> Any:
            return self

        def get_output_data_types(self, input_types: Any) -> Any:
            return [input_types[0]]

        def get_output_shapes(self, inputs: Any, _shapes: Any, builder: Any) -> Any:
            out = trt.DimsExprs(inputs[0])
            out[2] = builder.constant(self.values["heads"] * self.values["head_dim"])
            return [out]

        def get_fields_to_serialize(self) -> Any:
            return fields(self.values)

        def configure_plugin(self, _inputs: Any, _outputs: Any) -> None:
            pass

        def on_shape_change(self, _inputs: Any, _outputs: Any) -> None:
            pass

        def supports_format_combination(self, pos: int, in_out: Any, _num_inputs: int) -> bool:
            wanted = trt.DataType.FLOAT if pos in (1, 2) else trt.DataType.BF16
            found = in_out[pos].desc
            return bool(found.format == trt.TensorFormat.LINEAR and found.type == wanted)

        def enqueue(
            self, input_desc: Any, _output_desc: Any, inputs: Any, outputs: Any, _workspace: int, stream: int
        ) -> None:
            shape = tuple(self.values[name] for name, kind in _FIELDS if kind is np.int32)
            prompts, tokens, _ = input_desc[0].dims
            kernels.launch(shape, self.values["scale"], prompts, tokens, [*inputs, outputs[0]], stream)

        def attach_to_context(self, _context: Any) -> Any:
            made = self.clone()
            alive.append(made)
            return made

        def set_tactic(self, _tactic: int) -> None:
            pass

        def clone(self) -> Any:
            return RopeAttention(dict(self.values))

    class Creator(trt.IPluginCreatorV3One):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.IPluginCreatorV3One.__init__(self)
            self.name, self.plugin_namespace, self.plugin_version = KERNEL, "", "1"
            self.field_names = fields(dict.fromkeys((name for name, _ in _FIELDS), 0))

        def create_plugin(self, _name: str, collection: Any, _phase: Any) -> Any:
            # the collection belongs to TensorRT: values are copied out of it
            read = {field.name: np.asarray(field.data).reshape(-1)[0] for field in collection}
            return RopeAttention({name: kind(read[name]).item() for name, kind in _FIELDS})

    return Creator()
