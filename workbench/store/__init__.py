"""Runs on disk: written batch by batch so that nothing acknowledged is lost, read without loading them whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workbench.lazily import resolve_late

_HOME = {
    "create_run": "creating",
    "RunWriter": "writer",
    "WriterOptions": "writer",
    "TapSpec": "manifest",
    "Manifest": "manifest",
    "open_run": "reader",
    "Run": "reader",
    "TapArray": "taparray",
    "TapStatistics": "statistics",
    "merge_statistics": "statistics",
    "StoreWarning": "filesystem",
    "Verification": "verifying",
    "verify_run": "verifying",
    "export_run": "exchange",
}
__all__ = list(_HOME)


__getattr__, __dir__ = resolve_late("workbench.store", _HOME)

if TYPE_CHECKING:
    from workbench.store.creating import create_run as create_run
    from workbench.store.exchange import export_run as export_run
    from workbench.store.filesystem import StoreWarning as StoreWarning
    from workbench.store.manifest import Manifest as Manifest
    from workbench.store.manifest import TapSpec as TapSpec
    from workbench.store.reader import Run as Run
    from workbench.store.reader import open_run as open_run
    from workbench.store.statistics import TapStatistics as TapStatistics
    from workbench.store.statistics import merge_statistics as merge_statistics
    from workbench.store.taparray import TapArray as TapArray
    from workbench.store.verifying import Verification as Verification
    from workbench.store.verifying import verify_run as verify_run
    from workbench.store.writer import RunWriter as RunWriter
    from workbench.store.writer import WriterOptions as WriterOptions
