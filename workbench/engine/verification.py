"""Verification: an engine against its reference, against itself, and against a batch of one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from workbench.engine.batch import rows_per_prompt
from workbench.engine.contract import Repeat, SplitVerdict, TapVerdict, VerificationPart
from workbench.engine.reference import REFERENCE, ReferenceRows, run_one_by_one, run_together
from workbench.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from workbench.engine.backends.protocol import Session
    from workbench.engine.recipe import Positions

# mean and worst relative error a row that a build may have; the worst token of a quantised build lies far from its mean
TOLERANCES = {
    "fp32": (1e-5, 1e-4),
    "fp16": (0.01, 0.1),
    "bf16": (0.04, 0.2),
    "fp8": (0.2, 1.5),
    "int8": (0.06, 0.6),
    "int8-dynamic": (0.08, 0.8),
    "int8-static": (0.15, 0.9),
    "int4": (0.45, 1.5),
    "int4-grid": (0.08, 0.8),
}


def relative_errors(rows: NDArray[np.float32], reference: NDArray[np.float32]) -> NDArray[np.float64]:
    """Distance of each row from its reference row, as a share of that row's length.

    Parameters
    ----------
    rows, reference : float32 [row, d_model]

    Returns
    -------
    float64 [row]
        Infinite where a row is not finite; 0 where both rows are 0.
    """
    exact = reference.astype(np.float64)
    distance = np.linalg.norm(rows.astype(np.float64) - exact, axis=1)
    length = np.linalg.norm(exact, axis=1)
    error = np.divide(distance, length, out=np.where(distance > 0, np.inf, 0.0), where=length > 0)
    return np.where(np.isfinite(error), error, np.inf)


def verify(
    session: Session,
    reference: ReferenceRows,
    positions: Positions,
    id_dtype: str,
    precision: str,
    twin: Session | None = None,
) -> tuple[VerificationPart, dict[str, NDArray[np.float32]]]:
    """Measure an engine on the reference prompts.

    Parameters
    ----------
    session : Session
        The engine under test.
    reference : ReferenceRows
        Prompts, and their rows in float32.
    positions : str or tuple of int
        As in the recipe.
    id_dtype : str
        Dtype of `input_ids`.
    precision : str
        Decides the tolerance.
    twin : Session, optional
        The same low precision on the reference backend, for the three-way split.

    Returns
    -------
    VerificationPart
        Error of each tap, and how far repetitions lie apart.
    dict of str to float32 [row, d_model]
        The engine's own rows, one prompt a pass, for the self-test at load.

    Raises
    ------
    EngineError
        If a tap is out of tolerance, with the tap, the worst row and the tolerance that it would have needed.
    """
    taps = tuple(reference.rows)  # a baseline emits its cache too, which has no reference
    alone = only(taps, run_one_by_one(session, reference.prompts, positions, id_dtype))
    again = only(taps, run_one_by_one(session, reference.prompts, positions, id_dtype))
    together = run_together(session, reference.prompts, positions, id_dtype, taps)
    tolerance = TOLERANCES[precision]
    part = VerificationPart(
        reference=REFERENCE,
        reference_rows=len(next(iter(alone.values()))),
        tolerance_mean=tolerance[0],
        tolerance_worst=tolerance[1],
        taps={tap: _verdict(rows, reference, tap, positions) for tap, rows in alone.items()},
        same_engine_twice=repeat_of(again, alone),
        batch_of_one=repeat_of(together, alone),
        split=None if twin is None else split_of(alone, reference, positions, twin),
    )
    _refuse_if_out(part)
    return part, alone


def only(taps: tuple[str, ...], rows: Mapping[str, NDArray[np.float32]]) -> dict[str, NDArray[np.float32]]:
    """Leave out what is no tap."""
    return {tap: rows[tap] for tap in taps}


def split_of(
    rows: Mapping[str, NDArray[np.float32]], reference: ReferenceRows, positions: Positions, twin: Session
) -> dict[str, SplitVerdict]:
    """Tell the error of the low precision itself from that of the engine that computes in it."""
    same = run_one_by_one(twin, reference.prompts, positions, "int32")
    found = {}
    for tap, got in rows.items():
        numbers, engine = relative_errors(same[tap], reference.rows[tap]), relative_errors(got, same[tap])
        found[tap] = SplitVerdict(
            numbers_mean=_finite(float(numbers.mean())),
            numbers_worst=_finite(float(numbers.max())),
            engine_mean=_finite(float(engine.mean())),
            engine_worst=_finite(float(engine.max())),
        )
    return found


def repeat_of(rows: Mapping[str, NDArray[np.float32]], first: Mapping[str, NDArray[np.float32]]) -> Repeat:
    """Compare a repetition with the first time, over all taps."""
    worst = max(float(relative_errors(rows[tap], first[tap]).max(initial=0.0)) for tap in first)
    equal = all(np.array_equal(rows[tap].view(np.uint32), first[tap].view(np.uint32)) for tap in first)
    return Repeat(bit_equal=equal, max_relative_error=_finite(worst))


def _verdict(rows: NDArray[np.float32], reference: ReferenceRows, tap: str, positions: Positions) -> TapVerdict:
    errors = relative_errors(rows, reference.rows[tap])
    lengths = np.array([len(prompt) for prompt in reference.prompts], dtype=np.int64)
    counts = rows_per_prompt(lengths, positions)
    worst = int(errors.argmax())
    prompt = int(np.searchsorted(np.cumsum(counts), worst, side="right"))
    return TapVerdict(
        mean_relative_error=_finite(float(errors.mean())),
        worst_relative_error=_finite(float(errors.max())),
        worst_prompt=prompt,
        worst_token=worst - int(counts[:prompt].sum()),
        max_abs=_finite(float(np.abs(rows).max())),
        non_finite=int((~np.isfinite(rows)).sum()),
    )


def _finite(value: float) -> float:
    return value if np.isfinite(value) else 1e300  # JSON has no infinity


def _refuse_if_out(part: VerificationPart) -> None:
    for tap, verdict in part.taps.items():
        mean_ok = verdict.mean_relative_error <= part.tolerance_mean
        if verdict.non_finite or not mean_ok or verdict.worst_relative_error > part.tolerance_worst:
            raise EngineError(
                f"{tap} must be within {part.tolerance_mean:g} of the float32 reference in the mean and "
                f"{part.tolerance_worst:g} in the worst row, and finite",
                f"mean {verdict.mean_relative_error:.3g}, worst {verdict.worst_relative_error:.3g} "
                f"(reference prompt {verdict.worst_prompt}, row {verdict.worst_token}), "
                f"{verdict.non_finite} non-finite values, largest {verdict.max_abs:.4g}",
                "Keep the layer before this tap in higher precision with Recipe(keep=...), or build in fp32.",
            )
