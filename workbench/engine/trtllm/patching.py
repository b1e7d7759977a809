"""Put the tap into a source tree of TensorRT-LLM, take it out, or say why neither is safe."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from workbench.engine.trtllm.blobs import blob_id, replace_file
from workbench.engine.trtllm.finder import find_place, insert_tap, remove_tap
from workbench.engine.trtllm.versions import MODELING, Patch, known_patches
from workbench.errors import PatchRefused

MAX_SOURCE_BYTES = 8 << 20
_VERSION = re.compile(r"""^__version__ = ["']([^"']+)["']""", re.MULTILINE)


@dataclass(frozen=True, kw_only=True, slots=True)
class TreeState:
    """What stands in a source tree.

    Parameters
    ----------
    file : Path
        `modeling_utils.py` of the tree.
    blob : str
        Its git blob id.
    state : str
        `plain` or `patched`, or `unlike` where the tap has no place.
    patch : Patch or None
        The patch that knows this blob, before or after; None where only the structure speaks.
    reason : str
        Why the structure is unlike; empty otherwise.
    """

    file: Path
    blob: str
    state: Literal["plain", "patched", "unlike"]
    patch: Patch | None = None
    reason: str = ""

    def __str__(self) -> str:
        known = f"TensorRT-LLM {self.patch.version}" if self.patch else "an unlisted version of TensorRT-LLM"
        words = {
            "plain": f"{known}, without the tap",
            "patched": f"{known}, with the tap: engines built from it have the output final_hidden_states",
            "unlike": f"no place for the tap: {self.reason}",
        }
        return f"{self.file}: blob {self.blob}; {words[self.state]}"


def inspect_tree(tree: Path | str) -> TreeState:
    """Say what stands in a source tree, changing nothing.

    Parameters
    ----------
    tree : path
        Folder that holds `tensorrt_llm/`: a checkout, or the `site-packages` of an installation.

    Returns
    -------
    TreeState
        The state, by blob id where it is known and by structure where it is not.

    Raises
    ------
    PatchRefused
        If the tree has no `tensorrt_llm/models/modeling_utils.py`.
    """
    file, source = _read(tree)
    return _state(file, source)


def apply_patch(tree: Path | str, *, structural: bool = False) -> TreeState:
    """Put the tap into a source tree; a tree that has it already is left alone.

    Parameters
    ----------
    tree : path
        Folder that holds `tensorrt_llm/`.
    structural : bool
        Also patch a version that no patch lists, where its structure is exactly the expected one.

    Returns
    -------
    TreeState
        The state afterwards.

    Raises
    ------
    PatchRefused
        If the file is neither known nor of the expected structure; nothing was written.
    """
    file, source = _read(tree)
    now = _state(file, source)
    if now.state == "patched":
        return now
    _admit(now, structural=structural)
    patched = insert_tap(source)
    _expect(patched, now.patch.after if now.patch else None)
    replace_file(file, old=source, new=patched)
    return _state(file, file.read_bytes())


def reverse_patch(tree: Path | str, *, structural: bool = False) -> TreeState:
    """Take the tap out of a source tree; a tree without it is left alone.

    Parameters
    ----------
    tree : path
        Folder that holds `tensorrt_llm/`.
    structural : bool
        Also for a version that no patch lists.

    Returns
    -------
    TreeState
        The state afterwards.

    Raises
    ------
    PatchRefused
        If the tap's six lines do not stand at their place, word for word; nothing was written.
    """
    file, source = _read(tree)
    now = _state(file, source)
    if now.state == "plain":
        return now
    _admit(now, structural=structural)
    plain = remove_tap(source)
    _expect(plain, now.patch.before if now.patch else None)
    replace_file(file, old=source, new=plain)
    return _state(file, file.read_bytes())


def _read(tree: Path | str) -> tuple[Path, bytes]:
    file = Path(tree) / MODELING
    if not file.is_file():
        raise PatchRefused(
            "a source tree must hold tensorrt_llm/models/modeling_utils.py",
            f"none in {tree}",
            "Name the checkout, or the site-packages folder of the installation.",
        )
    size = file.stat().st_size
    if size > MAX_SOURCE_BYTES:
        raise PatchRefused(f"{MODELING.name} must be at most {MAX_SOURCE_BYTES} bytes", str(size), "Check the tree.")
    return file, file.read_bytes()


def _state(file: Path, source: bytes) -> TreeState:
    blob = blob_id(source)
    for patch in known_patches():
        if blob in (patch.before, patch.after):
            return TreeState(file=file, blob=blob, state="plain" if blob == patch.before else "patched", patch=patch)
    try:
        place = find_place(source)
    except PatchRefused as error:
        return TreeState(file=file, blob=blob, state="unlike", reason=f"{error.what}; got {error.got}")
    return TreeState(file=file, blob=blob, state="patched" if place.patched else "plain")


def _admit(now: TreeState, *, structural: bool) -> None:
    if now.state == "unlike":
        what, _, got = now.reason.rpartition("; got ")
        raise PatchRefused(what, got, "Nothing was written. Mark the output by hand and check it.")
    if now.patch is None and not structural:
        raise PatchRefused(
            f"the blob id of {MODELING.name} must be {_wanted(now.file)}",
            f"{now.blob}, whose structure is the expected one",
            "Nothing was written. If this is the file of an official release, add --structural.",
        )


def _wanted(file: Path) -> str:
    """Name the ids that would do: those of the version that the tree says it is, where a patch lists it."""
    patches = known_patches()
    said = _VERSION.search(_text(file.parents[1] / "version.py"))
    for patch in patches:
        if said and patch.version == said[1]:
            return f"{patch.before} or, patched, {patch.after}, since the tree says it is {patch.version}"
    known = f"one of the {len(patches)} that patches/README.md lists, {patches[0].version} to {patches[-1].version}"
    return f"{known} (the tree says it is {said[1]})" if said else known


def _text(file: Path) -> str:
    return file.read_text("utf-8", errors="replace") if file.is_file() else ""


def _expect(content: bytes, blob: str | None) -> None:
    got = blob_id(content)
    if blob is not None and got != blob:
        raise PatchRefused(f"the result must have the blob id {blob}", got, "Nothing was written. Report this version.")
