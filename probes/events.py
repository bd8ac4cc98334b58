"""The typed events that every source yields.

Times are CLOCK_MONOTONIC nanoseconds. A process is named by its pid (in the
tracer's PID namespace) and its start, never by the pid alone: pids are reused.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


@dataclass(frozen=True, slots=True)
class ProcessId:
    """A process: pid in the tracer's namespace and CLOCK_MONOTONIC start time."""

    pid: int
    start_ns: int


class SampleCause(IntEnum):
    """Why a stack was taken."""

    ON_CPU = 0
    """The CPU clock ticked while the thread was running."""
    WAIT = 1
    """The thread left the CPU to wait; the stack holds until its next sample."""
    EDGE = 2
    """The thread did something exact (listened on a socket) at this moment."""
    CHANGE = 3
    """The stack changed at this moment (samplers that report changes only)."""


@dataclass(frozen=True, slots=True)
class ProcessFound:
    """A process that was already running when the tracer came."""

    ts_ns: int
    process: ProcessId
    parent: ProcessId | None
    argv: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ProcessForked:
    """`process` made `child` (a process, not a thread)."""

    ts_ns: int
    process: ProcessId
    child: ProcessId


@dataclass(frozen=True, slots=True)
class ProcessExecuted:
    """`process` became `filename`; `truncated` when the command line was cut."""

    ts_ns: int
    process: ProcessId
    filename: str
    argv: tuple[str, ...]
    truncated: bool


@dataclass(frozen=True, slots=True)
class ProcessExited:
    """`process` ended; `wait_status` is as waitpid(2) gives it, None if unseen."""

    ts_ns: int
    process: ProcessId
    wait_status: int | None


@dataclass(frozen=True, slots=True)
class FunctionSeen:
    """What `key` in later samples of `process` stands for.

    `name` is the qualified name where the interpreter has one (3.11 on), else
    the plain name. Sent once before the first use of the key; may be repeated.
    """

    ts_ns: int
    process: ProcessId
    key: int
    file: str
    name: str
    line: int


@dataclass(frozen=True, slots=True)
class StackSampled:
    """The Python stack of one thread, innermost frame first, as function keys.

    `frames` is empty for a thread that runs no Python. `truncated`: the
    outermost frames are missing.
    """

    ts_ns: int
    process: ProcessId
    tid: int
    cpu: int
    cause: SampleCause
    frames: tuple[int, ...]
    truncated: bool


@dataclass(frozen=True, slots=True)
class ModuleExecuted:
    """A module's body ran from `ts_ns` to `end_ns`; `end_ns` is None when the
    recording or the process ended inside it. `depth` 0 is the outermost body
    on that thread."""

    ts_ns: int
    end_ns: int | None
    process: ProcessId
    tid: int
    depth: int
    key: int


@dataclass(frozen=True, slots=True)
class FileUsed:
    """A file that matters to a start, from its open to its close.

    `closed_ns` is None while it is open. `read_bytes` counts read, pread and
    readv; `mapped_bytes` the lengths asked of mmap.
    """

    ts_ns: int
    closed_ns: int | None
    process: ProcessId
    tid: int
    path: str
    size_bytes: int | None
    read_bytes: int
    mapped_bytes: int


@dataclass(frozen=True, slots=True)
class SocketListening:
    """A TCP socket began to listen. `family` is AF_INET or AF_INET6."""

    ts_ns: int
    process: ProcessId
    tid: int
    family: int
    port: int


@dataclass(frozen=True, slots=True)
class SocketAccepted:
    """The first connection was accepted on a TCP `port`."""

    ts_ns: int
    process: ProcessId
    tid: int
    port: int


Event = (
    ProcessFound
    | ProcessForked
    | ProcessExecuted
    | ProcessExited
    | FunctionSeen
    | StackSampled
    | ModuleExecuted
    | FileUsed
    | SocketListening
    | SocketAccepted
)
