"""How much the page cache holds of a file: of real files on the real file system."""

from __future__ import annotations

import mmap
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from probes import cache
from probes.cache import CachedFiles, cached_bytes, drop, look, open_files

SIZE = 40 * mmap.PAGESIZE + 123


@pytest.fixture
def folder() -> Iterator[Path]:
    """On a disk: what lies in memory can't be dropped."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        yield Path(name)


@pytest.fixture
def path(folder: Path) -> Path:
    path = folder / "weights"
    path.write_bytes(os.urandom(SIZE))
    [file] = open_files([str(path)])
    drop(file)
    if cached_bytes(file.fd, SIZE):
        pytest.skip("the file system under /var/tmp keeps all in memory")
    os.close(file.fd)
    return path


def read_page(path: Path, page: int) -> None:
    """Bring in one page of a file and none beside it."""
    fd = os.open(path, os.O_RDONLY)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
    os.pread(fd, 1, page * mmap.PAGESIZE)
    os.close(fd)


def test_cached_bytes_are_counted_by_the_page(path: Path) -> None:
    [file] = open_files([str(path)])
    assert cached_bytes(file.fd, SIZE) == 0
    for page in (3, 17, 40):
        read_page(path, page)
    assert cached_bytes(file.fd, SIZE) == 3 * mmap.PAGESIZE
    path.read_bytes()
    assert cached_bytes(file.fd, SIZE) == SIZE
    drop(file)
    assert cached_bytes(file.fd, SIZE) == 0
    os.close(file.fd)


def test_without_cachestat_mincore_tells_the_same(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "_SYS_CACHESTAT", 0xFFFF)
    monkeypatch.setattr(cache, "_CHUNK_BYTES", 16 * mmap.PAGESIZE)
    [file] = open_files([str(path)])
    assert cached_bytes(file.fd, SIZE) == 0
    read_page(path, 20)
    assert cached_bytes(file.fd, SIZE) == mmap.PAGESIZE
    path.read_bytes()
    assert cached_bytes(file.fd, SIZE) == SIZE
    os.close(file.fd)


def test_where_neither_tells_it_is_none(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "_SYS_CACHESTAT", 0xFFFF)
    monkeypatch.setattr(cache, "_PROT_READ", 2)  # a file open for reading can't be mapped so
    [file] = open_files([str(path)])
    assert cached_bytes(file.fd, SIZE) is None
    assert look([file])[0].cached_bytes is None
    os.close(file.fd)


def test_dirty_pages_are_written_before_they_are_dropped(folder: Path) -> None:
    path = folder / "new"
    path.write_bytes(b"x" * SIZE)
    [file] = open_files([str(path)])
    drop(file)
    assert cached_bytes(file.fd, SIZE) == 0 and path.read_bytes() == b"x" * SIZE
    os.close(file.fd)


def test_what_is_mapped_stays(path: Path) -> None:
    with path.open("rb") as opened, mmap.mmap(opened.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        assert mapped[0] is not None
        [file] = open_files([str(path)])
        drop(file)
        assert cached_bytes(file.fd, SIZE)
        os.close(file.fd)


def test_only_regular_files_are_opened_and_each_once(path: Path) -> None:
    link = path.with_name("link")
    link.symlink_to(path)
    fifo = path.with_name("fifo")
    os.mkfifo(fifo)
    names = [str(path), str(link), str(fifo), str(path.parent), "/dev/zero", "/none", "a\0b"]
    [file] = open_files(names)
    assert (file.path, file.size_bytes, file.inode) == (str(path), SIZE, path.stat().st_ino)
    os.close(file.fd)


def test_a_look_names_file_system_device_and_inode(path: Path) -> None:
    [file] = open_files([str(path)])
    [told] = look([file])
    command = ["findmnt", "-n", "-o", "FSTYPE", "-T", str(path)]
    kind = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    assert told.file_system == (kind.strip() or "unknown")  # in a chroot nobody knows
    status = path.stat()
    assert (told.device, told.inode) == (status.st_dev, status.st_ino)
    assert (told.path, told.size_bytes, told.cached_bytes) == (str(path), SIZE, 0)
    os.close(file.fd)


def test_an_overlay_is_told_through_to_the_file_below(folder: Path, path: Path) -> None:
    for name in ("upper", "work", "merged"):
        (folder / name).mkdir()
    options = f"lowerdir={folder},upperdir={folder}/upper,workdir={folder}/work"
    merged = folder / "merged"
    mounting = ["mount", "-t", "overlay", "overlay", "-o", options, str(merged)]
    if subprocess.run(mounting, capture_output=True).returncode:
        pytest.skip("no overlay can be mounted here: that needs root, and overlayfs")
    try:
        [file] = open_files([str(merged / "weights")])
        assert (look([file])[0].file_system, look([file])[0].cached_bytes) == ("overlay", 0)
        path.read_bytes()
        assert look([file])[0].cached_bytes == SIZE
        drop(file)
        assert look([file])[0].cached_bytes == 0
        os.close(file.fd)
    finally:
        subprocess.run(["umount", str(merged)], check=True)


def test_an_empty_file_has_nothing_cached(folder: Path) -> None:
    (folder / "empty").touch()
    [file] = open_files([str(folder / "empty")])
    assert cached_bytes(file.fd, 0) == 0
    os.close(file.fd)


def test_the_source_tells_each_file_once(path: Path) -> None:
    [file] = open_files([str(path)])
    found = look([file])
    source = CachedFiles(found)
    assert (source.poll(0), source.poll(0), source.close()) == (found, [], [])
    assert source.stats().seen == {"file": 1}
    os.close(file.fd)
