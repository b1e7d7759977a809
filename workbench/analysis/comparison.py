"""Two builds of one model over the same prompts, joined row by row and judged against the noise floor.

Words follow the evidence: a tap is "above the floor" only where its drift exceeds `floors.CLAIM` times the measured
floor. Without a floor the numbers are given and nothing is claimed.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from workbench.analysis.drift import TapDrift, measure_drift
from workbench.analysis.floors import CLAIM, Floor, as_floor
from workbench.analysis.joining import Joined, join_rows
from workbench.analysis.judging import ABOVE, EQUAL, NO_FLOOR, Verdict, judge
from workbench.analysis.results import Figures, Provenance, Result, provenance
from workbench.analysis.sampling import FirstTokens, asked_rows, first_token_rows, said_of_first, sample_rows
from workbench.errors import AnalysisError
from workbench.index.blocks import I64, Moments, Rows, rows_of
from workbench.progress import Show, shown

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from workbench.analysis.lens import RankAgreement
    from workbench.store import Run

SAMPLE_ROWS = 4_000


@dataclass(frozen=True, kw_only=True, slots=True)
class WorstToken:
    """A row with a large error: where it stands and what it says."""

    tap: str
    row_a: int
    row_b: int
    prompt: int
    prompt_id: str
    token_index: int
    token_id: int
    error: float
    text: str


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Comparison(Result):
    """A comparison of two runs, tap by tap.

    Attributes
    ----------
    taps : tuple of TapDrift
    verdicts : mapping of tap to Verdict
    floor : Floor or None
    joined : Joined
        Which rows were compared; entry i of `TapDrift.errors` is its row i.
    worst : tuple of WorstToken
        The rows with the largest error of each tap, worst first.
    notes : tuple of str
        What a reader must know beside the numbers, such as a floor of another engine.
    predictions : tuple of RankAgreement
        How far the lens predictions agree at each tap of the residual stream; empty without a head.
    """

    kind: ClassVar[str] = "comparison"
    taps: tuple[TapDrift, ...]
    verdicts: Mapping[str, Verdict]
    floor: Floor | None
    joined: Joined
    worst: tuple[WorstToken, ...]
    notes: tuple[str, ...]
    n_rows: int
    engine_a: str
    engine_b: str
    provenance: Provenance
    predictions: tuple[RankAgreement, ...] = ()

    def tap(self, name: str) -> TapDrift:
        """Give the measures of one tap."""
        for drift in self.taps:
            if drift.tap == name:
                return drift
        names = ", ".join(drift.tap for drift in self.taps)
        raise AnalysisError(f"a compared tap is one of {names}", repr(name), "Choose one of them.")

    @property
    def above(self) -> tuple[str, ...]:
        """Taps whose drift exceeds the floor."""
        return tuple(drift.tap for drift in self.taps if self.verdicts[drift.tap].text == ABOVE)

    def rows_above(self, tap: str) -> I64:
        """Joined rows whose error exceeds the floor's worst row, int64 [row], worst first; none without a floor.

        A run with more rows than the floor has such rows by chance; see `rows_above_by_chance`.
        """
        least = self.floor.value(tap, "error_worst") if self.floor else None
        errors = self.tap(tap).errors
        if least is None:
            return np.empty(0, np.int64)
        order = np.argsort(-np.nan_to_num(errors, nan=-1.0), kind="stable")
        return order[errors[order] > CLAIM * least]

    @property
    def rows_above_by_chance(self) -> float | None:
        """Most rows to expect above the floor's worst at a tap if this were one more repeat; None without a floor.

        One more row exceeds the worst of n like rows with chance 1 / (n + 1).
        """
        return None if self.floor is None else self.n_rows / (self.floor.n_rows + 1)

    def columns(self) -> dict[str, npt.NDArray[Any]]:
        """One line a tap: every measure, its verdict and multiple of the floor."""
        names = [
            f.name for f in dataclasses.fields(TapDrift) if isinstance(getattr(self.taps[0], f.name), float | int | str)
        ]
        table = {name: np.array([getattr(drift, name) for drift in self.taps]) for name in names}
        verdicts = [self.verdicts[drift.tap] for drift in self.taps]
        table["verdict"] = np.array([verdict.text for verdict in verdicts])
        table["floor_multiple"] = np.array([np.nan if v.multiple is None else v.multiple for v in verdicts])
        return table

    def __str__(self) -> str:
        floor = (
            f"floor of {len(self.floor.repeats)} repeats ({', '.join(self.floor.kinds)})" if self.floor else NO_FLOOR
        )
        lines = [f"{self.engine_a[:12]} (reference) and {self.engine_b[:12]}: {self.n_rows:,} rows, {floor}"]
        width = max(len(drift.tap) for drift in self.taps)
        lines += [f"  {drift.tap:<{width}}  {self._line(drift)}" for drift in self.taps]
        if self.worst:
            w = max(self.worst, key=lambda one: one.error)
            lines.append(
                f"  worst row: {w.tap}, error {w.error:.2g}, prompt {w.prompt_id}, token {w.token_index}: {w.text!r}"
            )
        lines += [
            f"  {one.tap}: most likely token equal on {one.first:.1%}, {one.shared:.1%} of the first {one.top} shared"
            for one in self.predictions
        ]
        lines += [f"  note: {note}" for note in self.notes]
        return "\n".join(lines)

    def _line(self, drift: TapDrift) -> str:
        verdict = self.verdicts[drift.tap]
        if verdict.text == EQUAL:
            return EQUAL
        part = (
            f"error {drift.error_mean:.2g} mean, {drift.error_worst:.2g} worst, "
            if np.isfinite(drift.error_mean)
            else ""
        )
        part += f"CKA {drift.cka:.4f} (z-scored {drift.cka_zscored:.4f}, n={drift.n_rows:,}), "
        part += f"neighbours in common {drift.overlap:.0%} (chance {drift.overlap_chance:.1%}); "
        if verdict.multiple is not None:
            return part + f"{verdict.text}, {verdict.multiple:.3g}x"
        return part + verdict.text + (" (which is exactly 0)" if verdict.text == ABOVE else "")

    def figures(self) -> Figures:
        """By tap: error with its floor, cosine, CKA, neighbours in common."""
        from workbench.analysis.charts import lines

        names, table = [drift.tap for drift in self.taps], self.columns()
        ending = f", {self.n_rows:,} rows" + ("" if self.floor else f" ({NO_FLOOR})")
        error: dict[str, npt.ArrayLike] = {"mean error": table["error_mean"], "worst row": table["error_worst"]}
        if self.floor:
            error["floor of the mean"] = [self.floor.value(tap, "error_mean") or np.nan for tap in names]
        cosine = {"cosine": "cosine_mean", "centred": "centred_cosine_mean", "permuted pairs": "centred_cosine_floor"}
        others = {
            "cosine": cosine,
            "CKA": {"CKA": "cka", "z-scored": "cka_zscored"},
            "neighbours in common": {"raw": "overlap", "z-scored": "overlap_zscored", "by chance": "overlap_chance"},
        }

        def by_tap(kind: str) -> Any:
            series = {name: table[column] for name, column in others[kind].items()}
            return lines(names, series, f"{kind} by tap{ending}", "tap", kind)

        drawn: dict[str, Any] = {
            "error": lambda: lines(names, error, f"Error by tap{ending}", "tap", "|b - a| / |a|", log=True)
        }
        return drawn | {kind: partial(by_tap, kind) for kind in others}


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
