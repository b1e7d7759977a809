"""What a pass may hold, and the profile that the builder tunes for: its optimum is the batch that is really used."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from workbench.errors import ContractError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from workbench.engine.recipe import Positions

TOKENS_PER_PASS = 16384
_WIDER = 4  # short prompts: as many times more of them than full-length ones


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Largest pass of an engine.

    Parameters
    ----------
    max_tokens : int
        Longest prompt.
    tokens_per_pass : int
        Prompts times their padded length, at most.
    prompts_per_pass : int
        Prompts, at most.
    """

    max_tokens: int
    tokens_per_pass: int
    prompts_per_pass: int

    @property
    def usual_prompts(self) -> int:
        """Full-length prompts of a full pass: the batch that the builder tunes for."""
        return max(1, self.tokens_per_pass // self.max_tokens)

    def to_json(self) -> dict[str, int]:
        """Give the limits as plain data."""
        return asdict(self)

    def spans(self) -> tuple[tuple[tuple[int, int], tuple[int, int]], ...]:
        """Usual and largest [prompt, token] of each profile of the engine.

        Memory of the card is that of the largest prompts times the largest length, which no real pass has. A second
        profile for short prompts halves it: more than twice the usual prompts are at most half as long.
        """
        usual, most, length = self.usual_prompts, self.prompts_per_pass, self.max_tokens
        half = -(-self.tokens_per_pass // (2 * usual + 1))
        if most <= 2 * usual or half >= length:
            return (((usual, length), (most, length)),)
        short = max(1, self.tokens_per_pass // most)
        return ((usual, length), (2 * usual, length)), ((most, short), (most, half))

    def widest(self) -> tuple[tuple[int, int], ...]:
        """Shapes [prompt, token] that need the most memory: full length, and as many prompts as fit."""
        prompts = self.prompts_per_pass
        token = min(self.max_tokens, max(1, self.tokens_per_pass // prompts))
        return (self.usual_prompts, self.max_tokens), (prompts, token)


def limits_of(max_tokens: int, options: Mapping[str, Any]) -> Limits:
    """Read the limits of a recipe's options.

    Parameters
    ----------
    max_tokens : int
        Of the recipe.
    options : mapping
        `tokens_per_pass`, and `prompts_per_pass` where it is not four times the full-length prompts of a pass.

    Raises
    ------
    ContractError
        If one is no positive whole number, or a pass could not hold one full prompt.
    """
    tokens = options.get("tokens_per_pass", max(TOKENS_PER_PASS, max_tokens))
    _check_whole("tokens_per_pass", tokens, at_least=max_tokens)
    prompts = options.get("prompts_per_pass", max(1, min(tokens, _WIDER * (tokens // max_tokens))))
    _check_whole("prompts_per_pass", prompts, at_least=tokens // max_tokens)
    return Limits(max_tokens=max_tokens, tokens_per_pass=tokens, prompts_per_pass=prompts)


def _check_whole(name: str, value: object, *, at_least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < max(1, at_least):
        raise ContractError(
            f"option {name} must be a whole number of at least {max(1, at_least)}", repr(value), "Leave it out."
        )


Ranges = dict[str, tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]]


def profiles(limits: Limits, positions: Positions) -> tuple[Ranges, ...]:
    """Give smallest, usual and largest shape of every input of the graph, for each profile of the limits.

    Parameters
    ----------
    limits : Limits
        Largest pass.
    positions : str or tuple of int
        As in the recipe.
    """
    return tuple(_shapes(limits, positions, *spans) for spans in limits.spans())


def _shapes(limits: Limits, positions: Positions, common: tuple[int, int], largest: tuple[int, int]) -> Ranges:
    usual, length = common
    most = largest[0]
    shapes: Ranges = {"input_ids": ((1, 1), common, largest)}
    if positions == "all":
        shapes["rows"] = ((1,), (usual * length,), (limits.tokens_per_pass,))
    elif positions == "last":
        shapes["rows"] = ((1,), (usual,), (most,))
    elif positions == "mean":
        shapes["lengths"] = ((1,), (usual,), (most,))
    else:
        count = len(positions)
        shapes["rows"] = ((1, count), (usual, count), (most, count))
    return shapes


def most_rows(limits: Limits, positions: Positions) -> int:
    """Rows that a pass can give at most."""
    if positions == "all":
        return limits.tokens_per_pass
    return limits.prompts_per_pass * (len(positions) if isinstance(positions, tuple) else 1)
