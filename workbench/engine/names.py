"""Names of engines: one allow-list, one small file a name, and no path that leaves the folder of engines."""

from __future__ import annotations

import os
import re
import stat
from typing import TYPE_CHECKING

from workbench.errors import EngineError, shown
from workbench.writing import write_whole

if TYPE_CHECKING:
    from pathlib import Path

NAMES_FOLDER = ".names"
ID_LENGTH = 64
FOLDER_LENGTH = 20
LEAST_PREFIX = 6
_NAME = re.compile(r"(?!(?:con|prn|aux|nul|com[0-9]|lpt[0-9])(?:\.|$))[a-z0-9](?:[a-z0-9._-]{0,62}[a-z0-9_-])?")
_PREFIX = re.compile(r"[0-9a-f]{6,64}")
_ID = re.compile(r"[0-9a-f]{64}")
_MAX_BYTES = 128


def check_name(name: object) -> str:
    """Give back a name that the allow-list admits.

    Raises
    ------
    EngineError
        If it is none: lower-case letters, digits, dot, dash and underscore, up to 64, no reserved word.
    """
    if isinstance(name, str) and _NAME.fullmatch(name):
        return name
    raise EngineError(
        "the name of an engine must be 1 to 64 lower-case letters, digits, dots, dashes or underscores",
        shown(name),
        "Choose another name, such as smollm2-fp32.",
    )


def check_alias(name: object) -> str:
    """Give back a name that may stand for an engine: admitted, and not to be mistaken for the start of an id.

    Raises
    ------
    EngineError
        If it is none.
    """
    if _PREFIX.fullmatch(check_name(name)):
        raise EngineError("a name must not read as the start of an engine id", shown(name), "Choose another name.")
    return str(name)


def read_names(root: Path) -> dict[str, str]:
    """Read all names of a folder of engines: name to engine id. What is no plain file of ours is passed over."""
    folder = root / NAMES_FOLDER
    if not _is_folder(folder):
        return {}
    found = {}
    for name in sorted(path.name for path in folder.iterdir()):
        if _NAME.fullmatch(name):
            engine_id = _read(folder / name)
            if engine_id is not None:
                found[name] = engine_id
    return found


def write_name(root: Path, name: str, engine_id: str) -> None:
    """Let a name stand for an engine; a name that stood for another one is moved.

    Raises
    ------
    EngineError
        If the name is not admitted, reads as the start of an id, the id is none, or the folder of names is a link.
    """
    check_alias(name)
    if not _ID.fullmatch(engine_id):
        raise EngineError("an engine id must be 64 hexadecimal digits", shown(engine_id), "Use the id of a contract.")
    folder = root / NAMES_FOLDER
    if not os.path.lexists(folder):
        folder.mkdir()
    if not _is_folder(folder):
        raise EngineError(f"{NAMES_FOLDER} must be a folder", "a link or a file", "Remove it by hand.")
    write_whole(folder / name, engine_id.encode("ascii"))


def drop_names(root: Path, engine_id: str) -> tuple[str, ...]:
    """Remove every name of an engine, and give them."""
    names = tuple(name for name, held in read_names(root).items() if held == engine_id)
    for name in names:
        (root / NAMES_FOLDER / name).unlink(missing_ok=True)
    return names


def folder_of(root: Path, engine_id: str) -> Path:
    """Where an engine of this id lies."""
    return root / engine_id[:FOLDER_LENGTH]


def resolve_folder(path: Path) -> Path:
    """Give the folder of an engine for its path, or for a name in place of the folder's own name."""
    if path.exists() or not _NAME.fullmatch(path.name):
        return path
    engine_id = read_names(path.parent).get(path.name)
    return path if engine_id is None else folder_of(path.parent, engine_id)


def _is_folder(path: Path) -> bool:
    try:
        return stat.S_ISDIR(path.lstat().st_mode)
    except OSError:
        return False


def _read(path: Path) -> str | None:
    try:
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
    except OSError:
        return None
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            return None
        text = os.read(handle, _MAX_BYTES).decode("ascii", errors="replace").strip()
    finally:
        os.close(handle)
    return text if _ID.fullmatch(text) else None
