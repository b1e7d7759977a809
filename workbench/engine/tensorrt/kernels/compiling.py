"""Compile kernels for a card: machine code and what a launch needs to know of it, kept in the engine folder.

Triton, and NVRTC for the kernel in CUDA C++, are needed where an engine is built, never where it runs.
"""

from __future__ import annotations

import base64
import json
from dataclasses import asdict, dataclass
from importlib import import_module
from math import gcd
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.engine.tensorrt.kernels.nvrtc import ADVICE, check_nvrtc, compile_cuda
from workbench.errors import EngineError
from workbench.graph.fused import ADD_NORM, ATTENTION, GATE, GATED_PRODUCT

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

TILES = (16, 32, 64, 128)
# most heads of a program, and its most rows: of 128, in so many registers, two programs share a multiprocessor
SHARED, ROWS, REGISTERS = 4, 128, 128
GATE_BLOCK, GATE_WARPS, NORM_WARPS = 1024, 4, 8
JOINED = "9.0"  # the compute capability whose instructions the joined product uses
# four stages of 128 rows of x and 256 of weights, 128 bytes each, and room to begin at a multiple of 1,024
PRODUCT_SHARED, PRODUCT_WARPS = 4 * (128 + 256) * 128 + 1024, 12


@dataclass(frozen=True, kw_only=True, slots=True)
class Kernel:
    """Machine code of one operator at one size.

    Parameters
    ----------
    operator : str
        In the graph.
    sizes : mapping of str to int
        Attributes of the operator that it was compiled for; `codes` is 1 where it writes FP8, `half` where values are
        float16 and not bfloat16.
    tile : int
        Longest prompt that it takes, 0 where any will do.
    programs_a_row : int
        Programs of a launch for each prompt of attention, or for each token of another operator; 0 where each
        multiprocessor has one, which goes on until the work is done.
    name : str
        Of the function in the code.
    code : bytes
        Machine code of one compute capability.
    shared_bytes, warps : int
        What a launch asks for.
    extra : int
        Null pointers that the compiler added behind the arguments.
    """

    operator: str
    sizes: Mapping[str, int]
    tile: int
    programs_a_row: int
    name: str
    code: bytes
    shared_bytes: int
    warps: int
    extra: int


def compile_kernels(compute_capability: str, wanted: Iterable[tuple[str, Mapping[str, int]]]) -> tuple[Kernel, ...]:
    """Compile kernels, attention in every tile size.

    Parameters
    ----------
    compute_capability : str
        Of the card, as `9.0`.
    wanted : iterable of (str, mapping of str to int)
        Operator and sizes, as in `Kernel`.

    Raises
    ------
    EngineError
        If Triton or NVRTC is not installed.
    """
    makers = {ATTENTION: _attention, GATE: _gate, ADD_NORM: _add_norm, GATED_PRODUCT: _gated_product}
    return tuple(kernel for operator, sizes in wanted for kernel in makers[operator](compute_capability, sizes))


def check_compilers(compute_capability: str) -> None:
    """Look for the compilers of own kernels, before anything long is computed.

    Raises
    ------
    EngineError
        If Triton is not installed, or NVRTC on a card that needs it.
    """
    _triton()
    if compute_capability == JOINED:
        check_nvrtc()


def _triton() -> tuple[Any, Any, Any]:
    """Triton, and its classes of a target and of a source."""
    try:
        target_of = import_module("triton.backends.compiler").GPUTarget
        return import_module("triton"), target_of, import_module("triton.compiler").ASTSource
    except ImportError as error:
        raise EngineError("own kernels must be compiled by Triton", str(error), ADVICE) from None


def _attention(compute_capability: str, sizes: Mapping[str, int]) -> list[Kernel]:
    made = []
    shared = gcd(SHARED, sizes["heads"] // sizes["kv_heads"])
    for tile in TILES:
        rows = min(ROWS, shared * tile)
        queries = rows // shared
        warps, registers = (8, REGISTERS) if rows == ROWS else (4, None)
        constants = {"TILE": tile, "SHARED": shared, "QUERIES": queries}
        constants |= {name.upper(): value for name, value in sizes.items() if name != "half"}
        types = {"qkv": _values(sizes), "cos": "*fp32", "sin": "*fp32", "out": _out(sizes)}
        types |= {"n_tokens": "i32", "scale": "fp32", "levels": "fp32"}
        made.append(
            _compile(
                compute_capability,
                ("rope_attention", types, constants, {"num_warps": warps, "maxnreg": registers}),
                operator=ATTENTION,
                sizes=sizes,
                tile=tile,
                programs_a_row=sizes["heads"] // shared * (tile // queries),
            )
        )
    return made


def _gate(compute_capability: str, sizes: Mapping[str, int]) -> list[Kernel]:
    constants = {"WIDTH": sizes["width"], "BLOCK": GATE_BLOCK, "CODES": sizes["codes"]}
    types = {"both": _values(sizes), "out": _out(sizes), "levels": "fp32"}
    made = _compile(
        compute_capability,
        ("silu_gate", types, constants, {"num_warps": GATE_WARPS}),
        operator=GATE,
        sizes=sizes,
        tile=0,
        programs_a_row=-(-sizes["width"] // GATE_BLOCK),
    )
    return [made]


def _add_norm(compute_capability: str, sizes: Mapping[str, int]) -> list[Kernel]:
    block = 1 << (sizes["width"] - 1).bit_length()
    constants = {"WIDTH": sizes["width"], "BLOCK": block, "CODES": sizes["codes"]}
    stream = "*fp32" if sizes["wide"] else _values(sizes)
    types = {"x": stream, "delta": _values(sizes), "scale": "*fp32", "total": stream, "out": _out(sizes)}
    types |= {"eps": "fp32", "levels": "fp32"}
    warps = min(NORM_WARPS, max(1, block // 256))
    made = _compile(
        compute_capability,
        ("add_rms_norm", types, constants, {"num_warps": warps}),
        operator=ADD_NORM,
        sizes=sizes,
        tile=0,
        programs_a_row=1,
    )
    return [made]


def _gated_product(compute_capability: str, sizes: Mapping[str, int]) -> list[Kernel]:
    source = Path(__file__).with_name("gated_product.cu")
    architecture = f"sm_{compute_capability.replace('.', '')}a"
    constants = {name.upper(): sizes[name] for name in ("coded", "codes", "half")}
    made = Kernel(
        operator=GATED_PRODUCT,
        sizes=sizes,
        tile=0,
        programs_a_row=0,
        name=source.stem,
        code=compile_cuda(source.read_text(encoding="utf-8"), source.name, architecture, constants),
        shared_bytes=PRODUCT_SHARED,
        warps=PRODUCT_WARPS,
        extra=0,
    )
    return [made]


def _out(sizes: Mapping[str, int]) -> str:
    return "*fp8e4nv" if sizes["codes"] else _values(sizes)


def _values(sizes: Mapping[str, int]) -> str:
    return "*fp16" if sizes["half"] else "*bf16"


def _compile(
    compute_capability: str, what: tuple[str, dict[str, str], dict[str, int], dict[str, Any]], **rest: Any
) -> Kernel:
    triton, target_of, source_of = _triton()
    name, types, constants, options = what
    function = getattr(import_module("workbench.engine.tensorrt.kernels.sources"), name)
    aligned = {(i,): [["tt.divisibility", 16]] for i, kind in enumerate(types.values()) if kind.startswith("*")}
    source = source_of(
        fn=function, signature=types | dict.fromkeys(constants, "constexpr"), constexprs=constants, attrs=aligned
    )
    target = target_of("cuda", int(compute_capability.replace(".", "")), 32)
    compiled = triton.compile(source, target=target, options={"num_stages": 1} | options)
    return Kernel(
        name=compiled.metadata.name,
        code=compiled.asm["cubin"],
        shared_bytes=compiled.metadata.shared,
        warps=compiled.metadata.num_warps,
        extra=_arguments(compiled.asm["ptx"], compiled.metadata.name) - len(types),
        **rest,
    )


def _arguments(ptx: str, name: str) -> int:
    """Count the arguments of a function in PTX."""
    start = ptx.index(f".entry {name}(")
    return ptx[start : ptx.index(")", start)].count(".param ")


def to_bytes(kernels: tuple[Kernel, ...]) -> bytes:
    """Write kernels as they stand in the engine folder."""
    plain = [asdict(kernel) | {"code": base64.b64encode(kernel.code).decode("ascii")} for kernel in kernels]
    return json.dumps(plain, indent=1).encode("ascii")


def from_bytes(data: bytes) -> tuple[Kernel, ...]:
    """Read kernels whose file was checked before."""
    rows: list[dict[str, Any]] = json.loads(data)
    for row in rows:
        row["sizes"] = {"half": 0} | row["sizes"]  # before float16 no kernel said so
        row["code"] = base64.b64decode(row["code"])
    return tuple(Kernel(**row) for row in rows)
