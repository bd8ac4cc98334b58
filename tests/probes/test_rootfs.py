"""Files of a stranger's root: found inside it, never outside."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from probes import rootfs
from probes.rootfs import list_in_root, open_in_root, stat_in_root

SELF = os.getpid()


def content(pid: int, path: str) -> bytes:
    fd = open_in_root(pid, path)
    with os.fdopen(fd, "rb") as file:
        return file.read()


def test_a_file_of_this_root(tmp_path):
    (tmp_path / "file").write_bytes(b"seven b")

    assert content(SELF, f"{tmp_path}/file") == b"seven b"
    assert stat_in_root(SELF, f"{tmp_path}/file").st_size == 7


def test_a_name_of_any_bytes(tmp_path):
    path = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xc3\xa9 \xff\n")
    Path(path).write_text("x")

    assert list_in_root(SELF, str(tmp_path)) == [os.path.basename(path)]
    assert stat_in_root(SELF, path).st_size == 1


def test_a_folder_with_more_names_than_wanted(tmp_path, monkeypatch):
    monkeypatch.setattr(rootfs, "MAX_ENTRIES", 3)
    for number in range(7):
        (tmp_path / str(number)).touch()

    names = list_in_root(SELF, str(tmp_path))

    assert len(set(names)) == 3
    assert set(names) < {str(number) for number in range(7)}


def test_a_magic_link_is_not_followed():
    with pytest.raises(OSError) as caught:
        open_in_root(SELF, "/proc/self/exe")
    assert caught.value.errno == errno.ELOOP


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: os.symlink("/dev/null", path)])
def test_what_could_hang_or_act_is_not_opened(tmp_path, make):
    make(tmp_path / "trap")
    with pytest.raises(OSError) as caught:
        open_in_root(SELF, f"{tmp_path}/trap")
    assert caught.value.errno == errno.EINVAL
    assert stat_in_root(SELF, f"{tmp_path}/trap") is None


@pytest.mark.parametrize("path", ["/no/such/file", "", "/proc", "nul\0byte", "/" + "x" * 5000])
def test_what_has_no_size(path):
    assert stat_in_root(SELF, path) is None


def test_errors_are_those_of_open(tmp_path):
    with pytest.raises(FileNotFoundError):
        open_in_root(SELF, f"{tmp_path}/missing")
    with pytest.raises(NotADirectoryError):
        list_in_root(SELF, "/etc/passwd")
    with subprocess.Popen(["true"]) as ended:
        ended.wait()
    with pytest.raises(OSError):
        open_in_root(ended.pid, "/")


def test_no_descriptor_is_left_open(tmp_path):
    before = len(os.listdir("/proc/self/fd"))
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path, tmp_path / "fifo", tmp_path / "missing"):
        stat_in_root(SELF, str(path))
        with contextlib.suppress(OSError):
            os.close(open_in_root(SELF, str(path)))
    list_in_root(SELF, str(tmp_path))
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_kernel_without_openat2_says_so(monkeypatch):
    monkeypatch.setattr(rootfs, "_SYS_OPENAT2", 0xFFFF)
    with pytest.raises(OSError, match=r"no openat2 \(Linux 5\.6\)") as caught:
        open_in_root(SELF, "/")
    assert caught.value.errno == errno.ENOSYS


# --- Another root -----------------------------------------------------------

SECRET = b"of the host"


@pytest.fixture
def stranger(tmp_path: Path) -> Iterator[tuple[int, Path]]:
    """A process in a root of its own, and where that root lies on the host."""
    root = tmp_path / "root"
    root.mkdir()
    (tmp_path / "secret").write_bytes(SECRET)
    command = ["chroot", str(root), "/sleep", "60"]
    shutil.copy("/bin/sleep", root / "sleep")
    for line in subprocess.run(
        ["ldd", "/bin/sleep"], capture_output=True, text=True
    ).stdout.split():
        if line.startswith("/"):
            (root / line[1:]).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(line, root / line[1:])
    with subprocess.Popen(command) as process:
        while os.readlink(f"/proc/{process.pid}/root") != str(root):
            assert process.poll() is None
        yield process.pid, root
        process.kill()


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="chroot needs root")


@needs_root
def test_its_own_files_are_found(stranger):
    pid, root = stranger
    folder = root / "site-packages"
    folder.mkdir()
    (folder / "vllm-0.23.0.dist-info").mkdir()
    (folder / "METADATA").write_text("inside")
    (root / "lib-link").symlink_to("/site-packages")

    assert list_in_root(pid, "/lib-link/") != []
    assert content(pid, "/lib-link/METADATA") == b"inside"
    assert "vllm-0.23.0.dist-info" in list_in_root(pid, "site-packages")


@needs_root
@pytest.mark.parametrize(
    "target", ["{host}/secret", "../secret", "../../../../../../{host}/secret"]
)
def test_no_link_leads_out(stranger, tmp_path, target):
    pid, root = stranger
    (root / "link").symlink_to(target.format(host=tmp_path))
    (root / "folder").symlink_to(os.path.dirname(target.format(host=tmp_path)))

    for path in ("/link", "/folder/secret", "../secret", f"{tmp_path}/secret"):
        with pytest.raises(OSError):
            open_in_root(pid, path)
        assert stat_in_root(pid, path) is None


@needs_root
def test_a_link_out_meets_what_is_inside_instead(stranger, tmp_path):
    pid, root = stranger
    inside = root / str(tmp_path)[1:]
    inside.mkdir(parents=True)
    (inside / "secret").write_bytes(b"of the container")
    (root / "link").symlink_to(f"{tmp_path}/secret")

    assert content(pid, "/link") == b"of the container"
    assert content(SELF, f"{tmp_path}/secret") == SECRET
