"""The command that builds an engine again, made from its contract: every field of the recipe that is not a path."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING

from workbench.escaping import visible

if TYPE_CHECKING:
    from collections.abc import Sequence

    from workbench.engine.contract import Contract

ELSEWHERE = ("onnxruntime", "fp32")  # backend and precision that every machine has


def rebuild_command(contract: Contract, keep: Sequence[str] | None = None) -> str:
    """Give the command that builds the same recipe.

    Parameters
    ----------
    contract : Contract
        Of the engine.
    keep : sequence of str, optional
        What the recipe keeps in higher precision; by default the layers that the contract names.

    Returns
    -------
    str
        One line for a shell. The checkpoint is `CHECKPOINT`: a contract holds no paths.
    """
    part = contract.backend
    words = _words(contract, part.name, contract.precision.name)
    kept = contract.precision.kept_layers if keep is None else keep
    words += [word for pattern in kept for word in ("--keep", pattern)]
    for key, value in sorted(part.options.items()):
        words += ["--option", f"{key}={value if isinstance(value, str) else json.dumps(value)}"]
    return _line(words)


def command_elsewhere(contract: Contract) -> str:
    """Give the command that builds an engine with the same rows for a machine without a card."""
    return _line(_words(contract, *ELSEWHERE))


def _words(contract: Contract, backend: str, precision: str) -> list[str]:
    rows = contract.positions
    words = ["workbench", "build", "CHECKPOINT", "--into", "engines", "--backend", backend]
    words += ["--precision", precision, "--max-tokens", str(contract.limits.max_tokens)]
    words += [f"--positions={rows if isinstance(rows, str) else ','.join(map(str, rows))}"]
    return words + [word for tap in contract.taps for word in ("--tap", tap)]


def _line(words: Sequence[str]) -> str:
    return " ".join(shlex.quote(visible(word)) for word in words)
