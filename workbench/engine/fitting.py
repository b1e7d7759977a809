"""Fitting of 4-bit weights: product after product, on what reaches it once all before it are in 4 bits already.

The prompts are those of calibration, and random ids: the inputs of a product should span its space, and a text repeats
few of a vocabulary's tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np

from workbench.engine.calibration import TEXTS, calibration_prompts, digest_of_ids, plain_graph
from workbench.engine.compensating import aimed, compensated
from workbench.engine.fitting_texts import LONGER_TEXTS
from workbench.engine.staged import Staged
from workbench.graph.naming import is_named

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from workbench.engine.recipe import Recipe
    from workbench.graph.grids import Fit
    from workbench.progress import Progress

METHOD = "error-compensated rounding with zero points, blocks by the size of their inputs, towards the exact results"
_RANDOM = (8, 64)  # prompts, tokens of each
_JUDGED = 192  # tokens that the error of a product is measured on


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Fits:
    """What products were fitted to.

    Parameters
    ----------
    fits : mapping of str to Fit
        By canonical module.
    errors : mapping of str to float
        Norm of what rounding changes in each product's results over that of the results, on inputs of calibration.
    prompts, tokens : int
        How much was read.
    digest : str
        The sha256 of the token ids.
    """

    fits: Mapping[str, Fit]
    errors: Mapping[str, float]
    prompts: int
    tokens: int
    digest: str


_KNOWN: WeakKeyDictionary[Recipe, Fits] = WeakKeyDictionary()  # plan, twin and second build ask for the same


def fit_products(recipe: Recipe, limit: float, progress: Progress | None = None) -> Fits:
    """Fit every product with weights that the recipe's taps need and that it does not keep; once for each recipe.

    Parameters
    ----------
    recipe : Recipe
        Its option `calibration` may hold texts.
    limit : float
        A product that errs more on the prompts of calibration is not fitted.
    progress : callable, optional
        Called with products done, those that read one value counted once, and all of them.

    Returns
    -------
    Fits
        Memory for the inputs of one product, their Gram matrix and the codes of all is all that it takes.
    """
    if recipe not in _KNOWN:
        _KNOWN[recipe] = _fit_products(recipe, limit, progress or (lambda _done, _total: None))
    return _KNOWN[recipe]


def _fit_products(recipe: Recipe, limit: float, progress: Progress) -> Fits:
    graph = plain_graph(recipe)
    prompts = fitting_prompts(recipe)
    staged, plain = Staged(graph, prompts), Staged(graph, prompts)
    kept = [module for module in graph.policy if is_named(module, recipe.keep)]
    fitter = _Fitter(kept, limit, sum(map(len, prompts)))

    def weights(name: str) -> NDArray[Any]:
        fit = fitter.fits.get(name.removesuffix(".weight"))
        return graph.initialisers[name].load() if fit is None else np.ascontiguousarray(fit.matrix.T)

    both = zip(staged.stages(weights), plain.stages(lambda name: graph.initialisers[name].load()), strict=True)
    for done, ((modules, inputs), (_, exact)) in enumerate(both):
        progress(done, len(staged))
        fitter.take({module: weights(f"{module}.weight").T for module in modules}, inputs, exact)
    progress(len(staged), len(staged))
    return Fits(
        fits=fitter.fits,
        errors=fitter.errors,
        prompts=len(prompts),
        tokens=fitter.tokens,
        digest=digest_of_ids(prompts),
    )


class _Fitter:
    def __init__(self, kept: Sequence[str], limit: float, tokens: int) -> None:
        self.kept, self.limit, self.tokens = frozenset(kept), limit, tokens
        self.fits: dict[str, Fit] = {}
        self.errors: dict[str, float] = {}

    def take(
        self, matrices: Mapping[str, NDArray[np.float32]], inputs: NDArray[np.float32], exact: NDArray[np.float32]
    ) -> None:
        """Fit the matrices that read one value; one that errs too much stays as it is."""
        chosen = {module: matrix for module, matrix in matrices.items() if module not in self.kept}
        if not chosen:
            return
        target = np.concatenate(list(chosen.values()))
        if len(inputs) == len(exact) == self.tokens:  # else an expert saw other tokens than it would have
            target = aimed(target, inputs, exact)
        whole = compensated(target, inputs.T @ inputs)
        some = inputs[:: max(1, len(inputs) // _JUDGED)]
        stop = 0
        for module, matrix in chosen.items():
            start, stop = stop, stop + len(matrix)
            fit = whole.rows(np.arange(start, stop))
            size = float(np.linalg.norm(some @ target[start:stop].T))
            lost = float(np.linalg.norm(some @ (fit.matrix - target[start:stop]).T))
            self.errors[module] = lost / size if size else 0.0
            if self.errors[module] <= self.limit:
                self.fits[module] = fit


def fitting_prompts(recipe: Recipe) -> tuple[NDArray[np.int32], ...]:
    """Prompts of calibration, longer ones where none were given, and random ids."""
    checkpoint, given = recipe.checkpoint, recipe.options.get("calibration")
    if given is None and checkpoint.tokenizer is not None:
        given = [*TEXTS, *LONGER_TEXTS]
    prompts = calibration_prompts(checkpoint, given, recipe.max_tokens)
    count, length = _RANDOM
    random = np.random.default_rng(3)
    size = (count, min(length, recipe.max_tokens))
    return (*prompts, *random.integers(0, checkpoint.config.d_vocab, size).astype(np.int32))
