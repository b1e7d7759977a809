"""What a build measures besides its error: repetition of the build, cache, memory and speed."""

from __future__ import annotations

import tempfile
import time
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from workbench.engine.batch import make_feeds
from workbench.engine.contract import CachePart, Contract, Rebuild, Repeat, TrialPart
from workbench.engine.reference import reference_prompts, run_one_by_one
from workbench.engine.trial import run_trial
from workbench.engine.verification import only, repeat_of
from workbench.graph.baseline import NEXT_OUTPUT

if TYPE_CHECKING:
    from workbench.engine.backends.protocol import Backend, Plan, Session
    from workbench.engine.recipe import Recipe
    from workbench.graph.artefact import TensorSpec

TOKENS_PER_PASS = 2048


def origin_note(recipe: Recipe) -> str | None:
    """Say what the error of this engine is measured against, where the checkpoint was quantised before."""
    origin = recipe.checkpoint.source_quantization
    if origin is None:
        return None
    return (
        f"The checkpoint's weights are {origin} already. Errors are measured against these weights in float32, "
        "so they come on top of what that quantisation changed; weights that were never quantised may behave otherwise."
    )


def compare_rebuild(recipe: Recipe, backend: Backend, folder: Path, plan: Plan, *, runs: bool) -> Rebuild:
    """Write the plan a second time, and compare bytes and, where it runs here, numbers."""
    with tempfile.TemporaryDirectory(dir=folder, prefix=".again-") as name:
        second = Path(name)
        again = backend.build_plan(recipe, second, None)
        names = sorted(set(plan.files) | set(again.files))
        differing = tuple(name for name in names if plan.files.get(name) != again.files.get(name))
        numbers = None
        if runs and not differing:
            numbers = Repeat(bit_equal=True, max_relative_error=0.0)  # equal bytes; repetition is measured apart
        elif runs:
            numbers = _numbers_again(backend, folder, second, recipe, plan)
    return Rebuild(plan_bytes_equal=not differing, differing_files=differing, numbers=numbers)


def _numbers_again(backend: Backend, folder: Path, second: Path, recipe: Recipe, plan: Plan) -> Repeat:
    prompts = reference_prompts(recipe.checkpoint, recipe.max_tokens, recipe.positions)
    both = [
        only(recipe.taps, run_one_by_one(backend.load(place), prompts, recipe.positions, plan.inputs[0].dtype))
        for place in (second, folder)
    ]
    return repeat_of(both[0], both[1])


def twin_of(backend: Backend, recipe: Recipe, folder: Path) -> tuple[Session | None, str | None]:
    """Give the same low precision on the reference backend, and a word on it; nothing where there is none."""
    make = getattr(backend, "twin", None)
    found = make(recipe, folder) if make is not None and recipe.precision != "fp32" else None
    return found if found is not None else (None, None)


def cache_part(recipe: Recipe, plan: Plan) -> CachePart | None:
    """Size the cache of one pass of full-length prompts, from the shapes of its tensors; they may stay on a card."""
    if not plan.cache_outputs:
        return None
    prompts, tokens = 4, recipe.max_tokens
    specs = [spec for spec in plan.outputs if spec.name in plan.cache_outputs]
    size = sum(_tensor_bytes(spec, prompts, tokens) for spec in specs)
    return CachePart(
        bytes_per_token=size / (prompts * tokens),
        pass_bytes=size,
        pass_tokens=prompts * tokens,
        outputs=plan.cache_outputs,
        next_token=NEXT_OUTPUT,
    )


def _tensor_bytes(spec: TensorSpec, prompts: int, tokens: int) -> int:
    from workbench.graph.kinds import narrow_dtype

    sizes = {"prompt": prompts, "token": tokens}
    dims = [sizes[axis] if isinstance(axis, str) else axis for axis in spec.axes]
    return prod(dims) * narrow_dtype(spec.dtype).itemsize


def with_trial(contract: Contract, folder: Path) -> Contract:
    """Measure load and memory in a fresh process, and write them into the contract."""
    found = run_trial(folder, contract, pass_tokens=TOKENS_PER_PASS)
    part = TrialPart(**{name: found[name] for name in TrialPart.model_fields})
    return contract.model_copy(update={"build": contract.build.model_copy(update={"trial": part})})


def measure_speed(session: Session, recipe: Recipe, id_dtype: str, *, tokens: int = 512) -> float:
    """Measure tokens per second on full-length prompts: the better of two passes of about `tokens` tokens."""
    count = max(1, tokens // recipe.max_tokens)
    ids = np.random.default_rng(1).integers(0, recipe.checkpoint.config.d_vocab, (count, recipe.max_tokens))
    feeds = make_feeds(list(ids), recipe.positions, id_dtype)
    best = float("inf")
    for _ in range(2):
        start = time.perf_counter()
        session.run(feeds)
        best = min(best, time.perf_counter() - start)
    return ids.size / best
