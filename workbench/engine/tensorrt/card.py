"""The card an engine was built on, and what may run it: one compute capability, one TensorRT version."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.errors import EngineRefused

if TYPE_CHECKING:
    from collections.abc import Mapping

    from workbench.engine.tensorrt.driver import Driver

_MODULE_VERSION = Path("/sys/module/nvidia/version")
_PROC_VERSION = Path("/proc/driver/nvidia/version")


@dataclass(frozen=True, kw_only=True, slots=True)
class Card:
    """A card and its driver.

    Parameters
    ----------
    name : str
        As the driver names it.
    compute_capability : str
        As `9.0`.
    memory_bytes : int
        All of its memory.
    cuda : str
        Newest CUDA version that the driver knows.
    driver : str
        Version of the driver, empty where the system does not tell.
    """

    name: str
    compute_capability: str
    memory_bytes: int
    cuda: str
    driver: str

    def to_json(self) -> dict[str, Any]:
        """Give the card as plain data."""
        return asdict(self)


def read_card(driver: Driver) -> Card:
    """Ask the driver for the card."""
    return Card(
        name=driver.name(),
        compute_capability=driver.compute_capability(),
        memory_bytes=driver.memory()[1],
        cuda=driver.cuda_version(),
        driver=_driver_version(),
    )


def _driver_version() -> str:
    if _MODULE_VERSION.is_file():
        return _MODULE_VERSION.read_text(encoding="ascii", errors="replace").strip()
    if _PROC_VERSION.is_file():
        words = _PROC_VERSION.read_text(encoding="ascii", errors="replace").split()
        return next((word for word in words if word[:1].isdigit() and word.count(".") >= 1), "")
    return ""


def check_card(
    built: Mapping[str, Any], card: Card, *, built_version: str, version: str, free_bytes: int, rebuild: str
) -> None:
    """Refuse an engine that this card or this TensorRT cannot run, before a byte of it is read by TensorRT.

    Parameters
    ----------
    built : mapping
        `card` of the contract: the card of the build, and `need_bytes`.
    card : Card
        The card here.
    built_version, version : str
        TensorRT of the build and of this machine.
    free_bytes : int
        Memory of the card that is free now.
    rebuild : str
        The command that builds the engine again.

    Raises
    ------
    EngineRefused
        With the field, what the contract says and what is here.
    """
    if built["compute_capability"] != card.compute_capability:
        raise EngineRefused(
            f"compute capability must be {built['compute_capability']}, that of the card it was built for "
            f"({built['name']})",
            f"{card.compute_capability} ({card.name})",
            f"Build it again here: {rebuild}",
        )
    if built_version != version:
        raise EngineRefused(
            f"TensorRT version must be {built_version}, which built it", version, f"Build it again here: {rebuild}"
        )
    if _number(card.cuda) < _number(str(built["cuda"])):
        raise EngineRefused(
            f"the driver must know CUDA {built['cuda']} or newer", card.cuda, f"Update the driver, or: {rebuild}"
        )
    need = int(built.get("need_bytes", 0))
    if free_bytes < need:
        raise EngineRefused(
            f"the card must have {need} bytes of free memory",
            f"{free_bytes} of {card.memory_bytes}",
            f"Free some memory, or build with fewer tokens a pass: {rebuild}",
        )


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())
