"""Backend `openvino`: the graph on the CPU in OpenVINO's kernels, also in bfloat16 and with 8 or 4 bits.

`bf16` holds the matrices of products in bfloat16; they are multiplied in it only where the processor has AMX, since
other products in bfloat16 are slower than in float32. `int8` and `int4` hold weights in blocks of 32, and round the
activations of a product to 8 bits in groups of 32. The options are `calibration`, `smoothing` and `layer_tolerance` as
for ONNX Runtime, `dynamic` (False leaves activations in float32), and for `int8` `group` (64 is faster and errs more;
32 unless it is given). Rotary pairs lie in halves of a head: side by side they cost a third of the time in 8 bits.
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.canonical import canonical_json
from workbench.engine.backends.protocol import Availability, Plan
from workbench.engine.calibration import SCALES_FILE
from workbench.engine.hashing import sha256_of
from workbench.engine.openvino.compression import KINDS, compress, halve, name_in_order
from workbench.engine.processor import cpu_features, thread_count, what_runs
from workbench.errors import ContractError
from workbench.graph.naming import is_named

if TYPE_CHECKING:
    from collections.abc import Callable

    from workbench.checkpoint.config import DecoderConfig
    from workbench.checkpoint.weights import Weights
    from workbench.engine.contract import Contract
    from workbench.engine.openvino.session import OpenVinoSession
    from workbench.engine.ort_session import OrtSession
    from workbench.engine.quantising import Calibrated
    from workbench.engine.recipe import Recipe
    from workbench.graph import Graph
    from workbench.progress import Progress

MODEL_FILE, WEIGHTS_FILE, SETTINGS_FILE = "model.xml", "model.bin", "settings.json"
OPTIONS = ("calibration", "smoothing", "layer_tolerance", "dynamic", "group")
GROUPS = (32, 64)
PASS = 512  # tokens; measured at 8 bits: 2,048 stand further from the cores' caches, and are a tenth slower
STRENGTH = {"int8": 0.65}  # of smoothing: above, weights lose what activations gain
_ACTIVATIONS = "int8 at products, one scale a token and group; float32 elsewhere"
PRECISIONS = {
    "fp32": {"weights": "float32", "activations": "float32", "accumulators": "float32"},
    "bf16": {
        "weights": "bfloat16 at products",
        "activations": "bfloat16 where the processor has amx_bf16, else float32",
        "accumulators": "float32",
    },
    "int8": {
        "weights": "int8, one scale a block, smoothed, values and outputs turned head by head",
        "activations": _ACTIVATIONS,
        "accumulators": "int32 in a block, float32 over blocks",
    },
    "int4": {
        "weights": "4 bits, one scale and zero point a block of 32, error-compensated",
        "activations": _ACTIVATIONS,
        "accumulators": "int32 in a block, float32 over blocks",
    },
    "int4-grid": {
        "weights": "4 bits on the checkpoint's own grid, one scale and offset a block of 32",
        "activations": _ACTIVATIONS,
        "accumulators": "int32 in a block, float32 over blocks",
    },
}


def available() -> Availability:
    """Say whether OpenVINO is here."""
    do = "pip install 'hidden-state-workbench[openvino]'"
    try:
        import openvino
    except ImportError as error:
        return Availability(ready=False, version="", why=str(error), do=do)
    return Availability(ready=True, version=str(openvino.__version__).split("-", maxsplit=1)[0], why="", do="")


def build_plan(recipe: Recipe, folder: Path, progress: Callable[[int, int], None] | None = None) -> Plan:
    """Write OpenVINO's model of the graph, and the settings that it runs with."""
    import openvino as ov

    from workbench.engine.plan_files import write_plan
    from workbench.graph.halves import in_halves

    group = _check(recipe)
    found = _calibrated(recipe)
    config, weights = in_halves(recipe.checkpoint.config, found.weights)
    graph = _written(recipe, config, weights)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".graph-") as name:
        write_plan(graph, Path(name), progress)
        model = ov.Core().read_model(Path(name) / "model.onnx")
        kept: tuple[str, ...] = ()
        if recipe.precision in KINDS:
            modules = _chosen(graph, found)
            done = set(compress(model, modules, recipe.precision, weights, group))
            kept = tuple(module for module in graph.policy if module not in done)
            if not done:
                raise ContractError(
                    f"{recipe.precision} must find a matrix that it can take", "none", "Choose another precision."
                )
        elif recipe.precision == "bf16":
            halve(model, _chosen(graph, found))
        name_in_order(model)
        ov.save_model(model, str(folder / MODEL_FILE), compress_to_fp16=False)
        del model
    found.write(folder)
    (folder / SETTINGS_FILE).write_bytes(canonical_json(_settings(recipe)))
    names = [MODEL_FILE, WEIGHTS_FILE, SETTINGS_FILE, *found.records]
    files = {name: sha256_of(folder / name) for name in names}
    return Plan(
        files=files,
        inputs=tuple(graph.inputs),
        outputs=tuple(graph.outputs),
        kept_layers=kept,
        tokens_per_pass=max(PASS, recipe.max_tokens) if recipe.precision in KINDS else None,
        scales_digest=files.get(SCALES_FILE),
    )


def _check(recipe: Recipe) -> int:
    """Refuse options that nobody reads; give the size of groups."""
    from workbench.engine.quantising import check_options

    check_options({name: value for name, value in recipe.options.items() if name != "dynamic"}, OPTIONS)
    return _group(recipe)


def prepare(recipe: Recipe, progress: Progress) -> None:
    """Fit 4-bit weights, which takes long."""
    _check(recipe)
    if recipe.precision == "int4":
        _calibrated(recipe, progress)


def _group(recipe: Recipe) -> int:
    """Neighbours that share a scale, in weights and activations alike."""
    group = recipe.options.get("group", GROUPS[0])
    if group not in GROUPS or (group != GROUPS[0] and recipe.precision != "int8"):
        raise ContractError("option group must be 32, or 64 for int8", repr(group), "Leave it out.")
    return int(group)


def _calibrated(recipe: Recipe, progress: Progress | None = None) -> Calibrated:
    from workbench.engine.quantising import Calibrated, calibrated, calibrated_as
    from workbench.engine.spreading import spread

    if recipe.precision == "int4":
        return calibrated(recipe, progress)
    strength = float(recipe.options.get("smoothing", STRENGTH.get(recipe.precision, 0.0)))
    if recipe.precision not in KINDS or not strength:
        return Calibrated(weights=recipe.checkpoint.weights, keep=recipe.keep)
    found = calibrated_as(recipe, "int8", strength)
    return replace(found, weights=spread(recipe.checkpoint.config, found.weights))


def _written(recipe: Recipe, config: DecoderConfig, weights: Weights) -> Graph:
    from workbench.graph import build_graph

    return build_graph(
        config,
        weights,
        taps=recipe.taps,
        positions=recipe.positions,
        lowering="primitive",
        max_tokens=recipe.max_tokens,
    )


def _chosen(graph: Graph, found: Calibrated) -> dict[str, str]:
    return {f"{module}.weight": module for module in graph.policy if not is_named(module, found.keep)}


def _settings(recipe: Recipe) -> dict[str, str]:
    dynamic = recipe.precision in KINDS and recipe.options.get("dynamic", True)
    return {
        "INFERENCE_PRECISION_HINT": "bf16" if recipe.precision == "bf16" and _multiplies_bf16() else "f32",
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": str(_group(recipe) if dynamic else 0),
        "PERFORMANCE_HINT": "LATENCY",
    }


def _multiplies_bf16() -> bool:
    """Whether products in bfloat16 are faster here than in float32: vdpbf16ps has half the rate of float32's own."""
    return "amx_bf16" in cpu_features()


def twin(recipe: Recipe, folder: Path) -> tuple[OrtSession, str]:
    """Give the float32 graph with this engine's rounded weights, or bfloat16 emulated, on ONNX Runtime."""
    from workbench.engine.twins import emulated_twin, round_matrix, rounded_with

    del folder
    if recipe.precision == "bf16" and _multiplies_bf16():
        return emulated_twin(recipe)
    group = _group(recipe)
    return rounded_with(recipe, _calibrated(recipe), lambda matrix: round_matrix(matrix, recipe.precision, group))


def admit(contract: Contract) -> None:
    """Take every engine: where the processor lacks a feature, OpenVINO runs other kernels, as the contract says."""
    del contract


def runs_on(precision: str) -> str:
    """Say which kernels a precision gets on this processor."""
    return what_runs("int8" if precision in KINDS else precision)


def load(folder: Path) -> OpenVinoSession:
    """Open the plan of a folder whose files were checked before."""
    from workbench.engine.openvino.session import OpenVinoSession

    settings: dict[str, Any] = json.loads((folder / SETTINGS_FILE).read_bytes())
    settings["INFERENCE_NUM_THREADS"] = str(thread_count())
    weights = np.memmap(folder / WEIGHTS_FILE, dtype=np.uint8, mode="r")
    return OpenVinoSession((folder / MODEL_FILE).read_bytes(), weights, settings)
