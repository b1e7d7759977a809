"""Two builds of one model over the same prompts, joined row by row and judged against the noise floor."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from workbench.analysis.comparison import Comparison, WorstToken
from workbench.analysis.drift import TapDrift, measure_drift
from workbench.analysis.floors import CLAIM, Floor, as_floor
from workbench.analysis.joining import Joined, join_rows
from workbench.analysis.judging import judge
from workbench.analysis.results import provenance
from workbench.analysis.sampling import FirstTokens, asked_rows, first_token_rows, said_of_first, sample_rows
from workbench.errors import AnalysisError
from workbench.index.blocks import I64, Moments, Rows, rows_of
from workbench.progress import Show, shown

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from workbench.analysis.lens import RankAgreement
    from workbench.store import Run

SAMPLE_ROWS = 4_000


def compare(
    run_a: Run,
    run_b: Run,
    *,
    floor: Floor | str | Path | None = None,
    taps: Sequence[str] | None = None,
    k: int = 10,
    sample: int = SAMPLE_ROWS,
    exclude_same_prompt: bool = False,
    first_tokens: FirstTokens = "keep",
    head: Any = None,
    seed: int = 0,
    progress: Show = True,
) -> Comparison:
    """Compare two runs of the same prompts, joined by prompt hash and token index.

    Parameters
    ----------
    run_a, run_b : Run
        The first is the reference.
    floor : Floor or path, optional
        Measured noise floor; without it nothing is claimed.
    taps : sequence of str, optional
        All taps that both runs hold, by default.
    k : int
        Neighbours for the overlap.
    sample : int
        Rows for neighbour overlap and permuted cosines, spread over prompts.
    exclude_same_prompt : bool
        Whether rows of one prompt are no neighbours of each other.
    first_tokens : {"drop", "keep"}
        Whether first tokens, where a prompt has several rows, are compared; kept by default, so that no change is
        hidden, and counted in a note, since their large states rule CKA.
    head : Head or checkpoint, optional
        Reads lens predictions off both runs; one that the first run carries is used by itself.
    seed : int
        Of the sample and the permutations.

    Returns
    -------
    Comparison

    Raises
    ------
    AnalysisError
        If the runs share no prompt or tap, or a common prompt has other token ids.
    """
    measured = as_floor(floor)
    names = _common_taps(run_a, run_b, taps)
    joined, dropped = _without_first(run_a, join_rows(run_a, run_b), first_tokens)
    prompts = np.asarray(run_a.prompt_of_rows(), np.int64)[joined.rows_a]
    drifts = []
    with shown("compare", progress) as report:
        for number, tap in enumerate(names):
            part = _Part(number, len(names), report)
            options = {"k": k, "seed": seed, "progress": part}
            drifts.append(_one_tap(run_a, run_b, tap, joined, prompts, sample, exclude_same_prompt, options))
    verdicts = {drift.tap: judge(drift, measured) for drift in drifts}
    n_sample = drifts[0].n_sample
    origin = provenance(
        [run_a, run_b], taps=names, seed=seed, n_rows=len(joined), libraries=["scipy"],
        parameters={"k": k, "sample": sample, "exclude_same_prompt": exclude_same_prompt, "claim": CLAIM,
                    "first_tokens": first_tokens},
        sampling=f"all joined rows{said_of_first(dropped)}; neighbours on {n_sample:,} of them, seed {seed}, spread "
        "over prompts",
    )  # fmt: skip
    return Comparison(
        taps=tuple(drifts), verdicts=verdicts, floor=measured, joined=joined,
        worst=tuple(one for drift in drifts for one in _worst_rows(run_a, joined, prompts, drift)),
        notes=(*_notes(run_a, run_b, joined, measured), *_notes_of_first(run_a, joined, dropped)), n_rows=len(joined),
        engine_a=str(run_a.engine_id), engine_b=str(run_b.engine_id), provenance=origin,
        predictions=_predictions(run_a, run_b, names, head, sample, seed),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Part:
    """Progress of one tap among several."""

    number: int
    total: int
    report: Any

    def __call__(self, done: int, total: int) -> None:
        self.report(self.number * total + done, self.total * total)


def _common_taps(a: Run, b: Run, taps: Sequence[str] | None) -> list[str]:
    common = [tap for tap in a.taps if tap in b.taps]
    if taps is not None:
        missing = [tap for tap in taps if tap not in common]
        if missing:
            do = "Choose among them, or extract the tap with both engines."
            raise AnalysisError(f"both runs hold {', '.join(common) or 'no common tap'}", ", ".join(missing), do)
        return list(taps)
    if not common:
        got = f"{', '.join(a.taps)} and {', '.join(b.taps)}"
        raise AnalysisError("two runs are compared at taps that both hold", got, "Extract a common tap.")
    return common


def _one_tap(
    a: Run, b: Run, tap: str, joined: Joined, prompts: I64, sample: int, apart: bool, options: dict[str, Any]
) -> TapDrift:
    good_a, good_b = _finite(a, tap, joined.rows_a), _finite(b, tap, joined.rows_b)
    keep = np.flatnonzero(good_a & good_b)
    drift = measure_drift(
        tap,
        _pick(a, tap, joined.rows_a[keep]),
        _pick(b, tap, joined.rows_b[keep]),
        sample=sample_rows(prompts[keep], sample, seed=options["seed"]),
        groups=prompts[keep] if apart else None,
        known=(_known(a, tap, joined.rows_a[keep]), _known(b, tap, joined.rows_b[keep])),
        **options,
    )
    errors = np.full(len(joined), np.nan, np.float32)
    if len(drift.errors):
        errors[keep] = drift.errors
    out_a, out_b = int((~good_a).sum()), int((~good_b).sum())
    return dataclasses.replace(drift, errors=errors, worst=keep[drift.worst], left_out_a=out_a, left_out_b=out_b)


def _predictions(a: Run, b: Run, taps: list[str], head: Any, sample: int, seed: int) -> tuple[RankAgreement, ...]:
    if head is None and getattr(a, "head", None) is None:
        return ()
    from workbench.analysis.lens import head_from, on_stream, rank_agreement

    found = head_from(a if head is None else head)
    same = [tap for tap in taps if on_stream(tap) and a.tap(tap).shape[1] == found.unembed.shape[1]]
    return tuple(rank_agreement(a, b, tap, head=found, sample=sample, seed=seed) for tap in same)


def _finite(run: Run, tap: str, rows: I64) -> npt.NDArray[np.bool_]:
    """Which rows hold neither inf nor NaN at this tap."""
    flagged = np.asarray(run.flagged_rows)
    good = np.ones(run.n_rows, np.bool_)
    if len(flagged):
        good[flagged] = np.isfinite(run.tap(tap)[flagged]).all(axis=1)
    return good[rows]


def _known(run: Run, tap: str, rows: I64) -> Moments | None:
    """Take means and variances that were gathered while writing, where they speak of the same rows."""
    found = run.statistics(tap) if len(rows) == run.n_rows and run.status == "complete" else None
    if found is None or found.n_rows != len(rows):
        return None
    return Moments(count=found.n_rows, mean=np.asarray(found.mean), variance=np.asarray(found.variance))


def _pick(run: Run, tap: str, rows: I64) -> Rows:
    whole = len(rows) == run.n_rows and np.array_equal(rows, np.arange(run.n_rows))
    return rows_of(run.tap(tap), rows=None if whole else rows)


def _worst_rows(run: Run, joined: Joined, prompts: I64, drift: TapDrift) -> list[WorstToken]:
    places = np.asarray(run.token_index(), np.int64)
    offsets, tokens = np.asarray(run.offsets, np.int64), run.tokens
    out = []
    for at in drift.worst:
        row, prompt = int(joined.rows_a[at]), int(prompts[at])
        place = int(places[row])
        out.append(
            WorstToken(
                tap=drift.tap, row_a=row, row_b=int(joined.rows_b[at]), prompt=prompt,
                prompt_id=str(run.prompts.ids[prompt]), token_index=place,
                token_id=int(tokens[offsets[prompt] + place]) if place >= 0 else -1,
                error=float(drift.errors[at]), text=(run.prompts.texts[prompt] or "")[:200],
            )
        )  # fmt: skip
    return out


def _without_first(run: Run, joined: Joined, first_tokens: FirstTokens) -> tuple[Joined, int]:
    kept, dropped = asked_rows(run, joined.rows_a, first_tokens)
    if not dropped:
        return joined, 0
    inside = np.isin(joined.rows_a, kept)
    return dataclasses.replace(joined, rows_a=joined.rows_a[inside], rows_b=joined.rows_b[inside]), dropped


def _notes_of_first(run: Run, joined: Joined, dropped: int) -> list[str]:
    if dropped:
        return [f"{dropped:,} rows of first tokens were left out"]
    found = int(first_token_rows(run)[joined.rows_a].sum())
    many = f"{found:,} of the rows are first tokens, whose large states rule CKA; leave them out by first_tokens='drop'"
    return [many] if found else []


def _notes(a: Run, b: Run, joined: Joined, floor: Floor | None) -> list[str]:
    notes = []
    if joined.only_a or joined.only_b:
        notes.append(f"{joined.only_a:,} rows are only in the first run and {joined.only_b:,} only in the second")
    names = [str(run.contract.get("checkpoint", {}).get("digest", "")) for run in (a, b)]
    if all(names) and names[0] != names[1]:
        notes.append(
            "the checkpoints differ: error and cosine speak of two builds of one model, here only CKA and neighbours do"
        )
    if floor and floor.engine_id not in {str(a.engine_id), str(b.engine_id)}:
        notes.append("the floor was measured with another engine than these two")
    if floor and floor.prompts_hash != a.prompts.content_hash:
        sizes = f"{floor.n_rows:,} rows against {len(joined):,} here"
        notes.append(f"the floor was measured on another prompt set, such as a sample ({sizes})")
    if floor and len(joined) > floor.n_rows:
        notes.append(
            f"worst rows are held against the floor as the worst to expect among {floor.n_rows:,} rows, as many as it "
            f"has; up to {len(joined) / (floor.n_rows + 1):,.0f} rows may lie above its worst by chance"
        )
    return notes
