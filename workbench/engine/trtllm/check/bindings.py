"""TensorRT's Python module under whatever name it is installed, in the shape that TensorRT-LLM expects."""

from __future__ import annotations

import ctypes
import importlib
import sys
from pathlib import Path
from typing import Any

from workbench.errors import EngineError

LIBRARIES = ("libnvinfer.so.10", "libnvinfer_plugin.so.10", "libnvonnxparser.so.10")
WEIGHT_DTYPES = ("float32", "float16", "int32", "int64", "int8", "bfloat16")


def load_tensorrt(backend: str, libraries: Path | None = None) -> Any:
    """Import TensorRT (`trt`) or TensorRT for RTX (`rtx`) and register it as `tensorrt`.

    Parameters
    ----------
    backend : str
        `trt` builds and runs; `rtx` traces on a machine without a GPU.
    libraries : Path, optional
        Folder of the shared libraries, where the Python bindings alone are installed.

    Returns
    -------
    module
        The bindings.

    Raises
    ------
    EngineError
        If they are not installed.
    """
    try:
        module = _load_rtx() if backend == "rtx" else _load_trt(libraries)
    except (ImportError, OSError) as error:
        do = {"rtx": 'pip install "tensorrt-rtx-cu13==1.4.*"', "trt": "Install TensorRT 10.6, or name --libraries."}
        raise EngineError(f"the {backend} bindings must be installed", str(error), do[backend]) from error
    _accept_arrays(module)
    sys.modules["tensorrt"] = module
    return module


def _load_rtx() -> Any:
    folder = Path(importlib.import_module("tensorrt_rtx_libs").__path__[0])
    for file in sorted(folder.glob("*.so*")):
        ctypes.CDLL(str(file), mode=ctypes.RTLD_GLOBAL)
    module = importlib.import_module("tensorrt_rtx_bindings")
    # This flavour keeps every tensor on the device and has no such attribute, which TensorRT-LLM sets.
    module.ITensor.location = property(lambda _: module.TensorLocation.DEVICE, lambda _, __: None)
    return module


def _load_trt(libraries: Path | None) -> Any:
    if libraries is None:
        return importlib.import_module("tensorrt")
    for name in LIBRARIES:
        ctypes.CDLL(str(libraries / name), mode=ctypes.RTLD_GLOBAL)
    return importlib.import_module("tensorrt_bindings")


def _accept_arrays(module: Any) -> None:
    """Turn arrays into weights by hand: these bindings do not know the arrays of NumPy 2."""
    plain = module.INetworkDefinition.set_weights_name

    def set_weights_name(network: Any, weights: Any, name: str) -> Any:
        if not isinstance(weights, module.Weights):
            kind = str(weights.dtype) if str(weights.dtype) in WEIGHT_DTYPES else "bfloat16"
            weights = module.Weights(getattr(module, kind), weights.ctypes.data, weights.size)
        return plain(network, weights, name)

    module.INetworkDefinition.set_weights_name = set_weights_name
