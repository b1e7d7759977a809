"""What two runs with and without the tap show: figures, and verdicts on them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from numpy.typing import NDArray

Verdict = tuple[str, bool, str]
TOLERANCE = {"float16": 0.01, "bfloat16": 0.05, "float32": 0.005}  # mean relative error; on a card float32 is TF32


def rows_of(file: Path) -> NDArray[np.float32]:
    """Read the rows of real tokens, [token, d_model], in prompt order."""
    with np.load(file) as data:
        real = np.arange(data["input_ids"].shape[1]) < data["lengths"][:, None]
        rows: NDArray[np.float32] = data["final_norm"][real]
    return rows


def distance(got: NDArray[Any], want: NDArray[Any]) -> dict[str, float]:
    """Give mean and worst relative distance of rows, [token, d_model]."""
    errors = np.linalg.norm(got - want, axis=1) / np.linalg.norm(want, axis=1)
    return {"mean": float(errors.mean()), "worst": float(errors.max())}


def judge_states(
    tap: NDArray[Any], reference: NDArray[Any], own: Mapping[str, NDArray[Any]], dtype: str
) -> tuple[list[Verdict], dict[str, Any]]:
    """Hold the tap's rows against a reference and against the workbench's own engines.

    Parameters
    ----------
    tap, reference : [token, d_model]
        Rows in prompt order.
    own : mapping of str to [token, d_model]
        The same rows by each engine of the workbench.
    dtype : str
        Of the engine with the tap.

    Returns
    -------
    verdicts, figures
        What was checked, whether it holds, and text; and the figures as plain data.
    """
    error = distance(tap, reference)
    figures: dict[str, Any] = {"rows": len(tap), "tap_to_reference": error, "own": {}}
    verdicts = [("the tap is the state after the final norm", error["mean"] < TOLERANCE[dtype], _text(error))]
    for name, rows in own.items():
        between, away = distance(tap, rows), distance(rows, reference)
        figures["own"][name] = {"tap_to_own": between, "own_to_reference": away}
        told = f"{_text(between)}; that engine itself {_text(away)}"
        verdicts.append((f"the tap agrees with our engine, {name}", between["mean"] < TOLERANCE[dtype], told))
    verdicts.append(("every value of the tap is finite", bool(np.isfinite(tap).all()), f"{len(tap)} rows"))
    return verdicts, figures


def _text(error: dict[str, float]) -> str:
    return f"mean relative distance {error['mean']:.2e}, worst token {error['worst']:.2e}"
