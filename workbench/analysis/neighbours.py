"""Nearest rows of a stored tap: by row, vector, text of a stored prompt, or the difference of two prompts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from workbench.analysis.results import Figures, Provenance, Result, provenance
from workbench.errors import AnalysisError
from workbench.index.exact import ExactIndex, Metric

if TYPE_CHECKING:
    from workbench.index.blocks import F32, I64
    from workbench.store import Run


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class NearRows(Result):
    """Nearest rows of one question, nearest first.

    Attributes
    ----------
    rows, prompts, tokens : int64 [k]
        Row ids, prompt numbers and token index inside the prompt.
    scores : float32 [k]
        Cosine, minus squared distance, or dot product.
    texts : tuple of str
        Prompts of the rows.
    question : str
        What was asked, in words.
    """

    kind: ClassVar[str] = "neighbours"
    tap: str
    metric: str
    question: str
    rows: I64
    prompts: I64
    tokens: I64
    scores: F32
    texts: tuple[str, ...]
    provenance: Provenance

    def columns(self) -> dict[str, npt.NDArray[Any]]:
        """One line a neighbour."""
        text = np.array(self.texts, dtype=object)
        return {"row": self.rows, "prompt": self.prompts, "token": self.tokens, "score": self.scores, "text": text}

    def __str__(self) -> str:
        lines = [f"Nearest to {self.question} at {self.tap} ({self.metric})"]
        found = zip(self.scores, self.rows, self.tokens, self.texts, strict=True)
        lines += [f"  {score:.4f}  row {row}, token {token}: {text[:80]!r}" for score, row, token, text in found]
        return "\n".join(lines)

    def figures(self) -> Figures:
        """The scores, nearest first."""
        from workbench.analysis.charts import bars

        return {"scores": lambda: bars(self.texts, self.scores, f"Nearest to {self.question}", self.metric)}


def find_neighbours(
    run: Run,
    tap: str,
    *,
    row: int | None = None,
    vector: npt.ArrayLike | None = None,
    text: str | None = None,
    difference: tuple[int, int] | None = None,
    k: int = 10,
    metric: Metric = "cosine",
    exclude_same_prompt: bool = False,
    index: ExactIndex | None = None,
    question: str | None = None,
) -> NearRows:
    """Find the nearest rows of a tap, exactly.

    Parameters
    ----------
    run : Run
    tap : str
    row : int
        Row of this run; it is not its own neighbour.
    vector : float [d_model]
    text : str
        Text of a stored prompt, or a part of exactly one; its last row is the question. A text that was never extracted
        has no state here: `workbench.neighbours` reads it with an engine.
    difference : (int, int)
        Two prompt numbers: the question is the last row of the first minus that of the second.
    k : int
    exclude_same_prompt : bool
        Whether other rows of the question's prompt are left out.
    index : ExactIndex, optional
        Kept from an earlier question, with its row norms.
    question : str, optional
        What a vector is, in words.

    Raises
    ------
    AnalysisError
        Unless exactly one question is asked, and it can be answered.
    """
    asked = {"row": row, "vector": vector, "text": text, "difference": difference}
    if sum(value is not None for value in asked.values()) != 1:
        got = ", ".join(name for name, value in asked.items() if value is not None) or "none"
        raise AnalysisError("neighbours need one of row, vector, text or difference", got, "Give exactly one.")
    places = np.asarray(run.token_index(), np.int64)
    prompts = np.asarray(run.prompt_of_rows(), np.int64)
    query, own, said = _question(run, tap, asked)
    question = question or said
    index = index or ExactIndex(run.tap(tap), metric=metric)
    groups = query_groups = None
    if own is not None:
        groups = prompts if exclude_same_prompt else np.arange(run.n_rows)
        query_groups = groups[own : own + 1]
    found = index.search(query, k, groups=groups, query_groups=query_groups)
    rows = found.rows[0][found.rows[0] >= 0]
    options = {"k": k, "metric": index.metric, "exclude_same_prompt": exclude_same_prompt, "question": question}
    return NearRows(
        tap=tap, metric=index.metric, question=question, rows=rows, prompts=prompts[rows], tokens=places[rows],
        scores=found.scores[0][: len(rows)], texts=tuple(run.prompts.texts[prompt] or "" for prompt in prompts[rows]),
        provenance=provenance([run], taps=[tap], seed=0, n_rows=run.n_rows, parameters=options),
    )  # fmt: skip


def find_prompts(run: Run, text: str) -> I64:
    """Prompt numbers whose text holds the given text, whatever the case; equal texts first."""
    low = text.casefold()
    texts = [(stored or "").casefold() for stored in run.prompts.texts]
    equal = [i for i, stored in enumerate(texts) if stored == low]
    return np.array(equal + [i for i, stored in enumerate(texts) if low in stored and stored != low], dtype=np.int64)


def _question(run: Run, tap: str, asked: dict[str, Any]) -> tuple[F32, int | None, str]:
    """Find the question's vector, its row if it has one, and its name."""
    array = run.tap(tap)
    if asked["row"] is not None:
        row = int(asked["row"])
        if not 0 <= row < run.n_rows:
            raise AnalysisError(f"a row must be from 0 to {run.n_rows - 1}", f"{row}", "Give a row id of this run.")
        return array[row], row, f"row {row}"
    if asked["vector"] is not None:
        return np.asarray(asked["vector"], np.float32), None, "a vector"
    if asked["text"] is not None:
        found = find_prompts(run, asked["text"])
        exact = [i for i in found if (run.prompts.texts[i] or "").casefold() == asked["text"].casefold()]
        if len(found) != 1 and not exact:
            do = "Give more of the text; a new text needs an engine: workbench.neighbours(run, text=..., engine=...)."
            raise AnalysisError("the text must name one stored prompt", f"{len(found)} that hold it", do)
        row = _last_row(run, int(exact[0] if exact else found[0]))
        return array[row], row, f"prompt {run.prompts.texts[int(found[0])]!r}"
    first, second = (_last_row(run, int(prompt)) for prompt in asked["difference"])
    return array[first] - array[second], None, "prompt {} minus prompt {}".format(*asked["difference"])


def _last_row(run: Run, prompt: int) -> int:
    if not 0 <= prompt < run.n_prompts:
        raise AnalysisError(f"a prompt must be from 0 to {run.n_prompts - 1}", f"{prompt}", "Give a prompt number.")
    start, stop = (int(at) for at in run.row_offsets[prompt : prompt + 2])
    if start == stop:
        raise AnalysisError("the prompt must have a row", f"prompt {prompt} without one", "Choose another prompt.")
    return stop - 1
