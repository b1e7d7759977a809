"""Backend `tensorrt_llm`: recipes whose engine TensorRT-LLM builds; the workbench gives the command and the contract.

Options of a recipe: `version` of TensorRT-LLM, `prompts_per_pass`, `cache` (`disabled`; `paged` or `continuous` for the
baseline with one token), `layout`, `gemm_plugin`, `runner` (`raw` or `executor`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from workbench.engine.backends.protocol import Availability
from workbench.engine.trtllm.build_command import DTYPES
from workbench.engine.trtllm.recipes import BACKEND
from workbench.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from workbench.engine.contract import Contract
    from workbench.engine.recipe import Recipe

PRECISIONS = {
    name: {
        "weights": "float8_e4m3fn" if name == "fp8" else dtype,
        "activations": f"float8_e4m3fn at products; {dtype} elsewhere" if name == "fp8" else dtype,
        "accumulators": "chosen by TensorRT",
    }
    for name, dtype in DTYPES.items()
}
_WHY = "engines of TensorRT-LLM are built by trtllm-build, from a patched source tree"
_DO = "workbench trtllm command --help"


def available() -> Availability:
    """Say that the workbench builds none itself."""
    return Availability(ready=False, version="", why=_WHY, do=_DO)


def build_plan(recipe: Recipe, folder: Path, progress: Callable[[int, int], None] | None = None) -> NoReturn:
    """Refuse, and name the way."""
    del recipe, folder, progress
    raise EngineError(f"a recipe for {BACKEND} must be built by TensorRT-LLM", _WHY, f"Run: {_DO}")


def load(folder: Path) -> NoReturn:
    """Refuse, and name the way."""
    raise EngineError(
        f"an engine of {BACKEND} must be run by its raw runtime or executor", str(folder.name), f"Run: {_DO}"
    )


def admit(contract: Contract) -> None:
    """Refuse: such an engine has a contract of its own."""
    raise EngineError(f"an engine of {BACKEND} must be opened by its own contract", contract.engine_id, f"Run: {_DO}")
