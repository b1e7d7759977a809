"""Two prompts side by side: tokens aligned by their difference, and their paths through the layers in one frame."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from workbench.analysis.pca import fit_pca
from workbench.analysis.results import Figures, Provenance, Result, provenance
from workbench.errors import AnalysisError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from workbench.index.blocks import F32, F64, I64
    from workbench.store import Run


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class PromptPair(Result):
    """Two prompts through the taps of a run.

    Attributes
    ----------
    aligned : int64 [pair, 2]
        Token index in the first and in the second prompt of tokens that belong together; equal tokens, and tokens that
        replace each other one for one.
    same : bool [pair]
        Whether the token ids are equal.
    distances : float64 [tap, pair]
        |b - a| / |a| of each aligned pair at each tap, over tokens that have rows.
    paths : float32 [tap, 2, 2]
        Last row of both prompts at each tap, on the first two principal components of these rows together, so that the
        frame stands still.
    """

    kind: ClassVar[str] = "prompt pair"
    prompts: tuple[int, int]
    taps: tuple[str, ...]
    aligned: I64
    same: npt.NDArray[np.bool_]
    distances: F64
    paths: F32
    provenance: Provenance

    def columns(self) -> dict[str, npt.NDArray[Any]]:
        """One line an aligned pair: the tokens, whether they are equal, and a distance for each tap."""
        table: dict[str, npt.NDArray[Any]] = {
            "token_a": self.aligned[:, 0],
            "token_b": self.aligned[:, 1],
            "same": self.same,
        }
        return table | {tap: self.distances[i] for i, tap in enumerate(self.taps)}

    def __str__(self) -> str:
        lines = [f"Prompts {self.prompts[0]} and {self.prompts[1]}: {len(self.aligned)} aligned tokens"]
        for i, tap in enumerate(self.taps):
            row = self.distances[i]
            lines.append(f"  {tap}: distance {np.nanmean(row):.3g} mean, {np.nanmax(row):.3g} largest")
        return "\n".join(lines)

    def figures(self) -> Figures:
        """Both paths through the taps, and the distance of each aligned pair."""
        from workbench.analysis.charts import lines, paths

        names = [f"prompt {prompt}" for prompt in self.prompts]
        each = {f"tokens {a} and {b}": self.distances[:, i] for i, (a, b) in enumerate(self.aligned.tolist())}
        title = "Last token through the taps, one frame"
        return {
            "paths": lambda: paths({name: self.paths[:, i] for i, name in enumerate(names)}, self.taps, title),
            "distances": lambda: lines(self.taps, each, "Distance of aligned tokens", "tap", "|b - a| / |a|"),
        }


def align_tokens(a: npt.ArrayLike, b: npt.ArrayLike) -> tuple[I64, npt.NDArray[np.bool_]]:
    """Align two token sequences by their difference: pairs int64 [pair, 2], and whether the ids are equal."""
    left, right = np.asarray(a).tolist(), np.asarray(b).tolist()
    pairs, same = [], []
    for kind, i, i_end, j, j_end in SequenceMatcher(None, left, right, autojunk=False).get_opcodes():
        if kind == "equal" or (kind == "replace" and i_end - i == j_end - j):
            pairs += list(zip(range(i, i_end), range(j, j_end), strict=True))
            same += [kind == "equal"] * (i_end - i)
    return np.array(pairs, dtype=np.int64).reshape(-1, 2), np.array(same, dtype=np.bool_)


def pair_prompts(run: Run, first: int, second: int, *, taps: Sequence[str] | None = None) -> PromptPair:
    """Compare two prompts of a run, tap by tap.

    Raises
    ------
    AnalysisError
        If a prompt is not there or no aligned token has a row in both.
    """
    names = list(taps or run.taps)
    for prompt in (first, second):
        if not 0 <= prompt < run.n_prompts or run.row_offsets[prompt] == run.row_offsets[prompt + 1]:
            raise AnalysisError(
                f"a prompt must be from 0 to {run.n_prompts - 1} and have rows", f"{prompt}", "Choose another."
            )
    spans = [slice(int(run.offsets[p]), int(run.offsets[p + 1])) for p in (first, second)]
    aligned, same = align_tokens(run.tokens[spans[0]], run.tokens[spans[1]])
    places = np.asarray(run.token_index(), np.int64)
    rows = [np.arange(run.row_offsets[p], run.row_offsets[p + 1]) for p in (first, second)]
    row_of = [{int(places[row]): int(row) for row in side} for side in rows]
    kept = [i for i, (x, y) in enumerate(aligned.tolist()) if x in row_of[0] and y in row_of[1]]
    aligned, same = aligned[kept], same[kept]
    at_a = np.array([row_of[0][x] for x in aligned[:, 0].tolist()], dtype=np.int64)
    at_b = np.array([row_of[1][y] for y in aligned[:, 1].tolist()], dtype=np.int64)
    distances = np.full((len(names), len(kept)), np.nan)
    states = [[run.tap(tap)[side] for side in rows] for tap in names]
    for i, tap in enumerate(names):
        a, b = run.tap(tap)[at_a].astype(np.float64), run.tap(tap)[at_b].astype(np.float64)
        size = np.linalg.norm(a, axis=1)
        distances[i] = np.linalg.norm(b - a, axis=1) / np.where(size > 0, size, np.nan)
    # the last rows alone: a first token can be a hundred times as long as any other and would rule the frame
    together = np.concatenate([side[-1:] for both in states for side in both])
    found = fit_pca(together, 2)
    paths = np.zeros((len(names), 2, 2), np.float32)
    for i, both in enumerate(states):
        for side in (0, 1):
            point = found.transform(both[side][-1:])[0]
            paths[i, side, : len(point)] = point
    return PromptPair(
        prompts=(first, second), taps=tuple(names), aligned=aligned, same=same, distances=distances, paths=paths,
        provenance=provenance([run], taps=names, seed=0, n_rows=len(together), parameters={"prompts": [first, second]}),
    )  # fmt: skip
