"""Errors of the workbench: each says what must hold, what was got and what to do."""

from __future__ import annotations


def shown(text: object, limit: int = 120) -> str:
    """Quote text from elsewhere for a message: one line, no terminal codes, at most `limit` characters.

    Control, bidi and other invisible characters, surrogates, quotes and backslashes become escapes.
    """
    whole = str(text)
    if len(whole) <= limit and whole.isprintable() and "'" not in whole and "\\" not in whole:
        return f"'{whole}'"  # nearly all names, in loops over 100,000 tensors
    cut = "".join(
        f"\\{char}" if char in "\\'" else char if char.isprintable() else f"\\u{ord(char):04x}"
        for char in whole[:limit]
    )
    return f"'{cut}'" if len(whole) <= limit else f"'{cut}'... ({len(whole)} characters)"


class WorkbenchError(Exception):
    """Base of every error that the workbench raises on purpose.

    Parameters
    ----------
    what : str
        What must hold, as a clause without a full stop.
    got : str
        What was found instead.
    do : str
        What the reader can do now, as a sentence or a command.
    """

    def __init__(self, what: str, got: str, do: str) -> None:
        super().__init__(what, got, do)  # all three in args, so that the error survives the trip between processes

    def __str__(self) -> str:
        return "{}; got {}. {}".format(*self.args)

    @property
    def what(self) -> str:
        """What must hold."""
        return str(self.args[0])

    @property
    def got(self) -> str:
        """What was found instead."""
        return str(self.args[1])

    @property
    def do(self) -> str:
        """What to do now."""
        return str(self.args[2])


class ContractError(WorkbenchError, ValueError):
    """An array, argument or engine is not what its contract says."""


class ContractMismatch(ContractError):
    """Two things that must share one contract differ; the message lists each difference."""


class PromptError(WorkbenchError, ValueError):
    """A prompt set cannot be read or used as asked."""


class TokenError(WorkbenchError, ValueError):
    """A text cannot be turned into tokens, or token ids are not valid."""


class CheckpointError(WorkbenchError, ValueError):
    """A checkpoint is broken, hostile or not found."""


class UnsupportedError(CheckpointError):
    """A family, config field or tensor type is known to be beyond what this version computes correctly."""


class TapError(WorkbenchError, KeyError):
    """A tap does not exist; the message says which do."""

    __str__ = WorkbenchError.__str__  # KeyError would show repr of the arguments


class EngineError(WorkbenchError, RuntimeError):
    """An engine could not be built or did not run."""


class EngineRefused(EngineError):
    """An engine's contract does not admit it here; nothing of it was executed."""


class EngineUnknown(EngineRefused):
    """Whether an engine is whole cannot be said here: its schema is newer, or its files cannot be read."""


class PatchRefused(EngineError):
    """A source tree is not one that the patch is proven for; nothing was written."""


class RunExists(WorkbenchError, ValueError):
    """A folder that would be written is already there."""


class StoreError(WorkbenchError, RuntimeError):
    """A run folder cannot be written or read as asked."""


class StoreFull(StoreError):
    """There is not enough room for the run; the message says how many bytes are needed."""


class StoreLocked(StoreError):
    """Another process writes this run; the message names it."""


class ChecksumMismatch(StoreError):
    """Stored bytes changed after they were written; the message names segment and batch."""


class JournalDamaged(StoreError):
    """A bad record stands before a good one, so the journal is not merely torn at its end."""


class AnalysisError(WorkbenchError, ValueError):
    """A measure is not defined for the data at hand."""


class ViewError(WorkbenchError, ValueError):
    """A view or report cannot be made as asked."""
