"""Clusters on a page: their sizes and names, and how far they can be trusted; a cluster also colours the map."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.view.columns import ViewColumn

if TYPE_CHECKING:
    from workbench.analysis import Clusters
    from workbench.view.redaction import Redaction
    from workbench.view.rows import DrawnRows


def cluster_names(clusters: Clusters, rule: Redaction) -> list[str]:
    """Name each cluster; a redacted page numbers them, because names are made of tokens."""
    return [rule.word(f"{k}: {name}") or f"cluster {k}" for k, name in enumerate(clusters.names)]


def cluster_column(clusters: Clusters, rows: DrawnRows, rule: Redaction) -> ViewColumn:
    """Give the clusters as a column of the map; rows in none have no value."""
    names = cluster_names(clusters, rule)
    labels = np.full(rows.run.n_rows, -1, np.int64)
    labels[clusters.rows] = clusters.labels
    codes = labels[rows.ids]
    codes[codes < 0] = len(names)
    return ViewColumn(name="cluster", per="row", values=codes.astype(np.uint16), labels=tuple(names), free=True)


def cluster_section(clusters: Clusters, column: int, rule: Redaction) -> dict[str, Any]:
    """Build the section; `column` is the place of its column among those of the page."""
    total = max(1, len(clusters.labels))
    entries = [
        {"name": name, "size": size, "share": size / total, "code": code}
        for code, (name, size) in enumerate(zip(cluster_names(clusters, rule), clusters.sizes, strict=True))
    ]
    return {
        "type": "clusters",
        "title": f"{clusters.k} clusters at {clusters.tap}",
        "lead": _lead(clusters),
        "column": column,
        "entries": entries,
        "notes": _notes(clusters),
    }


def _lead(clusters: Clusters) -> str:
    how = "k-means" if clusters.method == "kmeans" else "density clusters (HDBSCAN)"
    among = f"among {clusters.parameters.get('components', 0)} principal components, not on the map"
    return f"Found by {how} {among}. Names are distinctive words of the prompts."


def _notes(clusters: Clusters) -> list[str]:
    quality = clusters.quality
    parts = [
        ("silhouette", quality.silhouette),
        ("agreement over seeds", quality.stability_seeds),
        ("agreement over random halves", quality.stability_halves),
    ]
    found = [f"{name} {value:.2f}" for name, value in parts if np.isfinite(value)]
    notes = [f"{', '.join(found)} (1 is best; {quality.n:,} rows)."] if found else []
    if clusters.n_noise:
        notes.append(f"{clusters.n_noise:,} rows belong to no cluster.")
    if clusters.left_out:
        notes.append(f"{clusters.left_out:,} rows with inf or NaN were left out.")
    return notes
