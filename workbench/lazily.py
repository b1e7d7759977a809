"""Names of a package that are resolved on first use, so that its import costs nothing."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


def resolve_late(
    package: str, home: Mapping[str, str], more: Sequence[str] = ()
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Give a package's `__getattr__` and `__dir__`.

    Parameters
    ----------
    package : str
        Its full name.
    home : mapping of str to str
        Module below the package by the name that it offers.
    more : sequence of str
        Further names that the package holds itself.

    Returns
    -------
    callable
        Resolves a name; AttributeError lists what there is.
    callable
        Lists the names.
    """

    def find(name: str) -> object:
        if name not in home:
            raise AttributeError(f"{package} has no {name!r}; it offers {', '.join(home)}")
        return getattr(import_module(f"{package}.{home[name]}"), name)

    return find, lambda: sorted((*more, *home))
