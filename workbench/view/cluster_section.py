"""Clusters on a page: their sizes and the tokens that set them apart; a cluster also colours the map."""

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
    names = [str(name) for name in clusters.names]
    return [rule.word(f"{k}: {name}" if name else str(k)) or f"cluster {k}" for k, name in enumerate(names)]


def cluster_column(clusters: Clusters, rows: DrawnRows, rule: Redaction) -> ViewColumn:
    """Give the clusters as a column of the map; rows in none (noise) have no value."""
    names = cluster_names(clusters, rule)
    labels = np.asarray(clusters.labels)[rows.ids]
    codes = np.where((labels >= 0) & (labels < len(names)), labels, len(names)).astype(np.uint16)
    return ViewColumn(name="cluster", per="row", values=codes, labels=tuple(names), free=True)


def cluster_section(clusters: Clusters, column: int, rule: Redaction) -> dict[str, Any]:
    """Build the section; `column` is the place of its column among those of the page."""
    names = cluster_names(clusters, rule)
    labels = np.asarray(clusters.labels)
    sizes = np.bincount(labels[labels >= 0], minlength=len(names))
    entries = [
        {
            "name": name,
            "size": int(sizes[code]),
            "share": float(sizes[code] / max(1, len(labels))),
            "words": None,
            "code": code,
        }
        for code, name in enumerate(names)
    ]
    noise = int((labels < 0).sum())
    notes = [f"{noise:,} rows belong to no cluster."] if noise else []
    return {
        "type": "clusters",
        "title": f"{len(names)} clusters",
        "lead": None,
        "column": column,
        "entries": sorted(entries, key=lambda entry: -int(entry["size"])),
        "notes": notes,
    }
