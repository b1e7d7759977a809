"""Engines: a recipe becomes an artefact with a contract, which is checked before every load."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

_HOME = {
    "Recipe": "recipe",
    "Contract": "contract",
    "Engine": "opening",
    "Sink": "sink",
    "build": "building",
    "open_engine": "opening",
    "read_contract": "opening",
}

__all__ = list(_HOME)


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"workbench.engine has no {name!r}; it offers {', '.join(_HOME)}")
    return getattr(import_module(f"workbench.engine.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)


if TYPE_CHECKING:
    from workbench.engine.building import build as build
    from workbench.engine.contract import Contract as Contract
    from workbench.engine.opening import Engine as Engine
    from workbench.engine.opening import open_engine as open_engine
    from workbench.engine.opening import read_contract as read_contract
    from workbench.engine.recipe import Recipe as Recipe
    from workbench.engine.sink import Sink as Sink
