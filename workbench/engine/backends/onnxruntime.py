"""Backend `onnxruntime`: the graph on the CPU, as it stands in the standard operator set."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from workbench.engine.backends.protocol import Availability, Plan
from workbench.engine.calibration import SCALES_FILE
from workbench.engine.ort_session import OrtSession
from workbench.engine.plan_files import MODEL_FILE, map_weights, release_pages, write_plan
from workbench.errors import ContractError
from workbench.graph.artefact import WEIGHTS_FILE

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from workbench.engine.contract import Contract
    from workbench.engine.recipe import Recipe
    from workbench.graph import Graph
    from workbench.progress import Progress

PRECISIONS = {
    "fp32": {"weights": "float32", "activations": "float32", "accumulators": "float32"},
    "int8": {"weights": "int8, one scale a block", "activations": "float32", "accumulators": "float32"},
    "int8-dynamic": {
        "weights": "int8, one scale an output, smoothed",
        "activations": "uint8 at products, one scale a token; float32 elsewhere",
        "accumulators": "int32",
    },
    "int8-static": {
        "weights": "int8, one scale an output, smoothed",
        "activations": "uint8 at products, one calibrated scale each; float32 elsewhere",
        "accumulators": "int32",
    },
    "int4": {
        "weights": "4 bits, one scale and zero point a block of 32, error-compensated; embeddings int8",
        "activations": "int8 at products, one scale a block; float32 elsewhere",
        "accumulators": "int32 in a block, float32 over blocks",
    },
    "int4-grid": {
        "weights": "4 bits on the checkpoint's own grid, one scale and offset a block of 32; embeddings int8",
        "activations": "int8 at products, one scale a block; float32 elsewhere",
        "accumulators": "int32 in a block, float32 over blocks",
    },
    "fp16": {
        "weights": "float16, emulated",
        "activations": "float16, rounded after each operator",
        "accumulators": "float32",
    },
    "bf16": {
        "weights": "bfloat16, emulated",
        "activations": "bfloat16, rounded after each operator",
        "accumulators": "float32",
    },
    "fp8": {
        "weights": "float8_e4m3fn, one scale a matrix, smoothed, emulated",
        "activations": "float8_e4m3fn at products, one calibrated scale each; bfloat16 elsewhere, emulated",
        "accumulators": "float32",
    },
}
EMULATED = frozenset({"fp16", "bf16", "fp8"})  # float32 kernels that round: their speed would say nothing
OLDEST = (1, 27)
_PLAIN = frozenset({"fp32", "int8"})


def available() -> Availability:
    """Say whether ONNX Runtime is here, and recent enough."""
    do = "pip install --upgrade 'onnxruntime>=1.27'"
    try:
        import onnxruntime
    except ImportError as error:
        return Availability(ready=False, version="", why=str(error), do=do)
    version = str(onnxruntime.__version__)
    if tuple(int(part) for part in version.split(".")[:2]) < OLDEST:
        why = f"version {version} lets attention with a soft cap read masked positions"
        return Availability(ready=False, version=version, why=why, do=do)
    return Availability(ready=True, version=version, why="", do="")


def prepare(recipe: Recipe, progress: Progress) -> None:
    """Fit 4-bit weights, which takes long."""
    from workbench.engine.quantising import calibrated, check_options

    check_options(recipe.options)
    if recipe.precision == "int4":
        calibrated(recipe, progress)


def build_plan(recipe: Recipe, folder: Path, progress: Callable[[int, int], None] | None = None) -> Plan:
    """Write the graph and its weights into the engine folder."""
    from workbench.engine.quantising import calibrated, check_options, quantised_graph

    check_options(recipe.options)
    if recipe.options.get("cache"):
        return _baseline(recipe, folder, progress)
    if recipe.precision in _PLAIN:
        graph, records = _plain(recipe), {}
    else:
        found = calibrated(recipe)
        graph, records = quantised_graph(recipe, found), dict(found.records)
    files = write_plan(graph, folder, progress)
    for name, data in records.items():
        (folder / name).write_bytes(data)
        files[name] = hashlib.sha256(data).hexdigest()
    target = recipe.precision if recipe.precision not in ("fp16", "bf16") else None
    kept = tuple(name for name, precision in graph.policy.items() if target and precision != target)
    return Plan(
        files=files,
        inputs=tuple(graph.inputs),
        outputs=tuple(graph.outputs),
        kept_layers=kept,
        scales_digest=files.get(SCALES_FILE),
    )


def _plain(recipe: Recipe) -> Graph:
    from workbench.graph import build_graph

    return build_graph(
        recipe.checkpoint.config,
        recipe.checkpoint.weights,
        taps=recipe.taps,
        positions=recipe.positions,
        precision=recipe.precision,
        max_tokens=recipe.max_tokens,
        keep=recipe.keep,
    )


def _baseline(recipe: Recipe, folder: Path, progress: Callable[[int, int], None] | None) -> Plan:
    """Write the graph of a generator's first pass: the whole cache and one greedy token leave beside the taps."""
    from workbench.graph.baseline import build_baseline

    if recipe.precision != "fp32" or recipe.positions != "last":
        raise ContractError(
            "a baseline with a cache must be fp32 and give the last position",
            f"{recipe.precision} and {recipe.positions}",
            "Leave out the option cache.",
        )
    graph, cache = build_baseline(
        recipe.checkpoint.config, recipe.checkpoint.weights, taps=recipe.taps, max_tokens=recipe.max_tokens
    )
    files = write_plan(graph, folder, progress)
    return Plan(
        files=files, inputs=tuple(graph.inputs), outputs=tuple(graph.outputs), kept_layers=(), cache_outputs=cache
    )


def twin(recipe: Recipe, folder: Path) -> tuple[OrtSession, str] | None:
    """Give the float32 graph with this engine's rounded weights: what is left is the error of its activations."""
    from workbench.engine.twins import rounded_twin

    del folder
    return None if recipe.precision in EMULATED or recipe.options.get("cache") else rounded_twin(recipe)


def admit(contract: Contract) -> None:
    """Take every engine: the graph holds no code of one processor."""
    del contract


def load(folder: Path) -> OrtSession:
    """Open the plan of a folder whose files were checked before."""
    import onnx

    data = (folder / MODEL_FILE).read_bytes()
    arrays = map_weights(onnx.load_model_from_string(data), folder / WEIGHTS_FILE)
    session = OrtSession(data, arrays)
    release_pages(arrays)
    return session
