"""Plan: bytes, seconds and memory of a run before it starts."""

from __future__ import annotations

import math
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from workbench.prompts import PromptSet

# Two groups in flight, each up to a window of rows, and the interpreter with its libraries
_BASE_BYTES = 300 << 20
_ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "float8_e4m3": 1}


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """What a run will cost.

    Attributes
    ----------
    n_prompts, n_tokens, n_rows : int
        Sizes, exact.
    store_bytes : int
        Bytes of the run folder's arrays, exact.
    free_bytes : int
        Room where it would lie.
    seconds : float
        From the speed that the engine's contract states; not a number where it states none.
    memory_bytes : int
        Peak, from the engine's size.
    free_memory_bytes : int
        Memory that is free now.
    elsewhere : str
        Card or processor that the speed was measured on, where it is not the one here; else empty.
    """

    n_prompts: int
    n_tokens: int
    n_rows: int
    store_bytes: int
    free_bytes: int
    seconds: float
    memory_bytes: int
    free_memory_bytes: int
    elsewhere: str = ""

    @property
    def fits(self) -> bool:
        """Whether disk and memory suffice."""
        return self.store_bytes < self.free_bytes and self.memory_bytes < self.free_memory_bytes

    def __str__(self) -> str:
        verdict = "fits" if self.fits else "DOES NOT FIT: choose fewer taps, another dtype, or another disk"
        return "\n".join(
            (
                f"prompts  {self.n_prompts:,}, {self.n_tokens:,} tokens, {self.n_rows:,} rows a tap",
                f"disk     {self.store_bytes / 1e6:,.1f} MB of {self.free_bytes / 1e6:,.0f} MB free",
                f"memory   {self.memory_bytes / 1e6:,.0f} MB of {self.free_memory_bytes / 1e6:,.0f} MB free",
                f"time     {self._time()}",
                verdict,
            )
        )

    def _time(self) -> str:
        if math.isnan(self.seconds):
            return "not known: the engine's speed was not measured"
        where = f", on {self.elsewhere}, not here" if self.elsewhere else ""
        return f"about {self.seconds:,.0f} s, at the speed measured when the engine was built{where}"


def plan_run(
    prompts: PromptSet | str,
    engine: str | Path,
    *,
    out: str | Path = ".",
    dtype: str = "float32",
    truncate: bool = False,
    template: str | None = None,
) -> Estimate:
    """Estimate a run from its prompts and the engine's contract; no weights are loaded.

    Parameters
    ----------
    prompts : PromptSet or path
        What would be read.
    engine : path
        Engine folder.
    out : path
        Where the run would lie.
    dtype, truncate, template
        As in `extract`.

    Returns
    -------
    Estimate

    Raises
    ------
    PromptError, TokenError, ContractError
        As `extract` would.
    """
    import psutil

    from workbench.engine.batch import rows_per_prompt
    from workbench.engine.opening import read_contract, read_tokenizer
    from workbench.engine.speeds import measured_elsewhere
    from workbench.extraction import tap_specs, tokens_for
    from workbench.prompts import load_prompts

    contract = read_contract(Path(engine))
    tokenizer = read_tokenizer(Path(engine), contract)
    read = load_prompts(prompts) if isinstance(prompts, str) else prompts
    tokens = tokens_for(read, contract, tokenizer, truncate=truncate, template=template)
    rows = int(rows_per_prompt(np.diff(tokens.offsets), contract.positions).sum())
    width = sum(spec.width for spec in tap_specs(contract, dtype))
    window = 2 * 4 * width * min(rows, 1 << 16)
    return Estimate(
        n_prompts=len(read),
        n_tokens=len(tokens.ids),
        n_rows=rows,
        store_bytes=rows * width * _ITEM_BYTES[dtype],
        free_bytes=shutil.disk_usage(_existing(Path(out))).free,
        seconds=len(tokens.ids) / (contract.build.tokens_per_second or math.nan),
        memory_bytes=2 * contract.build.plan_bytes + window + _BASE_BYTES,
        free_memory_bytes=psutil.virtual_memory().available,
        elsewhere=measured_elsewhere(contract),
    )


def _existing(path: Path) -> Path:
    """The nearest folder that exists: the run folder itself does not yet."""
    resolved = path.resolve()
    return next(p for p in (resolved, *resolved.parents) if p.exists())
