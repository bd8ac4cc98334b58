"""How much of a file the page cache holds, and how to have it let go.

The kernel tells it only of files that the caller owns or may write, so who reads on
behalf of a user opens with that user's rights, and asks with root's.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import stat
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

from probes.events import FileCached, ProcessId
from probes.mounts import file_system, mounts
from probes.source import SourceStats

_SYS_CACHESTAT = 451  # the same on all architectures; Linux 6.5
_PAGE = mmap.PAGESIZE
_CHUNK_BYTES = 1 << 30
_PROT_READ, _MAP_SHARED = 1, 1
_MAP_FAILED = ctypes.c_void_p(-1).value
_UNTOLD = ("overlay", "aufs", "fuse.mergerfs")
"""Whose files keep their pages under another inode: cachestat sees none of them."""

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (
    ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64,
)  # fmt: skip
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_libc.mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)


class _Range(ctypes.Structure):
    _fields_ = (("off", ctypes.c_uint64), ("len", ctypes.c_uint64))


class _CacheStat(ctypes.Structure):
    _fields_ = (
        ("nr_cache", ctypes.c_uint64),
        ("nr_dirty", ctypes.c_uint64),
        ("nr_writeback", ctypes.c_uint64),
        ("nr_evicted", ctypes.c_uint64),
        ("nr_recently_evicted", ctypes.c_uint64),
    )


@dataclass(slots=True)
class OpenFile:
    """A regular file, open for reading; `real_path` is free of links."""

    path: str
    real_path: str
    fd: int
    size_bytes: int
    device: int
    inode: int


def open_files(paths: Iterable[str]) -> list[OpenFile]:
    """Open the regular files among `paths` with the rights of the moment, each but
    once; what can't be opened is left out. The descriptors are the caller's to close."""
    found: dict[tuple[int, int], OpenFile] = {}
    for path in paths:
        with suppress(OSError, ValueError):
            file = _open(path)
            if file is not None and found.setdefault((file.device, file.inode), file) is not file:
                os.close(file.fd)
    return list(found.values())


def _open(path: str) -> OpenFile | None:
    if not stat.S_ISREG(os.stat(path).st_mode):  # opening a device can act
        return None
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        os.close(fd)
        return None
    real_path = os.path.realpath(path)
    return OpenFile(path, real_path, fd, status.st_size, status.st_dev, status.st_ino)


def look(files: Iterable[OpenFile]) -> list[FileCached]:
    """How much of each file is cached at this moment."""
    mounted = mounts()
    told = []
    for file in files:
        kind = file_system(file.device, file.real_path, mounted)
        cached = cached_bytes(file.fd, file.size_bytes, kind)
        told.append(
            FileCached(
                time.monotonic_ns(),
                file.path,
                file.size_bytes,
                cached,
                kind,
                file.device,
                file.inode,
            )
        )
    return told


def cached_bytes(fd: int, size_bytes: int, kind: str = "") -> int | None:
    """How many of a file's bytes are in the page cache, whole pages up to its end;
    None where the kernel doesn't say. `kind` is the type of its file system."""
    pages = None if kind in _UNTOLD else _cachestat(fd)
    if pages is None:
        pages = _mincore(fd, size_bytes)
    return None if pages is None else min(pages * _PAGE, size_bytes)


def drop(file: OpenFile) -> None:
    """Have the page cache let go of a file. What someone has mapped stays."""
    with suppress(OSError):  # a read-only file system has nothing to write back
        os.fsync(file.fd)
    with suppress(OSError):
        os.posix_fadvise(file.fd, 0, 0, os.POSIX_FADV_DONTNEED)


def _cachestat(fd: int) -> int | None:
    """Pages by cachestat(2); None where the kernel or the file system lacks it."""
    whole, found = _Range(0, 0), _CacheStat()
    number = ctypes.c_long(_SYS_CACHESTAT)
    failed = _libc.syscall(
        number, ctypes.c_int(fd), ctypes.byref(whole), ctypes.byref(found), ctypes.c_uint(0)
    )
    return None if failed else int(found.nr_cache)


def _mincore(fd: int, size_bytes: int) -> int | None:
    """Pages by mincore(2), through a mapping that is never touched."""
    pages = 0
    for offset in range(0, size_bytes, _CHUNK_BYTES):
        length = min(_CHUNK_BYTES, size_bytes - offset)
        in_chunk = _mincore_of(fd, offset, length)
        if in_chunk is None:
            return None
        pages += in_chunk
    return pages


def _mincore_of(fd: int, offset: int, length: int) -> int | None:
    address = _libc.mmap(None, length, _PROT_READ, _MAP_SHARED, fd, offset)
    if address == _MAP_FAILED:
        return None
    try:
        present = ctypes.create_string_buffer(-(-length // _PAGE))
        while _libc.mincore(address, length, present):
            if ctypes.get_errno() != errno.EAGAIN:
                return None
        # only the lowest bit is defined
        return present.raw.translate(_LOWEST_BIT).count(b"\1")
    finally:
        _libc.munmap(address, length)


_LOWEST_BIT = bytes(byte & 1 for byte in range(256))


class CachedFiles:
    """A source of what was found cached before the start."""

    name = "cache"

    def __init__(self, found: Iterable[FileCached]) -> None:
        self._found = list(found)
        self._seen = len(self._found)

    def open(self) -> None:
        """Nothing: all is known."""

    def follow(self, process: ProcessId) -> None:
        """Nothing: the start hasn't begun."""

    def poll(self, timeout_s: float) -> list[FileCached]:
        """The files, once."""
        found, self._found = self._found, []
        return found

    def stats(self) -> SourceStats:
        """The number of files."""
        return SourceStats(seen={"file": self._seen})

    def close(self) -> list[FileCached]:
        """Nothing is under way."""
        return self.poll(0)
