"""Neighbours of a text that was never extracted: read it with the run's engine, then search the run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from workbench.analysis.neighbours import NearRows, find_neighbours, find_prompts
from workbench.engine.opening import Engine, open_engine
from workbench.errors import AnalysisError
from workbench.extraction import tokens_for
from workbench.prompts import load_prompts

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    import numpy.typing as npt

    from workbench.store import Run


def neighbours(
    run: Run,
    tap: str | None = None,
    *,
    text: str | None = None,
    engine: Engine | str | Path | None = None,
    other_engine: bool = False,
    **options: Any,
) -> NearRows:
    """Find the nearest rows of a row, vector, text or difference of two prompts.

    Parameters
    ----------
    run : Run
    tap : str, optional
        The last of the run by default.
    text : str, optional
        Text of a stored prompt, or, with an engine, any text: its last row is the question.
    engine : Engine or path, optional
        The engine that made the run; reads a text that the run does not hold.
    other_engine : bool
        Must be set where the engine is another one than the run's: its states need not be comparable.
    **options
        As for `find_neighbours`: `row`, `vector`, `difference`, `k`, `metric`, `exclude_same_prompt`, `index`.

    Returns
    -------
    NearRows

    Raises
    ------
    AnalysisError
        Unless exactly one question is asked and it can be answered; a new text without an engine cannot.
    TokenError
        If the text is empty or too long for the engine.
    """
    name = tap or run.taps[-1]
    if engine is None or text is None or _stored(run, text):
        return find_neighbours(run, name, text=text, **options)
    if any(options.get(other) is not None for other in ("row", "vector", "difference")):
        return find_neighbours(run, name, text=text, **options)  # which says that one question is enough
    state = read_text(run, name, text, engine, other_engine=other_engine)
    return find_neighbours(run, name, vector=state, question=f"the text {text!r}", **options)


def read_text(
    run: Run, tap: str, text: str, engine: Engine | str | Path, *, other_engine: bool = False
) -> npt.NDArray[np.float32]:
    """Read the last row of a text at a tap, as the run's prompts were read: float32 [d_model].

    Raises
    ------
    AnalysisError
        If the engine is not the run's and that was not asked for, or does not emit the tap.
    """
    loaded = engine if isinstance(engine, Engine) else open_engine(engine)
    if loaded.id != str(run.engine_id) and not other_engine:
        do = "Give the engine that made the run, or set other_engine=True."
        raise AnalysisError("a question is read by the run's own engine", f"engine {loaded.id[:12]}", do)
    if tap not in loaded.contract.taps:
        do = "Choose one of them, or give another engine."
        raise AnalysisError(f"the engine emits {', '.join(loaded.contract.taps)}", repr(tap)[:60], do)
    template = run.provenance.get("template")
    tokens = tokens_for(
        load_prompts([text]), loaded.contract, loaded.tokenizer, template=None if template is None else str(template)
    )
    state: npt.NDArray[np.float32] = loaded.run([tokens.ids])[tap][-1]
    return state


def _stored(run: Run, text: str) -> bool:
    return any((run.prompts.texts[prompt] or "").casefold() == text.casefold() for prompt in find_prompts(run, text))
