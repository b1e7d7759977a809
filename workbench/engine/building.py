"""Build: a recipe becomes a folder with plan, recipe, self-test rows and contract, or nothing at all."""

from __future__ import annotations

import platform
import resource
import sys
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from workbench.canonical import canonical_json
from workbench.engine.backends.protocol import Backend, Plan, Session, get_backend
from workbench.engine.contract import (
    CONTRACT_FILE,
    BackendPart,
    BuildPart,
    CheckpointPart,
    Contract,
    LimitsPart,
    PrecisionPart,
    TensorRow,
    engine_id_of,
)
from workbench.engine.hashing import sha256_of
from workbench.engine.measuring import (
    TOKENS_PER_PASS,
    cache_part,
    compare_rebuild,
    measure_speed,
    origin_note,
    twin_of,
    with_trial,
)
from workbench.engine.methods import method_of
from workbench.engine.names import folder_of
from workbench.engine.opening import (
    RECIPE_FILE,
    TOKENIZER_FILE,
    Engine,
    find_engine,
    is_whole,
    open_engine,
    read_contract,
)
from workbench.engine.processor import this_processor
from workbench.engine.reference import compute_reference
from workbench.engine.registry import make_way
from workbench.engine.scratch import check_room, scratch_folder, settle
from workbench.engine.selftest import SELFTEST_FILE, write_selftest
from workbench.engine.trial import remember
from workbench.engine.verification import verify
from workbench.errors import EngineError
from workbench.progress import Steps, steps
from workbench.writing import sync, whole_file

if TYPE_CHECKING:
    from workbench.engine.recipe import Recipe


@dataclass(frozen=True, kw_only=True, slots=True)
class BuildOptions:
    """How a build is made and what it is called; none of it is part of the engine's identity.

    Parameters
    ----------
    parent : str, optional
        Id of the engine that it follows in a sequence of builds.
    name : str, optional
        What it is called in that sequence.
    rebuild : bool, optional
        Whether the plan is written a second time and compared; by default where it holds no code of one card.
    trial : bool
        Whether memory is measured in a fresh process.
    """

    parent: str | None = None
    name: str | None = None
    rebuild: bool | None = None
    trial: bool = False


def build(
    recipe: Recipe,
    folder: str | Path,
    *,
    parent: str | None = None,
    name: str | None = None,
    rebuild: bool | None = None,
    trial: bool = False,
    progress: bool | Steps = True,
) -> Engine:
    """Build the engine of a recipe, verify it, and open it.

    An engine of the same recipe and backend version that already lies in `folder` is opened instead, if its weights
    were made as they would be today.

    Parameters
    ----------
    recipe : Recipe
        What to build.
    folder : str or Path
        Where engines live; the engine becomes a folder in it, named by the start of its id.
    parent, name, rebuild, trial
        As in `BuildOptions`.
    progress : bool or callable
        Show the step that runs once two seconds have passed, or call this with its name and the share of it that is
        done.

    Returns
    -------
    Engine
        Loaded and self-tested.

    Raises
    ------
    EngineError
        If the backend is not here, does not know the precision, or the engine misses its tolerance.
    StoreFull
        If the disk has no room; nothing is left behind.
    """
    with steps("build", show=progress) as say:
        options = BuildOptions(parent=parent, name=name, rebuild=rebuild, trial=trial)
        home = make_engine(recipe, folder, options, progress=say)
        say("load", 0.0)
        engine = open_engine(home)
    engine.checkpoint = recipe.checkpoint
    return engine


def make_engine(
    recipe: Recipe, folder: str | Path, options: BuildOptions = BuildOptions(), *, progress: Steps | None = None
) -> Path:
    """Build the engine of a recipe as `build` does, without opening it: for cards that are not here.

    Returns
    -------
    Path
        Folder of the engine.
    """
    say = progress or (lambda _step, _share: None)
    backend = _ready_backend(recipe)
    root = Path(folder)
    root.mkdir(parents=True, exist_ok=True)
    found = find_engine(root, recipe.digest, backend.available().version)
    if found is not None and is_whole(found):
        return adopt(found, options)
    _check_room(root, recipe)
    with scratch_folder(root, "building") as scratch:
        contract = _build_into(scratch, recipe, backend, say, options)
        home = folder_of(root, contract.engine_id)
        for damaged in {home, found or home}:
            make_way(damaged)
        settle(scratch, home)
    if contract.verification.engine_ran:
        remember(contract, backend.available().version)  # it was loaded and measured in this very process
    return home


def adopt(folder: Path, options: BuildOptions) -> Path:
    """Write into the contract of an engine that was found whole what a sequence says of it; its id stays."""
    contract = read_contract(folder)
    said = {"parent": options.parent, "name": options.name}
    changes = {field: value for field, value in said.items() if value not in (None, getattr(contract, field))}
    tried = options.trial and contract.build.trial is None and contract.verification.engine_ran
    if not changes and not tried:
        return folder
    contract = contract.model_copy(update=changes)
    if tried:
        contract = with_trial(contract, folder)
    # beside the folder: a file left in it by a killed process would be one that no contract lists
    with whole_file(folder / CONTRACT_FILE, beside=folder.parent) as file:
        file.write(contract.sealed().to_bytes())
    return folder


def _build_into(folder: Path, recipe: Recipe, backend: Backend, say: Steps, options: BuildOptions) -> Contract:
    start = time.perf_counter()
    say("reference", 0.0)
    reference = compute_reference(recipe)
    prepare = getattr(backend, "prepare", None)
    if prepare is not None:
        prepare(recipe, lambda done, total: say("calibrate", done / max(total, 1)))
    plan = backend.build_plan(recipe, folder, lambda done, total: say("write", done / max(total, 1)))
    say("verify", 0.0)
    ahead = bool(getattr(backend, "AHEAD_OF_TIME", False))
    twin, words = twin_of(backend, recipe, folder)
    session = twin if ahead and twin is not None else backend.load(folder)
    id_dtype = plan.inputs[0].dtype
    verification, rows = verify(
        session, reference, recipe.positions, id_dtype, recipe.precision, None if ahead else twin
    )
    self_test = write_selftest(folder / SELFTEST_FILE, reference.prompts, rows, recipe.positions)
    if ahead:  # its rows are the twin's: the card may differ from them as far as its precision may
        self_test = self_test.model_copy(update={"rtol": verification.tolerance_worst})
    again = None
    if options.rebuild or (options.rebuild is None and (ahead or plan.target == "cpu")):
        say("rebuild", 0.0)
        again = compare_rebuild(recipe, backend, folder, plan, runs=not ahead)
    verification = verification.model_copy(
        update={"twin": words, "rebuild": again, "engine_ran": not ahead, "note": origin_note(recipe)}
    )
    files = dict(plan.files)
    _write_beside(folder, recipe)
    for name in sorted({path.name for path in folder.iterdir()} - set(files)):
        files[name] = sha256_of(folder / name)
    contract = Contract(
        engine_id=engine_id_of(recipe.digest, plan.files),
        recipe_digest=recipe.digest,
        parent=options.parent,
        name=options.name,
        checkpoint=_checkpoint_part(recipe),
        backend=_backend_part(recipe, backend, plan),
        precision=PrecisionPart(
            name=recipe.precision,
            kept_layers=plan.kept_layers,
            method=method_of(recipe.backend, recipe.precision),
            scales_digest=plan.scales_digest,
            **backend.PRECISIONS[recipe.precision],
        ),
        inputs=tuple(TensorRow(name=t.name, dtype=t.dtype, axes=tuple(map(str, t.axes))) for t in plan.inputs),
        outputs=tuple(TensorRow(name=t.name, dtype=t.dtype, axes=tuple(map(str, t.axes))) for t in plan.outputs),
        taps=recipe.taps,
        positions=recipe.positions,
        limits=LimitsPart(
            max_tokens=recipe.max_tokens,
            tokens_per_pass=plan.tokens_per_pass or max(TOKENS_PER_PASS, recipe.max_tokens),
            prompts_per_pass=plan.prompts_per_pass,
        ),
        tokenizer_digest=recipe.checkpoint.tokenizer.digest if recipe.checkpoint.tokenizer else None,
        files=files,
        verification=verification,
        self_test=self_test,
        cache=cache_part(recipe, plan),
        build=_build_part(recipe, backend, plan, session, folder, start),
    )
    if options.trial and not ahead:
        del session, twin
        contract = with_trial(contract, folder)
    contract = contract.sealed()
    (folder / CONTRACT_FILE).write_bytes(contract.to_bytes())
    for path in folder.iterdir():
        sync(path)
    sync(folder)
    return contract


def _ready_backend(recipe: Recipe) -> Backend:
    backend = get_backend(recipe.backend)
    here = backend.available()
    if not here.ready:
        raise EngineError(f"the backend {recipe.backend} must be ready", here.why, f"Run: {here.do}")
    if recipe.precision not in backend.PRECISIONS:
        raise EngineError(
            f"the precision of backend {recipe.backend} must be one of {', '.join(backend.PRECISIONS)}",
            repr(recipe.precision),
            "Choose one of these.",
        )
    return backend


def _check_room(root: Path, recipe: Recipe) -> None:
    weights = recipe.checkpoint.weights
    check_room(root, 4 * sum(int(np.prod(weights.shape(name), dtype=np.int64)) for name in weights.names()))


def _write_beside(folder: Path, recipe: Recipe) -> None:
    (folder / RECIPE_FILE).write_bytes(canonical_json(recipe.to_json()))
    if recipe.checkpoint.tokenizer is not None:
        (folder / TOKENIZER_FILE).write_bytes(recipe.checkpoint.tokenizer.dump())


def _checkpoint_part(recipe: Recipe) -> CheckpointPart:
    checkpoint = recipe.checkpoint
    return CheckpointPart(
        digest=checkpoint.digest,
        name=checkpoint.name,
        format=checkpoint.format,
        family=checkpoint.config.family,
        n_layers=checkpoint.config.n_layers,
        d_model=checkpoint.config.d_model,
        d_vocab=checkpoint.config.d_vocab,
        source_quantization=checkpoint.source_quantization,
    )


def _backend_part(recipe: Recipe, backend: Backend, plan: Plan) -> BackendPart:
    return BackendPart(
        name=recipe.backend,
        version=backend.available().version,
        target=plan.target,
        card=plan.card,
        machine=f"{platform.machine()} {platform.system()}",
        processor=this_processor(),
        options=dict(recipe.options),
        runs=getattr(backend, "runs_on", lambda _precision: None)(recipe.precision),
    )


def _build_part(
    recipe: Recipe, backend: Backend, plan: Plan, session: Session, folder: Path, start: float
) -> BuildPart:
    emulated = recipe.precision in getattr(backend, "EMULATED", ()) or bool(getattr(backend, "AHEAD_OF_TIME", False))
    speed = None
    if not emulated:  # an emulation says nothing of speed
        speed = round(measure_speed(session, recipe, plan.inputs[0].dtype, tokens=plan.tokens_per_pass or 512), 1)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return BuildPart(
        seconds=round(time.perf_counter() - start, 3),
        plan_bytes=sum((folder / name).stat().st_size for name in plan.files),
        peak_memory_bytes=peak,
        tokens_per_second=speed,
        emulated=emulated,
        tools={name: metadata.version(name) for name in ("numpy", "onnx")} | {"python": platform.python_version()},
        created=datetime.now(UTC).isoformat(timespec="seconds"),
    )
