"""The noise floor: what repeating the same thing already changes, for every tap and metric.

`floor.json` holds one entry a repeat (the same engine again, another batch slot, size or order, a rebuilt engine,
another GPU), each compared with one reference run. The floor of a metric is the largest value over the repeats. A drift
is a multiple of its floor, and nothing is said to differ below `CLAIM` times it.

    {"schema": "workbench.floor/1", "engine_id": ..., "prompts_hash": ..., "n_rows": ..., "created": ...,
     "workbench": ..., "repeats": [{"kind": "other order", "run_id": ..., "engine_id": ...,
                                    "taps": {"final_norm": {"error_mean": 1.2e-7, ...}}}]}
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.analysis.results import plain
from workbench.errors import AnalysisError
from workbench.writing import write_whole

if TYPE_CHECKING:
    from collections.abc import Mapping

    from workbench.analysis.drift import TapDrift

SCHEMA = "workbench.floor/1"
CLAIM = (
    1.5  # a repeat may exceed the largest of a few others a little; see the false-alarm test for how rarely beyond this
)
METRICS = (
    "error_mean", "error_p99", "error_worst", "zscored_error_mean", "cosine_distance_mean", "cosine_distance_worst",
    "cka_distance", "cka_zscored_distance", "overlap_loss", "overlap_zscored_loss",
)  # fmt: skip
KINDS = ("same engine", "batch slot", "batch size", "order", "rebuilt engine", "other device")


@dataclass(frozen=True, kw_only=True, slots=True)
class Repeat:
    """One repeat: what was changed, and the metrics of each tap against the reference run."""

    kind: str
    run_id: str
    engine_id: str
    taps: Mapping[str, Mapping[str, float]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Floor:
    """A measured noise floor.

    Attributes
    ----------
    engine_id, prompts_hash : str
        Of the reference run.
    n_rows : int
        Rows compared in each repeat; the floor of a worst row depends on it.
    repeats : tuple of Repeat
    """

    engine_id: str
    prompts_hash: str
    n_rows: int
    repeats: tuple[Repeat, ...]
    created: str
    workbench: str

    @property
    def taps(self) -> tuple[str, ...]:
        """Taps for which a floor was measured."""
        return tuple(dict.fromkeys(tap for repeat in self.repeats for tap in repeat.taps))

    @property
    def kinds(self) -> tuple[str, ...]:
        """What was repeated."""
        return tuple(dict.fromkeys(repeat.kind for repeat in self.repeats))

    def value(self, tap: str, metric: str) -> float | None:
        """Largest value of a metric over the repeats; None where it was not measured."""
        found = [repeat.taps[tap][metric] for repeat in self.repeats if metric in repeat.taps.get(tap, {})]
        return max(found) if found else None

    def save(self, path: str | Path) -> Path:
        """Write `floor.json` into a folder, or to a path that ends in .json; whole or not at all."""
        target = Path(path) if str(path).endswith(".json") else Path(path) / "floor.json"
        target.parent.mkdir(parents=True, exist_ok=True)
        body = {
            "schema": SCHEMA, "engine_id": self.engine_id, "prompts_hash": self.prompts_hash, "n_rows": self.n_rows,
            "created": self.created, "workbench": self.workbench,
            "repeats": [plain(repeat) for repeat in self.repeats],
        }  # fmt: skip
        write_whole(target, json.dumps(body, indent=1, sort_keys=True, allow_nan=False).encode())
        return target


def metrics_of(drift: TapDrift) -> dict[str, float]:
    """Metrics of a tap that a floor holds, all 0 where nothing differs; those that are not defined are left out."""
    values = {name: getattr(drift, name) for name in METRICS if hasattr(drift, name)}
    values |= {"cka_distance": 1 - drift.cka, "cka_zscored_distance": 1 - drift.cka_zscored}
    values |= {"overlap_loss": 1 - drift.overlap, "overlap_zscored_loss": 1 - drift.overlap_zscored}
    if drift.equal_rows == drift.n_rows:
        values = dict.fromkeys(values, 0.0)  # CKA and the like have rounding of their own
    return {name: float(value) for name, value in values.items() if math.isfinite(value)}


def load_floor(path: str | Path) -> Floor:
    """Read `floor.json` from its path or folder.

    Raises
    ------
    AnalysisError
        If it is missing, broken, or of another schema; nothing in it is guessed.
    """
    target = Path(path) / "floor.json" if Path(path).is_dir() else Path(path)
    try:
        body = _body(target)
        repeats = tuple(
            Repeat(
                kind=str(r["kind"]), run_id=str(r["run_id"]), engine_id=str(r["engine_id"]),
                taps={str(t): {str(m): _size(v) for m, v in one.items()} for t, one in r["taps"].items()},
            )
            for r in body["repeats"]
        )  # fmt: skip
        return Floor(
            engine_id=str(body["engine_id"]), prompts_hash=str(body["prompts_hash"]), n_rows=int(body["n_rows"]),
            repeats=repeats, created=str(body["created"]), workbench=str(body["workbench"]),
        )  # fmt: skip
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        must = f"a noise floor is a floor.json of schema {SCHEMA}"
        raise AnalysisError(must, f"{type(error).__name__}: {error}", "Measure it with measure_floor.") from error


def as_floor(floor: Floor | str | Path | None) -> Floor | None:
    """Take a floor, the path of one, or None; anything that a measured floor was wrapped in is unwrapped."""
    if floor is None or isinstance(floor, Floor):
        return floor
    return load_floor(floor)


def _body(path: Path) -> dict[str, Any]:
    body = json.loads(path.read_text())
    if body.get("schema") != SCHEMA:
        raise ValueError(f"schema {body.get('schema')!r}")
    return dict(body)


def _size(value: Any) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"a metric of {value!r}")
    return number
