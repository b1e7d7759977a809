"""Checkpoints: weights, config and tokenizer of a decoder on disk, GGUF or safetensors, memory-mapped."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

_HOME = {
    "open_checkpoint": "opening",
    "Checkpoint": "opening",
    "DecoderConfig": "config",
    "Weights": "weights",
    "TensorFile": "source",
    "open_gguf": "gguf",
    "open_safetensors": "safetensors_file",
}

__all__ = list(_HOME)


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"workbench.checkpoint has no {name!r}; it offers {', '.join(_HOME)}")
    return getattr(import_module(f"workbench.checkpoint.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)


if TYPE_CHECKING:
    from workbench.checkpoint.config import DecoderConfig as DecoderConfig
    from workbench.checkpoint.gguf import open_gguf as open_gguf
    from workbench.checkpoint.opening import Checkpoint as Checkpoint
    from workbench.checkpoint.opening import open_checkpoint as open_checkpoint
    from workbench.checkpoint.safetensors_file import open_safetensors as open_safetensors
    from workbench.checkpoint.source import TensorFile as TensorFile
    from workbench.checkpoint.weights import Weights as Weights
