"""Reference rows: what the engine's taps are on fixed prompts, computed apart from the engine under test.

The reference is the primitive lowering in float32, run by ONNX Runtime without graph optimisation, each prompt alone
and unpadded: other operators, other kernels and another batch than the engine uses.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.engine.batch import flat_rows, make_feeds, rows_per_prompt

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from workbench.checkpoint import Checkpoint
    from workbench.engine.backends.protocol import Session
    from workbench.engine.recipe import Positions, Recipe

REFERENCE = "primitive lowering, float32, ONNX Runtime without graph optimisation, each prompt alone"
_TEXTS = (
    "The capital of France is",
    "Water boils at 100 degrees Celsius at sea level.",
    "def fibonacci(n):\n    if n < 2:\n        return n\n    return fibonacci(n - 1) +",
    "I loved this film; every scene was a joy.",
    "naïve café, 東京タワー and Ωmega",
    "a",
    (
        "The committee met on Tuesday to discuss the budget for the coming year, and after a long debate it decided to "
        "postpone the vote until the treasurer could present a revised estimate of the costs."
    ),
)
_RANDOM_LENGTHS = (1, 2, 7, 19, 33)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ReferenceRows:
    """Rows of the reference prompts at every tap of a recipe."""

    prompts: tuple[NDArray[np.int32], ...]
    rows: dict[str, NDArray[np.float32]]


def reference_prompts(checkpoint: Checkpoint, max_tokens: int, positions: Positions) -> tuple[NDArray[np.int32], ...]:
    """Choose the prompts: a few texts where there is a tokenizer, and seeded random ids of several lengths.

    Returns
    -------
    tuple of int32 [token]
        Each at most `max_tokens` long and long enough for the asked offsets.
    """
    vocab = checkpoint.config.d_vocab
    random = np.random.default_rng(0)
    lengths = (*_RANDOM_LENGTHS, max_tokens) if max_tokens <= 128 else (*_RANDOM_LENGTHS, 128)
    prompts = [random.integers(0, vocab, size=length).astype(np.int32) for length in lengths]
    tokenizer = checkpoint.tokenizer
    if tokenizer is not None:
        prompts = [tokenizer.encode(text) for text in _TEXTS] + prompts
    need = max(p + 1 if p >= 0 else -p for p in positions) if isinstance(positions, tuple) else 1
    cut = (prompt[:max_tokens] for prompt in prompts)
    chosen = tuple(np.asarray(prompt, dtype=np.int32) for prompt in cut if len(prompt) >= need)
    return chosen or (random.integers(0, vocab, size=need).astype(np.int32),)


def compute_reference(recipe: Recipe) -> ReferenceRows:
    """Compute the reference rows of a recipe.

    Returns
    -------
    ReferenceRows
        Rows in the order of the prompts.
    """
    from workbench.engine.ort_session import session_of
    from workbench.graph import build_graph

    graph = build_graph(
        recipe.checkpoint.config,
        recipe.checkpoint.weights,
        taps=recipe.taps,
        positions=recipe.positions,
        lowering="primitive",
        max_tokens=recipe.max_tokens,
    )
    session = session_of(graph, optimise=False)
    prompts = reference_prompts(recipe.checkpoint, recipe.max_tokens, recipe.positions)
    id_dtype = graph.inputs[0].dtype
    return ReferenceRows(prompts=prompts, rows=run_one_by_one(session, prompts, recipe.positions, id_dtype))


def run_one_by_one(
    session: Session, prompts: Sequence[NDArray[Any]], positions: Positions, id_dtype: str
) -> dict[str, NDArray[np.float32]]:
    """Run each prompt in a pass of its own, and join the rows in prompt order."""
    passes = [flat_rows(session.run(make_feeds([prompt], positions, id_dtype))) for prompt in prompts]
    return {tap: np.concatenate([rows[tap] for rows in passes]).astype(np.float32) for tap in passes[0]}


def run_together(
    session: Session, prompts: Sequence[NDArray[Any]], positions: Positions, id_dtype: str, taps: Sequence[str]
) -> dict[str, NDArray[np.float32]]:
    """Run the shorter and the longer half of the prompts in a padded pass each, and give the rows of taps."""
    order = sorted(range(len(prompts)), key=lambda index: len(prompts[index]))
    middle = len(order) // 2
    found: dict[int, dict[str, NDArray[np.float32]]] = {}
    for half in filter(None, (order[:middle], order[middle:])):
        together = [prompts[index] for index in half]
        rows = flat_rows(session.run(make_feeds(together, positions, id_dtype)))
        counts = rows_per_prompt(np.array([len(prompt) for prompt in together], dtype=np.int64), positions)
        stops = np.cumsum(counts)
        for index, start, stop in zip(half, stops - counts, stops, strict=True):
            found[index] = {tap: np.asarray(rows[tap][start:stop], dtype=np.float32) for tap in taps}
    return {tap: np.concatenate([found[index][tap] for index in range(len(prompts))]) for tap in taps}
