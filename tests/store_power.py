"""A model of what a power cut can leave: recorded file operations, and every state that they allow.

Legal: a write that no later sync of its file covers is there, not there, or torn at 512 bytes; a name that no later
sync of its folder covers is as before or as after, names of one folder each on their own. What is synced is there.
"""

from __future__ import annotations

import hashlib
import itertools
import random
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.store.files import Disk

if TYPE_CHECKING:
    from collections.abc import Iterator

SECTOR = 512


class RecordingDisk(Disk):
    """Does everything and writes it down; `note` adds a mark such as an acknowledgement."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.log: list[tuple[Any, ...]] = []
        self._names: dict[int, int] = {}
        self._inode: dict[Path, int] = {}
        self._next = itertools.count()
        self._lock = threading.Lock()

    def note(self, *mark: Any) -> None:
        with self._lock:
            self.log.append(mark)

    def create(self, path: Path, size_bytes: int = 0) -> int:
        inode = next(self._next)
        self.note("create", path.relative_to(self.root), inode)
        fd = super().create(path, 0)
        self._names[fd], self._inode[path] = inode, inode
        if size_bytes:
            self.allocate(fd, 0, size_bytes)
        return fd

    def open(self, path: Path) -> int:
        fd = super().open(path)
        self._names[fd] = self._inode[path]
        return fd

    def allocate(self, fd: int, offset: int, length: int) -> None:
        self.note("size", self._names[fd], offset + length)
        super().allocate(fd, offset, length)

    def pwrite(self, fd: int, view: memoryview, offset: int) -> int:
        self.note("write", self._names[fd], offset, bytes(view))
        return super().pwrite(fd, view, offset)

    def sync_data(self, fd: int) -> None:
        super().sync_data(fd)
        self.note("sync", self._names[fd])

    def sync(self, fd: int) -> None:
        super().sync(fd)
        self.note("sync", self._names[fd])

    def sync_folder(self, path: Path) -> None:
        super().sync_folder(path)
        if path == self.root or self.root in path.parents:
            self.note("sync folder", path.relative_to(self.root))

    def rename(self, old: Path, new: Path) -> None:
        super().rename(old, new)
        self._inode[new] = self._inode.pop(old)
        self.note("rename", old.relative_to(self.root), new.relative_to(self.root))

    def unlink(self, path: Path) -> None:
        super().unlink(path)
        self.note("unlink", path.relative_to(self.root))

    def mkdir(self, path: Path) -> None:
        super().mkdir(path)
        self.note("mkdir", path.relative_to(self.root))


@dataclass
class Inode:
    """Bytes on the disk, and what is still on its way."""

    data: bytearray = field(default_factory=bytearray)
    pending: list[tuple[Any, ...]] = field(default_factory=list)  # ("size", n) or ("write", offset, bytes)

    def apply(self, change: tuple[Any, ...]) -> None:
        if change[0] == "size":
            self.data.extend(bytes(max(0, change[1] - len(self.data))))
            return
        _, offset, data = change
        self.data.extend(bytes(max(0, offset + len(data) - len(self.data))))
        self.data[offset : offset + len(data)] = data


@dataclass
class Model:
    """The disk at one moment: what is safe, and what a power cut may take or leave."""

    inodes: dict[int, Inode] = field(default_factory=dict)
    names: dict[Path, int | None] = field(default_factory=dict)  # None is a folder
    pending: list[tuple[Any, ...]] = field(default_factory=list)  # name changes

    def step(self, change: tuple[Any, ...]) -> None:
        kind = change[0]
        if kind in ("create", "rename", "unlink", "mkdir"):
            if kind == "create":
                self.inodes[change[2]] = Inode()
            self.pending.append(change)
        elif kind in ("size", "write"):
            self.inodes[change[1]].pending.append((kind, *change[2:]))
        elif kind == "sync":
            inode = self.inodes[change[1]]
            for one in inode.pending:
                inode.apply(one)
            inode.pending.clear()
        elif kind == "sync folder":
            kept = []
            for one in self.pending:
                if one[1].parent == change[1]:
                    apply_name(self.names, one)
                else:
                    kept.append(one)
            self.pending = kept

    def items(self) -> list[tuple[Any, ...]]:
        """List everything unsynced, in the order in which it was asked."""
        writes = [("inode", number, at) for number, inode in self.inodes.items() for at in range(len(inode.pending))]
        return [*(("name", at) for at in range(len(self.pending))), *writes]

    def state(self, chosen: set[tuple[Any, ...]], torn: tuple[Any, ...] | None = None) -> dict[Path, bytes | None]:
        """Give the files that are left if `chosen` of the unsynced items got through, one of them torn."""
        names = dict(self.names)
        for at, change in enumerate(self.pending):
            if ("name", at) in chosen:
                apply_name(names, change)
        files: dict[Path, bytes | None] = {}
        for path, number in names.items():
            if not all(parent in names for parent in path.parents if parent != Path()):
                continue
            files[path] = None if number is None else self._content(number, chosen, torn)
        return files

    def _content(self, number: int, chosen: set[tuple[Any, ...]], torn: tuple[Any, ...] | None) -> bytes:
        inode = self.inodes[number]
        copy = Inode(data=bytearray(inode.data))
        for at, change in enumerate(inode.pending):
            if ("inode", number, at) not in chosen:
                continue
            if torn == ("inode", number, at) and change[0] == "write":
                middle = max(SECTOR, len(change[2]) // 2 // SECTOR * SECTOR)
                tail = middle - (change[1] + middle) % SECTOR
                if tail < len(change[2]):  # the later half only: reordered as well
                    copy.apply(("write", change[1] + tail, change[2][tail:]))
                continue
            copy.apply(change)
        return bytes(copy.data)


def apply_name(names: dict[Path, int | None], change: tuple[Any, ...]) -> None:
    """Apply a name change if it still makes sense after others were lost."""
    kind, path, *more = change
    if kind == "create":
        names[path] = more[0]
    elif kind == "mkdir":
        names[path] = None
    elif kind == "unlink":
        names.pop(path, None)
    elif path in names:
        names[more[0]] = names.pop(path)


def subsets(items: list[tuple[Any, ...]], generator: random.Random, most: int) -> Iterator[set[tuple[Any, ...]]]:
    """Choose which unsynced items got through: all subsets of few, else the telling ones and some at random."""
    if 2 ** len(items) <= most:
        for bits in itertools.product((False, True), repeat=len(items)):
            yield {item for item, bit in zip(items, bits, strict=True) if bit}
        return
    yield set()
    yield set(items)
    for item in items:
        yield {item}
        yield set(items) - {item}
    for _ in range(max(0, most - 2 * len(items) - 2)):
        yield {item for item in items if generator.random() < 0.5}


def crash_states(
    log: list[tuple[Any, ...]], *, seed: int, most: int
) -> Iterator[tuple[int, dict[Path, bytes | None], list[tuple[Any, ...]]]]:
    """Give every moment, a legal state after a power cut then, and the marks noted before; equal ones once."""
    model, marks, generator = Model(), [], random.Random(seed)
    seen: set[bytes] = set()
    for moment, change in enumerate(log):
        if change[0] == "mark":
            marks.append(change)
            continue
        model.step(change)
        items = model.items()
        writes = [item for item in items if item[0] == "inode"]
        for chosen in subsets(items, generator, most):
            torn = [None, *[item for item in writes if item in chosen][-2:]]
            for tear in torn:
                state = model.state(chosen, tear)
                digest = _digest(state, len(marks))
                if digest not in seen:
                    seen.add(digest)
                    yield moment, state, list(marks)


def _digest(state: dict[Path, bytes | None], marks: int) -> bytes:
    hasher = hashlib.blake2b(str(marks).encode(), digest_size=16)
    for path in sorted(state):
        data = state[path]
        hasher.update(str(path).encode() + b"\0" + (b"dir" if data is None else hashlib.blake2b(data).digest()))
    return hasher.digest()


def lay_out(state: dict[Path, bytes | None], folder: Path) -> None:
    """Write a state into an empty folder."""
    for path in sorted(state):
        data = state[path]
        target = folder / path
        if data is None:
            target.mkdir(parents=True, exist_ok=True)
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
