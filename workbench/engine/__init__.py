"""Engines: a recipe becomes an artefact with a contract, which is checked before every load."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workbench.lazily import resolve_late

_HOME = {
    "Recipe": "recipe",
    "Contract": "contract",
    "Engine": "opening",
    "Registry": "registry",
    "Sink": "sink",
    "Step": "sequence",
    "build": "building",
    "build_sequence": "sequence",
    "differences": "difference",
    "lines_of": "sequence",
    "open_engine": "opening",
    "read_contract": "opening",
    "table_of": "sequence",
}

__all__ = list(_HOME)


__getattr__, __dir__ = resolve_late("workbench.engine", _HOME)

if TYPE_CHECKING:
    from workbench.engine.building import build as build
    from workbench.engine.contract import Contract as Contract
    from workbench.engine.difference import differences as differences
    from workbench.engine.opening import Engine as Engine
    from workbench.engine.opening import open_engine as open_engine
    from workbench.engine.opening import read_contract as read_contract
    from workbench.engine.recipe import Recipe as Recipe
    from workbench.engine.registry import Registry as Registry
    from workbench.engine.sequence import Step as Step
    from workbench.engine.sequence import build_sequence as build_sequence
    from workbench.engine.sequence import lines_of as lines_of
    from workbench.engine.sequence import table_of as table_of
    from workbench.engine.sink import Sink as Sink
