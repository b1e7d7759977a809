"""The manifest: everything about a run but its rows, in one small file replaced by rename."""

from __future__ import annotations

import base64
import json
import warnings
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator, with_config

from workbench.canonical import canonical_json
from workbench.errors import ContractError, StoreError
from workbench.store.checksums import digest_hex
from workbench.store.dtypes import storage_type
from workbench.store.filesystem import StoreWarning
from workbench.store.layout import FORMAT, MANIFEST, PREVIOUS, is_name, is_own_file, is_segment_file, parse_json

if TYPE_CHECKING:
    from pathlib import Path

    from workbench.store.files import Disk

MAX_MANIFEST_BYTES = 64 << 20
MAX_RECORDS_TEXT = 192 << 10  # batch records are repeated here up to this size, so that manifest and journal stay small
_END = b',"checksum":"%b"}\n'
_END_BYTES = len(_END) - 2 + 32


Count = Annotated[int, Field(ge=0, lt=1 << 62)]


class _Entry(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


@with_config(ConfigDict(extra="forbid", strict=True))
@dataclass(frozen=True, slots=True)
class TapSpec:
    """One tap of a run.

    Attributes
    ----------
    name : str
        Name of the tap, also the stem of its files.
    dtype : str
        Storage dtype: `F32`, `F16`, `BF16` or `F8_E4M3`.
    width : int
        Values of a row.

    Raises
    ------
    ContractError
        If the name is no file name, the dtype is unknown or the width is not from 1 to 2^24.
    """

    name: str
    dtype: str
    width: int

    def __post_init__(self) -> None:
        storage_type(self.dtype)
        if not is_name(self.name):
            must = "a tap name must be lower case letters, digits, dots, dashes and underscores"
            raise ContractError(must, ascii(self.name)[:80], "Rename the tap.")
        if not 1 <= self.width <= 1 << 24:
            raise ContractError("a tap must have a width of 1 to 2^24", str(self.width), "Check the shape.")


class SegmentEntry(_Entry):
    """One file of rows.

    Attributes
    ----------
    segment : str
        Identity of the segment, in its header and in every checksum.
    first_row, stop_row : int
        Rows of the run that are read from it; `first_row` is row 0 of the file.
    capacity : int
        Rows that the file has room for, and that its header declares.
    state : str
        `sealed` files carry their final name. A `poisoned` one failed to sync: rows from `stop_row` on are void.
    """

    tap: str
    segment: str
    file: str
    part: Count
    first_row: Count
    stop_row: Count
    capacity: Count
    state: Literal["writing", "sealed", "poisoned"]

    @model_validator(mode="after")
    def _check(self) -> SegmentEntry:
        if not is_segment_file(self.file):
            raise ValueError("a segment lies directly in the taps folder")
        if not 0 <= self.first_row <= self.stop_row <= self.first_row + self.capacity:
            raise ValueError("a segment holds the rows that are read from it")
        return self


class PartEntry(_Entry):
    """Rows written by one writer: a run has one, a merged run several.

    Attributes
    ----------
    shards : tuple of int
        Prompts of the part at which its shards begin, and its number of prompts.
    records, records_digest : str or None
        Batch records once sealed, packed, if they are few enough; and their digest.
    """

    store_id: str
    run_id: str
    journal: str
    first_prompt: Count
    n_prompts: Count
    first_row: Count
    n_rows: Count
    shards: tuple[Count, ...]
    n_batches: Count | None = None
    records: str | None = None
    records_digest: str | None = None

    @model_validator(mode="after")
    def _check(self) -> PartEntry:
        if not is_own_file(self.journal):
            raise ValueError("a part has a journal in its folder")
        for identity in (self.store_id, self.run_id):
            if len(bytes.fromhex(identity)) != 16:
                raise ValueError("ids have 32 hexadecimal digits")
        return self


class Durability(_Entry):
    """What was asked of the disk and what it really did."""

    asked: str
    data_sync: str
    allocation: str
    folder_sync: bool
    file_system: str
    network: bool


class Counts(_Entry):
    """Numbers of a run, per tap where they differ by tap."""

    prompts: Count
    tokens: Count
    rows: Count
    truncated_prompts: Count
    lossy_prompts: Count
    flagged_rows: Count | None = None
    non_finite: dict[str, Count] = {}
    saturated: dict[str, Count] = {}


class Manifest(_Entry):
    """The whole manifest; see the attributes of its parts."""

    format: int
    version: int
    store_id: str
    run_id: str
    status: Literal["writing", "complete"]
    created: str
    written_by: str
    durability: Durability
    contract: dict[str, Any]
    provenance: dict[str, Any]
    positions: str | tuple[int, ...]
    prompts_hash: str
    tokens_hash: str
    files: dict[str, str]
    taps: tuple[TapSpec, ...]
    parts: tuple[PartEntry, ...]
    segments: tuple[SegmentEntry, ...]
    counts: Counts
    policies: dict[str, str]

    @model_validator(mode="after")
    def _check(self) -> Manifest:
        names = [tap.name for tap in self.taps]
        known = all(entry.tap in names and 0 <= entry.part < len(self.parts) for entry in self.segments)
        if not names or len(set(names)) != len(names) or not known or not self.parts:
            raise ValueError("a manifest names each tap once, has a part, and segments of those")
        if not all(is_name(name) for name in self.files):
            raise ValueError("files lie directly in the run folder")
        return self

    def tap(self, name: str) -> TapSpec:
        """Return the entry of a tap that exists."""
        return next(tap for tap in self.taps if tap.name == name)


def manifest_bytes(manifest: Manifest) -> bytes:
    """Write a manifest with a checksum over itself at its end."""
    text = canonical_json(json.loads(manifest.model_dump_json()))
    return text[:-1] + _END % digest_hex(text).encode()


def parse_manifest(data: bytes, where: str) -> Manifest:
    """Read a manifest that may come from anywhere.

    Raises
    ------
    StoreError
        If it is damaged, of a newer format, or does not hold together.
    """
    text, end = data[:-_END_BYTES] + b"}", data[-_END_BYTES:]
    if end != _END % digest_hex(text).encode():
        raise StoreError(f"{where} must match its own checksum", f"{len(data)} bytes that do not", "It is damaged.")
    plain = parse_json(text, where)
    found = plain.get("format")
    if not isinstance(found, int) or found > FORMAT:
        raise NewerFormat(f"{where} must be of format {FORMAT} or older", repr(found)[:40], "Update the workbench.")
    try:
        return Manifest.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"]))
        raise StoreError(f"field {field!r} of {where} must be valid", first["msg"][:200], "It is damaged.") from None


class NewerFormat(StoreError):
    """A run was written by a newer version of the workbench."""


def load_manifest(folder: Path) -> Manifest:
    """Read the manifest of a run, or the previous one if the newest is damaged.

    Raises
    ------
    StoreError
        If there is no run, or no good manifest.
    """
    first: StoreError | None = None
    for name in (MANIFEST, PREVIOUS):
        try:
            data = read_small(folder / name, MAX_MANIFEST_BYTES)
            manifest = parse_manifest(data, name)
        except NewerFormat:
            raise
        except FileNotFoundError:
            continue
        except StoreError as error:
            first = first or error
            continue
        if name == PREVIOUS:
            reason = str(first) if first else f"{MANIFEST} is missing"
            warnings.warn(
                f"{folder}: using version {manifest.version} of the manifest; {reason}", StoreWarning, stacklevel=3
            )
        return manifest
    if first is not None:
        raise first
    raise StoreError(f"{folder} must be a run folder", f"no {MANIFEST}", "Give the folder that `extract` wrote.")


def read_small(path: Path, most_bytes: int) -> bytes:
    """Read a small regular file of a run, never through a link.

    Raises
    ------
    StoreError
        If it is too large, no file or not readable.
    FileNotFoundError
        If there is none.
    """
    from workbench.store.opening import open_inside

    fd, size = open_inside(path)
    with open(fd, "rb") as file:  # noqa: PTH123 - from a descriptor
        if size > most_bytes:
            raise StoreError(f"{path.name} must have at most {most_bytes:,} bytes", f"{size:,}", "It is damaged.")
        return file.read(size)


class ManifestFile:
    """Publishes versions of a manifest, keeping the one before."""

    def __init__(self, folder: Path, disk: Disk, current: Manifest | None) -> None:
        self.folder = folder
        self.current = current
        self._disk = disk

    def publish(self, manifest: Manifest) -> Manifest:
        """Make a new version the current one; the old one becomes the previous one first.

        Raises
        ------
        OSError
            If the disk fails; then the old version is still there.
        """
        if self.current is not None:
            self._disk.replace_file(self.folder / PREVIOUS, manifest_bytes(self.current))
            self._disk.sync_folder(self.folder)
        version = self.current.version + 1 if self.current else 1
        manifest = manifest.model_copy(update={"version": version})
        self._disk.replace_file(self.folder / MANIFEST, manifest_bytes(manifest))
        self._disk.sync_folder(self.folder)
        self.current = manifest
        return manifest

    def publish_twice(self, manifest: Manifest) -> Manifest:
        """Publish so that the previous version says the same: losing one file then loses nothing."""
        self.publish(manifest)
        return self.publish(manifest)


def pack_text(data: bytes) -> str | None:
    """Give records as text for the manifest, or None if they are too many."""
    text = base64.b64encode(zlib.compress(data, 6)).decode()
    return text if len(text) <= MAX_RECORDS_TEXT else None


def unpack_text(text: str, expected_bytes: int) -> bytes:
    """Read what `pack_text` gave, never unpacking more than expected.

    Raises
    ------
    StoreError
        If it is anything else.
    """
    if expected_bytes > MAX_MANIFEST_BYTES:
        raise StoreError("batch records of the manifest must be few", f"{expected_bytes:,} bytes", "It is damaged.")
    try:
        data = zlib.decompressobj().decompress(base64.b64decode(text, validate=True), expected_bytes + 1)
    except (ValueError, zlib.error) as error:
        raise StoreError("batch records of the manifest must unpack", str(error)[:80], "It is damaged.") from None
    if len(data) != expected_bytes:
        raise StoreError(f"batch records must have {expected_bytes} bytes", f"{len(data)} or more", "It is damaged.")
    return data
