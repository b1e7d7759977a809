"""One BLAS thread for many small products: waking a second costs more than it brings, most of all on a busy machine."""

from __future__ import annotations

from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

SMALL_WIDTH = 1024


@contextmanager
def few_threads(width: int) -> Iterator[None]:
    """Keep BLAS to one thread while products of up to `SMALL_WIDTH` dimensions run; wider ones are left alone."""
    if width > SMALL_WIDTH:
        yield
        return
    from threadpoolctl import threadpool_limits

    import_module("scipy.linalg")  # brings a BLAS of its own, and only loaded ones are limited
    with threadpool_limits(limits=1, user_api="blas"):
        yield
