"""Clusters of rows, found among principal components and never on a map, with their quality beside them."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from workbench.analysis.filing import load_arrays, provenance_from, save_arrays
from workbench.analysis.pca import fit_pca
from workbench.analysis.projection import finite_rows
from workbench.analysis.results import Figures, Provenance, Result, plain, provenance
from workbench.analysis.sampling import FirstTokens, asked_rows, said_of_first, sample_rows
from workbench.analysis.topics import name_clusters
from workbench.analysis.worker import Fit, worker
from workbench.errors import AnalysisError
from workbench.index.blocks import F32, I64, rows_of
from workbench.progress import Show, shown

if TYPE_CHECKING:
    import threading
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from workbench.store import Run

I32 = npt.NDArray[np.int32]
METHODS = ("kmeans", "hdbscan")
COMPONENTS = 50
FIT_ROWS = 50_000
QUALITY_ROWS = 5_000
NAMED_ROWS = 50_000  # spread over prompts: names need a few hundred prompts of each cluster, not all
STABILITY_REPEATS = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class Quality:
    """How good a clustering is; `n` rows were measured, noise left out. NaN where there are fewer than two clusters.

    Attributes
    ----------
    silhouette : float
        -1 to 1, larger is better.
    davies_bouldin : float
        From 0, smaller is better.
    calinski_harabasz : float
        From 0, larger is better; grows with the number of rows.
    stability_seeds, stability_halves : float
        Mean adjusted Rand index between this clustering and others from other seeds, or from random halves of the rows;
        1 where they agree, 0 by chance. NaN where it was not measured.
    """

    silhouette: float
    davies_bouldin: float
    calinski_harabasz: float
    stability_seeds: float
    stability_halves: float
    n: int


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Clusters(Result):
    """A clustering of rows.

    Attributes
    ----------
    labels : int32 [row]
        Cluster of each row, largest cluster first; -1 is noise (HDBSCAN).
    rows : int64 [row]
        Row ids.
    names : tuple of str
        A name for each cluster, from the distinctive words of its prompts.
    sizes : tuple of int
    n_noise, left_out, dropped_first : int
        Rows in no cluster, rows with inf or NaN, and rows of first tokens that were left out.
    """

    kind: ClassVar[str] = "clusters"
    tap: str
    method: str
    k: int
    seed: int
    parameters: Mapping[str, Any]
    labels: I32
    rows: I64
    names: tuple[str, ...]
    sizes: tuple[int, ...]
    n_noise: int
    left_out: int
    quality: Quality
    provenance: Provenance
    dropped_first: int = 0

    def columns(self) -> dict[str, npt.NDArray[Any]]:
        """Row id, cluster and its name of each row."""
        names = np.array([*self.names, "noise"])
        return {"row": self.rows, "cluster": self.labels, "name": names[self.labels]}

    def __str__(self) -> str:
        q = self.quality
        head = (
            f"{self.k} clusters of {self.tap} ({self.method}): {len(self.labels):,} rows, "
            f"silhouette {q.silhouette:.2f}, "
            f"agreement over seeds {q.stability_seeds:.2f}, over halves {q.stability_halves:.2f}"
        )
        head += f", {self.n_noise:,} rows in none" if self.method == "hdbscan" else ""
        head += said_of_first(self.dropped_first)
        return "\n".join([head, *(f"  {size:>7,}  {name}" for size, name in zip(self.sizes, self.names, strict=True))])

    def figures(self) -> Figures:
        """The size of each cluster; colour a map with `labels` to see where they lie."""
        from workbench.analysis.charts import bars

        title = str(self).split("\n", maxsplit=1)[0]
        return {"sizes": lambda: bars(self.names, self.sizes, title, "rows")}

    def save(self, path: str | Path) -> Path:
        """Write the clustering as `<path>.safetensors` and `<path>.json`."""
        return save_arrays(path, self.kind, {"labels": self.labels, "rows": self.rows}, self.as_dict())


def load_clusters(path: str | Path) -> Clusters:
    """Read a clustering that `Clusters.save` wrote."""
    arrays, header = load_arrays(path, Clusters.kind)
    quality: dict[str, Any] = {name: float("nan") if v is None else v for name, v in header["quality"].items()}
    return Clusters(
        **{name: header[name] for name in ("tap", "method", "k", "seed", "parameters", "n_noise", "left_out")},
        labels=arrays["labels"],
        rows=arrays["rows"],
        names=tuple(header["names"]),
        sizes=tuple(header["sizes"]),
        quality=Quality(**quality),
        dropped_first=header.get("dropped_first", 0),
        provenance=provenance_from(header["provenance"]),
    )


def cluster(
    run: Run,
    tap: str,
    k: int = 12,
    *,
    seed: int = 0,
    method: str = "kmeans",
    rows: npt.ArrayLike | None = None,
    first_tokens: FirstTokens = "drop",
    min_cluster_size: int | None = None,
    fit_rows: int = FIT_ROWS,
    progress: Show = True,
    cancel: threading.Event | None = None,
) -> Clusters:
    """Cluster the rows of a tap among its first 50 principal components.

    Parameters
    ----------
    run : Run
    tap : str
    k : int
        Clusters (k-means only).
    seed : int
    method : {"kmeans", "hdbscan"}
        k-means on all rows (in mini-batches above 10,000), or density clusters on at most `fit_rows` rows, in the
        worker process; the others take the cluster of their nearest fitted row.
    rows : row ids or mask, optional
    first_tokens : {"drop", "keep"}
        Whether first tokens, where a prompt has several rows, are left out, which would be a cluster of their own.
    min_cluster_size : int, optional
        Smallest HDBSCAN cluster; a hundredth of the rows, and 5 at least, by default.

    Returns
    -------
    Clusters

    Raises
    ------
    AnalysisError
        If k is below two or above the number of rows, or the method is unknown.
    """
    if method not in METHODS:
        raise AnalysisError(f"method must be one of {', '.join(METHODS)}", repr(method), "Choose one of them.")
    asked, dropped = asked_rows(run, rows, first_tokens)
    kept = finite_rows(run, tap, asked)
    if len(kept) < 4 or (method == "kmeans" and not 2 <= k <= len(kept)):
        raise AnalysisError(
            "clusters need four rows, and k from 2 to their number", f"{len(kept)} rows, k={k}", "Change k."
        )
    prompts = np.asarray(run.prompt_of_rows(), np.int64)[kept]
    with shown(f"cluster {tap}", progress) as report:
        source = rows_of(run.tap(tap), rows=None if len(kept) == run.n_rows else kept)
        pca = fit_pca(source, COMPONENTS, seed=seed, progress=report)
        points = pca.transform(source)
        size = min_cluster_size or max(5, len(kept) // 100)
        if method == "kmeans":
            labels = _kmeans(points, k, seed)
        else:
            fit = sample_rows(prompts, fit_rows, seed=seed)
            made = worker().run(
                "hdbscan", {"fit": points[fit]}, {"min_cluster_size": size}, progress=report, cancel=cancel
            )
            labels = _spread(points, fit, made["labels"])
        labels = by_size(labels)
        quality = _quality(points, labels, prompts, method=method, k=k, seed=seed)
    named = sample_rows(prompts, NAMED_ROWS, seed=seed)
    names = name_clusters(labels[named], [run.prompts.texts[prompt] for prompt in prompts[named]])
    found = int(labels.max()) + 1
    options = {"method": method, "components": pca.components.shape[0], "first_tokens": first_tokens}
    options |= {"k": k} if method == "kmeans" else {"min_cluster_size": size}
    whole = method == "kmeans" or len(kept) <= fit_rows
    return Clusters(
        tap=tap, method=method, k=found, seed=seed, parameters=plain(options), labels=labels, rows=kept,
        names=tuple(names.get(code, f"cluster {code}") for code in range(found)),
        sizes=tuple(int((labels == code).sum()) for code in range(found)),
        n_noise=int((labels < 0).sum()),
        left_out=len(asked) - len(kept), dropped_first=dropped,
        quality=quality,
        provenance=provenance(
            [run], taps=[tap], seed=seed, n_rows=len(kept), parameters=options, libraries=["scikit-learn", "scipy"],
            sampling=("all rows" if whole else f"fitted on {fit_rows:,} of {len(kept):,} rows, seed {seed}")
            + said_of_first(dropped),
        ),
    )  # fmt: skip


def start_cluster(run: Run, tap: str, k: int = 12, **options: Any) -> Fit[Clusters]:
    """Start `cluster` in the background; the answer has `progress`, `cancel()`, `done()` and `result()`."""
    return Fit(lambda progress, cancel: cluster(run, tap, k, progress=progress, cancel=cancel, **options))


def by_size(labels: npt.ArrayLike) -> I32:
    """Number clusters anew, largest first; noise stays -1."""
    codes = np.asarray(labels, np.int64)
    present, first, counts = np.unique(codes[codes >= 0], return_index=True, return_counts=True)
    order = np.lexsort((first, -counts))
    new = np.full(int(codes.max(initial=-1)) + 2, -1, np.int32)  # the last place serves label -1
    new[present[order]] = np.arange(len(present), dtype=np.int32)
    return new[codes]


def _kmeans(points: F32, k: int, seed: int, rows: I64 | None = None) -> I32:
    """Mini-batch k-means; where `rows` are given, fitted on those and applied to all."""
    from sklearn.cluster import KMeans, MiniBatchKMeans

    few = len(points) <= 10_000
    kind = (
        KMeans(k, n_init=4, random_state=seed)
        if few
        else MiniBatchKMeans(k, n_init=4, batch_size=4096, random_state=seed)
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # fewer distinct rows than clusters: the result says how many were found
        kind.fit(points if rows is None else points[rows])
    return np.asarray(kind.predict(points), np.int32)


def _spread(points: F32, fit: I64, fitted: npt.NDArray[Any]) -> I32:
    """Give each row the cluster of its nearest fitted row."""
    from workbench.index.exact import nearest_rows

    labels = np.full(len(points), -1, np.int32)
    labels[fit] = fitted
    rest = np.setdiff1d(np.arange(len(points)), fit)
    for first in range(0, len(rest), 4096):
        here = rest[first : first + 4096]
        near = nearest_rows(points[fit], points[here], 1, metric="l2").rows[:, 0]
        labels[here] = fitted[near]
    return labels


def _quality(points: F32, labels: I32, prompts: I64, *, method: str, k: int, seed: int) -> Quality:
    from sklearn.metrics import (
        adjusted_rand_score,
        calinski_harabasz_score,
        davies_bouldin_score,
        silhouette_score,
    )

    sample = sample_rows(prompts, QUALITY_ROWS, seed=seed)
    inside = sample[labels[sample] >= 0]
    codes = labels[inside]
    nan = float("nan")
    seeds = halves = nan
    if method == "kmeans":
        others = [_kmeans(points, k, seed + repeat) for repeat in range(1, STABILITY_REPEATS + 1)]
        seeds = float(np.mean([adjusted_rand_score(labels, other) for other in others]))
        rng = np.random.default_rng(seed)
        parts: Sequence[I64] = [
            rng.permutation(len(points))[: max(k, len(points) // 2)] for _ in range(STABILITY_REPEATS)
        ]
        halves = float(np.mean([adjusted_rand_score(labels, _kmeans(points, k, seed, part)) for part in parts]))
    if not 2 <= len(np.unique(codes)) < len(codes):
        return Quality(
            silhouette=nan,
            davies_bouldin=nan,
            calinski_harabasz=nan,
            stability_seeds=seeds,
            stability_halves=halves,
            n=len(inside),
        )
    return Quality(
        silhouette=float(silhouette_score(points[inside], codes)),
        davies_bouldin=float(davies_bouldin_score(points[inside], codes)),
        calinski_harabasz=float(calinski_harabasz_score(points[inside], codes)),
        stability_seeds=seeds,
        stability_halves=halves,
        n=len(inside),
    )
