"""Backend `tensorrt_rtx`: plans for NVIDIA's consumer cards, built ahead of time on a machine without one.

Options of a recipe: `card` ("sm_120" for Blackwell, the default, or "sm_89" for Ada), `tokens_per_pass`,
`prompts_per_pass` and `calibration` as for TensorRT. What is verified at build is the twin: the same graph with the
same scales, emulated on ONNX Runtime. The plan itself is held against its rows when it is first opened on such a card.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from workbench.canonical import canonical_json
from workbench.engine.backends import tensorrt as full
from workbench.engine.backends.protocol import Availability, Plan
from workbench.engine.hashing import sha256_of
from workbench.engine.tensorrt.api import load_api
from workbench.engine.tensorrt.limits import limits_of
from workbench.errors import ContractError, EngineError, EngineRefused

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from workbench.engine.contract import Contract
    from workbench.engine.ort_session import OrtSession
    from workbench.engine.recipe import Recipe
    from workbench.engine.tensorrt.session import TensorRTSession

AHEAD_OF_TIME = True
MODULE = ("tensorrt_rtx",)
CARDS = {"sm_120": "12.0", "sm_89": "8.9"}
OPTIONS = ("card", "tokens_per_pass", "prompts_per_pass", "calibration")
CUDA = "13.0"  # what its packages are made for
PRECISIONS = {name: full.PRECISIONS[name] for name in ("fp16", "bf16", "fp8")}
TWIN = "the same graph and scales emulated on ONNX Runtime: float32 kernels, rounded after each operator"
INSTALL = "pip install 'hidden-state-workbench[rtx]'"


def available() -> Availability:
    """Say whether TensorRT-RTX is here; a card is needed only to run."""
    try:
        api = load_api(MODULE)
    except EngineError as error:
        return Availability(ready=False, version="", why=error.got, do=INSTALL)
    return Availability(ready=True, version=api.version, why="", do="")


def build_plan(recipe: Recipe, folder: Path, progress: Callable[[int, int], None] | None = None) -> Plan:
    """Build the plan of a recipe for a card that need not be here, and read its tensors back."""
    from workbench.engine.tensorrt.plan_table import check_table

    card = _card(recipe)
    limits = limits_of(recipe.max_tokens, recipe.options)
    plain, ranges = full.written(recipe)
    graph = full.lowered(plain, recipe, ranges)
    options: dict[str, Any] = {"compute_capability": CARDS[card]}
    built = full.compile_graph(load_api(MODULE), graph, limits, folder, options, progress)
    scales = None if ranges is None else ranges.to_bytes()
    full.keep(folder, built, scales)
    read = check_table((folder / full.PLAN_FILE).read_bytes(), graph.inputs, graph.outputs)
    shape = {
        "limits": limits.to_json(),
        "cuda_graph": False,
        "tensorrt": load_api(MODULE).version,
    }
    (folder / full.SHAPE_FILE).write_bytes(canonical_json(shape))
    names = [full.PLAN_FILE, full.SHAPE_FILE] + ([] if scales is None else [full.SCALES])
    return Plan(
        files={name: sha256_of(folder / name) for name in names},
        inputs=tuple(graph.inputs),
        outputs=tuple(graph.outputs),
        kept_layers=full.kept_layers(recipe, graph),
        card={
            "name": f"any card of compute capability {CARDS[card]}",
            "compute_capability": CARDS[card],
            "cuda": CUDA,
            "table_read_back": read,
        },
        target=card,
        tokens_per_pass=limits.tokens_per_pass,
        prompts_per_pass=limits.prompts_per_pass,
        scales_digest=None if scales is None else sha256_of(folder / full.SCALES),
    )


def _card(recipe: Recipe) -> str:
    unknown = sorted(set(recipe.options) - set(OPTIONS))
    card = recipe.options.get("card", "sm_120")
    if unknown:
        raise ContractError(f"options of tensorrt_rtx are {', '.join(OPTIONS)}", ", ".join(unknown), "Leave these out.")
    if card not in CARDS:
        raise ContractError(f"option card must be one of {', '.join(CARDS)}", repr(card), "Choose one of these.")
    return str(card)


def twin(recipe: Recipe, folder: Path) -> tuple[OrtSession, str]:
    """Give the plan's graph, emulated."""
    from workbench.engine.ort_session import session_of
    from workbench.graph.narrow import narrow

    del folder
    graph, ranges = full.written(recipe)
    largest = {} if ranges is None else ranges.largest
    return session_of(narrow(graph, recipe.precision, ranges=largest, keep=recipe.keep, emulate=True)), TWIN


def admit(contract: Contract) -> None:
    """Refuse a machine without the card that the plan was built for, before the plan is read.

    Raises
    ------
    EngineRefused
        With what the contract says, what is here, and the command that rebuilds.
    """
    from workbench.engine.again import command_elsewhere, rebuild_command
    from workbench.engine.tensorrt.card import check_card, read_card
    from workbench.engine.tensorrt.driver import load_driver

    part = contract.backend
    built = part.card or {}
    try:
        driver = load_driver()
        driver.enter()
    except EngineError as error:
        raise EngineRefused(
            f"this engine needs a card of compute capability {built.get('compute_capability', '?')} ({part.target})",
            error.got,
            f"Run it on a machine with such a card, or build for this one: {command_elsewhere(contract)}",
        ) from error
    check_card(
        built,
        read_card(driver),
        built_version=part.version,
        version=load_api(MODULE).version,
        free_bytes=driver.memory()[0],
        rebuild=rebuild_command(contract),
    )


def load(folder: Path) -> TensorRTSession:
    """Open the plan of a folder whose files were checked before."""
    from workbench.engine.tensorrt.driver import load_driver

    return full.open_session(folder, load_api(MODULE), load_driver())
