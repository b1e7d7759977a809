"""Registry: names, paths, comparison in words, export and import."""

import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from workbench.canonical import canonical_json, digest_of
from workbench.cli import main
from workbench.engine import archive, names, opening, scratch
from workbench.engine.contract import contract_schema
from workbench.engine.difference import differences
from workbench.engine.hashing import sha256_of
from workbench.engine.opening import open_engine, read_contract
from workbench.engine.registry import Registry
from workbench.errors import EngineError, EngineRefused, StoreFull
from workbench.inspection import inspect

BAD_NAMES = [
    *("", ".", "..", "../x", "a/b", "a\\b", "C:\\x", "x\0", "x\n", "CON", "con", "nul.txt", "com1", "Name", "é", "-a"),
    *(".a", "a.", "a" * 65, "a" * 300, "a b", "a:b", None, 7, "\u202ea"),
]


@pytest.fixture
def registry(toy_engines, tmp_path):
    """Two engines in a folder of their own, and what they are called there."""
    root = tmp_path / "engines"
    root.mkdir()
    for precision in ("fp32", "int8"):
        path = toy_engines(precision).path
        shutil.copytree(path, root / path.name)
    found = Registry(root)
    found.name("toy-fp32", toy_engines().id)
    found.name("toy-int8", toy_engines("int8").id[:12])
    return found


@pytest.mark.parametrize("name", BAD_NAMES, ids=repr)
def test_one_allow_list_refuses_every_other_name(registry, toy_engines, name):
    before = sorted(p.relative_to(registry.root) for p in registry.root.rglob("*"))
    with pytest.raises(EngineError, match="must be 1 to 64"):
        registry.name(name, toy_engines().id)
    assert sorted(p.relative_to(registry.root) for p in registry.root.rglob("*")) == before


def test_a_name_a_prefix_and_a_folder_all_lead_to_the_engine(registry, toy_engines):
    home = registry.root / toy_engines().id[:20]
    for word in ("toy-fp32", toy_engines().id, toy_engines().id[:6], str(home)):
        assert registry.resolve(word) == home
    assert open_engine(registry.root / "toy-fp32").id == toy_engines().id
    assert f"id {toy_engines().id[:20]}" in inspect(str(registry.root / "toy-fp32"))
    with pytest.raises(EngineError, match="There are: toy-fp32, toy-int8"):
        registry.resolve("toy-fp16")
    with pytest.raises(EngineError, match="six digits"):
        registry.resolve(toy_engines().id[:5])


def test_a_name_moves_to_another_engine(registry, toy_engines):
    registry.name("toy-fp32", "toy-int8")
    assert read_contract(registry.resolve("toy-fp32")).engine_id == toy_engines("int8").id


@pytest.mark.parametrize("kind", ["symlink", "folder", "fifo", "long", "words"])
def test_a_planted_name_is_not_followed(registry, toy_engines, tmp_path, kind):
    planted = registry.root / names.NAMES_FOLDER / "planted"
    outside = tmp_path / "outside"
    outside.write_text(toy_engines().id)
    make = {
        "symlink": lambda: planted.symlink_to(outside),
        "folder": planted.mkdir,
        "fifo": lambda: os.mkfifo(planted),
        "long": lambda: planted.write_text(toy_engines().id * 5),
        "words": lambda: planted.write_text("../../outside"),
    }
    make[kind]()
    assert "planted" not in names.read_names(registry.root)


def test_a_folder_of_names_that_is_a_link_is_neither_read_nor_written(registry, toy_engines, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    shutil.move(registry.root / names.NAMES_FOLDER, elsewhere)
    (registry.root / names.NAMES_FOLDER).symlink_to(elsewhere)
    assert names.read_names(registry.root) == {}
    with pytest.raises(EngineError, match="a link or a file"):
        registry.name("new", toy_engines().id)
    assert not (elsewhere / "new").exists()


def test_an_engine_folder_that_is_a_link_is_not_listed_and_not_removed(registry, toy_engines, tmp_path):
    outside = shutil.copytree(toy_engines().path, tmp_path / "outside")
    (registry.root / "linked").symlink_to(outside)
    assert len(registry.entries()) == 2
    with pytest.raises(EngineError, match="by hand"):
        registry.remove(str(registry.root / "linked"))
    with pytest.raises(EngineError, match="by hand"):
        registry.remove(str(outside))
    assert (outside / "contract.json").exists()


def test_remove_takes_the_names_along(registry):
    folder, gone = registry.remove("toy-int8")
    assert gone == ("toy-int8",)
    assert not folder.exists()
    assert list(names.read_names(registry.root)) == ["toy-fp32"]


def test_a_damaged_engine_is_listed_as_such(registry, toy_engines):
    (registry.resolve("toy-int8") / "contract.json").write_text("{")
    faults = [entry.fault for entry in registry.entries() if entry.contract is None]
    assert len(faults) == 1
    assert "contract in JSON" in faults[0]


def test_export_and_import_give_the_same_engine(registry, toy_engines, tmp_path):
    path = registry.export("toy-fp32", tmp_path / "toy.tar")
    assert registry.export("toy-fp32", tmp_path / "again.tar").read_bytes() == path.read_bytes()
    other = Registry(tmp_path / "other")
    home = other.import_(path, expect=toy_engines().id)
    assert open_engine(home).contract == toy_engines().contract
    assert other.import_(toy_engines().path) == home
    with pytest.raises(EngineError, match="must be new"):
        registry.export("toy-fp32", path)


def test_an_export_keeps_the_bytes_of_a_contract_that_others_wrote(registry, toy_engines, tmp_path):
    plain = toy_engines().contract.to_json()
    plain["build"]["seconds"] = 1  # a whole number, where this package writes 1.0
    plain["of_the_future"] = {"x": [1, 2.50]}
    del plain["digest"]
    data = canonical_json(plain | {"digest": digest_of(plain)})
    (registry.resolve("toy-fp32") / "contract.json").write_bytes(data)
    home = Registry(tmp_path / "other").import_(registry.export("toy-fp32", tmp_path / "toy.tar"))
    assert (home / "contract.json").read_bytes() == data
    assert open_engine(home).contract.to_json()["of_the_future"] == {"x": [1, 2.5]}


def members(path):
    with tarfile.open(path) as tar:
        return [(info, tar.extractfile(info).read()) for info in tar.getmembers()]


def retar(path, parts):
    with tarfile.open(path, "w") as tar:
        for info, data in parts:
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


def renamed(name, **changes):
    info = tarfile.TarInfo(name)
    for field, value in changes.items():
        setattr(info, field, value)
    return info


@pytest.mark.parametrize(
    "attack",
    [
        lambda parts: parts[1:],
        lambda parts: parts[:-1],
        lambda parts: [*parts, parts[-1]],
        lambda parts: [*parts, (renamed("../outside"), b"x")],
        lambda parts: [*parts, (renamed("/tmp/outside"), b"x")],
        lambda parts: [*parts[:-1], (renamed(parts[-1][0].name, type=tarfile.SYMTYPE, linkname="/etc/passwd"), b"")],
        lambda parts: [*parts[:-1], (renamed(parts[-1][0].name, type=tarfile.LNKTYPE, linkname="contract.json"), b"")],
        lambda parts: [*parts[:-1], (parts[-1][0], parts[-1][1][:-1] + b"\0")],
        lambda parts: [(parts[0][0], parts[0][1].replace(b'"recipe.json"', b'"../recipe.jso"')), *parts[1:]],
        lambda parts: [],
        lambda parts: [*parts, (renamed("x", type=tarfile.GNUTYPE_SPARSE), b"x")],
        lambda parts: [parts[0], (renamed("x", type=tarfile.XHDTYPE), b"17 path=../escape\n"), *parts[1:]],
        lambda parts: [(renamed("x", type=tarfile.GNUTYPE_LONGNAME), b"y" * 9000), *parts],
        lambda parts: [(renamed("nested/contract.json"), parts[0][1]), *parts[1:]],
        lambda parts: [(parts[0][0], b"[" * 100_000), *parts[1:]],
    ],
)  # fmt: skip
def test_a_hostile_export_leaves_nothing(registry, tmp_path, attack):
    good = registry.export("toy-fp32", tmp_path / "toy.tar")
    other = Registry(tmp_path / "other")
    with pytest.raises(EngineError):
        other.import_(retar(tmp_path / "bad.tar", attack(members(good))))
    assert not list(other.root.iterdir())
    assert not (tmp_path / "outside").exists()


@pytest.mark.parametrize("size", [1 << 62, -512])
def test_a_member_longer_than_the_file_is_refused(registry, tmp_path, size):
    good = registry.export("toy-fp32", tmp_path / "toy.tar")
    contract = members(good)[0][1]
    data = archive.header("contract.json", len(contract)) + contract + bytes(-len(contract) % 512)
    (tmp_path / "bad.tar").write_bytes(data + archive.header("model.onnx", size) + b"x")
    other = Registry(tmp_path / "other")
    with pytest.raises(EngineRefused, match=r"one that was cut|plain files only"):
        other.import_(tmp_path / "bad.tar")
    assert not list(other.root.iterdir())


def test_sizes_beyond_the_octal_field_survive_the_header():
    for size in (0, 511, (8 << 30) - 1, 8 << 30, 40 << 30):
        block = archive.header("weights.bin", size)
        assert len(block) == 512
        assert tarfile.TarInfo.frombuf(block, "ascii", "strict").size == size


def test_an_import_needs_room(registry, tmp_path, monkeypatch):
    good = registry.export("toy-fp32", tmp_path / "toy.tar")
    usage = shutil.disk_usage(tmp_path)._replace(free=scratch.ROOM + good.stat().st_size - 1)
    monkeypatch.setattr(scratch.shutil, "disk_usage", lambda _path: usage)
    other = Registry(tmp_path / "other")
    with pytest.raises(StoreFull, match="bytes free"):
        other.import_(good)
    assert not list(other.root.iterdir())
    usage = usage._replace(free=usage.free + 1)
    assert other.import_(good).is_dir()


def test_importing_again_mends_a_damaged_engine_and_keeps_a_whole_one(registry, toy_engines):
    home = registry.resolve("toy-fp32")
    whole = home.stat().st_ino
    assert registry.import_(toy_engines().path) == home
    assert home.stat().st_ino == whole
    for name in ("weights.bin", "contract.json"):
        (home / name).write_bytes(b"damaged")
        assert registry.import_(toy_engines().path) == home
        assert registry.verify("toy-fp32").engine_id == toy_engines().id
    assert sorted(path.name[0] for path in registry.root.iterdir()).count(".") == 1  # the folder of names


def test_an_engine_of_a_newer_schema_or_without_permission_is_never_taken_for_damaged(
    registry, toy_engines, monkeypatch, capsys
):
    home = registry.resolve("toy-fp32")
    newer = toy_engines().contract.to_json() | {"schema_version": "2.0"}
    (home / "contract.json").write_bytes(canonical_json(newer))
    with pytest.raises(EngineRefused, match="Update the workbench"):
        registry.import_(toy_engines().path)
    assert json.loads((home / "contract.json").read_bytes()) == newer
    (home / "contract.json").write_bytes(toy_engines().contract.to_bytes())

    def refuse(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(opening, "sha256_of", lambda path: refuse(path) if path.parent == home else sha256_of(path))
    with pytest.raises(EngineRefused, match="must be readable; got Permission denied"):
        registry.import_(toy_engines().path)
    monkeypatch.undo()
    assert registry.verify("toy-fp32").engine_id == toy_engines().id
    real = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: refuse(path) if path.parent == home else real(path))
    assert main(["engines", "list", "--in", str(registry.root)]) == 1
    assert "DAMAGED: contract.json must be readable" in capsys.readouterr().out
    monkeypatch.undo()
    assert sorted(path.name for path in registry.root.iterdir()) == sorted(
        [".names", home.name, registry.resolve("toy-int8").name]
    )


KILLED = """
import os, sys
from pathlib import Path
from workbench.engine import registry, archive
registry.unpack = lambda source, into: (into / "half").write_bytes(b"x") and os._exit(9)
registry.Registry(sys.argv[1]).import_(sys.argv[2])
"""


def test_what_a_killed_import_left_is_swept_away_and_what_a_live_one_writes_is_not(registry, tmp_path):
    good = registry.export("toy-fp32", tmp_path / "toy.tar")
    other = Registry(tmp_path / "other")
    done = subprocess.run([sys.executable, "-c", KILLED, str(other.root), str(good)], check=False)
    assert done.returncode == 9
    assert [path.name[:11] for path in other.root.iterdir()] == [".importing-"]
    with scratch.scratch_folder(other.root, "building") as live:
        (live / "half").write_bytes(b"x")
        home = other.import_(good)
        assert sorted(other.root.iterdir()) == sorted([live, home])
        assert (live / "half").exists()
    assert list(other.root.iterdir()) == [home]
    (tmp_path / "plain").mkdir()
    assert home.stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_a_file_system_without_locks_is_used_and_never_swept(tmp_path, monkeypatch):
    import fcntl

    def refuse(_handle, _how):
        raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with scratch.scratch_folder(tmp_path, "building") as first, scratch.scratch_folder(tmp_path, "importing") as second:
        assert sorted(tmp_path.iterdir()) == sorted([first, second])
    assert not list(tmp_path.iterdir())


def test_an_engine_that_came_first_stays(tmp_path):
    home = tmp_path / "home"
    for text in ("first", "second"):
        with scratch.scratch_folder(tmp_path, "building") as folder:
            (folder / "text").write_text(text)
            assert scratch.settle(folder, home) is (text == "first")
    assert (home / "text").read_text() == "first"
    assert list(tmp_path.iterdir()) == [home]
    (tmp_path / "planted").symlink_to(home)
    with scratch.scratch_folder(tmp_path, "building") as folder, pytest.raises(EngineError, match="a link at planted"):
        scratch.settle(folder, tmp_path / "planted")


def test_an_engine_that_is_damaged_or_gone_can_be_removed_by_what_the_listing_shows(registry, toy_engines, capsys):
    root = ["--in", str(registry.root)]
    (registry.resolve("toy-int8") / "contract.json").write_text("{")
    assert main(["engines", "list", *root]) == 1
    assert "DAMAGED" in capsys.readouterr().out
    assert main(["engines", "rm", toy_engines("int8").id[:20], "--yes", *root]) == 0
    assert "and the names toy-int8" in capsys.readouterr().out
    shutil.rmtree(registry.resolve("toy-fp32"))
    assert main(["engines", "show", "toy-fp32", *root]) == 2
    assert "workbench engines rm toy-fp32 --yes" in capsys.readouterr().err
    assert main(["engines", "rm", "toy-fp32", "--yes", *root]) == 0
    assert names.read_names(registry.root) == {}


def test_a_removal_says_beforehand_who_will_miss_the_engine(registry, toy_engines, capsys):
    home = registry.resolve("toy-int8")
    child = read_contract(home).model_copy(update={"parent": toy_engines().id}).sealed()
    (home / "contract.json").write_bytes(child.to_bytes())
    assert main(["engines", "rm", "toy-fp32", "--in", str(registry.root)]) == 0
    out = capsys.readouterr().out
    for words in ("and the names toy-fp32", "and stay: toy-int8", "Runs that it made stay readable"):
        assert words in out
    assert registry.resolve("toy-fp32").is_dir()


def test_the_listing_tells_what_a_sequence_calls_an_engine_without_a_name(registry, toy_engines, capsys):
    home = registry.resolve("toy-int8")
    called = read_contract(home).model_copy(update={"name": "cacheless-int8"}).sealed()
    (home / "contract.json").write_bytes(called.to_bytes())
    assert main(["engines", "list", "--in", str(registry.root)]) == 0
    assert "toy-int8" in capsys.readouterr().out
    names.drop_names(registry.root, called.engine_id)
    assert main(["engines", "list", "--in", str(registry.root)]) == 0
    assert "(cacheless-int8)" in capsys.readouterr().out


def test_a_name_that_reads_as_an_id_is_refused(registry, toy_engines):
    for name in ("facade", toy_engines("int8").id[:6], "0" * 64):
        with pytest.raises(EngineError, match="start of an engine id"):
            registry.name(name, "toy-fp32")
    registry.name("fac", "toy-fp32")


def test_an_export_that_cannot_be_written_says_why(registry, tmp_path):
    with pytest.raises(EngineError, match="folder of an export must exist"):
        registry.export("toy-fp32", tmp_path / "nowhere" / "toy.tar")
    with pytest.raises(EngineRefused, match="No such file"):
        registry.import_(tmp_path / "nowhere.tar")


def test_a_cut_export_and_an_unexpected_engine_are_refused(registry, toy_engines, tmp_path):
    good = registry.export("toy-fp32", tmp_path / "toy.tar")
    data = good.read_bytes()
    other = Registry(tmp_path / "other")
    for size in (0, 100, 600, len(data) // 2, len(data) - 12000, len(data) - 1024):
        (tmp_path / "cut.tar").write_bytes(data[:size])
        with pytest.raises(EngineRefused):
            other.import_(tmp_path / "cut.tar")
    with pytest.raises(EngineRefused, match="Expected 00ff"):
        other.import_(good, expect="00ff")
    assert not list(other.root.iterdir())


def test_differences_are_said_in_words(toy_engines):
    full, small = toy_engines().contract, toy_engines("int8").contract
    text = " ".join(differences(full, small, names=("full", "small")))
    assert "Precision: full is fp32, small is int8." in text
    assert "Weights: float32 in full, int8" in text
    assert "Error at final_norm: mean" in text
    assert differences(full, full) == ("Both are the same engine: equal recipe and equal plan, byte by byte.",)
    kept = small.model_copy(
        update={
            "engine_id": "0" * 64,
            "precision": small.precision.model_copy(
                update={"kept_layers": ("blocks.1.down",), "scales_digest": "ab" * 32}
            ),
            "backend": small.backend.model_copy(update={"version": "0.1", "card": {"name": "H200"}, "target": "sm_90"}),
            "limits": small.limits.model_copy(update={"prompts_per_pass": 8}),
            "build": small.build.model_copy(update={"tools": small.build.tools | {"onnx": "0.9"}}),
        }
    )
    text = " ".join(differences(small, kept, names=("one", "two")))
    assert "Largest pass, in prompts: any number in one, 8 in two." in text
    assert f"Built with onnx {small.build.tools['onnx']} in one, 0.9 in two." in text
    card = kept.backend.model_copy(update={"card": {"name": "H200", "driver": "580"}})
    old = kept.backend.model_copy(update={"card": {"name": "H200", "driver": "570"}})
    other = {"engine_id": "1" * 64}
    cards = differences(kept.model_copy(update={"backend": card}), kept.model_copy(update={"backend": old} | other))
    assert cards == ("Their recipes are equal; what was built from them is not.", "Card, driver: 580 in A, 570 in B.")
    for words in (
        "only in two: blocks.1.down", "none from calibration in one, abababababab in two", "0.1 in two",
        "no card in one, H200 in two", "for sm_90 in two",
    ):  # fmt: skip
        assert words in text


def published_schema():
    from importlib.resources import files

    return json.loads((files("workbench.engine") / "contract.schema.json").read_text(encoding="utf-8"))


def test_the_published_schema_is_that_of_the_contract():
    assert published_schema() == contract_schema()


def test_other_tools_can_hold_a_contract_against_the_published_schema(toy_engines):
    from jsonschema import Draft202012Validator

    Draft202012Validator.check_schema(published_schema())
    schema = Draft202012Validator(published_schema())
    for precision in ("fp32", "int8", "bf16"):
        contract = toy_engines(precision).contract.to_json()
        assert not list(schema.iter_errors(contract))
        assert not list(schema.iter_errors(contract | {"schema_version": "1.9", "of_the_future": {"x": [1]}}))
        for change in (
            {"schema_version": "2.0"},
            {"engine_id": "0f3a"},
            {"positions": None},
            {"limits": contract["limits"] | {"max_tokens": 0}},
            {"files": {"model.onnx": "no digest"}},
        ):
            assert len(list(schema.iter_errors(contract | change))) > 0, change
        for field in ("schema_version", "digest", "engine_id", "verification", "files"):
            assert len(list(schema.iter_errors({k: v for k, v in contract.items() if k != field}))) > 0, field


def test_every_action_of_the_command_works(registry, tmp_path, capsys):
    root = ["--in", str(registry.root)]
    for words, code, text in (
        (["list", *root], 0, "toy-int8"),
        (["show", "toy-fp32", *root], 0, "How exact it is"),
        (["show", "toy-fp32", "--json", *root], 0, '"engine_id"'),
        (["diff", "toy-fp32", "toy-int8", *root], 0, "Precision: toy-fp32 is fp32"),
        (["verify", "toy-fp32", *root], 0, "self-test passed"),
        (["name", "toy-int8", "best", *root], 0, "stands for"),
        (["name", "toy-fp32", "best", *root], 0, "no longer for"),
        (["export", "best", "--out", str(tmp_path / "best.tar"), *root], 0, "wrote"),
        (["rm", "best", *root], 0, "would remove"),
        (["rm", "best", "--yes", *root], 0, "and the names best, toy-fp32"),
        (["import", str(tmp_path / "best.tar"), "--name", "Back", *root], 2, "must be 1 to 64"),
        (["show", "toy-fp32", *root], 2, "There are: toy-int8"),
        (["import", str(tmp_path / "best.tar"), "--name", "back", *root], 0, "took in"),
        (["verify", "back", "--hashes-only", *root], 0, "as the contract says"),
        (["show", "nothing", *root], 2, "There are: back"),
    ):
        assert main(["engines", *words]) == code, words
        out = capsys.readouterr()
        assert text in out.out + out.err, words


@pytest.mark.parametrize(
    "hostile", ["<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "a|b`c\u202e\x1b[31m"]
)
def test_the_sheet_says_what_the_contract_says_and_escapes_it(toy_engines, tmp_path, capsys, hostile):
    from workbench.engine import onboarding

    engine = toy_engines()
    assert main(["onboard", str(engine.path), "--out", str(tmp_path / "sheet.html")]) == 0
    page, text = (tmp_path / "sheet.html").read_text(), (tmp_path / "sheet.md").read_text()
    worst = engine.contract.verification.taps["final_norm"].worst_relative_error
    for part in (engine.id, f"{worst:.3g}", "wb.open_engine", "workbench extract", "workbench build", "32 tokens"):
        assert part in page, part
        assert part.replace("_", "\\_") in text or part in text, part
    named = engine.contract.checkpoint.model_copy(update={"name": hostile})
    contract = engine.contract.model_copy(update={"checkpoint": named})
    page, text = onboarding.to_html(contract, "engines/x"), onboarding.to_markdown(contract, "engines/x")
    assert "<script" not in page
    assert "<img" not in page
    assert "\u202e" not in page + text
    assert "\x1b" not in page + text


def test_no_text_of_a_contract_becomes_a_command_of_the_sheet(toy_engines):
    import shlex

    from workbench.engine import onboarding

    contract = toy_engines().contract
    hostile = "x\nrm -rf /; $(reboot) `reboot`"
    contract = contract.model_copy(
        update={
            "checkpoint": contract.checkpoint.model_copy(update={"name": hostile}),
            "backend": contract.backend.model_copy(update={"name": hostile, "options": {hostile: hostile}}),
            "precision": contract.precision.model_copy(update={"name": hostile}),
            "taps": (hostile, "final_norm"),
        }
    )
    for title, code in onboarding.calls_of(contract, "engines/x; reboot", (hostile,)):
        if title == "From Python":
            compile(code, title, "exec")
            assert len(code.splitlines()) == 5
            continue
        lines = code.splitlines()
        assert all(line.startswith(("# CHECKPOINT is x\\u000arm", "workbench ")) for line in lines), title
        words = shlex.split(lines[-1])
        assert words.count("--tap") == (2 if "build" in words else 0)
        assert not {"rm", "reboot", "$(reboot)"} & set(words)


def test_sheets_that_cannot_be_written_are_refused(toy_engines, tmp_path, capsys):
    path = str(toy_engines().path)
    assert main(["onboard", path, "--out", str(tmp_path / "sheet.md")]) == 2
    assert "two files" in capsys.readouterr().err
    assert main(["onboard", path, "--out", str(tmp_path / "nowhere" / "sheet.html")]) == 2
    assert "sheets must be writable" in capsys.readouterr().err


def test_the_rebuild_command_of_the_sheet_gives_the_same_engine(toy_checkpoint, tmp_path, capsys):
    import shlex

    from workbench.engine import Recipe, build, onboarding

    recipe = Recipe(
        checkpoint=toy_checkpoint, precision="int8-dynamic", max_tokens=32, keep=("*.down",), positions=(0, -1),
        options={"smoothing": 0.3},
    )  # fmt: skip
    engine = build(recipe, tmp_path / "first")
    onboarding.write_sheet(engine.path, html=tmp_path / "s.html", markdown=tmp_path / "s.md")
    line = next(line for line in (tmp_path / "s.md").read_text().splitlines() if "workbench build CHECKPOINT" in line)
    words = [str(toy_checkpoint.path) if word == "CHECKPOINT" else word for word in shlex.split(line.strip())[1:]]
    words[words.index("engines")] = str(tmp_path / "second")
    assert main(words) == 0
    assert engine.id[:20] in capsys.readouterr().out
