"""Read a BPF ring buffer: one copy a record, no call back into Python for each.

The layout is the kernel's interface (include/uapi/linux/bpf.h): a page with the
reader's position, one with the writer's, then the data, mapped twice in a row
so that no record is ever split.
"""

from __future__ import annotations

import mmap
import os
import select
from collections.abc import Iterator
from struct import Struct
from typing import Final

_POSITION: Final = Struct("<Q")
_HEADER: Final = Struct("<II")
_BUSY: Final = 1 << 31
_DISCARDED: Final = 1 << 30
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


class RingBuffer:
    """The reader's side of the map `fd` with `size_bytes` of data, a power of two."""

    def __init__(self, fd: int, size_bytes: int) -> None:
        self._mask = size_bytes - 1
        self._read = mmap.mmap(fd, _PAGE_BYTES)
        self._written = mmap.mmap(
            fd, _PAGE_BYTES + 2 * size_bytes, prot=mmap.PROT_READ, offset=_PAGE_BYTES
        )
        self._poller = select.epoll()
        self._poller.register(fd, select.EPOLLIN)

    def wait(self, timeout_s: float) -> None:
        """Until the writer asks for attention, at most so long."""
        self._poller.poll(timeout_s)

    def records(self) -> Iterator[bytes]:
        """What has been written since, each record once."""
        at = int(_POSITION.unpack_from(self._read)[0])
        end = int(_POSITION.unpack_from(self._written)[0])
        try:
            while at < end:
                offset = _PAGE_BYTES + (at & self._mask)
                header, _ = _HEADER.unpack_from(self._written, offset)
                if header & _BUSY:
                    return  # reserved, not written yet
                length = header & ~(_BUSY | _DISCARDED)
                begin = offset + _HEADER.size
                if not header & _DISCARDED:
                    yield self._written[begin : begin + length]
                at += (_HEADER.size + length + 7) & ~7
        finally:
            _POSITION.pack_into(self._read, 0, at)

    def close(self) -> None:
        """Let the map go."""
        self._poller.close()
        self._read.close()
        self._written.close()
