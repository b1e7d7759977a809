"""Backend `tensorrt`: the graph on an NVIDIA GPU, strongly typed, in the precision of the recipe.

Options of a recipe: `tokens_per_pass` and `prompts_per_pass` (limits, for which the plan is tuned), `cuda_graph`
(replay passes of a shape seen before), `calibration` (texts for the ranges of fp8 and int8), `level` (how hard the
builder searches, 0 to 5), `kernels` ("attention", "attention+gate" or "all": own kernels in bf16, fp16 and fp8; "all"
computes gate and up with their activation in one kernel on cards of compute capability 9.0), `cache` (the baseline of a
sequence: keys and values of every block are made, and stay on the card, and one greedy token leaves).
"""

from __future__ import annotations

import json
import mmap
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.canonical import canonical_json
from workbench.engine.backends.protocol import Availability, Plan
from workbench.engine.hashing import sha256_of
from workbench.engine.tensorrt.api import Api, load_api
from workbench.engine.tensorrt.limits import Limits, limits_of, profiles
from workbench.errors import ContractError, EngineError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from workbench.engine.calibration import Ranges
    from workbench.engine.contract import Contract
    from workbench.engine.recipe import Recipe
    from workbench.engine.tensorrt.builder import Built
    from workbench.engine.tensorrt.driver import Driver
    from workbench.engine.tensorrt.session import TensorRTSession
    from workbench.graph import Graph

PLAN_FILE, SHAPE_FILE = "engine.plan", "plan.json"
SCALES, KERNELS_FILE = "scales.json", "kernels.json"
CACHE_FILE, LOG_FILE, LAYERS_FILE = "timing.cache", "build.log", "layers.json"
OPTIONS = ("tokens_per_pass", "prompts_per_pass", "cuda_graph", "calibration", "level", "kernels", "cache")
# By option `kernels`
LOWERINGS = {"none": "packed", "attention": "fused", "attention+gate": "fused_gate", "all": "fused_norm"}
OWN = ("bf16", "fp16", "fp8")  # precisions of the own kernels
BASELINES = ("fp32", "fp16", "bf16")
PRECISIONS = {
    "fp32": {"weights": "float32", "activations": "float32", "accumulators": "float32"},
    "fp16": {"weights": "float16", "activations": "float16", "accumulators": "chosen by TensorRT"},
    "bf16": {"weights": "bfloat16", "activations": "bfloat16", "accumulators": "float32"},
    "fp8": {
        "weights": "float8_e4m3fn, one scale a matrix",
        "activations": "float8_e4m3fn at products, one calibrated scale each; bfloat16 elsewhere",
        "accumulators": "float32",
    },
    "int8": {
        "weights": "int8, one scale an output",
        "activations": "int8 at products, one calibrated scale each; bfloat16 elsewhere",
        "accumulators": "int32",
    },
}


def available() -> Availability:
    """Say whether TensorRT and a card are here."""
    from workbench.engine.tensorrt.driver import load_driver

    try:
        api = load_api()
        load_driver()
    except EngineError as error:
        return Availability(ready=False, version="", why=error.got, do=error.do.removeprefix("Run: "))
    return Availability(ready=True, version=api.version, why="", do="")


def build_plan(recipe: Recipe, folder: Path, progress: Callable[[int, int], None] | None = None) -> Plan:
    """Build the plan of a recipe, and keep what the builder said, measured and chose."""
    from workbench.engine.tensorrt.card import read_card
    from workbench.engine.tensorrt.driver import load_driver
    from workbench.engine.tensorrt.kernels.compiling import check_compilers

    check_options(recipe.options)
    check_baseline(recipe)
    api, driver = load_api(), load_driver()
    driver.enter()
    if _lowering(recipe) != LOWERINGS["none"]:
        check_compilers(driver.compute_capability())
    limits = limits_of(recipe.max_tokens, recipe.options)
    plain, ranges, cache = _decoder(recipe)

    def compiled(*, stored: bool) -> tuple[Graph, Built]:
        graph = joined(lowered(plain, recipe, ranges, stored=stored), driver.compute_capability())
        fuse(folder, graph)
        return graph, compile_graph(api, graph, limits, folder, recipe.options, progress)

    try:
        graph, built = compiled(stored=True)
    except EngineError:
        if ranges is None:
            raise
        graph, built = compiled(stored=False)  # a parser that takes no quantised weights
    scales = None if ranges is None else ranges.to_bytes()
    keep(folder, built, scales)
    shape = {
        "limits": limits.to_json(),
        "cuda_graph": bool(recipe.options.get("cuda_graph", False)),
        "tensorrt": api.version,
        "resident": list(cache),
    }
    (folder / SHAPE_FILE).write_bytes(canonical_json(shape))
    need, layers = measure(folder)
    (folder / LAYERS_FILE).write_bytes(canonical_json(layers))
    card = read_card(driver).to_json() | {"need_bytes": need}
    names = [name for name in (PLAN_FILE, SHAPE_FILE, SCALES, KERNELS_FILE) if (folder / name).is_file()]
    return Plan(
        files={name: sha256_of(folder / name) for name in names},
        inputs=tuple(graph.inputs),
        outputs=tuple(graph.outputs),
        kept_layers=kept_layers(recipe, graph),
        card=card,
        target=f"sm_{card['compute_capability'].replace('.', '')}",
        tokens_per_pass=limits.tokens_per_pass,
        prompts_per_pass=limits.prompts_per_pass,
        scales_digest=None if scales is None else sha256_of(folder / SCALES),
        cache_outputs=cache,
    )


def check_options(options: Mapping[str, Any]) -> None:
    """Refuse options that this backend does not know.

    Raises
    ------
    ContractError
        With the names that it knows.
    """
    unknown = sorted(set(options) - set(OPTIONS))
    if unknown:
        raise ContractError(f"options of tensorrt are {', '.join(OPTIONS)}", ", ".join(unknown), "Leave these out.")
    if options.get("kernels", "none") not in LOWERINGS:
        named = ", ".join(LOWERINGS)
        raise ContractError(f"option kernels must be one of {named}", repr(options["kernels"]), "Use one of these.")


def check_baseline(recipe: Recipe) -> None:
    """Refuse a baseline that no generator would run.

    Raises
    ------
    ContractError
        If its precision is not that of weights, it does not give the last position, or it asks for own kernels.
    """
    said = (recipe.precision, recipe.positions, recipe.options.get("kernels", "none"))
    if recipe.options.get("cache") and (said[0] not in BASELINES or said[1:] != ("last", "none")):
        raise ContractError(
            f"a baseline with a cache is in {', '.join(BASELINES)}, gives the last position, and has no own kernels",
            f"{said[0]}, positions {said[1]}, kernels {said[2]}",
            "Leave out the option cache.",
        )


def _lowering(recipe: Recipe) -> str:
    return LOWERINGS[recipe.options.get("kernels", "none") if recipe.precision in OWN else "none"]


def _decoder(recipe: Recipe) -> tuple[Graph, Ranges | None, tuple[str, ...]]:
    """Write the decoder as `written` does, or the baseline; name the outputs that are its cache."""
    from workbench.graph.baseline import build_baseline

    if not recipe.options.get("cache"):
        return (*written(recipe), ())
    config, weights, lowering = recipe.checkpoint.config, recipe.checkpoint.weights, LOWERINGS["none"]
    graph, cache = build_baseline(config, weights, taps=recipe.taps, max_tokens=recipe.max_tokens, lowering=lowering)
    return graph, None, cache


def written(recipe: Recipe) -> tuple[Graph, Ranges | None]:
    """Write the decoder in primitive operators and float32; calibrate where the precision needs it."""
    from workbench.engine.calibration import calibrate
    from workbench.graph import build_graph
    from workbench.graph.kinds import KINDS

    graph = build_graph(
        recipe.checkpoint.config,
        recipe.checkpoint.weights,
        taps=recipe.taps,
        positions=recipe.positions,
        lowering=_lowering(recipe),
        max_tokens=recipe.max_tokens,
    )
    quantised = recipe.precision != "fp32" and KINDS[recipe.precision].products is not None
    return graph, calibrate(recipe) if quantised else None


def lowered(graph: Graph, recipe: Recipe, ranges: Ranges | None, *, stored: bool = True) -> Graph:
    """Give the graph in the recipe's precision."""
    from workbench.graph.narrow import narrow

    if recipe.precision == "fp32":
        return graph
    largest = {} if ranges is None else ranges.largest
    return narrow(graph, recipe.precision, ranges=largest, keep=recipe.keep, stored=stored)


def joined(graph: Graph, compute_capability: str) -> Graph:
    """Give the graph with one operator for gate and up, where this card's kernel covers it."""
    from workbench.engine.tensorrt.kernels.compiling import JOINED
    from workbench.graph.joined import join_gates

    return join_gates(graph) if compute_capability == JOINED and graph.lowering == LOWERINGS["all"] else graph


def fuse(folder: Path, graph: Graph) -> None:
    """Compile the own kernels of a graph into an engine folder, and make them known to TensorRT."""
    from workbench.engine.tensorrt.driver import load_driver
    from workbench.engine.tensorrt.kernels.compiling import compile_kernels, to_bytes
    from workbench.engine.tensorrt.kernels.launching import operators_of

    operators = operators_of(graph.model)
    if operators:
        driver = load_driver()
        (folder / KERNELS_FILE).write_bytes(to_bytes(compile_kernels(driver.compute_capability(), operators)))
        take_kernels(folder, load_api(), driver)


def take_kernels(folder: Path, api: Api, driver: Driver) -> None:
    """Load the kernels of an engine folder, where there are any."""
    from workbench.engine.tensorrt.kernels.compiling import from_bytes
    from workbench.engine.tensorrt.kernels.launching import launcher
    from workbench.engine.tensorrt.kernels.plugin import register

    if (folder / KERNELS_FILE).is_file():
        register(api, driver)
        launcher(driver).add(from_bytes((folder / KERNELS_FILE).read_bytes()))


def kept_layers(recipe: Recipe, graph: Graph) -> tuple[str, ...]:
    """Name the matrices that stayed in another precision than the recipe's."""
    if recipe.precision in ("fp8", "int8"):
        return tuple(name for name, precision in graph.policy.items() if precision != recipe.precision)
    return ()


def compile_graph(
    api: Api,
    graph: Graph,
    limits: Limits,
    folder: Path,
    options: Mapping[str, Any],
    progress: Callable[[int, int], None] | None,
) -> Built:
    """Write the graph beside the engine's folder for as long as the build takes, and build."""
    import onnx

    from workbench.engine.plan_files import MODEL_FILE, map_weights, write_plan
    from workbench.engine.tensorrt.builder import LEVEL, build_engine
    from workbench.graph.artefact import WEIGHTS_FILE

    with tempfile.TemporaryDirectory(dir=folder, prefix=".graph-") as name:
        work = Path(name)
        write_plan(graph, work)
        model = onnx.load_model_from_string((work / MODEL_FILE).read_bytes())
        return build_engine(
            api,
            work / MODEL_FILE,
            map_weights(model, work / WEIGHTS_FILE),
            profiles(limits, graph.positions),
            level=int(options.get("level", LEVEL)),
            compute_capability=options.get("compute_capability"),
            progress=progress,
        )


def keep(folder: Path, built: Built, scales: bytes | None) -> None:
    """Write the plan and the records of its build."""
    with (folder / PLAN_FILE).open("xb") as file:
        file.write(memoryview(built.plan).cast("B"))
    (folder / CACHE_FILE).write_bytes(built.timing_cache)
    (folder / LOG_FILE).write_text("\n".join(built.log) + "\n", encoding="utf-8")
    if scales is not None:
        (folder / SCALES).write_bytes(scales)


def measure(folder: Path) -> tuple[int, list[Any]]:
    """Load the plan once: memory of the card that a pass needs in bytes, and what the inspector tells of each layer."""
    from workbench.engine.tensorrt.builder import describe_layers

    session = load(folder)
    try:
        weights = (folder / PLAN_FILE).stat().st_size
        return weights + session.scratch_bytes + session.buffer_bytes, describe_layers(load_api(), session.engine)
    finally:
        session.close()


def load(folder: Path) -> TensorRTSession:
    """Open the plan of a folder whose files were checked before."""
    from workbench.engine.tensorrt.driver import load_driver

    return open_session(folder, load_api(), load_driver())


def open_session(folder: Path, api: Api, driver: Driver) -> TensorRTSession:
    """Open a plan with a given TensorRT and card."""
    from workbench.engine.tensorrt.session import TensorRTSession

    take_kernels(folder, api, driver)
    shape = json.loads((folder / SHAPE_FILE).read_bytes())
    with (folder / PLAN_FILE).open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as plan:
        return TensorRTSession(
            api,
            driver,
            plan,
            Limits(**shape["limits"]),
            cuda_graph=bool(shape["cuda_graph"]),
            resident=shape.get("resident", ()),
        )


def admit(contract: Contract) -> None:
    """Compare the card and the TensorRT of the contract with those of this machine, before the plan is read.

    Raises
    ------
    EngineRefused
        With the field, what the contract says, what is here, and the command that rebuilds.
    """
    from workbench.engine.again import rebuild_command
    from workbench.engine.tensorrt.card import check_card, read_card
    from workbench.engine.tensorrt.driver import load_driver

    driver = load_driver()
    driver.enter()
    part = contract.backend
    check_card(
        part.card or {},
        read_card(driver),
        built_version=part.version,
        version=load_api().version,
        free_bytes=driver.memory()[0],
        rebuild=rebuild_command(contract),
    )
