"""Attach a pair of loaded programs to a function's entry and return.

bcc's own attach takes neither a cookie nor the kernel's multi-uprobe link, and
resolves addresses in ways that differ between its versions; the two system
calls behind it are few lines.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Callable
from pathlib import Path

_SYS_PERF_EVENT_OPEN = 298
_SYS_BPF = 321
_BPF_PROG_LOAD = 5
_BPF_LINK_CREATE = 28
_BPF_PROG_TYPE_KPROBE = 2
_BPF_TRACE_UPROBE_MULTI = 48
_BPF_F_UPROBE_MULTI_RETURN = 1
_PERF_FLAG_FD_CLOEXEC = 8
_PERF_EVENT_IOC_SET_BPF = 0x40042408
_PERF_EVENT_IOC_ENABLE = 0x2400
_PMU = Path("/sys/bus/event_source/devices/uprobe")

MULTI_ATTACH_TYPE = _BPF_TRACE_UPROBE_MULTI
"""The attach type with which a program for `attach_multi` must be loaded."""

Attach = Callable[[int, str, int, int, bool], int]
"""(program fd, path, file offset, cookie, at the return?) -> fd to close."""

_libc = ctypes.CDLL(None, use_errno=True)


def attach_multi(program: int, path: str, offset: int, cookie: int, at_return: bool) -> int:
    """One uprobe in a multi-uprobe link (Linux 6.6 on): detached in
    milliseconds, and the program can tell by the cookie which file it is in.
    Raises OSError."""
    place = ctypes.create_string_buffer(os.fsencode(path))
    offsets, cookies = ctypes.c_uint64(offset), ctypes.c_uint64(cookie)
    attr = ctypes.create_string_buffer(64)
    struct.pack_into("<IIII", attr, 0, program, 0, _BPF_TRACE_UPROBE_MULTI, 0)
    struct.pack_into(
        "<QQQQIIII",
        attr,
        16,
        ctypes.addressof(place),
        ctypes.addressof(offsets),
        0,
        ctypes.addressof(cookies),
        1,
        _BPF_F_UPROBE_MULTI_RETURN if at_return else 0,
        0,
        0,
    )
    return _checked(_libc.syscall(_SYS_BPF, _BPF_LINK_CREATE, attr, 64), "uprobe_multi link")


def attach_perf(program: int, path: str, offset: int, _cookie: int, at_return: bool) -> int:
    """One uprobe as a perf event (any kernel with uprobes). Raises OSError."""
    place = ctypes.create_string_buffer(os.fsencode(path))
    config = int(at_return) << _return_bit()
    attr = ctypes.create_string_buffer(128)
    struct.pack_into("<IIQQ", attr, 0, _pmu_type(), 128, config, 1)
    struct.pack_into("<QQ", attr, 56, ctypes.addressof(place), offset)
    fd = _checked(
        _libc.syscall(_SYS_PERF_EVENT_OPEN, attr, -1, 0, -1, _PERF_FLAG_FD_CLOEXEC),
        "uprobe perf event",
    )
    try:
        _checked(_libc.ioctl(fd, _PERF_EVENT_IOC_SET_BPF, program), "program on a uprobe")
        _checked(_libc.ioctl(fd, _PERF_EVENT_IOC_ENABLE, 0), "enabling a uprobe")
    except OSError:
        os.close(fd)
        raise
    return fd


def multi_supported() -> bool:
    """Whether this kernel has multi-uprobe links: it then refuses "/" as no
    regular file (EBADF) instead of not knowing what is asked of it."""
    try:
        program = _load_nothing()
    except OSError:
        return False
    try:
        os.close(attach_multi(program, "/", 0, 0, False))
    except OSError as error:
        return error.errno == errno.EBADF
    finally:
        os.close(program)
    return True


def _load_nothing() -> int:
    """A program that returns 0, loaded for a multi-uprobe link."""
    code = ctypes.create_string_buffer(struct.pack("<QQ", 0xB7, 0x95))  # r0 = 0; exit
    licence = ctypes.create_string_buffer(b"Apache-2.0")
    attr = ctypes.create_string_buffer(128)
    struct.pack_into("<II", attr, 0, _BPF_PROG_TYPE_KPROBE, 2)
    struct.pack_into("<QQ", attr, 8, ctypes.addressof(code), ctypes.addressof(licence))
    struct.pack_into("<I", attr, 68, _BPF_TRACE_UPROBE_MULTI)
    return _checked(_libc.syscall(_SYS_BPF, _BPF_PROG_LOAD, attr, 128), "loading a program")


def _checked(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return int(result)


def _pmu_type() -> int:
    return int((_PMU / "type").read_text())


def _return_bit() -> int:
    """The bit of `config` that asks for the return, from "config:0"."""
    return int((_PMU / "format" / "retprobe").read_text().split(":")[1])
