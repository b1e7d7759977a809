"""A folder of safetensors files with an index, which alone decides which file holds which tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workbench.checkpoint.jsontext import load_json
from workbench.checkpoint.safetensors_file import MAX_TENSORS, parse_safetensors
from workbench.checkpoint.source import MappedTensors, TensorEntry
from workbench.errors import CheckpointError, shown

if TYPE_CHECKING:
    from workbench.checkpoint.paths import Folder, MappedFile

INDEX = "model.safetensors.index.json"
MAX_INDEX_BYTES = 16 << 20
MAX_SHARDS = 1024

_DO = "Get the whole checkpoint again: the index and every file that it names."


def sharded_in(folder: Folder, index: bytes) -> tuple[MappedTensors, list[MappedFile]]:
    """Open the shards that an index names.

    Parameters
    ----------
    folder : Folder
        Where the index lies; its files are looked for only here.
    index : bytes
        The index file.

    Returns
    -------
    MappedTensors, list of MappedFile
        The tensors of the index, and the files in the order of their names. `left_out` of the tensors names those that
        lie in a shard without standing in the index.

    Raises
    ------
    CheckpointError
        If the index or a shard is broken, or a shard lacks a tensor that the index expects in it.
    """
    where = _weight_map(load_json(index, shown(INDEX), max_bytes=MAX_INDEX_BYTES))
    files: list[MappedFile] = []
    entries: list[TensorEntry] = []
    left_out: list[str] = []
    for shard in sorted(set(where.values())):
        file = folder.map(shard)
        found = {entry.name: entry for entry in parse_safetensors(file)[1]}
        missing = [name for name, home in where.items() if home == shard and name not in found]
        if missing:
            raise CheckpointError(
                f"{shown(shard)} must hold the tensors that {shown(INDEX)} expects in it",
                f"{len(missing)} missing, such as {shown(missing[0])}",
                _DO,
            )
        entries += [entry for name, entry in found.items() if where.get(name) == shard]
        left_out += [name for name in found if name not in where]
        files.append(file)
    return MappedTensors(shown(folder.path.name), entries, {}, left_out=left_out), files


def _weight_map(index: dict[str, object]) -> dict[str, str]:
    where = index.get("weight_map")
    if not isinstance(where, dict) or not where or not all(isinstance(shard, str) for shard in where.values()):
        raise CheckpointError(f"{shown(INDEX)}: `weight_map` must map tensors to files", shown(where), _DO)
    if len(where) > MAX_TENSORS or len(set(where.values())) > MAX_SHARDS:
        got = f"{len(where)} in {len(set(where.values()))}"
        raise CheckpointError(f"{shown(INDEX)} must name at most {MAX_TENSORS} tensors in {MAX_SHARDS} files", got, _DO)
    for shard in set(where.values()):
        if not shard.endswith(".safetensors"):
            raise CheckpointError(f"{shown(INDEX)} must name .safetensors files", shown(shard), _DO)
    return where
