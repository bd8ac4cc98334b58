"""Open files as a process sees them, without being led out of its root.

A container's owner chooses its symbolic links, and root reads them: resolved
the usual way, one of them would name a file of the host. openat2 resolves
every link, `..` and absolute ones included, inside the process's root.
"""

from __future__ import annotations

import ctypes
import errno
import itertools
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager

MAX_ENTRIES = 1 << 16

_SYS_OPENAT2 = 437  # the same on all architectures
_RESOLVE_NO_MAGICLINKS = 0x02
_RESOLVE_IN_ROOT = 0x10
_ATTEMPTS = 8  # EAGAIN: a rename elsewhere made the kernel give up

_syscall = ctypes.CDLL(None, use_errno=True).syscall
_syscall.restype = ctypes.c_long


class _OpenHow(ctypes.Structure):
    _fields_ = (
        ("flags", ctypes.c_uint64),
        ("mode", ctypes.c_uint64),
        ("resolve", ctypes.c_uint64),
    )


def open_in_root(pid: int, path: str) -> int:
    """Open a regular file or folder of a process's root for reading.

    Returns a file descriptor, the caller's to close. Raises OSError: ENOSYS
    where the kernel has no openat2 (before Linux 5.6), EINVAL for what is
    neither file nor folder, else as open(2).
    """
    with _found(pid, path) as fd:
        return _reopen(fd, path)


def open_passive(path: str) -> int:
    """As open_in_root, of a path as this process sees it."""
    fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        return _reopen(fd, path)
    finally:
        os.close(fd)


def _reopen(fd: int, path: str) -> int:
    """What was found, for reading. Opening a device can act, opening a FIFO can hang:
    look first."""
    kind = os.fstat(fd).st_mode
    if not (stat.S_ISREG(kind) or stat.S_ISDIR(kind)):
        raise OSError(errno.EINVAL, "neither a regular file nor a folder", path)
    return os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)


def list_in_root(pid: int, path: str) -> list[str]:
    """The names in a folder of a process's root, at most 65,536, unordered.

    Raises OSError as open_in_root.
    """
    fd = open_in_root(pid, path)
    try:
        with os.scandir(fd) as entries:
            return [entry.name for entry in itertools.islice(entries, MAX_ENTRIES)]
    finally:
        os.close(fd)


def stat_in_root(pid: int, path: str) -> os.stat_result | None:
    """The status of a regular file of a process's root; None for anything
    else, and for what can't be found."""
    try:
        with _found(pid, path) as fd:
            status = os.fstat(fd)
    except (OSError, ValueError):
        return None
    return status if stat.S_ISREG(status.st_mode) else None


@contextmanager
def _found(pid: int, path: str) -> Iterator[int]:
    """A descriptor (O_PATH) of what `path` is in the root of `pid`."""
    root = os.open(f"/proc/{pid}/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fd = _openat2(root, path)
    finally:
        os.close(root)
    try:
        yield fd
    finally:
        os.close(fd)


def _openat2(root: int, path: str) -> int:
    name = os.fsencode(path)
    if b"\0" in name:
        raise ValueError("a path can't hold a null byte")
    how = _OpenHow(os.O_PATH | os.O_CLOEXEC, 0, _RESOLVE_IN_ROOT | _RESOLVE_NO_MAGICLINKS)
    for _ in range(_ATTEMPTS):
        fd = _syscall(
            _SYS_OPENAT2, root, name, ctypes.byref(how), ctypes.c_size_t(ctypes.sizeof(how))
        )
        if fd >= 0:
            return int(fd)
        error = ctypes.get_errno()
        if error != errno.EAGAIN:
            break
    if error == errno.ENOSYS:
        raise OSError(error, "the kernel has no openat2 (Linux 5.6), without which"
                      " a process's files can't be opened safely", path)  # fmt: skip
    raise OSError(error, os.strerror(error), path)
