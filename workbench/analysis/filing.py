"""Results as files: arrays as safetensors, all else as JSON that holds the hash of the arrays."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.analysis.results import Provenance, plain
from workbench.errors import AnalysisError
from workbench.writing import write_whole

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt


def save_arrays(path: str | Path, kind: str, arrays: Mapping[str, npt.NDArray[Any]], header: Mapping[str, Any]) -> Path:
    """Write a result as `<path>.safetensors` and `<path>.json`, each whole or not at all.

    The JSON holds the sha256 of the other file, so that the two are never mixed.
    """
    from safetensors.numpy import save

    stem = Path(path)
    stem = stem.with_suffix("") if stem.suffix in {".json", ".safetensors"} else stem
    stem.parent.mkdir(parents=True, exist_ok=True)
    data = save({name: np.ascontiguousarray(value) for name, value in arrays.items()})
    body = {"kind": kind, "schema": 1, "arrays_sha256": hashlib.sha256(data).hexdigest(), **plain(header)}
    text = json.dumps(body, indent=1, sort_keys=True, allow_nan=False)
    write_whole(stem.with_name(stem.name + ".safetensors"), data)
    write_whole(stem.with_name(stem.name + ".json"), text.encode())
    return stem.with_name(stem.name + ".json")


def load_arrays(path: str | Path, kind: str) -> tuple[dict[str, npt.NDArray[Any]], dict[str, Any]]:
    """Read what `save_arrays` wrote.

    Raises
    ------
    AnalysisError
        If a file is missing, of another kind or newer schema, or the two do not belong together.
    """
    from safetensors.numpy import load

    stem = Path(path)
    stem = stem.with_suffix("") if stem.suffix in {".json", ".safetensors"} else stem
    try:
        header = json.loads(stem.with_name(stem.name + ".json").read_bytes())
        data = stem.with_name(stem.name + ".safetensors").read_bytes()
    except (OSError, ValueError) as error:
        raise AnalysisError(
            f"a saved {kind} is a .json and a .safetensors file", str(error), "Save it again."
        ) from error
    if not isinstance(header, dict) or header.get("kind") != kind or header.get("schema") != 1:
        got = (
            f"kind {header.get('kind')!r}, schema {header.get('schema')!r}" if isinstance(header, dict) else "no object"
        )
        raise AnalysisError(f"the file must hold a {kind} of schema 1", got, "Check the path, or update the workbench.")
    if header.get("arrays_sha256") != hashlib.sha256(data).hexdigest():
        raise AnalysisError("the two files must belong together", "another hash", "Restore both from one copy.")
    return dict(load(data)), header


def provenance_from(header: Mapping[str, Any]) -> Provenance:
    """Rebuild a provenance from JSON; unknown fields are ignored."""
    names = {field.name for field in dataclasses.fields(Provenance)}
    values = {name: value for name, value in header.items() if name in names}
    values |= {name: tuple(values[name]) for name in ("runs", "engines", "prompts", "taps")}
    return Provenance(**values)
