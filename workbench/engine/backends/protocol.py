"""What a backend offers. A backend is a module of this folder with the functions below.

`PRECISIONS` maps each precision to what stands in the contract; `available()`, `build_plan(recipe, folder, progress)`
and `load(folder)` are called in this order at build; `available()`, `admit(contract)` and `load(folder)` at opening.

Some have more: `EMULATED`, precisions that only show their error and say nothing of speed; `AHEAD_OF_TIME`, true where
plans are built for cards that are not here, so that only their twin can be measured; `prepare(recipe, progress)`, which
does what takes long before a plan; and `twin(recipe, folder)`, which gives the same low precision on the reference
backend and a word on what it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any, Protocol, cast

from workbench.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from workbench.engine.contract import Contract
    from workbench.engine.recipe import Recipe
    from workbench.graph import TensorSpec


@dataclass(frozen=True, kw_only=True, slots=True)
class Availability:
    """Whether a backend can run here; where not, why and the command that mends it."""

    ready: bool
    version: str
    why: str
    do: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What a backend wrote.

    Parameters
    ----------
    files : dict of str to str
        The sha256 of each file that is run; what else lies in the folder are records of the build.
    inputs, outputs : tuple of TensorSpec
        What the plan reads and emits.
    kept_layers : tuple of str
        Matrices in another precision than the recipe's.
    target : str
        What the plan was compiled for.
    card : dict, optional
        The GPU of the build and the memory that a pass needs on it, plain data.
    tokens_per_pass, prompts_per_pass : int, optional
        Largest pass, where the plan sets one.
    scales_digest : str, optional
        The sha256 of the file of quantisation scales.
    cache_outputs : tuple of str
        Outputs that are the key-value cache of a baseline.
    """

    files: dict[str, str]
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    kept_layers: tuple[str, ...]
    target: str = "cpu"
    card: dict[str, Any] | None = None
    tokens_per_pass: int | None = None
    prompts_per_pass: int | None = None
    scales_digest: str | None = None
    cache_outputs: tuple[str, ...] = ()


Tensor = tuple[str, tuple[int | None, ...]]  # dtype, and size of each axis; None where it varies


class Session(Protocol):
    """A loaded plan, the names of what it reads and emits, and what the runtime itself says that these are."""

    inputs: Sequence[str]
    outputs: Sequence[str]
    tensors: Mapping[str, Tensor]

    def run(self, feeds: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Run one pass and give each tap."""
        ...


class Backend(Protocol):
    """The functions of a backend module."""

    PRECISIONS: dict[str, dict[str, str]]

    def available(self) -> Availability:
        """Say whether it can run here."""
        ...

    def build_plan(self, recipe: Recipe, folder: Path, progress: Callable[[int, int], None] | None) -> Plan:
        """Write the plan files."""
        ...

    def load(self, folder: Path) -> Session:
        """Open plan files that were checked before."""
        ...

    def admit(self, contract: Contract) -> None:
        """Refuse an engine that cannot run on this machine, before its plan is read."""
        ...


def backend_names() -> tuple[str, ...]:
    """List the backends: the modules of this folder."""
    import workbench.engine.backends as folder

    return tuple(sorted(m.name for m in iter_modules(folder.__path__) if m.name != "protocol"))


def get_backend(name: str) -> Backend:
    """Find a backend by name.

    Raises
    ------
    EngineError
        If there is none of that name.
    """
    names = backend_names()
    if name not in names:
        raise EngineError(f"the backend must be one of {', '.join(names)}", repr(name), "Choose one of these.")
    return cast("Backend", import_module(f"workbench.engine.backends.{name}"))
