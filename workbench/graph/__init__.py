"""The one decoder definition: a config and its weights become an ONNX graph with taps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workbench.lazily import resolve_late

_HOME = {
    "build_graph": "decoder",
    "Graph": "artefact",
    "LazyTensor": "artefact",
    "TensorSpec": "artefact",
    "tap_names": "taps",
    "check_taps": "taps",
    "tap_width": "taps",
}

__all__ = list(_HOME)


__getattr__, __dir__ = resolve_late("workbench.graph", _HOME)

if TYPE_CHECKING:
    from workbench.graph.artefact import Graph as Graph
    from workbench.graph.artefact import LazyTensor as LazyTensor
    from workbench.graph.artefact import TensorSpec as TensorSpec
    from workbench.graph.decoder import build_graph as build_graph
    from workbench.graph.taps import check_taps as check_taps
    from workbench.graph.taps import tap_names as tap_names
    from workbench.graph.taps import tap_width as tap_width
