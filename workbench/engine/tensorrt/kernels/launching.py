"""What own operators are told, and the launch of their kernels."""

from __future__ import annotations

import ctypes
from functools import cache, cached_property, lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.graph.fused import ADD_NORM, ATTENTION, GATE, GATED_PRODUCT
from workbench.graph.joined import TILE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from workbench.engine.tensorrt.driver import Driver
    from workbench.engine.tensorrt.kernels.compiling import Kernel

_WHOLE, _REAL = np.int32, np.float32
_MAPS = 4096
# What each operator is told, in the order of the plan; `step` is 0 where it writes values and no codes
FIELDS: dict[str, dict[str, type[Any]]] = {
    ATTENTION: {
        "heads": _WHOLE,
        "kv_heads": _WHOLE,
        "head_dim": _WHOLE,
        "interleaved": _WHOLE,
        "half": _WHOLE,
        "scale": _REAL,
        "step": _REAL,
    },
    GATE: {"width": _WHOLE, "half": _WHOLE, "step": _REAL},
    GATED_PRODUCT: {"width": _WHOLE, "coded": _WHOLE, "half": _WHOLE, "scale": _REAL, "step": _REAL},
    ADD_NORM: {"width": _WHOLE, "wide": _WHOLE, "half": _WHOLE, "eps": _REAL, "step": _REAL},
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
        # a map says only where a matrix lies and its shape: passes of a shape seen before make none
        self._map = lru_cache(maxsize=_MAPS)(driver.tensor_map)

    @cached_property
    def _pairs(self) -> int:
        """Programs of a kernel that has one a multiprocessor, two by two."""
        return self._driver.multiprocessors() // 2 * 2

    def add(self, kernels: tuple[Kernel, ...]) -> None:
        """Load kernels; the same operator and sizes again replace them."""
        for kernel in kernels:
            key = _key(kernel.operator, kernel.sizes)
            others = [pair for pair in self._functions.get(key, []) if pair[0].tile != kernel.tile]
            function = self._driver.load_function(kernel.code, kernel.name, shared_bytes=kernel.shared_bytes)
            self._functions[key] = sorted([*others, (kernel, function)], key=lambda pair: pair[0].tile)

    def launch(self, operator: str, values: Mapping[str, Any], dims: Any, addresses: list[int], stream: int) -> None:
        """Launch the smallest kernel that takes prompts of this length.

        Parameters
        ----------
        operator : str
            Name in the graph.
        values : mapping of str to int or float
            Its attributes.
        dims : sequence of int
            Of its first input: prompts, tokens, width.
        addresses : list of int
            Of its inputs and outputs, in order.
        stream : int
            Where the kernel is put.
        """
        prompts, tokens = dims[0], dims[1]
        rows = prompts if operator == ATTENTION else prompts * tokens
        if not rows:
            return
        found = self._functions[_key(operator, sizes_of(operator, values))]
        kernel, function = next(pair for pair in found if pair[0].tile >= tokens or not pair[0].tile)
        step = values["step"]
        arguments = self._operands(operator, values, dims, addresses)
        arguments += [ctypes.c_float(1 / step if step > 0 else 1.0), *[ctypes.c_void_p(0)] * kernel.extra]
        programs = rows * kernel.programs_a_row or self._pairs
        self._driver.launch_function(function, programs, 32 * kernel.warps, kernel.shared_bytes, arguments, stream)

    def _operands(self, operator: str, values: Mapping[str, Any], dims: Any, addresses: list[int]) -> list[Any]:
        """What stands in front of `levels`."""
        plain: list[Any] = [ctypes.c_void_p(address) for address in addresses]
        if operator == ATTENTION:
            return [*plain, ctypes.c_int32(dims[1]), ctypes.c_float(values["scale"])]
        if operator == ADD_NORM:
            return [*plain, ctypes.c_float(values["eps"])]
        if operator == GATE:
            return plain
        rows, k, width = dims[0] * dims[1], dims[2], values["width"]
        item = 1 if values["coded"] else 2
        x = self._map(addresses[0], (rows, k), item, TILE)
        weights = self._map(addresses[1], (2 * width, k), item, TILE)
        sizes = [ctypes.c_int32(size) for size in (rows, width, k)]
        weight_step = plain[2] if values["coded"] else ctypes.c_void_p(0)
        return [x, weights, weight_step, plain[-1], *sizes, ctypes.c_float(values["scale"])]


def _key(operator: str, sizes: Mapping[str, int]) -> tuple[object, ...]:
    return (operator, *sorted(sizes.items()))


@cache
def launcher(driver: Driver) -> Launcher:
    """The one launcher of a card."""
    return Launcher(driver)
