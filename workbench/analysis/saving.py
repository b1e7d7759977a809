"""Probes on disk: weights as safetensors, everything else as JSON with the digest of the engine's contract.

A probe belongs to the engine whose states it was fitted on. Reading another engine's states with it is a question of
its own, answered by `transfer`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.analysis.filing import load_arrays, provenance_from, save_arrays
from workbench.analysis.probe import Probe
from workbench.analysis.probe_scores import Calibration
from workbench.errors import AnalysisError

if TYPE_CHECKING:
    from pathlib import Path

ARRAYS = (
    "fold_scores", "alphas", "weights", "intercepts", "mean", "scale", "rows", "groups", "fold_of_row", "predictions",
    "truth",
)  # fmt: skip
TUPLES = ("labels", "classes", "interval", "control_range")


def save_probe(probe: Probe, path: str | Path) -> Path:
    """Write a probe as `<path>.safetensors` and `<path>.json`; gives back the JSON's path."""
    header = {name: value for name, value in probe.as_dict().items() if name not in ARRAYS and name != "kind"}
    return save_arrays(path, Probe.kind, {name: getattr(probe, name) for name in ARRAYS}, header)


def load_probe(path: str | Path) -> Probe:
    """Read a probe that `save_probe` wrote.

    Raises
    ------
    AnalysisError
        If a file is missing, broken, or not of a probe.
    """
    arrays, header = load_arrays(path, Probe.kind)
    body: dict[str, Any] = {k: v for k, v in header.items() if k not in {"kind", "schema", "arrays_sha256"}}
    try:
        body |= {name: tuple(float("nan") if v is None else v for v in body[name]) for name in TUPLES}
        body |= {
            name: float("nan") for name in ("score", "control", "baseline", "token_baseline") if body[name] is None
        }
        body["provenance"] = provenance_from(body["provenance"])
        if body["calibration"] is not None:
            raw = body["calibration"]
            lists = {name: np.array(raw[name]) for name in ("predicted", "observed", "count")}
            body["calibration"] = Calibration(**lists, error=raw["error"], slope=raw["slope"])
        return Probe(**body | arrays)
    except (KeyError, TypeError, ValueError) as error:
        raise AnalysisError("a saved probe must have all its fields", str(error), "Save it again.") from error


def to_scikit_learn(probe: Probe) -> Any:
    """Give a scikit-learn pipeline (scaler, then ridge or logistic regression) with the probe's own weights."""
    from sklearn.linear_model import LogisticRegression, Ridge
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    scaler = StandardScaler()
    scaler.mean_, scaler.scale_, scaler.var_ = probe.mean, probe.scale, probe.scale**2
    scaler.n_features_in_, scaler.n_samples_seen_ = len(probe.mean), probe.n_rows
    if probe.task == "regression":
        model = Ridge(alpha=probe.alpha)
        model.coef_, model.intercept_ = probe.weights.T, probe.intercepts
    else:
        model = LogisticRegression(C=1 / probe.alpha)
        weights, bias = probe.weights.T, probe.intercepts
        if len(probe.classes) == 2:  # scikit-learn keeps one line for two classes
            weights, bias = weights[1:] - weights[:1], bias[1:] - bias[:1]
        model.coef_, model.intercept_, model.classes_ = weights, bias, np.array(probe.classes)
    model.n_features_in_ = len(probe.mean)
    return make_pipeline(scaler, model)
