"""Which rows of a tap leave the graph: all real tokens, the last one, stated offsets, or their mean."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workbench.errors import ContractError
from workbench.graph.artefact import TensorSpec

if TYPE_CHECKING:
    from workbench.graph.emitter import Emitter
    from workbench.graph.lowering import Opset23

NAMED = ("all", "last", "mean")
FLOAT, INT64 = 1, 7


def check_positions(positions: str | tuple[int, ...]) -> None:
    """Check a choice of positions.

    Raises
    ------
    ContractError
        If it is neither a known name nor a tuple of different whole numbers.
    """
    do = 'Use "all", "last", "mean", or offsets such as (0, -1).'
    if isinstance(positions, str):
        if positions not in NAMED:
            raise ContractError("positions must be all, last, mean or a tuple of offsets", repr(positions), do)
        return
    whole = isinstance(positions, tuple) and all(isinstance(p, int) and not isinstance(p, bool) for p in positions)
    if not whole or not positions or len(set(positions)) < len(positions):
        raise ContractError("offsets must be different whole numbers, at least one", repr(positions), do)


class Rows:
    """Selects rows of values [prompt, token, width].

    Parameters
    ----------
    emitter : Emitter
        Of the graph.
    positions : str or tuple of int
        The choice.
    """

    def __init__(self, emitter: Emitter, positions: str | tuple[int, ...]) -> None:
        self._emitter = emitter
        self.positions = positions
        self._low: Opset23 | None = None

    @property
    def n(self) -> int:
        """Rows of a prompt, where that is fixed."""
        return 1 if isinstance(self.positions, str) else len(self.positions)

    @property
    def narrows(self) -> bool:
        """Whether the last block needs only some rows of each prompt."""
        return self.positions == "last" or not isinstance(self.positions, str)

    @property
    def axes(self) -> tuple[str | int, ...]:
        """Axes of an output in front of its width."""
        if isinstance(self.positions, str):
            return ("row",) if self.positions == "all" else ("prompt",)
        return ("prompt", self.n)

    def inputs(self) -> tuple[TensorSpec, ...]:
        """Declare the inputs of the graph."""
        if self.positions == "mean":
            second = TensorSpec(name="lengths", dtype="int64", axes=("prompt",))
        else:
            axes = self.axes if not isinstance(self.positions, str) else (str(self.axes[0]),)
            second = TensorSpec(name="rows", dtype="int64", axes=axes)
        specs = (TensorSpec(name="input_ids", dtype="int32", axes=("prompt", "token")), second)
        for spec in specs:
            self._emitter.input(spec)
        return specs

    def bind(self, low: Opset23) -> Rows:
        """Learn how shapes are written."""
        self._low = low
        return self

    @property
    def low(self) -> Opset23:
        """The lowering in use."""
        assert self._low is not None
        return self._low

    @property
    def at(self) -> str:
        """Int64 [prompt, query]: index within its prompt of every asked row."""
        em = self._emitter
        if self.positions == "last":
            return str(em.memo("at", lambda: em.op("Unsqueeze", "rows", em.integers(1))))
        return "rows"

    def narrow(self, x: str) -> str:
        """Keep the asked rows of every prompt: [prompt, token, width] becomes [prompt, query, width]."""
        em, low = self._emitter, self.low

        def make() -> str:
            first = em.op("Mul", low.counting(low.n_prompts()), low.n_tokens())
            return em.op("Add", em.op("Unsqueeze", first, em.integers(1)), self.at)

        flat = em.memo("flat_rows", make)
        width = em.integers(-1, low.config.d_model)
        return em.op("Gather", em.op("Reshape", x, width), flat, axis=0)

    def select(self, x: str, *, full: bool, width: int) -> str:
        """Give the rows that leave.

        Parameters
        ----------
        x : str
            Value [prompt, token, width], or already narrow.
        full : bool
            Whether it holds every token.
        width : int
            Of the rows.
        """
        em = self._emitter
        if self.positions == "all":
            return em.op("Gather", em.op("Reshape", x, em.integers(-1, width)), "rows", axis=0)
        if self.positions == "mean":
            shares = em.memo("shares", self._shares)
            return em.op("Squeeze", em.op("MatMul", shares, x), em.integers(1))
        return self.shaped(self.narrow(x) if full else x, width)

    def shaped(self, x: str, width: int) -> str:
        """Give rows the axes of an output."""
        em = self._emitter
        if isinstance(self.positions, str):
            return em.op("Reshape", x, em.integers(-1, width))
        return em.op("Reshape", x, em.integers(-1, self.n, width))

    def _shares(self) -> str:
        """Float32 [prompt, 1, token]: one over the length for real tokens, 0 for pads."""
        em, low = self._emitter, self.low
        lengths = em.op("Unsqueeze", "lengths", em.integers(1, 2))
        real = em.op("Less", low.counting(low.n_tokens()), lengths)
        return em.op("Div", em.op("Cast", real, to=FLOAT), em.op("Cast", lengths, to=FLOAT))
