"""The plugins: what TensorRT asks of an own operator; on its stream the kernel is launched."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.engine.tensorrt.kernels.launching import FIELDS, Launcher, launcher
from workbench.errors import EngineError
from workbench.graph.fused import ADD_NORM, ATTENTION, GATE, GATED_PRODUCT

if TYPE_CHECKING:
    from workbench.engine.tensorrt.api import Api
    from workbench.engine.tensorrt.driver import Driver


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
            value = kind.HALF if self.values["half"] else kind.BF16
            out = kind.FP8 if self.values["step"] > 0 else value
            if operator == ATTENTION:
                return [value, kind.FLOAT, kind.FLOAT, out]
            if operator == GATE:
                return [value, out]
            if operator == GATED_PRODUCT:
                return [kind.FP8, kind.INT32, value, out] if self.values["coded"] else [value, kind.INT32, out]
            stream = kind.FLOAT if self.values["wide"] else value
            return [stream, value, kind.FLOAT, stream, out]

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
