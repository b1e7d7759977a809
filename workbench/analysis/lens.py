"""The logit lens: what the output head would say of a state at any tap.

The head is given as arrays, taken from a checkpoint, or read from the run where it travels with it. A state from before
the final norm is normed first; `final_norm` is not. Logits are float32 products, log-probabilities float64, in blocks
of rows, so that [row, d_vocab] never stands in memory whole.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from workbench.analysis.joining import join_rows
from workbench.analysis.results import Figures, Provenance, Result, provenance
from workbench.analysis.sampling import sample_rows
from workbench.errors import AnalysisError
from workbench.index.blocks import F32, F64, I64, as_rows
from workbench.progress import Show, shown

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from workbench.store import Run

LOGIT_BYTES = 64 << 20
HEAD_NAMES = ("head.weight", "head.bias", "final_norm.weight", "final_norm.bias")
I32 = npt.NDArray[np.int32]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Head:
    """Output head and final norm of a decoder.

    Attributes
    ----------
    unembed : float32 [d_vocab, d_model]
    norm_weight, norm_bias : float32 [d_model] or None
    norm : "rms", "layer" or "none"
    norm_eps : float
    bias : float32 [d_vocab] or None
    scale : float
        Factor on the logits.
    soft_cap : float or None
        Bound c of c * tanh(x / c).
    """

    unembed: npt.NDArray[Any]
    norm_weight: F32 | None = None
    norm_bias: F32 | None = None
    norm: str = "rms"
    norm_eps: float = 1e-5
    bias: F32 | None = None
    scale: float = 1.0
    soft_cap: float | None = None

    def normed(self, states: F32) -> F32:
        """Apply the final norm to states [row, d_model], with float64 sums."""
        if self.norm == "none":
            return states
        wide = states.astype(np.float64)
        if self.norm == "layer":
            wide -= wide.mean(axis=1, keepdims=True)
        wide /= np.sqrt((wide**2).mean(axis=1, keepdims=True) + self.norm_eps)
        out: F32 = wide.astype(np.float32)
        out = out if self.norm_weight is None else out * self.norm_weight
        return out if self.norm_bias is None else out + self.norm_bias

    def logits(self, states: F32) -> F32:
        """Logits of states after the final norm: float32 [row, d_vocab]."""
        found: F32 = states @ np.asarray(self.unembed, np.float32).T
        if self.bias is not None:
            found = found + self.bias
        found = found * np.float32(self.scale)
        return found if self.soft_cap is None else self.soft_cap * np.tanh(found / self.soft_cap)


def head_from(source: Any) -> Head:
    """Take the head of a run that carries one (`run.head`), or of an open checkpoint.

    Raises
    ------
    AnalysisError
        If there is none.
    """
    if isinstance(source, Head):
        return source
    carried = getattr(source, "head", None)
    if carried is not None:
        return carried if isinstance(carried, Head) else _from_run(carried)
    config, weights = getattr(source, "config", None), getattr(source, "weights", None)
    if config is None or weights is None:
        do = "Extract with keep_head=True, or pass the checkpoint or a Head."
        raise AnalysisError("a lens needs the output head", f"a {type(source).__name__} without one", do)
    names = set(weights.names())
    found = {name: weights[name] if name in names else None for name in HEAD_NAMES}
    unembed = found["head.weight"]
    return Head(
        unembed=weights["embed.weight"] if unembed is None else unembed,
        norm_weight=found["final_norm.weight"],
        norm_bias=found["final_norm.bias"],
        norm=str(config.norm),
        norm_eps=float(config.norm_eps),
        bias=found["head.bias"],
        scale=float(config.logit_scale),
        soft_cap=config.final_softcap,
    )


def _from_run(carried: Mapping[str, Any]) -> Head:
    found = {field.name: carried[field.name] for field in fields(Head)}
    wide = {name: np.asarray(value, np.float32) for name, value in found.items() if isinstance(value, np.ndarray)}
    return Head(**found | wide)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Lens(Result):
    """Predictions read off the states of several taps.

    Attributes
    ----------
    taps : tuple of str
    rows : int64 [row]
    top_ids : int32 [tap, row, rank]
        Token ids, most likely first.
    top_log_probs : float32 [tap, row, rank]
        Natural logarithms.
    entropy : float32 [tap, row]
        In nats.
    agreement : float64 [tap]
        Share of rows whose most likely token is that of the last tap given.
    divergence : float64 [tap]
        Mean Kullback-Leibler divergence from the last tap's prediction, in nats.
    """

    kind: ClassVar[str] = "lens"
    taps: tuple[str, ...]
    rows: I64
    top_ids: I32
    top_log_probs: F32
    entropy: F32
    agreement: F64
    divergence: F64
    provenance: Provenance

    def columns(self) -> dict[str, npt.NDArray[Any]]:
        """One line a tap: agreement with the last tap, divergence from it, mean entropy."""
        return {
            "tap": np.array(self.taps),
            "agreement": self.agreement,
            "divergence": self.divergence,
            "entropy": self.entropy.mean(axis=1, dtype=np.float64),
        }

    def __str__(self) -> str:
        lines = [f"Logit lens of {len(self.rows):,} rows; agreement is with {self.taps[-1]}"]
        width = max(len(tap) for tap in self.taps)
        table = self.columns()
        for i, tap in enumerate(self.taps):
            part = f"agreement {self.agreement[i]:.1%}, divergence {self.divergence[i]:.2f} nats"
            lines.append(f"  {tap:<{width}}  {part}, entropy {table['entropy'][i]:.2f} nats")
        return "\n".join(lines)

    def figures(self) -> Figures:
        """By tap: agreement with the last, divergence from it, entropy."""
        from workbench.analysis.charts import lines

        table, title = self.columns(), str(self).split("\n", maxsplit=1)[0]
        units = {"agreement": "share of the rows", "divergence": "nats", "entropy": "nats"}

        def by_tap(name: str) -> Any:
            return lines(self.taps, {name: table[name]}, title, "tap", f"{name} ({units[name]})")

        return {name: partial(by_tap, name) for name in units}


def logit_lens(
    run: Run,
    *,
    head: Any = None,
    taps: Sequence[str] | None = None,
    rows: npt.ArrayLike | None = None,
    top: int = 10,
    sample: int = 4_000,
    seed: int = 0,
    progress: Show = True,
) -> Lens:
    """Read predictions off stored states.

    Parameters
    ----------
    run : Run
    head : Head, checkpoint or None
        None takes the head that the run carries.
    taps : sequence of str, optional
        Residual taps and `final_norm`, in order; those of the run by default. The last is what others agree with.
    rows : row ids or mask, optional
        A sample of `sample` rows, spread over prompts, by default.
    top : int
        Tokens kept.

    Raises
    ------
    AnalysisError
        If no head is there, its width differs, or a tap is not on the residual stream.
    """
    found = head_from(run if head is None else head)
    names = _lens_taps(run, taps)
    prompts = np.asarray(run.prompt_of_rows(), np.int64)
    chosen = sample_rows(prompts, sample, seed=seed) if rows is None else as_rows(rows, run.n_rows)
    width = run.tap(names[0]).shape[1]
    if found.unembed.shape[1] != width:
        want = f"the head must be [d_vocab, d_model={width}]"
        raise AnalysisError(want, str(tuple(found.unembed.shape)), "Take it from the run's own checkpoint.")
    top = min(top, found.unembed.shape[0])
    shape = (len(names), len(chosen))
    ids, best = np.empty((*shape, top), np.int32), np.empty((*shape, top), np.float32)
    entropy, divergence = np.empty(shape, np.float32), np.zeros(len(names))
    step = max(1, LOGIT_BYTES // (8 * found.unembed.shape[0]))
    with shown("lens", progress) as report:
        for first in range(0, len(chosen), step):
            here = slice(first, min(first + step, len(chosen)))
            last = _log_probs(run, names[-1], found, chosen[here])
            weights = np.exp(last)
            for i, tap in enumerate(names):
                log_p = last if i == len(names) - 1 else _log_probs(run, tap, found, chosen[here])
                ids[i, here], best[i, here] = _top(log_p, top)
                entropy[i, here] = -(np.exp(log_p) * log_p).sum(axis=1)
                divergence[i] += float((weights * (last - log_p)).sum())
            report(here.stop, len(chosen))
    agreement = (ids[:, :, 0] == ids[-1, :, 0]).mean(axis=1)
    text = f"{len(chosen):,} of {run.n_rows:,} rows" + (
        "" if rows is not None else f", seed {seed}, spread over prompts"
    )
    return Lens(
        taps=tuple(names), rows=chosen, top_ids=ids, top_log_probs=best, entropy=entropy, agreement=agreement,
        divergence=divergence / max(1, len(chosen)),
        provenance=provenance(
            [run], taps=names, seed=seed, n_rows=len(chosen), parameters={"top": top}, sampling=text
        ),
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class RankAgreement:
    """How far the predictions of two builds agree at one tap, over `n` rows: the first token, and the first ten."""

    tap: str
    first: float
    shared: float
    top: int
    n: int


def rank_agreement(
    a: Run, b: Run, tap: str, *, head: Any = None, top: int = 10, sample: int = 4_000, seed: int = 0
) -> RankAgreement:
    """Compare the lens predictions of two runs over their common rows, both read by the first run's head."""
    found = head_from(a if head is None else head)
    joined = join_rows(a, b)
    at = sample_rows(np.asarray(a.prompt_of_rows(), np.int64)[joined.rows_a], sample, seed=seed)
    options: dict[str, Any] = {"head": found, "taps": [tap], "top": top, "progress": False}
    left, right = logit_lens(a, rows=joined.rows_a[at], **options), logit_lens(b, rows=joined.rows_b[at], **options)
    x, y = left.top_ids[0], right.top_ids[0]
    shared = (x[:, :, None] == y[:, None, :]).sum(axis=(1, 2)) / x.shape[1]
    return RankAgreement(
        tap=tap, first=float((x[:, 0] == y[:, 0]).mean()), shared=float(shared.mean()), top=x.shape[1], n=len(at)
    )


def _lens_taps(run: Run, taps: Sequence[str] | None) -> list[str]:
    names = list(taps) if taps is not None else [tap for tap in run.taps if on_stream(tap)]
    wrong = [tap for tap in names if not on_stream(tap)]
    if wrong or not names:
        do = "Choose embed, resid_pre, resid_post or final_norm taps."
        raise AnalysisError("a lens reads taps of the residual stream", ", ".join(wrong) or "none", do)
    return names


def on_stream(tap: str) -> bool:
    """Tell whether a tap lies on the residual stream, so that the head can read it."""
    return tap in {"embed", "final_norm"} or ".resid_" in tap


def _log_probs(run: Run, tap: str, head: Head, rows: I64) -> F64:
    states = run.tap(tap)[rows]
    logits = head.logits(states if tap == "final_norm" else head.normed(states)).astype(np.float64)
    logits -= logits.max(axis=1, keepdims=True)
    logits -= np.log(np.exp(logits).sum(axis=1, keepdims=True))
    return logits


def _top(log_p: F64, top: int) -> tuple[I32, F32]:
    part = np.argpartition(-log_p, top - 1, axis=1)[:, :top]
    values = np.take_along_axis(log_p, part, axis=1)
    order = np.lexsort((part, -values), axis=1)
    ids = np.take_along_axis(part, order, axis=1)
    return ids.astype(np.int32), np.take_along_axis(values, order, axis=1).astype(np.float32)
