"""Which TensorRT is here: module `tensorrt` or `tensorrt_bindings`, API of version 10 or 11.

Version 11 knows strong typing only and dropped the flag that asked for it; from 10.10 on the parser takes weights in
place (`load_initializer`), before that it reads them from the folder of the model. What differs is asked of the module
itself, never of its version number.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

from workbench.errors import EngineError

MODULES = ("tensorrt", "tensorrt_bindings", "tensorrt_rtx")
INSTALL = "pip install 'hidden-state-workbench[tensorrt]' on a machine with an NVIDIA GPU"
# Names of TensorRT's data types, as NumPy and ml_dtypes call them
DTYPES = {
    "FLOAT": "float32",
    "HALF": "float16",
    "BF16": "bfloat16",
    "FP8": "float8_e4m3fn",
    "INT8": "int8",
    "INT32": "int32",
    "INT64": "int64",
    "BOOL": "bool",
}


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Api:
    """A TensorRT module and what it can do.

    Parameters
    ----------
    trt : module
        `tensorrt`, `tensorrt_bindings` or `tensorrt_rtx`.
    name, version : str
        Of that module.
    """

    trt: Any
    name: str
    version: str

    @property
    def network_flags(self) -> int:
        """Flags of `create_network`: strongly typed, by whatever name it has here."""
        flag = getattr(self.trt.NetworkDefinitionCreationFlag, "STRONGLY_TYPED", None)
        return 0 if flag is None else 1 << int(flag)

    @property
    def takes_weights_in_place(self) -> bool:
        """Whether the ONNX parser reads initialisers where they lie, without a copy."""
        return hasattr(self.trt.OnnxParser, "load_initializer")

    @property
    def takes_constants_in_place(self) -> bool:
        """Whether a network can be rewired so that its weights lie where they are, whatever the parser does."""
        return hasattr(getattr(self.trt, "INetworkDefinition", None), "remove_tensor")

    @property
    def keeps_timings(self) -> bool:
        """Whether tactics are timed at build; TensorRT-RTX chooses them when it runs, and warns at the question."""
        return self.name != "tensorrt_rtx"

    @property
    def refuses_cache_misses(self) -> bool:
        """Whether a build can be held to the tactics of its timing cache."""
        return hasattr(self.trt.BuilderFlag, "ERROR_ON_TIMING_CACHE_MISS")

    def dtype_name(self, dtype: Any) -> str:
        """NumPy's name of one of TensorRT's data types."""
        return DTYPES[str(dtype).rsplit(".", maxsplit=1)[-1]]


@cache
def load_api(only: tuple[str, ...] = MODULES[:2]) -> Api:
    """Import TensorRT.

    Parameters
    ----------
    only : tuple of str
        Modules to try, in order; `tensorrt_rtx` builds for consumer cards without a GPU and is never taken unasked.

    Raises
    ------
    EngineError
        If none can be imported, with the reason of each.
    """
    reasons = []
    for name in only:
        try:
            module = import_module(name)
            return Api(trt=module, name=name, version=str(module.__version__))
        except (
            ImportError,
            OSError,
            AttributeError,
        ) as error:  # the stub packages raise whatever their redirect raises
            reasons.append(f"{name}: {error}")
    raise EngineError("TensorRT must be importable", "; ".join(reasons), f"Run: {INSTALL}")


def make_logger(api: Api, lines: list[str]) -> Any:
    """Give a TensorRT logger that keeps warnings and what the builder says of its tactics."""

    class Logger(api.trt.ILogger):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            api.trt.ILogger.__init__(self)

        def log(self, severity: Any, message: str) -> None:
            if severity <= api.trt.ILogger.Severity.INFO:
                lines.append(f"{severity.name}: {message}")

    return Logger()


def last_errors(lines: list[str]) -> str:
    """The last errors of a log in one line, for messages."""
    errors = [line for line in lines if line.startswith(("ERROR", "INTERNAL_ERROR"))]
    return " | ".join(errors[-3:])[:600] or "no error was logged"
