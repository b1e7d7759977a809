"""Checkpoints: weights, config and tokenizer of a decoder on disk, GGUF or safetensors, memory-mapped."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workbench.lazily import resolve_late

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


__getattr__, __dir__ = resolve_late("workbench.checkpoint", _HOME)

if TYPE_CHECKING:
    from workbench.checkpoint.config import DecoderConfig as DecoderConfig
    from workbench.checkpoint.gguf import open_gguf as open_gguf
    from workbench.checkpoint.opening import Checkpoint as Checkpoint
    from workbench.checkpoint.opening import open_checkpoint as open_checkpoint
    from workbench.checkpoint.safetensors_file import open_safetensors as open_safetensors
    from workbench.checkpoint.source import TensorFile as TensorFile
    from workbench.checkpoint.weights import Weights as Weights
