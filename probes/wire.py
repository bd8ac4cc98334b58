"""The records of bpf/events.h, as struct formats.

tests/probes/test_wire.py compiles the header and compares offsets and sizes.
"""

from __future__ import annotations

from enum import IntEnum
from struct import Struct


class Kind(IntEnum):
    """What a record tells."""

    FORK = 0
    EXEC = 1
    EXIT = 2
    FUNCTION = 3
    SAMPLE = 4
    MODULE = 5
    FILE = 6
    LISTEN = 7
    ACCEPT = 8
    WAIT = 9
    CONNECT = 10
    LOOKUP = 11
    RAN = 12
    PAGES = 13
    BLOCK = 14
    DRIVER = 15
    STACK = 16


FILE_BYTES = 256
NAME_BYTES = 192
PATH_BYTES = 256
FILENAME_BYTES = 256
ARGV_BYTES = 2048
ARG_BYTES = 512
MAX_FRAMES = 512

HEADER = Struct("<QQIIHHI")
"""ts_ns, start_ns, pid, tid, kind, cpu, size."""

KIND_OFFSET = 24
"""Of the kind's low byte."""

FORK = Struct("<QI4x")
"""child_start_ns, child_pid."""

EXEC = Struct(f"<II{FILENAME_BYTES}s{ARGV_BYTES + ARG_BYTES}s")
"""argv_bytes, truncated, filename, argv."""

EXIT = Struct("<i4x")
"""wait_status, -1 if unseen."""

FUNCTION = Struct(f"<QIIIIII{FILE_BYTES}s{NAME_BYTES}s")
"""key, line, version, file state and length, name state and length, file, name."""

SAMPLE = Struct("<HBBiQ")
"""frames, cause, truncated, kernel_stack, ip; then `frames` u64 keys."""

MODULE = Struct("<QQI4x")
"""end_ns (0: not left), key, depth."""

FILE = Struct(f"<QQQiI{PATH_BYTES}s")
"""closed_ns (0: open), read_bytes, mapped_bytes, directory_fd, fd, path."""

SOCKET = Struct("<HHI")
"""family, port, fd."""

ADDRESS_BYTES = 16
HOST_BYTES = 128

WAIT = Struct("<QQIIiI")
"""end_ns, woken_ns, waker_pid, waker_tid, kernel_stack, state."""

CONNECT = Struct(f"<QiHH{ADDRESS_BYTES}s")
"""end_ns, error, family, port, address."""

LOOKUP = Struct(f"<Qi4x{HOST_BYTES}s")
"""end_ns, error, name."""
