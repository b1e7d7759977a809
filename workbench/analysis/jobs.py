"""What the worker process can do: functions from arrays and plain parameters to arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from workbench.errors import AnalysisError

Arrays = dict[str, npt.NDArray[Any]]
Progress = Callable[[int, int], None]
Job = Callable[[Arrays, Mapping[str, Any], Progress], Arrays]


class _Bar:
    """A stream for tqdm bars that hands their counts on instead of drawing them."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress

    def write(self, text: str) -> int:
        """Read "done/total" from a bar's text."""
        done, slash, total = text.strip().partition("/")
        if slash and done.isdigit() and total.isdigit():
            self.progress(int(done), int(total))
        return len(text)

    def flush(self) -> None:
        """Nothing is kept back."""


def umap_job(inputs: Arrays, parameters: Mapping[str, Any], progress: Progress) -> Arrays:
    """Fit UMAP on `fit` [row, component] and place `more` [row, component] into it.

    One thread and a seed: the same rows give the same map on one machine.
    """
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import umap

        fit = np.ascontiguousarray(inputs["fit"])
        model = umap.UMAP(
            n_components=2,
            n_neighbors=min(int(parameters["n_neighbors"]), len(fit) - 1),
            min_dist=float(parameters["min_dist"]),
            metric=str(parameters["metric"]),
            random_state=int(parameters["seed"]),
            n_jobs=1,
            init="spectral" if len(fit) > 4 else "random",
            tqdm_kwds={"file": _Bar(progress), "bar_format": "{n_fmt}/{total_fmt}", "disable": False},
        )
        out = {"fit": np.asarray(model.fit_transform(fit), np.float32)}
        if "more" in inputs and len(inputs["more"]):
            out["more"] = np.asarray(model.transform(np.ascontiguousarray(inputs["more"])), np.float32)
        return out


def tsne_job(inputs: Arrays, parameters: Mapping[str, Any], progress: Progress) -> Arrays:
    """Fit t-SNE on `fit` [row, component], started from its principal components; it cannot place further rows."""
    from sklearn.manifold import TSNE

    fit = np.ascontiguousarray(inputs["fit"], np.float32)
    if "more" in inputs and len(inputs["more"]):
        raise AnalysisError("t-SNE places only the rows it was fitted on", "further rows", 'Use method="umap".')
    progress(0, 1)
    perplexity = min(float(parameters["perplexity"]), (len(fit) - 1) / 3)
    model = TSNE(n_components=2, perplexity=perplexity, init="pca", random_state=int(parameters["seed"]), n_jobs=1)
    return {"fit": np.asarray(model.fit_transform(fit), np.float32)}


def hdbscan_job(inputs: Arrays, parameters: Mapping[str, Any], progress: Progress) -> Arrays:
    """Cluster `fit` [row, component] by density; label -1 is noise."""
    from sklearn.cluster import HDBSCAN

    progress(0, 1)
    size = int(parameters["min_cluster_size"])
    model = HDBSCAN(min_cluster_size=size, min_samples=parameters.get("min_samples"), copy=True)
    labels = model.fit_predict(np.ascontiguousarray(inputs["fit"], np.float32))
    return {"labels": np.asarray(labels, np.int32), "strength": np.asarray(model.probabilities_, np.float32)}


JOBS: dict[str, Job] = {"umap": umap_job, "tsne": tsne_job, "hdbscan": hdbscan_job}
