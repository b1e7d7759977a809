"""Recipe: everything that decides an engine, frozen, with a digest."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

from workbench.canonical import canonical_json, digest_of
from workbench.engine.methods import kernels_of, method_of
from workbench.errors import ContractError
from workbench.graph import check_taps

if TYPE_CHECKING:
    from collections.abc import Mapping

    from workbench.checkpoint import Checkpoint

RECIPE_SCHEMA = "1.0"
Positions = str | tuple[int, ...]
NAMED_POSITIONS = ("all", "last", "mean")


@dataclass(frozen=True, kw_only=True, eq=False)
class Recipe:
    """What to build.

    Parameters
    ----------
    checkpoint : Checkpoint
        From `open_checkpoint`.
    precision : str
        `fp32`, or `int8` for block-wise 8-bit weights with float32 activations; each backend lists its own.
    taps : tuple of str
        Which hidden states leave the engine; `workbench.graph.tap_names(checkpoint.config)` lists them.
    positions : str or tuple of int
        Which rows of each tap leave the engine: `all`, `last`, `mean`, or token offsets (negative: from the end).
    backend : str
        What runs the engine; `workbench doctor` lists the backends that are ready here.
    max_tokens : int
        Longest prompt in tokens.
    keep : tuple of str
        Layers that stay in higher precision, by the names that the contract lists.
    options : mapping
        Options of the backend, plain data.

    Raises
    ------
    ContractError, TapError
        If a field is not valid for this checkpoint.
    """

    checkpoint: Checkpoint
    precision: str = "fp32"
    taps: tuple[str, ...] = ("final_norm",)
    positions: Positions = "last"
    backend: str = "onnxruntime"
    max_tokens: int = 128
    keep: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not hasattr(self.checkpoint, "config"):
            got = type(self.checkpoint).__name__
            raise ContractError("checkpoint must be an opened checkpoint", got, "Use open_checkpoint(path).")
        object.__setattr__(self, "taps", _names("taps", self.taps))
        object.__setattr__(self, "keep", tuple(sorted(_names("keep", self.keep))))
        object.__setattr__(self, "options", MappingProxyType(_plain(self.options)))
        object.__setattr__(self, "positions", check_positions(self.positions))
        check_taps(self.checkpoint.config, self.taps)
        _check_lengths(self.max_tokens, self.checkpoint.config.max_positions, self.positions)

    def to_json(self) -> dict[str, Any]:
        """Give the recipe as plain data; the checkpoint is named by its digest, never by a path.

        How low-precision weights are made is part of it, and which own kernels run: versions in
        `workbench.engine.methods`.
        """
        positions = self.positions if isinstance(self.positions, str) else list(self.positions)
        versions = {
            "method": method_of(self.backend, self.precision),
            "kernels": kernels_of(self.backend, self.options),
        }
        plain = {
            "schema": RECIPE_SCHEMA,
            "checkpoint": self.checkpoint.digest,
            "precision": self.precision,
            "taps": list(self.taps),
            "positions": positions,
            "backend": self.backend,
            "max_tokens": self.max_tokens,
            "keep": list(self.keep),
            "options": dict(self.options),
        }
        return plain | {name: version for name, version in versions.items() if version is not None}

    @cached_property
    def digest(self) -> str:
        """The sha256 of the recipe's canonical JSON."""
        return digest_of(self.to_json())


def _names(field: str, names: object) -> tuple[str, ...]:
    """Give different names in their order; a text alone would be taken apart into letters."""
    if isinstance(names, list | tuple | set | frozenset) and all(isinstance(name, str) for name in names):
        return tuple(dict.fromkeys(names))
    raise ContractError(f"{field} must be a tuple of names", repr(names), f"Write {field}=({str(names)!r},).")


def _plain(options: object) -> dict[str, Any]:
    """Give a copy of options that a digest can name."""
    try:
        found = copy.deepcopy(dict(cast("Mapping[str, Any]", options)))
        canonical_json(found)
    except (TypeError, ValueError) as error:
        raise ContractError("options must be a mapping of plain data", str(error), "Use texts and numbers.") from error
    return found


def _check_lengths(max_tokens: object, limit: int, positions: Positions) -> None:
    if not isinstance(max_tokens, int) or isinstance(max_tokens, bool) or not 1 <= max_tokens <= limit:
        raise ContractError(
            f"max_tokens must be a whole number between 1 and the {limit} positions of this checkpoint",
            repr(max_tokens),
            "Choose a smaller limit, or another checkpoint.",
        )
    beyond = [p for p in positions if not -max_tokens <= p < max_tokens] if isinstance(positions, tuple) else []
    if beyond:
        raise ContractError(
            f"token offsets must lie between {-max_tokens} and {max_tokens - 1}, inside the longest prompt",
            ", ".join(map(str, beyond)),
            "Choose other positions, or a larger max_tokens.",
        )


def check_positions(positions: object) -> Positions:
    """Return valid positions in their one form, or refuse them.

    Raises
    ------
    ContractError
        If they are neither a known name nor a tuple of different integers.
    """
    if isinstance(positions, str) and positions in NAMED_POSITIONS:
        return positions
    if isinstance(positions, int) and not isinstance(positions, bool):
        positions = (positions,)
    if isinstance(positions, list | tuple):
        numbers = tuple(positions)
        whole = all(isinstance(p, int) and not isinstance(p, bool) for p in numbers)
        if numbers and whole and len(set(numbers)) == len(numbers):
            return numbers
    raise ContractError(
        f"positions must be one of {', '.join(NAMED_POSITIONS)}, or a tuple of different token offsets",
        repr(positions),
        "Offsets count from 0; negative ones count from the last token.",
    )
