"""Makers of run folders that a stranger may send: each changes a sound run in one hostile way."""

from __future__ import annotations

import json
import os
import struct
from typing import TYPE_CHECKING, Any

from workbench.canonical import canonical_json
from workbench.store.checksums import digest_hex

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SEGMENT = "taps/final_norm.safetensors"


def _reseal(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the manifest and give it a right checksum, as an attacker would."""
    for name in ("manifest.json", "manifest.prev.json"):
        fields = json.loads((folder / name).read_bytes())
        fields.pop("checksum")
        change(fields)
        text = canonical_json(fields)
        (folder / name).write_bytes(text[:-1] + b',"checksum":"%b"}\n' % digest_hex(text).encode())


def _header(folder: Path, text: bytes) -> None:
    file = folder / SEGMENT
    data = file.read_bytes()[4096:]
    file.write_bytes(struct.pack("<Q", len(text)) + text + data)


def escaping_segment(folder: Path) -> None:
    _reseal(folder, lambda m: m["segments"][0].update(file="../../../etc/passwd"))


def escaping_journal(folder: Path) -> None:
    _reseal(folder, lambda m: m["parts"][0].update(journal="../journal"))


def escaping_file(folder: Path) -> None:
    _reseal(folder, lambda m: m["files"].update({"../prompts.parquet": "0" * 32}))


def endless_rows(folder: Path) -> None:
    def change(m: dict[str, Any]) -> None:
        m["counts"]["rows"] = 1 << 50
        for one in m["segments"]:
            one.update(stop_row=1 << 50, capacity=1 << 50)

    _reseal(folder, change)


def negative_rows(folder: Path) -> None:
    _reseal(folder, lambda m: m["segments"][0].update(first_row=-5))


def wide_tap(folder: Path) -> None:
    _reseal(folder, lambda m: m["taps"][0].update(width=1 << 40))


def unknown_field(folder: Path) -> None:
    _reseal(folder, lambda m: m.update(run_me="print(1)"))


def tap_with_path(folder: Path) -> None:
    _reseal(folder, lambda m: m["taps"][0].update(name="../x"))


def records_bomb(folder: Path) -> None:
    import base64
    import zlib

    bomb = base64.b64encode(zlib.compress(bytes(200 << 20), 9)).decode()
    _reseal(folder, lambda m: m["parts"][0].update(records=bomb))


def many_batches(folder: Path) -> None:
    _reseal(folder, lambda m: m["parts"][0].update(n_batches=1 << 60))


def overlapping_segments(folder: Path) -> None:
    _reseal(folder, lambda m: m["segments"].append(dict(m["segments"][0])))


def deep_manifest(folder: Path) -> None:
    for name in ("manifest.json", "manifest.prev.json"):
        text = b'{"a":' * 100_000 + b"1" + b"}" * 100_000
        (folder / name).write_bytes(text[:-1] + b',"checksum":"%b"}\n' % digest_hex(text).encode())


def header_of_terabytes(folder: Path) -> None:
    (folder / SEGMENT).write_bytes(struct.pack("<Q", 1 << 42) + bytes(5000))


def header_with_hole(folder: Path) -> None:
    _header(folder, b'{"rows":{"dtype":"F32","shape":[1,8],"data_offsets":[64,96]}}')


def header_with_overlap(folder: Path) -> None:
    one = b'{"dtype":"F32","shape":[1,8],"data_offsets":[0,32]}'
    _header(folder, b'{"a":' + one + b',"b":' + one + b"}")


def header_with_twins(folder: Path) -> None:
    one = b'{"dtype":"F32","shape":[1,8],"data_offsets":[0,32]}'
    _header(folder, b'{"rows":' + one + b',"rows":' + one + b"}")


def header_with_huge_shape(folder: Path) -> None:
    _header(folder, b'{"rows":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,32]}}')


def fifo_segment(folder: Path) -> None:
    (folder / SEGMENT).unlink()
    os.mkfifo(folder / SEGMENT)


def device_tokens(folder: Path) -> None:
    (folder / "tokens.safetensors").unlink()
    (folder / "tokens.safetensors").symlink_to("/dev/zero")


def folder_as_journal(folder: Path) -> None:
    (folder / "journal").unlink()
    (folder / "journal").mkdir()


def prompts_of_noise(folder: Path) -> None:
    data = b"PAR1" + os.urandom(4000) + struct.pack("<I", 1 << 30) + b"PAR1"
    (folder / "prompts.parquet").write_bytes(data)
    _reseal(folder, lambda m: m["files"].update({"prompts.parquet": digest_hex(data)}))


MAKERS: dict[str, Callable[[Path], None]] = {
    name: maker
    for name, maker in list(globals().items())
    if callable(maker) and getattr(maker, "__module__", "") == __name__ and not name.startswith("_")
}
