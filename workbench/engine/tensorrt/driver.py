"""The few calls of the CUDA driver that a session needs, through ctypes: no CUDA package is a dependency.

The library is opened on first use, so that the module imports on a machine without a GPU. Every return code is checked.
"""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.errors import EngineError

if TYPE_CHECKING:
    from numpy.typing import NDArray

LIBRARY = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
_NON_BLOCKING = 1
_NO_TIMING = 2
_PORTABLE = 1
_RELAXED = 2
_OUT_OF_MEMORY = 2
_MAJOR, _MINOR, _MULTIPROCESSORS = 75, 76, 16
_MAX_SHARED, _PLAIN_SHARED = 8, 48 << 10
# how the copy engine reads a matrix: plain types by size, lines of 128 bytes swizzled, 256 bytes fetched into L2
_MAP_TYPES, _PLAIN_ORDER, _SWIZZLE_128, _PROMOTE_256, _ZEROS = {1: 0, 2: 1}, 0, 3, 3, 0
_MAP_BYTES, _MAP_ALIGNMENT = 128, 64


class Driver:
    """A card, its primary context, and what is done in it.

    Parameters
    ----------
    library : object
        The loaded driver library, or a stand-in with the same functions.
    ordinal : int
        Which card.
    """

    def __init__(self, library: Any, ordinal: int = 0) -> None:
        self._library = library
        self._call("cuInit", ctypes.c_uint(0))
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self._call("cuDeviceGet", ctypes.byref(device), ctypes.c_int(ordinal))
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self._device, self._context = device, context
        self.enter()

    def _call(self, name: str, *arguments: Any) -> None:
        code = int(getattr(self._library, name)(*arguments))
        if code == 0:
            return
        text = ctypes.c_char_p()
        self._library.cuGetErrorName(ctypes.c_int(code), ctypes.byref(text))
        reason = text.value.decode() if text.value else f"code {code}"
        advice = "Use fewer tokens a pass." if code == _OUT_OF_MEMORY else "See `workbench doctor`."
        raise EngineError(f"{name} must succeed", reason, advice)

    def enter(self) -> None:
        """Make the context current in this thread."""
        self._call("cuCtxSetCurrent", self._context)

    def name(self) -> str:
        """Name of the card."""
        text = ctypes.create_string_buffer(128)
        self._call("cuDeviceGetName", text, ctypes.c_int(len(text)), self._device)
        return text.value.decode("utf-8", "replace")

    def compute_capability(self) -> str:
        """Compute capability, as `9.0`."""
        return f"{self._attribute(_MAJOR)}.{self._attribute(_MINOR)}"

    def multiprocessors(self) -> int:
        """How many multiprocessors the card has."""
        return self._attribute(_MULTIPROCESSORS)

    def _attribute(self, which: int) -> int:
        value = ctypes.c_int()
        self._call("cuDeviceGetAttribute", ctypes.byref(value), ctypes.c_int(which), self._device)
        return value.value

    def cuda_version(self) -> str:
        """Newest CUDA version that the driver knows, as `13.0`."""
        value = ctypes.c_int()
        self._call("cuDriverGetVersion", ctypes.byref(value))
        return f"{value.value // 1000}.{value.value % 1000 // 10}"

    def memory(self) -> tuple[int, int]:
        """Free and total memory of the card in bytes."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self._call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value, total.value

    def allocate(self, size_bytes: int) -> int:
        """Take memory of the card; its address is a multiple of 256."""
        address = ctypes.c_void_p()
        self._call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(max(size_bytes, 256)))
        return int(address.value or 0)

    def free(self, address: int) -> None:
        """Give memory of the card back."""
        self._call("cuMemFree_v2", ctypes.c_void_p(address))

    def pin(self, size_bytes: int) -> NDArray[np.uint8]:
        """Take page-locked host memory: uint8 [byte], to be given back with `unpin`."""
        address = ctypes.c_void_p()
        size = max(size_bytes, 256)
        self._call("cuMemHostAlloc", ctypes.byref(address), ctypes.c_size_t(size), ctypes.c_uint(_PORTABLE))
        buffer = (ctypes.c_ubyte * size).from_address(int(address.value or 0))
        return np.ctypeslib.as_array(buffer)

    def unpin(self, array: NDArray[np.uint8]) -> None:
        """Give page-locked host memory back."""
        self._call("cuMemFreeHost", ctypes.c_void_p(array.ctypes.data))

    def stream(self) -> int:
        """Make a stream that does not wait for the default stream."""
        handle = ctypes.c_void_p()
        self._call("cuStreamCreate", ctypes.byref(handle), ctypes.c_uint(_NON_BLOCKING))
        return int(handle.value or 0)

    def event(self, *, timed: bool = False) -> int:
        """Make an event."""
        handle = ctypes.c_void_p()
        self._call("cuEventCreate", ctypes.byref(handle), ctypes.c_uint(0 if timed else _NO_TIMING))
        return int(handle.value or 0)

    def record(self, event: int, stream: int) -> None:
        """Mark this place of a stream."""
        self._call("cuEventRecord", ctypes.c_void_p(event), ctypes.c_void_p(stream))

    def wait_on(self, stream: int, event: int) -> None:
        """Let a stream wait for an event, without the host."""
        self._call("cuStreamWaitEvent", ctypes.c_void_p(stream), ctypes.c_void_p(event), ctypes.c_uint(0))

    def synchronise(self, event: int) -> None:
        """Wait on the host for an event."""
        self._call("cuEventSynchronize", ctypes.c_void_p(event))

    def elapsed_ms(self, start: int, end: int) -> float:
        """Milliseconds between two timed events."""
        value = ctypes.c_float()
        self._call("cuEventElapsedTime", ctypes.byref(value), ctypes.c_void_p(start), ctypes.c_void_p(end))
        return value.value

    def to_card(self, address: int, array: NDArray[Any], stream: int) -> None:
        """Copy page-locked bytes to the card."""
        source, size = ctypes.c_void_p(array.ctypes.data), ctypes.c_size_t(array.nbytes)
        self._call("cuMemcpyHtoDAsync_v2", ctypes.c_void_p(address), source, size, ctypes.c_void_p(stream))

    def to_host(self, array: NDArray[Any], address: int, stream: int) -> None:
        """Copy bytes of the card into page-locked memory."""
        target, size = ctypes.c_void_p(array.ctypes.data), ctypes.c_size_t(array.nbytes)
        self._call("cuMemcpyDtoHAsync_v2", target, ctypes.c_void_p(address), size, ctypes.c_void_p(stream))

    def begin_capture(self, stream: int) -> None:
        """Record what is put on a stream from here on."""
        self._call("cuStreamBeginCapture_v2", ctypes.c_void_p(stream), ctypes.c_int(_RELAXED))

    def end_capture(self, stream: int) -> int:
        """End the recording, and make a graph that can be launched."""
        graph, ready = ctypes.c_void_p(), ctypes.c_void_p()
        self._call("cuStreamEndCapture", ctypes.c_void_p(stream), ctypes.byref(graph))
        self._call("cuGraphInstantiateWithFlags", ctypes.byref(ready), graph, ctypes.c_ulonglong(0))
        self._call("cuGraphDestroy", graph)
        return int(ready.value or 0)

    def launch(self, graph: int, stream: int) -> None:
        """Launch a recorded graph."""
        self._call("cuGraphLaunch", ctypes.c_void_p(graph), ctypes.c_void_p(stream))

    def load_function(self, code: bytes, name: str, *, shared_bytes: int) -> int:
        """Load machine code, and give one function of it that may use so much shared memory."""
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        self._call("cuModuleLoadData", ctypes.byref(module), ctypes.c_char_p(code))
        self._call("cuModuleGetFunction", ctypes.byref(function), module, ctypes.c_char_p(name.encode()))
        if shared_bytes > _PLAIN_SHARED:
            self._call("cuFuncSetAttribute", function, ctypes.c_int(_MAX_SHARED), ctypes.c_int(shared_bytes))
        return int(function.value or 0)

    def tensor_map(self, address: int, shape: tuple[int, int], item_bytes: int, box_rows: int) -> Any:
        """Describe a matrix to the copy engine, an argument of a kernel.

        Parameters
        ----------
        address : int
            Of the matrix, a multiple of 16.
        shape : tuple of int
            Rows and columns; a row is a multiple of 16 bytes. What is read outside is 0.
        item_bytes : int
            Of an element.
        box_rows : int
            Rows of a copy, each of 128 bytes.
        """
        room = ctypes.create_string_buffer(_MAP_BYTES + _MAP_ALIGNMENT)
        start = -ctypes.addressof(room) % _MAP_ALIGNMENT
        rows, columns = shape
        self._call(
            "cuTensorMapEncodeTiled",
            ctypes.byref(room, start),
            ctypes.c_int(_MAP_TYPES[item_bytes]),
            ctypes.c_uint(2),
            ctypes.c_void_p(address),
            (ctypes.c_uint64 * 2)(columns, rows),
            (ctypes.c_uint64 * 1)(columns * item_bytes),
            (ctypes.c_uint32 * 2)(128 // item_bytes, box_rows),
            (ctypes.c_uint32 * 2)(1, 1),
            *(ctypes.c_int(value) for value in (_PLAIN_ORDER, _SWIZZLE_128, _PROMOTE_256, _ZEROS)),
        )
        return (ctypes.c_ubyte * _MAP_BYTES).from_buffer_copy(room, start)

    def launch_function(
        self, function: int, blocks: int, threads: int, shared_bytes: int, values: list[Any], stream: int
    ) -> None:
        """Launch a function over a line of blocks."""
        arguments = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        one = ctypes.c_uint(1)
        sizes = (ctypes.c_uint(blocks), one, one, ctypes.c_uint(threads), one, one, ctypes.c_uint(shared_bytes))
        self._call("cuLaunchKernel", ctypes.c_void_p(function), *sizes, ctypes.c_void_p(stream), arguments, None)

    def drop(self, graph: int) -> None:
        """Give a recorded graph back."""
        self._call("cuGraphExecDestroy", ctypes.c_void_p(graph))


@cache
def load_driver(ordinal: int = 0) -> Driver:
    """Open the CUDA driver and a card.

    Raises
    ------
    EngineError
        If there is no driver or no card.
    """
    try:
        library = ctypes.CDLL(LIBRARY)
    except OSError as error:
        raise EngineError(
            "an NVIDIA driver must be installed", str(error), "Run this on a machine with an NVIDIA GPU."
        ) from None
    return Driver(library, ordinal)
