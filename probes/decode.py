"""From a record's bytes to an event: pure, no kernel, no /proc."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from ipaddress import ip_address
from socket import AF_INET
from struct import unpack_from
from typing import Protocol

from probes import wire
from probes.cpython import SHIM_FILE, decode_text
from probes.events import (
    Connected,
    Event,
    FileUsed,
    FunctionSeen,
    ModuleExecuted,
    NameLookedUp,
    ProcessExecuted,
    ProcessExited,
    ProcessForked,
    ProcessId,
    SampleCause,
    SocketAccepted,
    SocketListening,
    StackSampled,
    ThreadWaited,
    WaitState,
)
from probes.interest import matters

_BODY = wire.HEADER.size
_KEYS = _BODY + wire.SAMPLE.size
_CAUSES = tuple(SampleCause)
_STATES = tuple(WaitState)


class Surroundings(Protocol):
    """What a record only points to: files, mapped code, stacks of the kernel."""

    def file(
        self, process: ProcessId, directory_fd: int, path: str
    ) -> tuple[str, os.stat_result | None]:
        """The absolute path of what was opened as `path`, and its status now."""

    def place(self, process: ProcessId, ip: int, kernel_stack: int) -> str:
        """Where an ON_CPU sample found the thread, as StackSampled.place."""

    def kernel_frames(self, kernel_stack: int) -> tuple[str, ...]:
        """The functions of a stack of the kernel, innermost first."""


_Decode = Callable[[bytes, int, ProcessId, int, int], Event | None]
"""(record, ts_ns, process, tid, cpu) -> event."""


class Decoder:
    """Turns records into events; keeps one ProcessId object a process."""

    def __init__(self, surroundings: Surroundings) -> None:
        self._surroundings = surroundings
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
            self._wait,
            self._connect,
            self._lookup,
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
        frames, cause, truncated, kernel_stack, ip = wire.SAMPLE.unpack_from(record, _BODY)
        keys = unpack_from(f"<{frames}Q", record, _KEYS)
        if self._shims:
            keys = tuple(key for key in keys if key not in self._shims)
        place = ""
        if ip or kernel_stack >= 0:
            place = self._surroundings.place(process, ip, kernel_stack)
        return StackSampled(ts_ns, process, tid, cpu, _CAUSES[cause], keys, bool(truncated), place)

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
        path, status = self._surroundings.file(process, directory_fd, opened)
        return FileUsed(
            ts_ns,
            closed_ns or None,
            process,
            tid,
            path,
            status.st_size if status else None,
            read_bytes,
            mapped_bytes,
            status.st_dev if status else None,
            status.st_ino if status else None,
        )

    def _listen(self, record: bytes, ts_ns: int, process: ProcessId, tid: int, _cpu: int) -> Event:
        family, port, _ = wire.SOCKET.unpack_from(record, _BODY)
        return SocketListening(ts_ns, process, tid, family, port)

    def _accept(self, record: bytes, ts_ns: int, process: ProcessId, tid: int, _cpu: int) -> Event:
        _, port, _ = wire.SOCKET.unpack_from(record, _BODY)
        return SocketAccepted(ts_ns, process, tid, port)

    def _wait(self, record: bytes, ts_ns: int, process: ProcessId, tid: int, _cpu: int) -> Event:
        end_ns, woken_ns, waker_pid, waker_tid, kernel_stack, state = wire.WAIT.unpack_from(
            record, _BODY
        )
        return ThreadWaited(
            ts_ns,
            end_ns,
            woken_ns or end_ns,  # a wake-up that wasn't seen
            process,
            tid,
            _STATES[state],
            self._surroundings.kernel_frames(kernel_stack),
            waker_pid or None,
            waker_tid or None,
        )

    def _connect(self, record: bytes, ts_ns: int, process: ProcessId, tid: int, _cpu: int) -> Event:
        end_ns, error, family, port, raw = wire.CONNECT.unpack_from(record, _BODY)
        address = ip_address(raw[:4] if family == AF_INET else raw)
        return Connected(ts_ns, end_ns, process, tid, str(address), port, error)

    def _lookup(self, record: bytes, ts_ns: int, process: ProcessId, tid: int, _cpu: int) -> Event:
        end_ns, error, name = wire.LOOKUP.unpack_from(record, _BODY)
        return NameLookedUp(ts_ns, end_ns, process, tid, _c_string(name), error)


def _c_string(raw: bytes) -> str:
    return _text(raw.split(b"\0", 1)[0])


def _text(raw: bytes) -> str:
    """Bytes of the kernel's (paths, arguments) as the operating system does."""
    return raw.decode("utf-8", "surrogateescape")
