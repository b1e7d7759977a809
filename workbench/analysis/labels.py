"""What a probe predicts and how its rows are grouped: columns of the prompts or given values, made into arrays."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from workbench.analysis.folds import group_numbers
from workbench.analysis.sampling import FirstTokens, asked_rows, said_of_first, sample_rows
from workbench.errors import AnalysisError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from workbench.index.blocks import F64, I64
    from workbench.store import Run

Task = Literal["regression", "classification"]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Labels:
    """Labels of the rows of a probe, without rows that have none.

    Attributes
    ----------
    task : "regression" or "classification"
    names : tuple of str
        Targets (regression) or the one column (classification).
    classes : tuple of str
        Class names in order of their codes; empty for regression.
    values : float64 [row, target]
        Numbers, or class codes in one column.
    rows : int64 [row]
        Row ids in the run.
    groups : int64 [row]
    group_by : str
        What the groups are, in words.
    dropped : int
        Rows left out since they have no label.
    sampling : str
        Which labelled rows these are, in words.
    """

    task: Task
    names: tuple[str, ...]
    classes: tuple[str, ...]
    values: F64
    rows: I64
    groups: I64
    group_by: str
    dropped: int
    sampling: str = "all labelled rows"


def label_rows(
    run: Run,
    labels: str | Sequence[Any] | npt.NDArray[Any],
    *,
    groups: str | Sequence[Any] | npt.NDArray[Any] | None = None,
    rows: npt.ArrayLike | None = None,
    task: Task | None = None,
    first_tokens: FirstTokens = "keep",
) -> Labels:
    """Find the label and the group of every row.

    Parameters
    ----------
    run : Run
    labels : str, sequence of column names, or one value a prompt or a row
        Numbers make a regression, anything else a classification. None, NaN and "" are missing; "NA" is a value.
    groups : str or one value a prompt, optional
        Column whose values hold rows together; by default equal prompt texts.
    rows : row ids or mask, optional
    task : str, optional
        Overrules what the values look like, such as for classes that are numbers.
    first_tokens : {"drop", "keep"}
        Whether first tokens, where a prompt has several rows, are left out.

    Raises
    ------
    AnalysisError
        If the number of values is neither that of prompts nor of rows, or nothing is left.
    """
    prompt_of_row = np.asarray(run.prompt_of_rows(), dtype=np.int64)
    chosen, dropped_first = asked_rows(run, rows, first_tokens)
    names, columns = _columns(run, labels)
    per_row = [_spread(column, prompt_of_row, run.n_prompts) for column in columns]
    kind = task or _task_of(per_row)
    if kind == "classification" and len(per_row) > 1:
        raise AnalysisError("classification takes one column", ", ".join(names), "Fit one probe a column.")
    numbers, group_by = _groups(run, groups, prompt_of_row)
    if kind == "regression":
        values = np.stack([_as_numbers(column, name) for column, name in zip(per_row, names, strict=True)], axis=1)
        present = np.asarray(np.isfinite(values).all(axis=1))
        classes: tuple[str, ...] = ()
    else:
        present = np.array([not _missing(value) for value in per_row[0]])
        texts = [str(value) if there else "" for value, there in zip(per_row[0], present, strict=True)]
        classes = tuple(sorted({text for text, there in zip(texts, present, strict=True) if there}))
        code = {name: i for i, name in enumerate(classes)}
        values = np.array([[code.get(text, -1)] for text in texts], dtype=np.float64)
    kept = chosen[present[chosen]]
    if len(kept) == 0:
        raise AnalysisError(
            "a probe needs labelled rows", f"{', '.join(names)}: none has a value", "Choose another column."
        )
    return Labels(
        task=kind,
        names=names,
        classes=classes,
        values=values[kept],
        rows=kept.astype(np.int64),
        groups=numbers[kept],
        group_by=group_by,
        dropped=len(chosen) - len(kept),
        sampling=f"all labelled rows{said_of_first(dropped_first)}",
    )


def at_most(found: Labels, prompt_of_row: npt.ArrayLike, n: int, *, seed: int = 0) -> Labels:
    """Keep at most n labelled rows, spread over prompts, and say so."""
    if len(found.rows) <= n:
        return found
    kept = sample_rows(np.asarray(prompt_of_row)[found.rows], n, seed=seed)
    return dataclasses.replace(
        found,
        values=found.values[kept],
        rows=found.rows[kept],
        groups=found.groups[kept],
        sampling=f"{n:,} of {len(found.rows):,} labelled rows, seed {seed}, spread over prompts"
        + found.sampling.removeprefix("all labelled rows"),
    )


def _columns(run: Run, labels: Any) -> tuple[tuple[str, ...], list[Sequence[Any]]]:
    if isinstance(labels, str):
        return (labels,), [run.prompts.column(labels)]
    values = list(labels)
    if values and all(isinstance(name, str) for name in values) and all(name in run.prompts.columns for name in values):
        return tuple(values), [run.prompts.column(name) for name in values]
    array = np.asarray(labels)
    if array.ndim == 2:
        return tuple(f"target {i}" for i in range(array.shape[1])), [list(array[:, i]) for i in range(array.shape[1])]
    return ("labels",), [values]


def _spread(column: Sequence[Any], prompt_of_row: I64, n_prompts: int) -> list[Any]:
    if len(column) == n_prompts:
        return [column[prompt] for prompt in prompt_of_row]
    if len(column) == len(prompt_of_row):
        return list(column)
    want = f"labels must be one a prompt ({n_prompts}) or one a row ({len(prompt_of_row)})"
    raise AnalysisError(want, f"{len(column)}", "Give a column name, or values of that length.")


def _groups(run: Run, groups: Any, prompt_of_row: I64) -> tuple[I64, str]:
    if groups is None:
        texts = run.prompts.texts
        keys = [
            prompt_hash if text is None else text for text, prompt_hash in zip(texts, run.prompts.hashes, strict=True)
        ]
        return group_numbers(keys)[prompt_of_row], "equal prompt text"
    if isinstance(groups, str):
        return group_numbers(run.prompts.column(groups))[prompt_of_row], f"column {groups}"
    return group_numbers(_spread(list(groups), prompt_of_row, run.n_prompts)), "given groups"


def _missing(value: Any) -> bool:
    return value is None or value == "" or (isinstance(value, float | np.floating) and math.isnan(value))


def _task_of(columns: list[list[Any]]) -> Task:
    numeric = (int, float, np.integer, np.floating)
    for column in columns:
        present = [value for value in column if not _missing(value)]
        if not all(isinstance(value, numeric) and not isinstance(value, bool | np.bool_) for value in present):
            return "classification"
    return "regression"


def _as_numbers(column: list[Any], name: str) -> F64:
    try:
        return np.array([math.nan if _missing(value) else float(value) for value in column])
    except (TypeError, ValueError) as error:
        raise AnalysisError(
            f"a regression needs numbers in {name}", str(error), 'Use task="classification".'
        ) from error
