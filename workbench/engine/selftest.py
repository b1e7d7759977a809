"""Self-test: rows that an engine gave at build and must give again at load."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.engine.batch import rows_per_prompt
from workbench.engine.contract import Contract, SelfTestPart
from workbench.engine.reference import run_one_by_one
from workbench.engine.verification import relative_errors
from workbench.errors import EngineRefused

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from workbench.engine.backends.protocol import Session
    from workbench.engine.recipe import Positions

SELFTEST_FILE = "selftest.safetensors"
_PROMPTS = 3
# float32 on another CPU adds in another order; the distance of real engines between CPUs is of the order of 1e-6
_RTOL = 1e-3


def write_selftest(
    path: Path, prompts: Sequence[NDArray[np.int32]], rows: Mapping[str, NDArray[np.float32]], positions: Positions
) -> SelfTestPart:
    """Keep the first reference prompts and the engine's rows for them."""
    from safetensors.numpy import save_file

    kept = prompts[:_PROMPTS]
    lengths = np.array([len(prompt) for prompt in kept], dtype=np.int64)
    count = int(rows_per_prompt(lengths, positions).sum())
    arrays: dict[str, NDArray[Any]] = {
        f"rows.{tap}": np.ascontiguousarray(array[:count]) for tap, array in rows.items()
    }
    arrays["lengths"] = lengths
    arrays["ids"] = np.concatenate(kept)
    save_file(arrays, path)
    return SelfTestPart(file=path.name, prompts=len(kept), rtol=_RTOL)


def run_selftest(session: Session, path: Path, contract: Contract) -> float:
    """Run the kept prompts again.

    Returns
    -------
    float
        Largest relative error of a row against the kept rows.

    Raises
    ------
    EngineRefused
        If it is above the contract's tolerance.
    """
    from safetensors.numpy import load_file

    kept = load_file(path)
    prompts = np.split(kept["ids"], np.cumsum(kept["lengths"])[:-1])
    rows = run_one_by_one(session, prompts, contract.positions, contract.inputs[0].dtype)
    worst = 0.0
    for tap in contract.taps:
        error = float(relative_errors(rows[tap], kept[f"rows.{tap}"]).max())
        worst = max(worst, error)
        if error > contract.self_test.rtol:
            raise EngineRefused(
                f"{tap} of the self-test must be within {contract.self_test.rtol:g} of the rows kept at build",
                f"{error:.3g}",
                "Build the engine again on this machine with `workbench build`.",
            )
    return worst
