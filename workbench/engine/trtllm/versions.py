"""The patches that ship with the workbench, as a table read from their headers.

A patch adds six lines without context, so by itself it would apply to anything. Its `index` line holds the full git
blob ids of the file before and after, and these decide.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from workbench.engine.trtllm.finder import TAP_LINES
from workbench.errors import PatchRefused

MODELING = Path("tensorrt_llm/models/modeling_utils.py")
_HUNK = re.compile(r"^@@ -(\d+),0 \+(\d+),(\d+) @@$", re.MULTILINE)
_INDEX = re.compile(r"^index ([0-9a-f]{40})\.\.([0-9a-f]{40}) 100644$", re.MULTILINE)
_HEADER = re.compile(r"^([A-Z][a-z]+): (.*(?:\n  .*)*)$", re.MULTILINE)
HEADERS = ("Version", "Commit", "Origin", "Reason", "Checked")


@dataclass(frozen=True, kw_only=True, slots=True)
class Patch:
    """One patch file.

    Parameters
    ----------
    version : str
        Version of TensorRT-LLM as its `version.py` says.
    commit : str
        Commit that the patch was made at, forty hexadecimal digits.
    origin : str
        Where that commit is: `release`, `main`, or the name of a fork.
    reason : str
        Why the patch exists.
    checked : tuple of str
        What was really done with it; `patches/README.md` explains the words.
    before, after : str
        Git blob ids of `modeling_utils.py` without and with the tap.
    line : int
        The tap stands after this line, counted from 1.
    file : Path
        The patch itself.
    """

    version: str
    commit: str
    origin: str
    reason: str
    checked: tuple[str, ...]
    before: str
    after: str
    line: int
    file: Path


def patch_folder() -> Path:
    """Find the patches: inside the installed package, or at the top of a source checkout.

    Raises
    ------
    PatchRefused
        If the installation lacks them.
    """
    for folder in (Path(__file__).parent / "patches", Path(__file__).parents[3] / "patches"):
        if next(folder.glob("v*.patch"), None):
            return folder
    raise PatchRefused(
        "the patches must be installed with the package", f"none beside {__file__}", "Install the workbench again."
    )


@cache
def known_patches() -> tuple[Patch, ...]:
    """Read every patch, oldest version first."""
    files = sorted(patch_folder().glob("v*.patch"), key=lambda file: _order(file.name))
    return tuple(read_patch(file) for file in files)


def read_patch(file: Path) -> Patch:
    """Read one patch and check that it adds the tap's six lines and nothing else.

    Raises
    ------
    PatchRefused
        If a header is missing, or the patch changes anything else.
    """
    text = file.read_text("utf-8")
    head, _, diff = text.partition("diff --git ")
    fields = {key: " ".join(value.split()) for key, value in _HEADER.findall(head)}
    index, hunks = _INDEX.search(diff), _HUNK.findall(diff)
    added = tuple(line[1:] for line in diff.splitlines() if line.startswith("+") and not line.startswith("+++ "))
    path = MODELING.as_posix()
    whole = diff.startswith(f"a/{path} b/{path}\n") and f"\n--- a/{path}\n+++ b/{path}\n" in diff
    if not (whole and index and tuple(fields) == HEADERS and len(hunks) == 1 and added == TAP_IN_PLACE):
        raise PatchRefused(
            f"a patch must have the headers {', '.join(HEADERS)} and add the tap's six lines to {path}",
            f"something else in {file.name}",
            "Restore the file from the repository.",
        )
    return Patch(
        version=fields["Version"],
        commit=fields["Commit"],
        origin=fields["Origin"],
        reason=fields["Reason"],
        checked=tuple(fields["Checked"].split(", ")),
        before=index[1],
        after=index[2],
        line=int(hunks[0][0]),
        file=file,
    )


TAP_IN_PLACE = tuple(f"{'':12}{line}" for line in TAP_LINES)  # the branch's indent is the same in every version


def _order(name: str) -> tuple[int | str, ...]:
    """Sort key: numbers as numbers, a development version before its release."""
    numbers = [int(part) for part in re.findall(r"\d+", name)]
    return (*numbers[:3], "dev" not in name, *numbers[3:], name)
