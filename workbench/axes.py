"""Axes as vocabulary: one name, one size, at every boundary.

The names in use are `prompt`, `token` (a real token, no padding), `row` (one stored state), `d_model`, `d_vocab`,
`layer`, `head` and `component`.
"""

from __future__ import annotations

from typing import Protocol

from workbench.errors import ContractError


class HasShape(Protocol):
    """Anything with a shape: NumPy arrays, memory maps, stored taps."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Size of each axis."""
        ...


def bind_axes(*, do: str = "Take both from one build.", **arrays: tuple[HasShape, str]) -> dict[str, int]:
    """Bind axis names to sizes over several arrays.

    Parameters
    ----------
    do : str
        What the error tells the reader to do.
    **arrays : tuple of (array, str)
        Array and its axis names, separated by spaces.

    Returns
    -------
    dict of str to int
        Size of each axis.

    Raises
    ------
    ContractError
        If an array has another rank, or one name would have two sizes.
    """
    sizes: dict[str, int] = {}
    for name, (array, axes) in arrays.items():
        names = axes.split()
        shape = tuple(array.shape)
        want = ", ".join(f"{axis}={sizes[axis]}" if axis in sizes else axis for axis in names)
        fits = len(shape) == len(names) and all(
            sizes.get(axis, size) == size for axis, size in zip(names, shape, strict=True)
        )
        if not fits:
            raise ContractError(f"{name} must be [{want}]", f"[{', '.join(map(str, shape))}]", do)
        sizes.update(zip(names, shape, strict=True))
    return sizes
