"""Compile the kernel for a card: machine code and what a launch needs to know of it, kept in the engine folder.

Triton is needed where an engine is built, never where it runs.
"""

from __future__ import annotations

import base64
import json
from dataclasses import asdict, dataclass
from importlib import import_module
from typing import Any

from workbench.errors import EngineError

TILES = (16, 32, 64, 128)
KERNEL_FILE = "attention.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class Kernel:
    """Machine code of one tile size.

    Parameters
    ----------
    tile : int
        Longest prompt that it takes.
    heads, kv_heads, head_dim : int
        Shapes it was compiled for.
    interleaved : int
        1 where a pair of the rope is two neighbours.
    name : str
        Of the function in the code.
    code : bytes
        Machine code of one compute capability.
    shared_bytes, warps : int
        What a launch asks for.
    extra : int
        Null pointers that the compiler added behind the arguments.
    """

    tile: int
    heads: int
    kv_heads: int
    head_dim: int
    interleaved: int
    name: str
    code: bytes
    shared_bytes: int
    warps: int
    extra: int


def compile_kernels(
    compute_capability: str, *, heads: int, kv_heads: int, head_dim: int, interleaved: int
) -> tuple[Kernel, ...]:
    """Compile every tile size.

    Raises
    ------
    EngineError
        If Triton is not installed.
    """
    try:
        triton: Any = import_module("triton")
        target_of = import_module("triton.backends.compiler").GPUTarget
        source_of = import_module("triton.compiler").ASTSource
    except ImportError as error:
        raise EngineError(
            "the fused attention must be compiled by Triton",
            str(error),
            "Run: pip install triton, or leave the option out.",
        ) from None
    from workbench.engine.tensorrt.attention.kernel import rope_attention

    target = target_of("cuda", int(compute_capability.replace(".", "")), 32)
    made = []
    for tile in TILES:
        sizes = {"HEADS": heads, "KV_HEADS": kv_heads, "HEAD_DIM": head_dim, "TILE": tile, "INTERLEAVED": interleaved}
        signature = {"qkv": "*bf16", "cos": "*fp32", "sin": "*fp32", "out": "*bf16", "n_tokens": "i32", "scale": "fp32"}
        aligned = {(i,): [["tt.divisibility", 16]] for i in range(4)}
        source = source_of(
            fn=rope_attention,
            signature=signature | dict.fromkeys(sizes, "constexpr"),
            constexprs=sizes,
            attrs=aligned,
        )
        warps = 4 if tile < 128 else 8
        compiled = triton.compile(source, target=target, options={"num_warps": warps, "num_stages": 1})
        made.append(
            Kernel(
                tile=tile,
                heads=heads,
                kv_heads=kv_heads,
                head_dim=head_dim,
                interleaved=interleaved,
                name=compiled.metadata.name,
                code=compiled.asm["cubin"],
                shared_bytes=compiled.metadata.shared,
                warps=compiled.metadata.num_warps,
                extra=_arguments(compiled.asm["ptx"], compiled.metadata.name) - len(signature),
            )
        )
    return tuple(made)


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
    return tuple(Kernel(**(row | {"code": base64.b64decode(row["code"])})) for row in rows)
