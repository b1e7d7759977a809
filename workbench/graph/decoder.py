"""The decoder definition."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from workbench.checkpoint.config import DecoderConfig
    from workbench.checkpoint.weights import Weights
    from workbench.graph.artefact import Graph


def build_graph(
    config: DecoderConfig,
    weights: Weights,
    *,
    taps: Sequence[str],
    positions: str | tuple[int, ...],
    precision: str = "fp32",
    lowering: str = "opset23",
    max_tokens: int = 128,
    keep: Sequence[str] = (),
) -> Graph:
    """Write a decoder as an ONNX graph that ends at the deepest tap (first version: only the signature)."""
    raise NotImplementedError
