"""Measuring a noise floor: every repeat is compared with the reference, as two builds would be."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

from workbench import __version__
from workbench.analysis.comparing import compare
from workbench.analysis.floors import Floor, Repeat, metrics_of
from workbench.analysis.results import run_id
from workbench.errors import AnalysisError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from workbench.store import Run


def make_floor(reference: Run, repeats: Sequence[tuple[str, Run]], **options: Any) -> Floor:
    """Measure a floor from runs that should be equal.

    Parameters
    ----------
    reference : Run
    repeats : sequence of (kind, Run)
        `kind` says what was changed, one of `KINDS` or a text of your own.
    **options
        As for `compare`; the same must be used when the floor is.

    Raises
    ------
    AnalysisError
        If there is no repeat.
    """
    if not repeats:
        raise AnalysisError("a noise floor needs at least one repeat", "none", "Extract the same prompts again.")
    found, n_rows = [], 0
    for kind, run in repeats:
        compared = compare(reference, run, **options)
        n_rows = max(n_rows, compared.n_rows)
        taps = {drift.tap: metrics_of(drift) for drift in compared.taps}
        found.append(Repeat(kind=kind, run_id=run_id(run), engine_id=str(run.engine_id), taps=taps))
    return Floor(
        engine_id=str(reference.engine_id), prompts_hash=str(reference.prompts.content_hash), n_rows=n_rows,
        repeats=tuple(found), created=dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        workbench=__version__,
    )  # fmt: skip
