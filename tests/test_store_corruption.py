"""T5 and T6: every flipped bit, swapped block, stale file and cut is found; nothing wrong is read in silence."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from store_toys import SMALL, TAPS, canary, fill, make_prompts, new_run

from workbench.errors import ChecksumMismatch, JournalDamaged, StoreError, WorkbenchError
from workbench.store import StoreWarning, open_run
from workbench.store.verifying import repair_batch, verify_run

if TYPE_CHECKING:
    from fault_figures import Note

NOT_DATA = {"lock"}


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sound") / "run"
    writer = new_run(path, 24, options=replace(SMALL, group_bytes=600))
    fill(writer, step=5)
    writer.close()
    assert verify_run(path)
    return path


@pytest.fixture(scope="module")
def unfinished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("unfinished") / "run"
    writer = new_run(path, 24, options=replace(SMALL, group_bytes=600))
    fill(writer, step=5, until=15)
    writer.abort()
    return path


def files_of(path: Path) -> list[Path]:
    return sorted(file for file in path.rglob("*") if file.is_file() and file.name not in NOT_DATA)


def verdict(path: Path) -> tuple[bool, list[np.ndarray] | None]:
    """Open and verify: whether anything was reported, and the rows that a checked reader got."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            verification = verify_run(path)
            run = open_run(path)
            rows = [np.array(run.tap(name, checked=True)[:]) for name in run.taps]
            texts = run.prompts.texts
            ids = run.tokens
        except WorkbenchError:
            return True, None
    assert texts == make_prompts(24).texts[: len(texts)]
    assert len(ids) == run.offsets[-1]
    return bool(told) or not verification, rows


def check_mutant(path: Path, why: object) -> None:
    found, rows = verdict(path)
    assert found, f"silent: {why}"
    for tap, got in zip(TAPS, rows or (), strict=False):
        np.testing.assert_array_equal(got, canary(tap, 0, len(got)), err_msg=f"wrong rows: {why}")


def flip_some(path: Path, count: int, seed: int) -> int:
    """Flip bits one at a time, spread over files so that small files get their share."""
    generator = random.Random(seed)
    files = files_of(path)
    contents = {file: file.read_bytes() for file in files}
    for number in range(count):
        file = files[number % len(files)]
        if not contents[file]:
            continue
        at, bit = generator.randrange(len(contents[file])), generator.randrange(8)
        mutant = bytearray(contents[file])
        mutant[at] ^= 1 << bit
        file.write_bytes(mutant)
        check_mutant(path, (file.name, at, bit))
        file.write_bytes(contents[file])
    return count


def test_every_flipped_bit_of_a_complete_run_is_found(sound: Path, tmp_path: Path) -> None:
    shutil.copytree(sound, tmp_path / "run")
    flip_some(tmp_path / "run", 300, seed=1)
    assert verify_run(tmp_path / "run")


@pytest.mark.slow
def test_ten_thousand_flipped_bits_are_found(sound: Path, tmp_path: Path, note: Note) -> None:
    shutil.copytree(sound, tmp_path / "run")
    note(flips=flip_some(tmp_path / "run", 10_000, seed=2), seed=2, silent=0)


def test_a_flipped_bit_of_an_unfinished_run_is_found_or_harmless(unfinished: Path, tmp_path: Path) -> None:
    """Bytes past the watermark and the reserve hold no data; everywhere else a flip is found."""
    shutil.copytree(unfinished, tmp_path / "run")
    path, generator = tmp_path / "run", random.Random(3)
    for file in files_of(path):
        whole = file.read_bytes()
        for _ in range(12):
            mutant = bytearray(whole)
            at = generator.randrange(len(whole))
            mutant[at] ^= 1 << generator.randrange(8)
            file.write_bytes(mutant)
            found, rows = verdict(path)
            for tap, got in zip(TAPS, rows or (), strict=False):
                np.testing.assert_array_equal(got, canary(tap, 0, len(got)))
            past = (file.suffix == ".part" and at >= 4096) or file.name == "reserve"
            assert found or past, f"silent: {file.name} byte {at}"
        file.write_bytes(whole)


def test_one_flip_names_segment_and_batch_and_leaves_the_others_readable(sound: Path, tmp_path: Path) -> None:
    shutil.copytree(sound, tmp_path / "run")
    path = tmp_path / "run"
    run = open_run(path)
    number = len(run.batches) // 2
    first, stop = run.batches.rows(number)
    file = path / "taps" / "final_norm.safetensors"
    whole = bytearray(file.read_bytes())
    whole[4096 + first * 32 + 5] ^= 4
    file.write_bytes(whole)
    run = open_run(path)
    with pytest.raises(ChecksumMismatch, match=rf"batch {number} of segment 'final_norm/00000'"):
        run.tap("final_norm", checked=True)[first]
    with pytest.raises(ChecksumMismatch):
        list(run.tap("final_norm").blocks(size_bytes=64))
    np.testing.assert_array_equal(run.tap("final_norm", checked=True)[:first], canary(TAPS[0], 0, first))
    np.testing.assert_array_equal(
        run.tap("blocks.0.resid_post", checked=True)[first], canary(TAPS[1], first, first + 1)[0]
    )
    with pytest.raises(ChecksumMismatch):
        open_run(path, scrub=1.0)
    verification = verify_run(path)
    assert [(bad.batch, bad.tap, bad.first_row) for bad in verification.bad] == [(number, "final_norm", first)]
    with pytest.raises(ChecksumMismatch):
        repair_batch(path, number, {"final_norm": canary(TAPS[0], first, stop) + 1})
    repair_batch(path, number, {"final_norm": canary(TAPS[0], first, stop)})
    assert verify_run(path)


def test_swapped_blocks_and_segments_are_found(sound: Path, tmp_path: Path) -> None:
    taps = (TAPS[0], replace(TAPS[0], name="other"))
    same = np.ones
    writer = new_run(tmp_path / "twins", 24, taps=taps, options=replace(SMALL, group_bytes=600))
    for first in range(0, 24, 4):
        n = int(writer.row_offsets[first + 4] - writer.row_offsets[first])
        writer.commit(first, first + 4, {tap.name: same((n, 8), dtype=np.float32) for tap in taps})
    run = writer.close()
    assert len({record.taps[at].checksum for _, record in run.batches.items for at in (0, 1)}) == 2 * len(run.batches)
    one, two = (tmp_path / "twins" / "taps" / f"{tap.name}.safetensors" for tap in taps)
    left, right = one.read_bytes(), two.read_bytes()
    one.write_bytes(right)
    two.write_bytes(left)
    with pytest.raises(StoreError, match="segment"):
        _ = open_run(tmp_path / "twins").tap("other")[:]
    shutil.copytree(sound, tmp_path / "run")
    file = tmp_path / "run" / "taps" / "final_norm.safetensors"
    data = file.read_bytes()
    file.write_bytes(data[:4096] + data[4096 + 512 : 4096 + 1024] + data[4096 : 4096 + 512] + data[4096 + 1024 :])
    check_mutant(tmp_path / "run", "swapped blocks")


@pytest.mark.parametrize("name", ["taps/final_norm.safetensors", "journal", "manifest.json", "tokens.safetensors"])
def test_a_stale_file_of_another_run_is_refused(sound: Path, tmp_path: Path, name: str) -> None:
    shutil.copytree(sound, tmp_path / "run")
    writer = new_run(tmp_path / "old", 24, tokens=None or __import__("store_toys").make_tokens(24, seed=9))
    fill(writer)
    writer.close()
    shutil.copyfile(tmp_path / "old" / name, tmp_path / "run" / name)
    check_mutant(tmp_path / "run", f"stale {name}")


def test_a_damaged_manifest_falls_back_to_the_previous_one(sound: Path, tmp_path: Path) -> None:
    shutil.copytree(sound, tmp_path / "run")
    for content in (b"", (tmp_path / "run" / "manifest.json").read_bytes()[:100]):
        (tmp_path / "run" / "manifest.json").write_bytes(content)
        with pytest.warns(StoreWarning, match=r"using version \d"):
            run = open_run(tmp_path / "run")
        assert run.status == "complete"
        assert run.n_prompts == 24


def test_a_newer_format_is_refused_by_name(sound: Path, tmp_path: Path) -> None:
    from workbench.store.manifest import load_manifest, manifest_bytes

    shutil.copytree(sound, tmp_path / "run")
    newer = load_manifest(tmp_path / "run").model_copy(update={"format": 99})
    (tmp_path / "run" / "manifest.json").write_bytes(manifest_bytes(newer))
    with pytest.raises(StoreError, match="99"):
        open_run(tmp_path / "run")


def test_a_bad_record_before_a_good_one_is_no_torn_tail(unfinished: Path, tmp_path: Path) -> None:
    shutil.copytree(unfinished, tmp_path / "run")
    journal = tmp_path / "run" / "journal"
    data = bytearray(journal.read_bytes())
    for copy in (0, 4096):
        data[8192 + copy + 40] ^= 1
    journal.write_bytes(data)
    with pytest.raises(JournalDamaged, match="before a good one"):
        open_run(tmp_path / "run")


CUT = """
import sys, warnings
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from test_store_corruption import check_mutant, files_of
root, first, step = Path(sys.argv[1]), int(sys.argv[3]), int(sys.argv[4])
count = 0
for file in files_of(root):
    whole = file.read_bytes()
    stride = step * 101 if file.name == "journal" else step  # most of it is empty slots
    for length in range(first % stride, len(whole), stride):
        with file.open("r+b") as out:
            out.truncate(length)
        check_mutant(root, (file.name, length))
        count += 1
        file.write_bytes(whole)
print(count)
"""


def cut_everywhere(path: Path, first: int, step: int) -> int:
    """Cut each file at every `step`-th byte in a child, so that a signal would be seen."""
    here = str(Path(__file__).parent)
    done = subprocess.run(
        [sys.executable, "-c", CUT, str(path), here, str(first), str(step)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, (done.returncode, done.stderr[-2000:])
    return int(done.stdout)


def test_a_cut_at_any_byte_ends_in_an_error_and_no_signal(sound: Path, tmp_path: Path) -> None:
    shutil.copytree(sound, tmp_path / "run")
    assert cut_everywhere(tmp_path / "run", 5, 499) > 30


@pytest.mark.long
def test_a_cut_at_every_second_byte_of_a_small_run(sound: Path, tmp_path: Path, note: Note) -> None:
    shutil.copytree(sound, tmp_path / "run")
    note(cuts=cut_everywhere(tmp_path / "run", 0, 2), signals=0, silent=0)


def test_a_segment_cut_under_an_open_map_is_an_error(sound: Path, tmp_path: Path) -> None:
    shutil.copytree(sound, tmp_path / "run")
    run = open_run(tmp_path / "run")
    array = run.tap("final_norm")
    _ = array[0]
    with (tmp_path / "run" / "taps" / "final_norm.safetensors").open("r+b") as file:
        file.truncate(5000)
    with pytest.raises(StoreError, match="keep"):
        _ = array[20]


def test_a_run_removed_under_a_reader_stays_readable(sound: Path, tmp_path: Path) -> None:
    shutil.copytree(sound, tmp_path / "run")
    run = open_run(tmp_path / "run")
    view = run.tap("final_norm")[:]
    shutil.rmtree(tmp_path / "run")
    np.testing.assert_array_equal(view, canary(TAPS[0], 0, run.n_rows))


def test_links_inside_a_run_are_not_followed(sound: Path, tmp_path: Path) -> None:
    for name in ("taps/final_norm.safetensors", "tokens.safetensors", "taps", "journal"):
        path = tmp_path / f"run-{name.replace('/', '-')}"
        shutil.copytree(sound, path)
        target = tmp_path / f"moved-{name.replace('/', '-')}"
        (path / name).rename(target)
        (path / name).symlink_to(target)
        assert "link" in str(verify_run(path)), name
