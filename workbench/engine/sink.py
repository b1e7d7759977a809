"""Where hidden states go: the one protocol between the runtime and whatever keeps or carries rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray


class Sink(Protocol):
    """Takes the rows of consecutive prompts, batch after batch."""

    def commit(self, first: int, stop: int, rows: Mapping[str, NDArray[Any]]) -> None:
        """Take the rows of the prompts `first` to `stop - 1`.

        Parameters
        ----------
        first, stop : int
            Range of prompts; each batch begins where the one before ended.
        rows : mapping of tap name to array [row, d_model]
            The rows of those prompts in prompt order; the sink owns the arrays from now on.
        """
        ...
