"""Observations on real prompts: what enters each product with weights, in float32, channel by channel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np

from workbench.engine.batch import make_feeds
from workbench.engine.calibration import calibration_prompts, digest_of_ids, plain_graph

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from workbench.engine.recipe import Recipe

SAMPLE = 192


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Observations:
    """What entered the products.

    Parameters
    ----------
    largest : mapping of str to float32 [in]
        Largest absolute value of each channel, by canonical module.
    sample : mapping of str to float32 [token, in]
        A few tokens of each, for the error of single layers.
    prompts, tokens : int
        How much was read.
    digest : str
        The sha256 of the token ids.
    """

    largest: Mapping[str, NDArray[np.float32]]
    sample: Mapping[str, NDArray[np.float32]]
    prompts: int
    tokens: int
    digest: str


_KNOWN: WeakKeyDictionary[Recipe, Observations] = WeakKeyDictionary()  # plan, twin and second build ask for the same


def observe(recipe: Recipe) -> Observations:
    """Read the calibration prompts in float32, each alone and unpadded; once for each recipe.

    Parameters
    ----------
    recipe : Recipe
        Its option `calibration` may hold texts; else the workbench's own are read.

    Returns
    -------
    Observations
        Of every product with weights that the recipe's taps need.
    """
    if recipe not in _KNOWN:
        _KNOWN[recipe] = _observe(recipe)
    return _KNOWN[recipe]


def _observe(recipe: Recipe) -> Observations:
    from onnx import helper

    from workbench.engine.ort_session import session_of
    from workbench.graph.watching import products

    graph = plain_graph(recipe)
    read = products(graph)
    values = tuple(dict.fromkeys(read.values()))
    for value in values:
        graph.model.graph.output.append(helper.make_tensor_value_info(value, 1, None))
    session = session_of(graph)
    prompts = calibration_prompts(recipe.checkpoint, recipe.options.get("calibration"), recipe.max_tokens)
    largest: dict[str, NDArray[np.float32]] = {}
    rows: dict[str, list[NDArray[np.float32]]] = {value: [] for value in values}
    share = max(1, SAMPLE // len(prompts))
    for prompt in prompts:
        found: dict[str, Any] = session.run(make_feeds([prompt], "all", graph.inputs[0].dtype))
        for value in values:
            flat = found[value].reshape(-1, found[value].shape[-1])
            most = np.abs(flat).max(axis=0, initial=0.0)  # no token of a prompt may come to an expert
            largest[value] = np.maximum(largest[value], most) if value in largest else most
            rows[value].append(flat[:share].copy())
    joined = {value: np.concatenate(parts) for value, parts in rows.items()}
    return Observations(
        largest={module: largest[value] for module, value in read.items()},
        sample={module: joined[value] for module, value in read.items()},
        prompts=len(prompts),
        tokens=sum(map(len, prompts)),
        digest=digest_of_ids(prompts),
    )
