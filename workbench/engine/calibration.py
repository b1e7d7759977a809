"""Calibration: the largest input of every product with weights, over real prompts, read in float32.

The ranges are data of the engine (`scales.json`), with a digest of the token ids that they were measured on.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.canonical import canonical_json
from workbench.engine.batch import make_feeds
from workbench.errors import ContractError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from workbench.checkpoint import Checkpoint
    from workbench.engine.recipe import Recipe
    from workbench.graph import Graph

SCALES_FILE = "scales.json"
_RANDOM = (4, 16, 64)
TEXTS = (
    "The river had risen overnight, and by morning the lower fields were under water.",
    "To install the package, run the following command in your terminal and restart the service.",
    "In 1969, the first people walked on the Moon; about 600 million watched them on television.",
    "Q: What is the boiling point of ethanol? A: About 78 degrees Celsius at normal pressure.",
    "import numpy as np\n\ndef mean(values):\n    return np.sum(values) / len(values)\n",
    "Dear Ms Okafor, thank you for your letter of 3 March. We have forwarded your request to the accounts department.",
    "The patient reported mild headaches and was advised to rest and to drink more water.",
    "SELECT name, COUNT(*) FROM orders WHERE total > 100 GROUP BY name ORDER BY 2 DESC;",
    "She laughed, closed the book, and said that it was the worst ending she had ever read.",
    "Le petit chat dort sur le canapé pendant que la pluie tombe dehors.",
    "Die Preise für Strom sind im letzten Jahr um zwölf Prozent gestiegen.",
    "La ciudad de Lima está situada en la costa central del Perú.",
    "x^2 + 5x + 6 = 0 has the solutions x = -2 and x = -3.",
    "BREAKING: markets fall sharply after the central bank raises interest rates by half a point!!",
    "Paris",
    "The quick brown fox jumps over the lazy dog. 1234567890 (a) [b] {c} <d> #e @f $g %h &i *j",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Ranges:
    """Largest absolute input of each product with weights.

    Parameters
    ----------
    largest : mapping of str to float
        By canonical module; an expert that no token reached has none, so that it stays in higher precision.
    prompts, tokens : int
        How much was read.
    digest : str
        The sha256 of the token ids.
    """

    largest: Mapping[str, float]
    prompts: int
    tokens: int
    digest: str

    def to_bytes(self) -> bytes:
        """Write them as they stand in `scales.json`."""
        plain = {name: getattr(self, name) for name in ("prompts", "tokens", "digest")}
        return canonical_json(plain | {"largest": dict(self.largest)})


def calibration_prompts(checkpoint: Checkpoint, texts: object, max_tokens: int) -> tuple[NDArray[np.int32], ...]:
    """Choose the prompts: the given texts, else a fixed set of several kinds; random ids without a tokenizer.

    Raises
    ------
    ContractError
        If texts are given that are no list of texts, or there is no tokenizer for them.
    """
    given = TEXTS if texts is None else texts
    whole = isinstance(given, list | tuple) and given and all(isinstance(text, str) for text in given)
    if not whole or (texts is not None and checkpoint.tokenizer is None):
        raise ContractError(
            "option calibration must be a list of texts, for a checkpoint with a tokenizer",
            type(given).__name__,
            "Leave it out to calibrate on the workbench's own texts.",
        )
    if checkpoint.tokenizer is None:
        random = np.random.default_rng(2)
        sizes = [min(size, max_tokens) for size in _RANDOM for _ in range(4)]
        return tuple(random.integers(0, checkpoint.config.d_vocab, size).astype(np.int32) for size in sizes)
    assert isinstance(given, list | tuple)
    ids = (np.asarray(checkpoint.tokenizer.encode(text), dtype=np.int32)[:max_tokens] for text in given)
    return tuple(prompt for prompt in ids if len(prompt))


def calibrate(recipe: Recipe) -> Ranges:
    """Read the prompts once in float32, each alone and unpadded.

    Returns
    -------
    Ranges
        Of every product with weights that the recipe's taps need and that a token reached.
    """
    from workbench.engine.ort_session import session_of
    from workbench.graph.watching import products, watch

    graph = plain_graph(recipe)
    watched = watch(graph)
    session = session_of(graph)
    prompts = calibration_prompts(recipe.checkpoint, recipe.options.get("calibration"), recipe.max_tokens)
    largest: dict[str, float] = dict.fromkeys(watched.values(), 0.0)
    for prompt in prompts:
        found: dict[str, Any] = session.run(make_feeds([prompt], "all", graph.inputs[0].dtype))
        largest = {name: max(before, float(found[name].max(initial=0.0))) for name, before in largest.items()}
    ranges = {module: largest[watched[value]] for module, value in products(graph).items()}
    return Ranges(
        largest={module: most for module, most in ranges.items() if most},  # 0 would clip every input to nothing
        prompts=len(prompts),
        tokens=sum(map(len, prompts)),
        digest=digest_of_ids(prompts),
    )


def plain_graph(recipe: Recipe) -> Graph:
    """Write the recipe's decoder in primitive operators and float32, every row of its taps: what calibration runs."""
    from workbench.graph import build_graph

    return build_graph(
        recipe.checkpoint.config,
        recipe.checkpoint.weights,
        taps=recipe.taps,
        positions="all",
        lowering="primitive",
        max_tokens=recipe.max_tokens,
    )


def digest_of_ids(prompts: Sequence[NDArray[np.int32]]) -> str:
    """The sha256 over the token ids of prompts, their lengths included."""
    digest = hashlib.sha256()
    for prompt in prompts:
        digest.update(np.int64(len(prompt)).tobytes() + np.ascontiguousarray(prompt, dtype="<i4").tobytes())
    return digest.hexdigest()
