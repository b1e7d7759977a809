"""Index: nearest rows of a stored tap, exact and in blocks on the CPU."""

from workbench.index.exact import ExactIndex, Neighbours, nearest_rows

__all__ = ["ExactIndex", "Neighbours", "nearest_rows"]
