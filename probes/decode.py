"""From a record's bytes to an event: pure, no kernel, no /proc."""

from __future__ import annotations

import sys
from collections.abc import Callable
from struct import unpack_from

from probes import wire
from probes.cpython import SHIM_FILE, decode_text
from probes.events import (
    Event,
    FileUsed,
    FunctionSeen,
    ModuleExecuted,
    ProcessExecuted,
    ProcessExited,
    ProcessForked,
    ProcessId,
    SampleCause,
    SocketAccepted,
    SocketListening,
    StackSampled,
)
from probes.interest import matters

_BODY = wire.HEADER.size
_KEYS = _BODY + wire.SAMPLE.size
_CAUSES = tuple(SampleCause)

FindFile = Callable[[ProcessId, int, str], tuple[str, int | None]]
"""(process, directory_fd, path as opened) -> (absolute path, size in bytes)."""


_Decode = Callable[[bytes, int, ProcessId, int, int], Event | None]
"""(record, ts_ns, process, tid, cpu) -> event."""


class Decoder:
    """Turns records into events; keeps one ProcessId object a process."""

    def __init__(self, find_file: FindFile) -> None:
        self._find_file = find_file
        self._processes: dict[tuple[int, int], ProcessId] = {}
        self._shims: set[int] = set()
        self._by_kind: tuple[_Decode, ...] = (
            self._fork,
            self._exec,
            self._exit,
            self._function,
            self._sample,
            self._module,
            self._file,
            self._listen,
            self._accept,
        )

    def decode(self, record: bytes) -> Event | None:
        """The event of one record; None for a file of no interest and for
        CPython's shims, which stand for no function. ValueError or
        struct.error if it is no record."""
        ts_ns, start_ns, pid, tid, kind, cpu, _ = wire.HEADER.unpack_from(record)
        if kind >= len(self._by_kind):
            raise ValueError(f"unknown kind of record: {kind}")
        decode: _Decode = self._by_kind[kind]
        return decode(record, ts_ns, self._process(pid, start_ns), tid, cpu)

    def _process(self, pid: int, start_ns: int) -> ProcessId:
        process = self._processes.get((pid, start_ns))
        if process is None:
            process = self._processes[pid, start_ns] = ProcessId(pid, start_ns)
        return process

    def _fork(self, record: bytes, ts_ns: int, process: ProcessId, _tid: int, _cpu: int) -> Event:
        child_start_ns, child_pid = wire.FORK.unpack_from(record, _BODY)
        return ProcessForked(ts_ns, process, self._process(child_pid, child_start_ns))

    def _exec(self, record: bytes, ts_ns: int, process: ProcessId, _tid: int, _cpu: int) -> Event:
        used, truncated, filename, argv = wire.EXEC.unpack_from(record, _BODY)
        words = argv[:used].split(b"\0")[:-1]
        return ProcessExecuted(
            ts_ns, process, _c_string(filename), tuple(map(_text, words)), bool(truncated)
        )

    def _exit(self, record: bytes, ts_ns: int, process: ProcessId, _tid: int, _cpu: int) -> Event:
        (status,) = wire.EXIT.unpack_from(record, _BODY)
        self._processes.pop((process.pid, process.start_ns), None)
        return ProcessExited(ts_ns, process, None if status < 0 else status)

    def _function(
        self, record: bytes, ts_ns: int, process: ProcessId, _tid: int, _cpu: int
    ) -> Event | None:
        key, line, version, file_state, file_length, name_state, name_length, file, name = (
            wire.FUNCTION.unpack_from(record, _BODY)
        )
        python = (version >> 8, version & 0xFF)
        file = decode_text(file, file_state, file_length, python, keep_end=True)
        if file == SHIM_FILE:
            self._shims.add(key)
            return None
        name = decode_text(name, name_state, name_length, python)
        # The same few thousand texts come again from every process.
        return FunctionSeen(ts_ns, process, key, sys.intern(file), sys.intern(name), line)

    def _sample(self, record: bytes, ts_ns: int, process: ProcessId, tid: int, cpu: int) -> Event:
        frames, cause, truncated = wire.SAMPLE.unpack_from(record, _BODY)
        keys = unpack_from(f"<{frames}Q", record, _KEYS)
        if self._shims:
            keys = tuple(key for key in keys if key not in self._shims)
        return StackSampled(ts_ns, process, tid, cpu, _CAUSES[cause], keys, bool(truncated))

    def _module(self, record: bytes, ts_ns: int, process: ProcessId, tid: int, _cpu: int) -> Event:
        end_ns, key, depth = wire.MODULE.unpack_from(record, _BODY)
        return ModuleExecuted(ts_ns, end_ns or None, process, tid, depth, key)

    def _file(
        self, record: bytes, ts_ns: int, process: ProcessId, tid: int, _cpu: int
    ) -> Event | None:
        closed_ns, read_bytes, mapped_bytes, directory_fd, _, raw = wire.FILE.unpack_from(
            record, _BODY
        )
        opened = _c_string(raw)
        if not matters(opened):
            return None
        path, size_bytes = self._find_file(process, directory_fd, opened)
        return FileUsed(
            ts_ns, closed_ns or None, process, tid, path, size_bytes, read_bytes, mapped_bytes
        )

    def _listen(self, record: bytes, ts_ns: int, process: ProcessId, tid: int, _cpu: int) -> Event:
        family, port, _ = wire.SOCKET.unpack_from(record, _BODY)
        return SocketListening(ts_ns, process, tid, family, port)

    def _accept(self, record: bytes, ts_ns: int, process: ProcessId, tid: int, _cpu: int) -> Event:
        _, port, _ = wire.SOCKET.unpack_from(record, _BODY)
        return SocketAccepted(ts_ns, process, tid, port)


def _c_string(raw: bytes) -> str:
    return _text(raw.split(b"\0", 1)[0])


def _text(raw: bytes) -> str:
    """Bytes of the kernel's (paths, arguments) as the operating system does."""
    return raw.decode("utf-8", "surrogateescape")
