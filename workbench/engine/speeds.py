"""Speeds that contracts state, and which of them were measured on a machine like this one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workbench.engine.processor import this_processor
from workbench.errors import EngineError
from workbench.escaping import visible

if TYPE_CHECKING:
    from workbench.engine.contract import Contract


def speed_here(contract: Contract) -> float | None:
    """Tokens per second that a contract states, if measured on such a card or processor as is here; else None."""
    return contract.build.tokens_per_second if _stated(contract) == this_machine(contract) else None


def measured_elsewhere(contract: Contract) -> str:
    """Name what a stated speed was measured on, if that is not here; else empty."""
    if contract.build.tokens_per_second is None or speed_here(contract) is not None:
        return ""
    return visible(_stated(contract)) or "a machine that the contract does not name"


def this_machine(contract: Contract) -> str:
    """Name the card or processor here that would run an engine."""
    return this_processor() if contract.backend.card is None else _card()


def _stated(contract: Contract) -> str:
    """The card, else the processor with its threads: what decides a speed; empty where it is not known."""
    part = contract.backend
    return (part.processor or "") if part.card is None else str(part.card.get("name", ""))


def _card() -> str:
    from workbench.engine.tensorrt.driver import load_driver

    try:
        return load_driver().name()
    except EngineError:
        return "a machine without a card"
