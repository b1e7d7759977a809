"""Where the tap belongs in TensorRT-LLM's decoder definition, found by structure and not by line number.

Every dense decoder of TensorRT-LLM shares `DecoderModelForCausalLM.forward`. Its branch for the last pipeline rank
first reduces `hidden_states` to the last token of each prompt; until then they are the states of every token, after the
final norm and before the head. The tap stands first in that branch.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TypeVar

from workbench.errors import PatchRefused

TAP_OUTPUT = "final_hidden_states"
CLASS, METHOD, STATES, GATHER = "DecoderModelForCausalLM", "forward", "hidden_states", "gather_last_token_logits"
LAST_RANK = "self.config.mapping.is_last_pp_rank()"
# All that upstream does to the states between the decoder and the branch: drop the cache, join context-parallel parts.
HARMLESS_BRANCHES = ("use_cache", "self.config.mapping.cp_size > 1")

TAP_LINES = (
    "# Extraction tap: state of every token after the final norm and before",
    "# the head, taken ahead of the last-token gather below. The tensor is",
    "# only marked, so it still feeds lm_head and decoding is unchanged.",
    "if getattr(self.config, 'expose_final_hidden', True):",
    "    hidden_states.mark_output('final_hidden_states',",
    "                              self.config.dtype)",
)
_T = TypeVar("_T")
_TAP = ast.dump(ast.parse("\n".join(TAP_LINES)).body[0])


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Where the tap belongs, or stands already.

    Parameters
    ----------
    line : int
        The tap goes before this line, counted from 1; where it stands already, its first code line.
    indent : int
        Spaces before it.
    patched : bool
        Whether the tap stands there.
    """

    line: int
    indent: int
    patched: bool


def find_place(source: bytes) -> Place:
    """Find the one place of the tap in `modeling_utils.py` of any version.

    Parameters
    ----------
    source : bytes
        The whole file.

    Returns
    -------
    Place
        The place, and whether the tap stands there already.

    Raises
    ------
    PatchRefused
        If the structure is not exactly the one that the tap was proven in; the message says what differs.
    """
    body = _forward(source).body
    branches = [node for node in body if isinstance(node, ast.If) and ast.unparse(node.test) == LAST_RANK]
    branch = _one(
        [node for node in branches if GATHER in ast.unparse(node)], f"branch on {LAST_RANK} that gathers the last token"
    )
    _check_before(body[: body.index(branch)])
    statements = list(branch.body)
    patched = ast.dump(statements[0]) == _TAP
    first = statements.pop(0) if patched else statements[0]
    _check_gather(statements)
    marks = source.count(f"'{TAP_OUTPUT}'".encode()) + source.count(f'"{TAP_OUTPUT}"'.encode())
    if marks != int(patched):
        raise _unlike(f"{TAP_OUTPUT!r} named {int(patched)} times", f"{marks} times")
    return Place(line=first.lineno, indent=first.col_offset, patched=patched)


def insert_tap(source: bytes) -> bytes:
    """Write the tap into an unpatched file.

    Raises
    ------
    PatchRefused
        If the structure is not the expected one, or the tap stands there already.
    """
    place = find_place(source)
    if place.patched:
        raise PatchRefused("the file must not hold the tap yet", f"the tap at line {place.line}", "Nothing is to do.")
    lines = source.split(b"\n")
    lines[place.line - 1 : place.line - 1] = _tap_lines(place.indent, lines[0])
    patched = b"\n".join(lines)
    if remove_tap(patched) != source:
        raise _unlike("a file that the tap leaves as it was", "another one after taking the tap out again")
    return patched


def remove_tap(source: bytes) -> bytes:
    """Take the tap out of a patched file.

    Raises
    ------
    PatchRefused
        If the tap's lines do not stand at their place, word for word.
    """
    place = find_place(source)
    lines = source.split(b"\n")
    start = place.line - 1 - sum(line.startswith("#") for line in TAP_LINES)
    want = _tap_lines(place.indent, lines[0])
    if not place.patched or lines[start : start + len(want)] != want:
        raise PatchRefused(
            "the tap's six lines must stand at their place, word for word",
            f"others at line {max(start, 0) + 1}",
            "Restore the file from your copy of TensorRT-LLM.",
        )
    return b"\n".join(lines[:start] + lines[start + len(want) :])


def _tap_lines(indent: int, like: bytes) -> list[bytes]:
    end = b"\r" if like.endswith(b"\r") else b""  # a checkout on Windows
    return [(" " * indent + line).encode() + end for line in TAP_LINES]


def _forward(source: bytes) -> ast.FunctionDef:
    try:
        module = ast.parse(source)
    except (SyntaxError, ValueError) as error:
        raise _unlike("Python source", str(error)) from error
    found = _one([n for n in module.body if isinstance(n, ast.ClassDef) and n.name == CLASS], f"class {CLASS}")
    return _one([n for n in found.body if isinstance(n, ast.FunctionDef) and n.name == METHOD], f"{CLASS}.{METHOD}")


def _check_before(statements: list[ast.stmt]) -> None:
    """Check that from the decoder's call to the branch nothing else is done to the states."""
    call = f"{STATES} = self.transformer.forward(**kwargs)"
    calls = [i for i, node in enumerate(statements) if ast.unparse(node) == call]
    start = _one(calls, f"statement `{call}`")
    for node in statements[start + 1 :]:
        if not (isinstance(node, ast.If) and ast.unparse(node.test) in HARMLESS_BRANCHES):
            raise _unlike(f"nothing but branches on {' or '.join(HARMLESS_BRANCHES)} after the decoder", _quote(node))


def _check_gather(statements: list[ast.stmt]) -> None:
    """Check that the branch begins with the gather, after plain aliases of the states at most."""
    for node in statements:
        text = ast.unparse(node)
        if text.startswith(f"{STATES} = {GATHER}({STATES}, "):
            return
        alias = isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
        if not (alias and text.endswith(f" = {STATES}") and not text.startswith(f"{STATES} ")):
            raise _unlike(f"`{STATES} = {GATHER}({STATES}, ...)` first in the branch", _quote(node))
    raise _unlike(f"{GATHER} in the branch itself", "it deeper inside")


def _one(found: list[_T], what: str) -> _T:
    if len(found) != 1:
        raise _unlike(f"exactly one {what}", str(len(found)))
    return found[0]


def _quote(node: ast.stmt) -> str:
    return f"`{ast.unparse(node).splitlines()[0]}` at line {node.lineno}"


def _unlike(want: str, got: str) -> PatchRefused:
    return PatchRefused(
        f"modeling_utils.py must have {want}", got, "Ask for this version, or mark the output by hand and check it."
    )
