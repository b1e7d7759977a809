"""Files are opened below their folder and nowhere else."""

import errno
import os
import socket
from pathlib import Path

import pytest

from workbench.checkpoint import paths
from workbench.checkpoint.paths import Folder, open_beneath
from workbench.errors import CheckpointError


@pytest.fixture
def tree(tmp_path):
    """A folder `model` with a file, and a secret beside it."""
    (tmp_path / "secret").write_bytes(b"secret")
    folder = tmp_path / "model"
    (folder / "below").mkdir(parents=True)
    (folder / "a").write_bytes(b"content")
    (folder / "below" / "b").write_bytes(b"deeper")
    return folder


@pytest.fixture(params=["openat2", "by parts"])
def how(request, monkeypatch):
    """Both ways of opening: the kernel's, and the portable one."""
    if request.param == "by parts":
        monkeypatch.setattr(paths, "_openat2", lambda *_: None)
    return request.param


def _read(folder, name):
    return Folder(folder).read(name, max_bytes=100)


def test_a_file_is_read_whole(tree, how):
    assert _read(tree, "a") == b"content"
    assert bytes(Folder(tree).map("a").data) == b"content"


def test_this_kernel_has_openat2(tree):
    descriptor = os.open(tree, os.O_RDONLY)
    try:
        found = paths._openat2(descriptor, "a")
        if found is None:
            pytest.skip("runs once the kernel is Linux 5.6 or later and its sandbox admits openat2")
        os.close(found)
        with pytest.raises(OSError, match="ross-device") as refusal:
            paths._openat2(descriptor, "../secret")
        assert refusal.value.errno == errno.EXDEV
    finally:
        os.close(descriptor)


BAD_NAMES = [
    "", ".", "..", "../secret", "/etc/passwd", "below/b", "./a", "a/", "//a", "../model/a", "below/../a", "a\\b", "C:a",
    "a\0", "\0", "a\n", "\x1b[2J", "\u202ea", "\ud800", "x" * 256,
]  # fmt: skip


@pytest.mark.parametrize("name", BAD_NAMES, ids=ascii)
def test_only_bare_names_are_opened(tree, name):
    with pytest.raises(CheckpointError, match="bare name") as refusal:
        _read(tree, name)
    assert str(refusal.value).isprintable()


@pytest.mark.parametrize(
    "path", ["../secret", "/etc/passwd", "below/../../secret", "below/../a", "", "a\0", "below//b", "./a"]
)
def test_no_path_leads_out(tree, how, path):
    descriptor = os.open(tree, os.O_RDONLY)
    try:
        with pytest.raises(OSError, match="out of its folder"):
            open_beneath(descriptor, path)
    finally:
        os.close(descriptor)


def test_a_link_planted_after_the_look_is_not_followed(tree):
    (tree / "link").symlink_to("../secret")
    descriptor = os.open(tree, os.O_RDONLY)
    try:
        with pytest.raises(OSError, match="symbolic links"):
            paths._open_by_parts(descriptor, ["link"])
        with pytest.raises(OSError, match="symbolic links"):
            assert paths._openat2(descriptor, "link") is not None or os.open("link", os.O_NOFOLLOW, dir_fd=descriptor)
    finally:
        os.close(descriptor)


def test_a_path_below_is_opened_but_not_through_a_link(tree, how):
    (tree / "link").symlink_to("below")
    descriptor = os.open(tree, os.O_RDONLY)
    try:
        found = open_beneath(descriptor, "below/b")
        assert os.read(found, 10) == b"deeper"
        os.close(found)
        with pytest.raises(OSError, match=r"symbolic links|Not a directory|cross-device|Invalid"):
            open_beneath(descriptor, "link/b")
    finally:
        os.close(descriptor)


@pytest.mark.parametrize(
    "target", ["../secret", "/etc/passwd", "/dev/zero", "../model/../secret", "below/b", "nowhere/x", "/proc/self/mem"]
)
def test_a_link_that_leads_elsewhere_is_refused(tree, how, target):
    (tree / "link").symlink_to(target)
    with pytest.raises(CheckpointError, match="cp -rL"):
        _read(tree, "link")


def test_a_link_to_a_link_is_refused(tree, how):
    (tree / "one").symlink_to("two")
    (tree / "two").symlink_to("../secret")
    with pytest.raises(CheckpointError, match="a link"):
        _read(tree, "one")


def test_a_link_beside_its_target_is_followed(tree, how):
    (tree / "link").symlink_to("a")
    (tree / "whole").symlink_to(tree / "a")
    assert _read(tree, "link") == _read(tree, "whole") == b"content"


def test_a_hard_link_is_a_file(tree, how):
    os.link(tree / "a", tree / "hard")
    assert _read(tree, "hard") == b"content"


def test_the_named_folder_may_be_a_link(tree, how, tmp_path):
    (tmp_path / "alias").symlink_to(tree)
    assert _read(tmp_path / "alias", "a") == b"content"


@pytest.fixture
def cache(tmp_path):
    """A Hugging Face cache of one model, and a second model beside it."""
    for model in ("models--x--y", "models--x--z"):
        blobs = tmp_path / model / "blobs"
        blobs.mkdir(parents=True)
        (blobs / "abc").write_bytes(model.encode())
    snapshot = tmp_path / "models--x--y" / "snapshots" / "rev"
    (snapshot / "onnx").mkdir(parents=True)
    return snapshot


def test_a_cache_leads_to_its_own_blobs(cache, how):
    (cache / "a").symlink_to("../../blobs/abc")
    (cache / "onnx" / "a").symlink_to("../../../blobs/abc")
    assert _read(cache, "a") == _read(cache / "onnx", "a") == b"models--x--y"


@pytest.mark.parametrize(
    "target",
    [
        "../../../models--x--z/blobs/abc",
        "../../blobs/../../models--x--z/blobs/abc",
        "../../blobs/sub/abc",
        "../../blobs",
    ],
)
def test_a_cache_leads_nowhere_else(cache, how, target):
    sub = cache.parent.parent / "blobs" / "sub"
    sub.mkdir()
    (sub / "abc").write_bytes(b"")
    (cache / "a").symlink_to(target)
    with pytest.raises(CheckpointError, match=r"blobs|folder"):
        _read(cache, "a")


def test_a_blob_that_is_a_link_is_refused(cache, how, tmp_path):
    (tmp_path / "secret").write_bytes(b"secret")
    (cache.parent.parent / "blobs" / "evil").symlink_to(tmp_path / "secret")
    (cache / "a").symlink_to("../../blobs/evil")
    with pytest.raises(CheckpointError, match="a link"):
        _read(cache, "a")


def test_a_blobs_folder_that_is_a_link_is_refused(cache, how, tmp_path):
    blobs = cache.parent.parent / "blobs"
    blobs.rename(tmp_path / "elsewhere")
    blobs.symlink_to(tmp_path / "elsewhere")
    (cache / "a").symlink_to("../../blobs/abc")
    with pytest.raises(CheckpointError, match="regular file"):
        _read(cache, "a")


def test_what_is_no_regular_file_is_refused_without_waiting(tree, how):
    os.mkfifo(tree / "fifo")
    with socket.socket(socket.AF_UNIX) as listener:
        here = Path.cwd()  # the address of a socket is short
        os.chdir(tree)
        listener.bind("socket")
        os.chdir(here)
        for name, kind in (("fifo", "FIFO"), ("socket", "socket"), ("below", "folder"), ("missing", "No such file")):
            with pytest.raises(CheckpointError, match=kind):
                _read(tree, name)


def test_a_device_is_refused(how):
    with pytest.raises(CheckpointError, match="device"):
        _read("/dev", "zero")


def test_a_file_that_is_too_long_is_not_read(tree):
    with pytest.raises(CheckpointError, match="at most 3 bytes"):
        Folder(tree).read("a", max_bytes=3)


def test_a_folder_that_is_none_is_refused(tree):
    for path in (tree / "a", tree / "missing"):
        with pytest.raises(CheckpointError, match="folder"):
            Folder(path)


def _n_open():
    table = Path("/proc/self/fd")
    return len(list(table.iterdir())) if table.is_dir() else 0


def test_descriptors_are_closed(tree, how):
    before = _n_open()
    (tree / "link").symlink_to("../secret")
    for _ in range(20):
        folder = Folder(tree)
        folder.read("a", max_bytes=10)
        for name in ("link", "below", "missing"):
            with pytest.raises(CheckpointError):
                folder.read(name, max_bytes=10)
        del folder
    assert _n_open() <= before
