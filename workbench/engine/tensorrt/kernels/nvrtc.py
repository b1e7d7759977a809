"""CUDA C++ to machine code, by NVIDIA's runtime compiler: no toolkit and no host compiler is needed."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from workbench.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Mapping

ADVICE = "Run: pip install 'hidden-state-workbench[kernels]', or leave the option kernels out."


def check_nvrtc() -> None:
    """Look for the compiler.

    Raises
    ------
    EngineError
        If it is not installed.
    """
    _loaded()


def _loaded() -> Any:
    try:
        nvrtc: Any = import_module("cuda.bindings.nvrtc")
        _checked(nvrtc, nvrtc.nvrtcVersion())
    except (ImportError, RuntimeError) as error:  # the bindings, or the library that they load on first use
        raise EngineError("own kernels must be compiled by NVRTC", str(error)[:300], ADVICE) from None
    return nvrtc


def compile_cuda(source: str, name: str, architecture: str, constants: Mapping[str, int]) -> bytes:
    """Compile a source to machine code.

    Parameters
    ----------
    source : str
        CUDA C++ that includes nothing.
    name : str
        Of the source, for messages.
    architecture : str
        As `sm_90a`.
    constants : mapping of str to int
        Macros.

    Returns
    -------
    bytes
        A cubin, which a driver of the compiler's CUDA version or newer loads.

    Raises
    ------
    EngineError
        If the compiler is not installed or refuses the source, with its log.
    """
    nvrtc = _loaded()
    program = _checked(nvrtc, nvrtc.nvrtcCreateProgram(source.encode(), name.encode(), 0, [], []))
    options = [f"--gpu-architecture={architecture}".encode(), *(f"-D{k}={v}".encode() for k, v in constants.items())]
    (code,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
    if code != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        log = bytearray(_checked(nvrtc, nvrtc.nvrtcGetProgramLogSize(program)))
        _checked(nvrtc, nvrtc.nvrtcGetProgramLog(program, log))
        raise EngineError(f"NVRTC must accept {name}", log.decode("utf-8", "replace")[:600], ADVICE)
    made = bytearray(_checked(nvrtc, nvrtc.nvrtcGetCUBINSize(program)))
    _checked(nvrtc, nvrtc.nvrtcGetCUBIN(program, made))
    _checked(nvrtc, nvrtc.nvrtcDestroyProgram(program))
    return bytes(made)


def _checked(nvrtc: Any, answer: tuple[Any, ...]) -> Any:
    code, *values = answer
    if code != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise EngineError("a call of NVRTC must succeed", str(code), ADVICE)
    return values[0] if values else None
