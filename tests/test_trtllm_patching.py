"""The six lines go in and out of a source tree, and nothing else is touched."""

from __future__ import annotations

import argparse
import ast
import os
import subprocess
from pathlib import Path
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trtllm_tree import ALIAS, MODELING, source, write_tree

from workbench.engine.trtllm import versions
from workbench.engine.trtllm.blobs import blob_id, replace_file
from workbench.engine.trtllm.commands import add_commands
from workbench.engine.trtllm.finder import TAP_LINES, find_place, insert_tap, remove_tap
from workbench.engine.trtllm.patching import apply_patch, inspect_tree, reverse_patch
from workbench.engine.trtllm.versions import Patch, known_patches, read_patch
from workbench.errors import PatchRefused

REAL_TREE = os.environ.get("TENSORRT_LLM_TREE")


@given(st.binary(max_size=300))
def test_blob_id_is_gits(content: bytes) -> None:
    # the empty blob's id is known to everybody; git itself is asked below
    assert blob_id(b"") == "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391"
    assert blob_id(content) != blob_id(content + b"\0")


def test_blob_id_agrees_with_git(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"line\r\n\xff\n")
    done = subprocess.run(["git", "hash-object", "--no-filters", file], capture_output=True, check=True, text=True)
    assert done.stdout.strip() == blob_id(file.read_bytes())


@pytest.mark.parametrize("alias", [False, True])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_the_tap_stands_first_in_the_branch_and_comes_out_again(alias: bool, end: str) -> None:
    plain = source(alias=alias).replace("\n", end).encode()
    patched = insert_tap(plain)
    assert remove_tap(patched) == plain
    assert len(patched.split(b"\n")) == len(plain.split(b"\n")) + len(TAP_LINES)
    lines = [line.strip() for line in patched.decode().split("\n")]
    first = lines.index(TAP_LINES[0])
    assert lines[first - 1] == "if self.config.mapping.is_last_pp_rank():"
    assert lines[first + len(TAP_LINES)] in (ALIAS.strip(), "hidden_states = gather_last_token_logits(")
    assert find_place(patched).patched
    assert not find_place(plain).patched


def test_the_patched_definition_marks_every_token_and_computes_the_same() -> None:
    class Tensor(list):
        marked: ClassVar[dict[str, list]] = {}

        def mark_output(self, name: str, dtype: str) -> None:
            Tensor.marked[name] = list(self)

    class Namespace(argparse.Namespace):
        pass

    def run(text: bytes, **config: object) -> tuple[object, dict[str, list]]:
        Tensor.marked = {}
        scope = {"gather_last_token_logits": lambda states, last, packed: Tensor(states[-1:])}
        scope["net"] = lambda *_: Namespace(remove_input_padding=True)
        exec(text.split(b"\n", 1)[1], scope)  # the first line imports
        mapping = Namespace(cp_size=1, is_last_pp_rank=lambda: config.pop("last", True))
        settings = Namespace(mapping=mapping, logits_dtype="f", dtype="h", **config)
        decoder = Namespace(forward=lambda **_: Tensor([1, 2, 3]))
        model = scope["DecoderModelForCausalLM"](settings, decoder, lambda states: Tensor(x * 10 for x in states))
        return model.forward(), dict(Tensor.marked)

    plain = source(alias=True).encode()
    want, marked = run(plain)
    got, with_tap = run(insert_tap(plain))
    assert got == want == [30]
    assert marked == {"logits": [30]}
    assert with_tap == {"logits": [30], "final_hidden_states": [1, 2, 3]}
    assert run(insert_tap(plain), expose_final_hidden=False)[1] == marked


BROKEN = {
    "no class": ("class DecoderModelForCausalLM", "class DecoderModel", "exactly one class"),
    "no method": (
        "def forward(self, use_cache",
        "def call(self, use_cache",
        "exactly one DecoderModelForCausalLM.forw",
    ),
    "other test": (
        "if self.config.mapping.is_last_pp_rank():\n            hidden",
        "if True:\n            hidden",
        "branch",
    ),
    "states changed before": (
        "        if self.config.mapping.cp_size > 1:",
        "        hidden_states = net(hidden_states)\n        if self.config.mapping.cp_size > 1:",
        "nothing but branches",
    ),
    "states changed in the branch": (
        "            hidden_states = gather_last_token_logits(",
        "            hidden_states = net(hidden_states)\n            hidden_states = gather_last_token_logits(",
        "first in the branch",
    ),
    "gather of another tensor": (
        "gather_last_token_logits(\n                hidden_states, last",
        "gather_last_token_logits(\n                other, last",
        "first in the branch",
    ),
    "gather deeper": (
        "            hidden_states = gather_last_token_logits(\n                hidden_states, last_token_ids,",
        "            if use_cache: hidden_states = gather_last_token_logits(\n                hidden_states, 0,",
        "first in the branch",
    ),
    "another decoder call": (
        "self.transformer.forward(**kwargs)",
        "self.transformer(**kwargs)",
        "exactly one statement",
    ),
    "name taken": ("mark_output('logits'", "mark_output('final_hidden_states'", "named 0 times"),
    "not Python": ("class Other:", "class Other", "Python source"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_another_structure_is_refused_and_nothing_is_written(case: str, tmp_path: Path) -> None:
    old, new, message = BROKEN[case]
    text = source()
    assert old in text
    file = write_tree(tmp_path, text.replace(old, new, 1))
    before = file.read_bytes()
    with pytest.raises(PatchRefused, match=message):
        insert_tap(before)
    with pytest.raises(PatchRefused, match="Nothing was written"):
        apply_patch(tmp_path, structural=True)
    assert file.read_bytes() == before
    assert inspect_tree(tmp_path).state == "unlike"


def test_an_unlisted_blob_needs_the_structural_flag(tmp_path: Path) -> None:
    file = write_tree(tmp_path)
    with pytest.raises(PatchRefused, match=f"0.8.0 to 0.17.*; got {blob_id(file.read_bytes())}.*--structural"):
        apply_patch(tmp_path)
    version = file.parents[1] / "version.py"
    version.write_text('__version__ = "0.16.0"\n')
    with pytest.raises(PatchRefused, match=r"must be 37d6e748af65\w+ or, patched, d0039756e989\w+, .* 0\.16\.0; got"):
        apply_patch(tmp_path)
    version.write_text('__version__ = "1.2.0"\n')
    with pytest.raises(PatchRefused, match=r"the tree says it is 1\.2\.0"):
        apply_patch(tmp_path)
    assert inspect_tree(tmp_path).state == "plain"
    assert apply_patch(tmp_path, structural=True).state == "patched"
    with pytest.raises(PatchRefused, match="--structural"):
        reverse_patch(tmp_path)
    assert reverse_patch(tmp_path, structural=True).state == "plain"
    assert file.read_text() == source()


@pytest.fixture
def listed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Patch:
    """Let the table list our own small file."""
    plain = source().encode()
    template = known_patches()[0]
    text = template.file.read_text().replace(template.before, blob_id(plain))
    text = text.replace(template.after, blob_id(insert_tap(plain))).replace(f"-{template.line},", "-28,")
    file = tmp_path / "patches" / "v9.patch"
    file.parent.mkdir()
    file.write_text(text)
    patch = read_patch(file)
    monkeypatch.setattr("workbench.engine.trtllm.patching.known_patches", lambda: (patch,))
    return patch


def test_a_listed_blob_is_patched_twice_and_reversed_twice_without_harm(listed: Patch, tmp_path: Path) -> None:
    file = write_tree(tmp_path)
    file.chmod(0o640)
    assert apply_patch(tmp_path).patch is listed
    assert blob_id(file.read_bytes()) == listed.after
    assert apply_patch(tmp_path).state == "patched"
    assert blob_id(file.read_bytes()) == listed.after
    assert reverse_patch(tmp_path).state == "plain"
    assert reverse_patch(tmp_path).state == "plain"
    assert file.read_text() == source()
    assert file.stat().st_mode & 0o777 == 0o640
    assert [path.name for path in file.parent.iterdir()] == [file.name], "a temporary file stayed"


def test_a_wrong_result_is_never_written(listed: Patch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write_tree(tmp_path)
    monkeypatch.setattr("workbench.engine.trtllm.patching.insert_tap", lambda content: content + b"\n")
    with pytest.raises(PatchRefused, match=listed.after):
        apply_patch(tmp_path)
    assert file.read_text() == source()


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write_tree(tmp_path)

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        apply_patch(tmp_path, structural=True)
    assert file.read_text() == source()
    assert [path.name for path in file.parent.iterdir()] == [file.name]


def test_a_file_that_changes_meanwhile_or_is_a_link_is_left_alone(tmp_path: Path) -> None:
    file = write_tree(tmp_path)
    with pytest.raises(PatchRefused, match="must not change"):
        replace_file(file, old=b"other", new=b"new")
    link = tmp_path / "link.py"
    link.symlink_to(file)
    with pytest.raises(PatchRefused, match="symbolic link"):
        replace_file(link, old=file.read_bytes(), new=b"new")
    assert file.read_text() == source()


def test_an_edited_tap_is_not_taken_out(tmp_path: Path) -> None:
    file = write_tree(tmp_path)
    apply_patch(tmp_path, structural=True)
    file.write_text(file.read_text().replace("# Extraction tap:", "# My tap:"))
    with pytest.raises(PatchRefused, match="word for word"):
        reverse_patch(tmp_path, structural=True)


def test_a_tree_without_the_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PatchRefused, match="site-packages"):
        inspect_tree(tmp_path)


def test_every_patch_adds_the_six_lines_and_names_its_commit() -> None:
    patches = known_patches()
    assert len(patches) >= 26
    assert len({p.before for p in patches}) == len({p.after for p in patches}) == len(patches)
    assert patches[0].version == "0.8.0"
    assert patches[-1].version == "0.17.0.dev2024121700"
    for patch in patches:
        assert patch.file.name == f"v{patch.version}.patch"
        assert len(patch.commit) == 40
        assert "blob" in patch.checked


@pytest.mark.parametrize(
    ("old", "new"), [("Reason:", "Why:"), ("'final_hidden", "'hidden"), ("+            if", "-            if")]
)
def test_an_edited_patch_is_refused(old: str, new: str, tmp_path: Path) -> None:
    text = known_patches()[0].file.read_text()
    assert old in text
    file = tmp_path / "v1.patch"
    file.write_text(text.replace(old, new))
    with pytest.raises(PatchRefused, match=r"v1\.patch"):
        read_patch(file)


def test_the_table_in_the_readme_is_the_table_of_the_patches() -> None:
    readme = (versions.patch_folder() / "README.md").read_text()
    rows = [line for line in readme.splitlines() if line.startswith("| 0.")]
    assert rows == [
        f"| {p.version} | {p.origin} `{p.commit[:12]}` | `{p.before[:12]}` | `{p.after[:12]}` | "
        f"{', '.join(p.checked)} |"
        for p in known_patches()
    ]


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_tree(tmp_path)
    parser = argparse.ArgumentParser()
    add_commands(parser.add_subparsers(required=True))

    def run(*options: str) -> int:
        arguments = parser.parse_args(["patch", str(tmp_path), *options])
        return int(arguments.run(arguments))

    assert run("--check") == 1
    assert run("--structural") == 0
    assert "with the tap" in capsys.readouterr().out
    assert run("--check") == 0
    assert run("--reverse", "--structural") == 0
    assert (tmp_path / MODELING).read_text() == source()


@pytest.mark.skipif(not REAL_TREE, reason="goes once TENSORRT_LLM_TREE names a source tree of TensorRT-LLM")
def test_the_real_source_takes_the_tap_and_gives_it_back(tmp_path: Path) -> None:
    plain = (Path(str(REAL_TREE)) / MODELING).read_bytes()
    if find_place(plain).patched:
        plain = remove_tap(plain)
    write_tree(tmp_path, plain.decode())
    after = apply_patch(tmp_path, structural=True)
    assert after.state == "patched"
    ast.parse((tmp_path / MODELING).read_bytes())
    assert reverse_patch(tmp_path, structural=True).blob == blob_id(plain)
