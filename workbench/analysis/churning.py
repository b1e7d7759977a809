"""What became of clusters between two builds or two layers: matched labels, adjusted Rand index, rows that changed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from workbench.analysis.joining import join_rows
from workbench.analysis.results import Figures, Provenance, Result, joined_provenance
from workbench.errors import AnalysisError

if TYPE_CHECKING:
    from workbench.analysis.clustering import Clusters
    from workbench.index.blocks import I64
    from workbench.store import Run


_ABSENT = -2


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Churn(Result):
    """Two clusterings of the same rows, matched.

    Attributes
    ----------
    adjusted_rand : float
        1 for equal clusterings, about 0 for unrelated ones, whatever their labels.
    matched : tuple of (int, int)
        Clusters of the first and of the second that share the most rows, one to one.
    stayed : float
        Share of the rows that lie in matched clusters (noise matches noise).
    changed : int64 [row]
        Places of the rows that do not.
    table : int64 [cluster of a, cluster of b]
        Rows in both; the last line and column hold noise.
    names : (tuple of str, tuple of str)
        Of the clusters on each side.
    """

    kind: ClassVar[str] = "churn"
    adjusted_rand: float
    matched: tuple[tuple[int, int], ...]
    stayed: float
    changed: I64
    table: I64
    names: tuple[tuple[str, ...], tuple[str, ...]]
    provenance: Provenance

    def columns(self) -> dict[str, npt.NDArray[Any]]:
        """One line a matched pair: names, sizes, rows that stayed."""
        first, second = np.array(self.matched, np.int64).reshape(-1, 2).T
        return {
            "cluster_a": np.array([self.names[0][i] for i in first], dtype=object),
            "cluster_b": np.array([self.names[1][j] for j in second], dtype=object),
            "rows_a": self.table.sum(axis=1)[first],
            "rows_b": self.table.sum(axis=0)[second],
            "stayed": self.table[first, second],
        }

    def figures(self) -> Figures:
        """How many rows of each cluster went where; the last line and column are noise."""
        from workbench.analysis.charts import counts

        rows, columns = ([*side, "noise"] for side in self.names)
        return {"counts": lambda: counts(self.table, rows, columns, str(self), "second", "first")}

    def __str__(self) -> str:
        return (
            f"{self.stayed:.1%} of the rows stay in matched clusters, {len(self.changed):,} do not; "
            f"adjusted Rand index {self.adjusted_rand:.3f}"
        )


def churn(a: Clusters | npt.ArrayLike, b: Clusters | npt.ArrayLike, *, runs: tuple[Run, Run] | None = None) -> Churn:
    """Match two clusterings of the same rows: of two builds, or of two layers.

    Parameters
    ----------
    a, b : Clusters or int [row]
        Labels of the same rows, -1 for noise.
    runs : (Run, Run), optional
        The runs of two `Clusters` of different builds: rows are joined by prompt hash and token index, and those that
        one side lacks are left out. Not needed where both hold the same prompts in the same order.

    Raises
    ------
    AnalysisError
        If they are not of the same rows.
    """
    from scipy.optimize import linear_sum_assignment

    left, right = _joined_labels(a, b, runs) if runs is not None else _same_rows(a, b)
    if len(left) != len(right) or len(left) == 0:
        raise AnalysisError(
            "churn compares labels of the same rows", f"{len(left)} and {len(right)}", "Join them first."
        )
    n_a, n_b = int(left.max()) + 1, int(right.max()) + 1
    table = np.zeros((n_a + 1, n_b + 1), np.int64)
    np.add.at(table, (left, right), 1)  # label -1 falls into the last line or column
    first, second = linear_sum_assignment(-table[:n_a, :n_b])
    partner = np.full(n_a + 1, -2)
    partner[first] = second
    partner[n_a] = -1
    changed = np.flatnonzero(partner[left] != right)
    pairs = tuple((int(i), int(j)) for i, j in zip(first, second, strict=True))
    stayed = 1 - len(changed) / len(left)
    return Churn(
        adjusted_rand=adjusted_rand(table), matched=pairs, stayed=stayed, changed=changed, table=table,
        names=(_names(a, n_a), _names(b, n_b)),
        provenance=joined_provenance([part.provenance for part in (a, b) if isinstance(part, Result)], len(left)),
    )  # fmt: skip


def adjusted_rand(table: npt.ArrayLike) -> float:
    """Adjusted Rand index of a table of counts (Hubert and Arabie, 1985); 1 where both are one and the same cluster."""
    counts = np.asarray(table, np.float64)
    both, rows, columns = _pairs(counts), _pairs(counts.sum(axis=1)), _pairs(counts.sum(axis=0))
    expected = rows * columns / max(_pairs(counts.sum(keepdims=True)), 1.0)
    top = (rows + columns) / 2
    return float((both - expected) / (top - expected)) if top != expected else 1.0


def _pairs(counts: npt.NDArray[np.float64]) -> float:
    return float((counts * (counts - 1) / 2).sum())


def _names(given: Any, n: int) -> tuple[str, ...]:
    return tuple(getattr(given, "names", ()) or (f"cluster {k}" for k in range(n)))


def _same_rows(a: Any, b: Any) -> tuple[I64, I64]:
    """Labels as they stand, after a look at what two results say of their rows."""
    if isinstance(a, Result) and isinstance(b, Result):
        both: list[Any] = [a, b]
        alike = both[0].provenance.prompts == both[1].provenance.prompts
        if not alike or not np.array_equal(both[0].rows, both[1].rows):
            got = "other prompts, or the same in another order" if not alike else "other row ids"
            do = "Pass runs=(first run, second run), which joins them."
            raise AnalysisError("churn compares labels of the same rows", got, do)
    return _labels(a), _labels(b)


def _joined_labels(a: Any, b: Any, runs: tuple[Run, Run]) -> tuple[I64, I64]:
    joined = join_rows(*runs)
    found = []
    for given, run, rows in ((a, runs[0], joined.rows_a), (b, runs[1], joined.rows_b)):
        labels = np.full(run.n_rows, _ABSENT)
        labels[getattr(given, "rows", np.arange(len(_labels(given))))] = _labels(given)
        found.append(labels[rows])
    both = (found[0] != _ABSENT) & (found[1] != _ABSENT)
    return found[0][both], found[1][both]


def _labels(given: Any) -> I64:
    return np.asarray(getattr(given, "labels", given), np.int64)
