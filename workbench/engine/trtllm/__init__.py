"""Route through TensorRT-LLM: the tap in its decoder definition, the build command, the contract, the inputs."""

from __future__ import annotations
