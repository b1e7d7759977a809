"""Build: an ONNX graph on disk becomes a TensorRT plan, strongly typed, with its log, tactics and timing cache.

Weights reach the parser without a copy where it can read them in place; before that it reads the one file that lies
beside the model. Nothing else of the weights is held by this process.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from workbench.engine.tensorrt.api import Api, last_errors, make_logger
from workbench.engine.tensorrt.mapped import attach, detached, large
from workbench.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from workbench.engine.tensorrt.limits import Ranges

LEVEL = 3


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Built:
    """What the builder gave.

    Parameters
    ----------
    plan : buffer
        The serialised engine.
    timing_cache : bytes
        How long each tactic took; a build with it chooses the same tactics.
    log : tuple of str
        What the builder said.
    """

    plan: Any
    timing_cache: bytes
    log: tuple[str, ...]


def build_engine(
    api: Api,
    model: Path,
    weights: Mapping[str, NDArray[Any]],
    shapes: Sequence[Ranges],
    *,
    timing_cache: bytes = b"",
    hold_tactics: bool = False,
    level: int = LEVEL,
    compute_capability: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Built:
    """Build a plan.

    Parameters
    ----------
    api : Api
        TensorRT.
    model : Path
        ONNX file; its weights lie beside it.
    weights : mapping of str to array
        The same weights, mapped, for a parser that reads them in place.
    shapes : sequence of mapping
        Smallest, usual and largest shape of each input, for each profile.
    timing_cache : bytes
        Of an earlier build.
    hold_tactics : bool
        Whether a tactic that is not in the timing cache is an error, where TensorRT can tell.
    level : int
        Optimisation level of the builder, 0 to 5.
    compute_capability : str, optional
        Card to build for without having it, where TensorRT can (TensorRT-RTX).
    progress : callable, optional
        Called with steps done and steps in all.

    Raises
    ------
    EngineError
        If the parser or the builder refuses, with their last words.
    """
    lines: list[str] = []
    logger = make_logger(api, lines)
    builder = api.trt.Builder(logger)
    network = builder.create_network(api.network_flags)
    parser = api.trt.OnnxParser(network, logger)
    _parse(api, (parser, network), model, weights, lines)
    config = builder.create_builder_config()
    _configure(api, config, level, compute_capability, progress)
    if api.keeps_timings:
        cache = config.create_timing_cache(timing_cache)
        config.set_timing_cache(cache, ignore_mismatch=False)
    if hold_tactics and timing_cache and api.refuses_cache_misses:
        config.set_flag(api.trt.BuilderFlag.ERROR_ON_TIMING_CACHE_MISS)
    for ranges in shapes:
        config.add_optimization_profile(_profile(builder, network, ranges))
    plan = builder.build_serialized_network(network, config)
    if plan is None:
        raise EngineError(
            "TensorRT must be able to build this graph",
            last_errors(lines),
            "Read the log, or choose another precision.",
        )
    del parser  # the network reads the weights that the parser holds until here
    used = config.get_timing_cache() if api.keeps_timings else None
    return Built(plan=plan, timing_cache=bytes(used.serialize()) if used else b"", log=tuple(lines))


def _parse(api: Api, into: tuple[Any, Any], model: Path, weights: Mapping[str, NDArray[Any]], lines: list[str]) -> None:
    parser, network = into
    mapped = large(weights) if api.takes_constants_in_place else {}
    if api.takes_weights_in_place and weights:
        ok = parser.load_model_proto(model.read_bytes(), str(model))
        for name, array in weights.items():
            ok = ok and parser.load_initializer(name, array.ctypes.data, array.nbytes)
        ok = ok and parser.parse_model_proto()
    elif mapped:
        import onnx

        whole = onnx.load_model_from_string(model.read_bytes())
        ok = parser.parse(detached(whole, mapped), str(model))
    else:
        ok = parser.parse_from_file(str(model))
    if not ok:
        errors = [parser.get_error(i).desc() for i in range(parser.num_errors)]
        raise EngineError(
            "TensorRT's ONNX parser must accept the graph",
            " | ".join(errors[:3])[:600] or last_errors(lines),
            "Choose another precision, or update TensorRT.",
        )
    if mapped and not api.takes_weights_in_place:
        attach(api, network, mapped)


def _configure(
    api: Api, config: Any, level: int, compute_capability: str | None, progress: Callable[[int, int], None] | None
) -> None:
    trt: Any = api.trt
    config.builder_optimization_level = level
    config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
    if hasattr(trt.BuilderFlag, "TF32"):
        config.clear_flag(trt.BuilderFlag.TF32)  # float32 means float32
    if progress is not None:
        config.progress_monitor = make_monitor(api, progress)
    if compute_capability is not None and hasattr(config, "set_compute_capability"):
        config.num_compute_capabilities = 1
        config.set_compute_capability(getattr(trt.ComputeCapability, "SM" + compute_capability.replace(".", "")), 0)


def make_monitor(api: Api, progress: Callable[[int, int], None]) -> Any:
    """Give a progress monitor that counts the steps of all phases that have begun."""

    class Monitor(api.trt.IProgressMonitor):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            api.trt.IProgressMonitor.__init__(self)
            self.phases: dict[str, tuple[int, int]] = {}

        def phase_start(self, phase_name: str, _parent: str, num_steps: int) -> None:
            self.phases[phase_name] = (0, num_steps)
            self.tell()

        def step_complete(self, phase_name: str, step: int) -> bool:
            self.phases[phase_name] = (step + 1, self.phases[phase_name][1])
            self.tell()
            return True

        def phase_finish(self, phase_name: str) -> None:
            steps = self.phases[phase_name][1]
            self.phases[phase_name] = (steps, steps)
            self.tell()

        def tell(self) -> None:
            progress(sum(done for done, _ in self.phases.values()), sum(total for _, total in self.phases.values()))

    return Monitor()


def _profile(builder: Any, network: Any, shapes: Ranges) -> Any:
    profile = builder.create_optimization_profile()
    for index in range(network.num_inputs):
        name = network.get_input(index).name
        smallest, usual, largest = shapes[name]
        profile.set_shape(name, smallest, usual, largest)
    return profile


def describe_layers(api: Api, engine: Any) -> list[Any]:
    """Ask the engine inspector for every layer: name, tactic, and the precision of what it reads and writes."""
    text = engine.create_engine_inspector().get_engine_information(api.trt.LayerInformationFormat.JSON)
    layers = json.loads(text).get("Layers", [])
    return list(layers)
