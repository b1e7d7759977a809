"""A file is there whole or not at all, and a reader never meets half of it."""

import os

import pytest

from workbench.writing import whole_file, write_whole


def test_until_the_end_nothing_has_changed_and_then_all_of_it(tmp_path):
    path = tmp_path / "result"
    path.write_bytes(b"before")
    with whole_file(path) as file:
        file.write(b"after")
        file.flush()
        assert path.read_bytes() == b"before"
    assert path.read_bytes() == b"after"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
@pytest.mark.parametrize("there", [True, False])
def test_what_fails_changes_nothing_and_leaves_nothing(tmp_path, there, error):
    path = tmp_path / "result"
    if there:
        path.write_bytes(b"before")

    def write():
        with whole_file(path) as file:
            file.write(b"after")
            raise error

    with pytest.raises(error):
        write()
    assert [(file.name, file.read_bytes()) for file in tmp_path.iterdir()] == [("result", b"before")] * there


def test_the_bytes_are_on_the_disk_before_the_name_is(tmp_path, monkeypatch):
    calls = []
    true_sync, true_replace = os.fsync, type(tmp_path).replace
    monkeypatch.setattr(os, "fsync", lambda fd: (calls.append(os.fstat(fd).st_size), true_sync(fd)))
    monkeypatch.setattr(type(tmp_path), "replace", lambda *paths: (calls.append("rename"), true_replace(*paths)))
    write_whole(tmp_path / "result", b"twelve bytes")
    assert calls[:2] == [12, "rename"]
    assert len(calls) == 3  # the folder, which holds the name


def test_a_link_is_replaced_and_what_it_names_is_not(tmp_path):
    (tmp_path / "target").write_bytes(b"target")
    (tmp_path / "link").symlink_to("target")
    write_whole(tmp_path / "link", b"own")
    assert not (tmp_path / "link").is_symlink()
    assert (tmp_path / "target").read_bytes() == b"target"


def test_permissions_names_and_folders_are_as_asked(tmp_path):
    path, beside = tmp_path / ("ü" * 127), tmp_path / "beside"  # 254 bytes, the most that file systems take
    beside.mkdir()
    with whole_file(path, mode=0o640, beside=beside) as file:
        assert len(list(beside.iterdir())) == 1
        file.write(b"x")
    assert path.stat().st_mode & 0o777 == 0o640
    assert not list(beside.iterdir())
