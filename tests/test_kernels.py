# ruff: noqa: N802 - the names of the driver
"""Own kernels without a card: the source compiles, and a launch describes its operands to the driver as they lie."""

import ctypes
import sys
from types import SimpleNamespace

import pytest

from workbench import doctor
from workbench.engine.tensorrt import driver
from workbench.engine.tensorrt.driver import Driver
from workbench.engine.tensorrt.kernels.compiling import Kernel, check_compilers, compile_kernels, from_bytes, to_bytes
from workbench.engine.tensorrt.kernels.launching import Launcher
from workbench.engine.tensorrt.kernels.nvrtc import compile_cuda
from workbench.errors import EngineError

GATED = "GatedProduct"


@pytest.fixture(autouse=True)
def _compiler():
    pytest.importorskip("cuda.bindings.nvrtc")


def sizes(coded, codes, half=0):
    return {"width": 256, "coded": coded, "half": half, "codes": codes}


@pytest.mark.parametrize("coded", [0, 1])
@pytest.mark.parametrize("codes", [0, 1])
@pytest.mark.parametrize("half", [0, 1])
def test_the_joined_product_compiles_for_its_card(coded, codes, half):
    (kernel,) = compile_kernels("9.0", [(GATED, sizes(coded, codes, half))])
    assert kernel.code.startswith(b"\x7fELF")
    assert b"gated_product" in kernel.code
    assert kernel.programs_a_row == 0
    assert from_bytes(to_bytes((kernel,))) == (kernel,)


def test_a_source_that_does_not_compile_is_refused_with_the_log():
    with pytest.raises(EngineError, match=r"(?s)NVRTC must accept broken\.cu.*expected a"):
        compile_cuda("__global__ void f() { int x }", "broken.cu", "sm_90a", {})


@pytest.mark.parametrize(("module", "name"), [("triton", "Triton"), ("cuda.bindings.nvrtc", "NVRTC")])
def test_a_compiler_that_is_not_installed_is_named_with_what_to_do(monkeypatch, module, name):
    here = {"triton": SimpleNamespace(), "triton.compiler": SimpleNamespace(ASTSource=None)}
    for known, stub in (here | {"triton.backends.compiler": SimpleNamespace(GPUTarget=None)} | {module: None}).items():
        monkeypatch.setitem(sys.modules, known, stub)
    with pytest.raises(EngineError, match=rf"compiled by {name}.*pip install 'hidden-state-workbench\[kernels\]'"):
        check_compilers("9.0")
    if module != "triton":
        check_compilers("8.9")  # whose kernels are all Triton's
    monkeypatch.setattr(driver, "load_driver", lambda: SimpleNamespace(compute_capability=lambda: "9.0"))
    found = doctor._kernels()
    assert not found.ok
    assert name in found.found
    assert found.do == "pip install 'hidden-state-workbench[kernels]'"


class Library:
    """A driver that keeps what it was told."""

    def __init__(self):
        self.maps, self.launches = [], []

    def cuDeviceGetAttribute(self, out, which, _device):
        out._obj.value = {75: 9, 76: 0, 16: 131}[which.value]
        return 0

    def cuTensorMapEncodeTiled(self, out, kind, rank, address, dims, strides, box, steps, *rest):
        assert (rank.value, list(steps), [value.value for value in rest]) == (2, [1, 1], [0, 3, 3, 0])
        self.maps.append((kind.value, address.value, list(dims), list(strides), list(box)))
        ctypes.memset(out._obj, len(self.maps), len(out._obj))
        return 0

    def cuLaunchKernel(self, function, *values):
        sizes, (_stream, arguments, _) = [value.value for value in values[:7]], values[7:]
        kinds = [ctypes.c_ubyte, ctypes.c_ubyte, ctypes.c_void_p, ctypes.c_void_p, *[ctypes.c_int32] * 3]
        kinds += [ctypes.c_float] * 2
        read = [kind.from_address(at).value for kind, at in zip(kinds, arguments, strict=True)]
        self.launches.append((function.value, sizes, read))
        return 0

    def cuModuleGetFunction(self, out, _module, _name):
        out._obj.value = 77
        return 0

    def __getattr__(self, name):
        return lambda *_: 0


def test_a_launch_of_the_joined_product_describes_its_matrices():
    library = Library()
    launcher = Launcher(Driver(library))
    for coded in (1, 0):
        launcher.add((kernel_of(coded),))
    values = {"width": 256, "coded": 1, "half": 0, "scale": 0.5, "step": 0.25}
    launcher.launch(GATED, values, (3, 5, 96), [16, 32, 48, 64], 9)
    launcher.launch(GATED, values | {"coded": 0}, (3, 5, 96), [16, 32, 64], 9)
    launcher.launch(GATED, values, (0, 5, 96), [16, 32, 48, 64], 9)  # nothing to do
    launcher.launch(GATED, values, (3, 5, 96), [16, 32, 48, 80], 9)  # the same matrices
    assert library.maps == [
        (0, 16, [96, 15], [96], [128, 128]),
        (0, 32, [96, 512], [96], [128, 128]),
        (1, 16, [96, 15], [192], [64, 128]),
        (1, 32, [96, 512], [192], [64, 128]),
    ]
    size = [130, 1, 1, 384, 1, 1, 1000]  # a pair of programs takes two multiprocessors: one of 131 is left
    assert library.launches == [
        (77, size, [1, 2, 48, 64, 15, 256, 96, 0.5, 4.0]),
        (77, size, [3, 4, None, 64, 15, 256, 96, 0.5, 4.0]),
        (77, size, [1, 2, 48, 80, 15, 256, 96, 0.5, 4.0]),
    ]


def kernel_of(coded):
    return Kernel(
        operator=GATED,
        sizes=sizes(coded, 1),
        tile=0,
        programs_a_row=0,
        name="gated_product",
        code=b"",
        shared_bytes=1000,
        warps=12,
        extra=0,
    )
