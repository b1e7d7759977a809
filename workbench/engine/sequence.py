"""Sequence of builds: one checkpoint as a generator runs it, then without its cache, then in fewer and fewer bits."""

from __future__ import annotations

from dataclasses import dataclass
from textwrap import shorten
from typing import TYPE_CHECKING, Any

from workbench.engine.backends.protocol import backend_names, get_backend
from workbench.engine.building import BuildOptions, make_engine
from workbench.engine.opening import read_contract
from workbench.engine.recipe import Recipe
from workbench.engine.speeds import measured_elsewhere, speed_here, this_machine
from workbench.errors import EngineError, WorkbenchError
from workbench.progress import Steps
from workbench.progress import steps as showing

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from workbench.checkpoint import Checkpoint
    from workbench.engine.contract import Contract
    from workbench.engine.recipe import Positions

BASELINE, CACHELESS = "baseline-kv", "cacheless"


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """One engine of a sequence.

    Attributes
    ----------
    name : str
        Of the build, as it stands in the contract.
    backend, precision : str
        As in a recipe.
    options : tuple of (str, object)
        As in a recipe.
    keep : tuple of str
        As in a recipe; `{last}` stands for the number of the last block, `{before}` for that before it.
    """

    name: str
    backend: str = "onnxruntime"
    precision: str = "fp32"
    options: tuple[tuple[str, Any], ...] = ()
    keep: tuple[str, ...] = ()

    @property
    def cached(self) -> bool:
        """Whether this is a baseline with a cache."""
        return bool(dict(self.options).get("cache"))


@dataclass(frozen=True, kw_only=True, slots=True)
class Built:
    """What became of a step: a contract, or the words of its refusal."""

    step: Step
    contract: Contract | None
    refusal: str = ""


# Few products, and most of the damage of 8 bits in groups of 64, as measured on SmolLM2: values, the first rows that
# enter the stream, and what reaches the final state directly.
FRAGILE = (
    "*.v", "blocks.0.down", "blocks.1.down", "blocks.2.down",
    "blocks.{last}.gate", "blocks.{last}.up", "blocks.{last}.down",
)  # fmt: skip
WIDE = ("tokens_per_pass", 8192)  # of a GPU
OWN = (WIDE, ("kernels", "all"))
STEPS = (
    Step(name=BASELINE, options=(("cache", True),)),
    Step(name=CACHELESS),
    Step(name="cacheless-fp16", precision="fp16"),
    Step(name="cacheless-bf16", precision="bf16"),
    Step(name="cacheless-int8-weights", precision="int8"),
    Step(name="cacheless-int8", precision="int8-dynamic"),
    Step(name="cacheless-int8-static", precision="int8-static"),
    Step(name="cacheless-int4", precision="int4"),
    Step(name="cacheless-int4-grid", precision="int4-grid"),
    Step(name="cacheless-fp8", precision="fp8", keep=("*.down",)),
    Step(name="cacheless-openvino", backend="openvino"),
    Step(name="cacheless-bf16-openvino", backend="openvino", precision="bf16"),
    Step(name="cacheless-int8-openvino", backend="openvino", precision="int8", options=(("group", 64),), keep=FRAGILE),
    Step(name="cacheless-int4-openvino", backend="openvino", precision="int4"),
    Step(name="cacheless-int4-grid-openvino", backend="openvino", precision="int4-grid"),
    Step(name="baseline-kv-tensorrt", backend="tensorrt", precision="bf16", options=(WIDE, ("cache", True))),
    Step(name="cacheless-tensorrt", backend="tensorrt", options=(WIDE,)),
    Step(name="cacheless-fp16-tensorrt", backend="tensorrt", precision="fp16", options=OWN),
    Step(name="cacheless-bf16-tensorrt", backend="tensorrt", precision="bf16", options=OWN),
    Step(
        name="cacheless-fp8-tensorrt", backend="tensorrt", precision="fp8", options=OWN,
        keep=("*.down", "blocks.{before}.*", "blocks.{last}.*"),
    ),
)  # fmt: skip


def build_sequence(
    checkpoint: Checkpoint,
    folder: str | Path,
    *,
    taps: Sequence[str] = ("final_norm",),
    positions: Positions = "last",
    max_tokens: int = 128,
    steps: Sequence[Step] | None = None,
    rebuild: bool | None = None,
    trial: bool = True,
    progress: bool | Steps = True,
) -> tuple[Built, ...]:
    """Build every step that this machine can build, each with its parent and its measurements in the contract.

    Parameters
    ----------
    checkpoint : Checkpoint
        From `open_checkpoint`.
    folder : str or Path
        Where engines live.
    taps, positions, max_tokens
        As in `Recipe`; a baseline always gives the last position.
    steps : sequence of Step
        What to build, in order.
    rebuild : bool, optional
        As in `build`; False writes each plan once, and the contracts say nothing of a second build.
    trial : bool
        Whether memory is measured in a fresh process for each.
    progress : bool or callable
        Show the build that is made, or call this with its name and the share of the sequence that is done.

    Returns
    -------
    tuple of Built
        One a step whose backend is ready; a step that was refused says why.
    """
    steps, last = STEPS if steps is None else steps, checkpoint.config.n_layers - 1
    found: list[Built] = []
    parents: dict[str, str] = {}
    with showing("build", show=progress) as say:
        for step in steps:
            if step.backend not in backend_names() or not get_backend(step.backend).available().ready:
                continue
            say(step.name, len(found) / len(steps))
            recipe = Recipe(
                checkpoint=checkpoint,
                precision=step.precision,
                taps=tuple(taps),
                positions="last" if step.cached else positions,
                backend=step.backend,
                max_tokens=max_tokens,
                keep=tuple(pattern.format(last=last, before=max(last - 1, 0)) for pattern in step.keep),
                options=dict(step.options),
            )
            parent = None if step.cached else parents.get(BASELINE if step.name == CACHELESS else CACHELESS)
            try:
                options = BuildOptions(parent=parent, name=step.name, rebuild=rebuild, trial=trial)
                home = make_engine(recipe, folder, options)
            except WorkbenchError as error:
                found.append(Built(step=step, contract=None, refusal=str(error)))
                continue
            contract = read_contract(home)
            parents[step.name] = contract.engine_id
            found.append(Built(step=step, contract=contract))
    return tuple(found)


HEAD = ("build", "seconds", "MB", "memory MB", "mean error", "worst token", "tokens/s", "kept")


def table_of(built: Sequence[Built], tap: str | None = None) -> tuple[tuple[str, ...], ...]:
    """Lay the measurements of a sequence out as rows of text.

    Parameters
    ----------
    built : sequence of Built
        From `build_sequence`.
    tap : str, optional
        Whose error is shown; the deepest by default.
    """
    rows = [HEAD]
    for one in built:
        c = one.contract
        if c is None:
            rows.append(
                (one.step.name, shorten(f"refused: {one.refusal}", 170, placeholder=" ..."), "", "", "", "", "", "")
            )
            continue
        verdict = c.verification.taps[tap or c.taps[-1]]
        speed = c.build.tokens_per_second
        rows.append(
            (
                one.step.name,
                f"{c.build.seconds:.1f}",
                f"{c.build.plan_bytes / 1e6:,.1f}",
                _memory(c),
                f"{verdict.mean_relative_error:.3g}",
                f"{verdict.worst_relative_error:.3g}",
                "emulated" if c.build.emulated else "-" if speed is None else _speed(c, speed),
                str(len(c.precision.kept_layers)),
            )
        )
    return tuple(rows)


def _memory(contract: Contract) -> str:
    """Memory in MB: of the card where there is one, with the cache of its largest pass; else of a fresh process."""
    card, cache, trial = contract.backend.card, contract.cache, contract.build.trial
    if card is None:
        return "-" if trial is None else f"{trial.peak_bytes / 1e6:,.0f}"
    need = f"{card['need_bytes'] / 1e6:,.0f} of the card"
    if cache is None:
        return need
    return f"{need}, cache {cache.bytes_per_token * contract.limits.tokens_per_pass / 1e6:,.0f}"


def _speed(contract: Contract, speed: float) -> str:
    return f"({speed:,.0f})" if measured_elsewhere(contract) else f"{speed:,.0f}"


def foreign_speeds(built: Sequence[Built]) -> tuple[str, ...]:
    """Say which speeds of a sequence were measured elsewhere, and what to do; nothing where there are none.

    Parameters
    ----------
    built : sequence of Built
        From `build_sequence` or `build_fastest`, which leaves these out of its choice.
    """
    contracts = [(one.step.name, one.contract) for one in built if one.contract is not None]
    found = [(name, c, where) for name, c in contracts if (where := measured_elsewhere(c))]
    if not found:
        return ()
    here = " and ".join(sorted({this_machine(c) for _, c, _ in found}))
    return (
        f"Speeds that were not measured here, on {here}, are left out of any choice: {len(found)} of {len(contracts)}.",
        *(f"  {name} ({c.engine_id[:12]}): on {where}" for name, c, where in found),
        "To have one measured here, remove it (workbench engines rm ID --yes) and build it again.",
    )


def lines_of(rows: Sequence[Sequence[str]]) -> list[str]:
    """Align the rows of a table."""
    widths = [max(len(row[i]) for row in rows if not row[1].startswith("refused")) for i in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def build_fastest(
    checkpoint: Checkpoint,
    folder: str | Path,
    *,
    within: float,
    taps: Sequence[str] = ("final_norm",),
    positions: Positions = "last",
    max_tokens: int = 128,
    steps: Sequence[Step] | None = None,
    progress: bool | Steps = True,
) -> tuple[Contract, tuple[Built, ...]]:
    """Build what this machine can build, and choose the fastest whose mean error is within a limit at every tap.

    Engines that were in the folder already count with the speed that their contracts state, if it was measured on such
    a machine as this; `foreign_speeds` names those that are left out.

    Parameters
    ----------
    checkpoint, folder, taps, positions, max_tokens, progress
        As in `build_sequence`.
    within : float
        Largest mean relative error a tap may have against the float32 reference.
    steps : sequence of Step
        Candidates.

    Returns
    -------
    Contract
        Of the fastest.
    tuple of Built
        All that were measured.

    Raises
    ------
    EngineError
        If none whose speed was measured here is within the limit.
    """
    steps = [step for step in STEPS if not step.cached] if steps is None else steps
    candidates = [s for s in steps if s.precision not in getattr(get_backend(s.backend), "EMULATED", ())]
    built = build_sequence(
        checkpoint,
        folder,
        taps=taps,
        positions=positions,
        max_tokens=max_tokens,
        steps=candidates,
        rebuild=False,
        trial=False,
        progress=progress,
    )
    measured = [one.contract for one in built if one.contract is not None]
    here = [c for c in measured if speed_here(c) is not None]
    fits = [c for c in here if _mean_error(c) <= within]
    if not fits:
        foreign = foreign_speeds(built)
        nearest = f"{min(map(_mean_error, here)):.3g} at best" if here else "none that was measured here"
        raise EngineError(
            f"a build measured here must be within {within:g} of the float32 reference in the mean",
            nearest,
            " ".join(("Allow a larger error with --within.", *foreign[:1], *foreign[-1:])),
        )
    return max(fits, key=lambda c: c.build.tokens_per_second or 0.0), built


def _mean_error(contract: Contract) -> float:
    return max(verdict.mean_relative_error for verdict in contract.verification.taps.values())
