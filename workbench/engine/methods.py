"""Versions of how engines get their weights and ranges in low precision, and of own kernels: part of a recipe.

So another way of making them makes another engine. An engine in a folder is taken as the answer to a build only if its
recipe, this version included, is that of today. One of an older version, or of a time when recipes stated none, still
opens by its path or name.

Whoever changes what an engine would hold, be it the algorithm, one of its constants or the prompts that it reads, adds
1 for every backend and precision whose engines change, and runs `python tests/method_figures.py`: a test compares the
figures of each version with what is made today. A mend of the decoder's graph that changes its numbers counts too; then
every precision is listed and raised.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

# A precision that is not listed holds the checkpoint's weights, at most cast; those of TensorRT-LLM are made by others.
METHODS: dict[str, dict[str, int]] = {
    "onnxruntime": {"int8": 1, "int8-dynamic": 1, "int8-static": 1, "int4": 1, "int4-grid": 1, "fp8": 1},
    "openvino": {"int8": 1, "int4": 1, "int4-grid": 1},
    "tensorrt": {"fp8": 1, "int8": 1},
    "tensorrt_rtx": {"fp8": 1},
}
# Of the own kernels, whose machine code lies in an engine; 2: gate and up with their activation are one kernel.
KERNELS = {"tensorrt": 2}


def method_of(backend: str, precision: str) -> int | None:
    """Give the version of how weights and ranges are made; None where they are those of the checkpoint."""
    return METHODS.get(backend, {}).get(precision)


def kernels_of(backend: str, options: Mapping[str, Any]) -> int | None:
    """Give the version of a backend's own kernels; None where the options ask for none."""
    return None if options.get("kernels", "none") == "none" else KERNELS.get(backend)
