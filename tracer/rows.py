"""What the reader of a trace yields: its tables' rows."""

from __future__ import annotations

from dataclasses import dataclass

from probes.events import SampleCause, WaitState


@dataclass(frozen=True, slots=True)
class Exec:
    """A program a process became; for one found running, what it was then."""

    ts_ns: int
    filename: str
    argv: tuple[str, ...]
    truncated: bool


@dataclass(frozen=True, slots=True)
class Process:
    """A process; `parent_id` and `end_ns` are None where unknown, `execs` by time."""

    id: int
    pid: int
    start_ns: int
    parent_id: int | None
    end_ns: int | None
    wait_status: int | None
    found: bool
    execs: list[Exec]


@dataclass(frozen=True, slots=True)
class Function:
    """A Python function; file and name are empty and `<unknown>` where lost."""

    file: str
    name: str
    line: int


@dataclass(frozen=True, slots=True)
class Stack:
    """Function ids, innermost first; `truncated`: the outermost are missing."""

    frames: tuple[int, ...]
    truncated: bool


@dataclass(frozen=True, slots=True)
class Sample:
    """The stack of one thread at one moment; `place` as in StackSampled."""

    ts_ns: int
    tid: int
    cpu: int
    cause: SampleCause
    stack_id: int
    place: str = ""


@dataclass(frozen=True, slots=True)
class Module:
    """A module body that ran; `depth` 0 is the outermost on its thread."""

    process_id: int
    tid: int
    depth: int
    ts_ns: int
    end_ns: int | None
    function_id: int


@dataclass(frozen=True, slots=True)
class File:
    """A file from its open to its close; `device` and `inode` are None where unknown."""

    process_id: int
    tid: int
    ts_ns: int
    closed_ns: int | None
    path: str
    size_bytes: int | None
    read_bytes: int
    mapped_bytes: int
    device: int | None = None
    inode: int | None = None


@dataclass(frozen=True, slots=True)
class Socket:
    """A TCP socket that began to listen, or took its first connection."""

    process_id: int
    tid: int
    ts_ns: int
    kind: str
    family: int | None
    port: int


@dataclass(frozen=True, slots=True)
class Ran:
    """A thread was on `cpu` for `ran_ns` of the bucket that begins at `ts_ns`."""

    tid: int
    cpu: int
    ts_ns: int
    ran_ns: int


@dataclass(frozen=True, slots=True)
class Wait:
    """A thread off the CPU, runnable from `woken_ns` on; see ThreadWaited.

    `ts_ns <= woken_ns <= end_ns` holds. `waker_pid` is a pid, not a process's id.
    """

    tid: int
    ts_ns: int
    end_ns: int
    woken_ns: int
    state: WaitState
    kernel_stack_id: int
    waker_pid: int | None
    waker_tid: int | None


@dataclass(frozen=True, slots=True)
class PagesAdded:
    """`added_bytes` of a file came into the page cache in a bucket, for a process."""

    process_id: int
    ts_ns: int
    device: int
    inode: int
    added_bytes: int


@dataclass(frozen=True, slots=True)
class Transfer:
    """What a block device read in a bucket, for whomever; see DeviceTransferred."""

    ts_ns: int
    device: int
    requests: int
    read_bytes: int
    busy_ns: int


@dataclass(frozen=True, slots=True)
class Connection:
    """A connect(2) to an internet address; `error` is an errno, 0 for success."""

    process_id: int
    tid: int
    ts_ns: int
    end_ns: int
    address: str
    port: int
    error: int


@dataclass(frozen=True, slots=True)
class Lookup:
    """A getaddrinfo(3); `error` is its EAI_ code, 0 for success."""

    process_id: int
    tid: int
    ts_ns: int
    end_ns: int
    name: str
    error: int


@dataclass(frozen=True, slots=True)
class DriverCalls:
    """ioctl(2) calls on a device file in a bucket, and the time they took."""

    process_id: int
    tid: int
    ts_ns: int
    path: str
    calls: int
    spent_ns: int


@dataclass(frozen=True, slots=True)
class CachedFile:
    """How much of a file was in the page cache; `cached_bytes` None where unknown."""

    ts_ns: int
    path: str
    size_bytes: int
    cached_bytes: int | None
    file_system: str
    device: int
    inode: int


@dataclass(frozen=True, slots=True)
class ReadValue:
    """A value read at a moment; see Reading."""

    ts_ns: int
    name: str
    subject: str
    value: float


@dataclass(frozen=True, slots=True)
class SourceState:
    """How a source fared: one of SOURCE_STATES, and why."""

    state: str
    reason: str


@dataclass(frozen=True, slots=True)
class Note:
    """A remark of one line that every report shows."""

    ts_ns: int
    text: str
