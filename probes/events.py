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
    YIELDED = 4
    """A main thread left the CPU although it could have run on, and the clock
    hadn't found it for a period: what it does, but no measure of how much."""


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
    outermost frames are missing. `place` is where an ON_CPU sample found the
    thread: the base name of the mapped file its code lies in ("libtorch_cpu.so"),
    "[jit]" for code that lies in no file, or "kernel:FUNCTION" with the kernel's
    outermost telling function (a system call or a fault); "" where unknown.
    """

    ts_ns: int
    process: ProcessId
    tid: int
    cpu: int
    cause: SampleCause
    frames: tuple[int, ...]
    truncated: bool
    place: str = ""


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
    device: int | None = None
    """st_dev, as the page cache and the block layer name it, and"""
    inode: int | None = None
    """the inode, None where the file was gone."""


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


BUCKET_NS = 100_000_000
"""What is added up in the kernel is added up over this time; a bucket's `ts_ns` is a
multiple of it."""


@dataclass(frozen=True, slots=True)
class ThreadRan:
    """A thread was on `cpu` for `ran_ns` of the bucket that begins at `ts_ns`. The sum
    over all is exact."""

    ts_ns: int
    process: ProcessId
    tid: int
    cpu: int
    ran_ns: int


class WaitState(IntEnum):
    """In what state a thread left the CPU."""

    SLEEPING = 0
    """Interruptible: for a lock, a socket, a pipe, a child, the time."""
    BLOCKED = 1
    """Uninterruptible: as a rule for a disk."""
    PREEMPTED = 2
    """It could have run on: another thread had the core, or a quota was used up."""
    STOPPED = 3


@dataclass(frozen=True, slots=True)
class ThreadWaited:
    """A thread was off the CPU from `ts_ns` to `end_ns`.

    `woken_ns` is when it became runnable (equal to `ts_ns` if PREEMPTED): from there to
    `end_ns` it waited for a core. `waker_tid` is the thread that woke it, None for an
    interrupt or where unknown; `waker_pid` its process's pid. `kernel` is the kernel's
    stack as function names, innermost first (what it waited in). Every wait of a main
    thread is told, of other threads those of at least 1 ms.
    """

    ts_ns: int
    end_ns: int
    woken_ns: int
    process: ProcessId
    tid: int
    state: WaitState
    kernel: tuple[str, ...]
    waker_pid: int | None
    waker_tid: int | None


@dataclass(frozen=True, slots=True)
class PagesCached:
    """`added_bytes` of a file came into the page cache in a bucket, on behalf of a
    process (as a rule: were read from its device)."""

    ts_ns: int
    process: ProcessId
    device: int
    inode: int
    added_bytes: int


@dataclass(frozen=True, slots=True)
class DeviceTransferred:
    """What a block device did in a bucket, for whomever: reads, and their time from
    issue to completion added up."""

    ts_ns: int
    device: int
    requests: int
    read_bytes: int
    busy_ns: int


@dataclass(frozen=True, slots=True)
class Connected:
    """connect(2) to an internet address took from `ts_ns` to `end_ns`; `error` is an
    errno, 0 for success (EINPROGRESS: it went on by itself)."""

    ts_ns: int
    end_ns: int
    process: ProcessId
    tid: int
    address: str
    port: int
    error: int


@dataclass(frozen=True, slots=True)
class NameLookedUp:
    """getaddrinfo(3) of `name` took from `ts_ns` to `end_ns`; `error` is its EAI_ code."""

    ts_ns: int
    end_ns: int
    process: ProcessId
    tid: int
    name: str
    error: int


@dataclass(frozen=True, slots=True)
class DriverCalled:
    """ioctl(2) calls on a device file (an NVIDIA GPU's) in a bucket."""

    ts_ns: int
    process: ProcessId
    tid: int
    path: str
    calls: int
    spent_ns: int


@dataclass(frozen=True, slots=True)
class FileCached:
    """How much of a file was in the page cache before the start read it. `file_system`
    is its type (ext4, overlay, nfs, ...); `cached_bytes` None where it can't be told."""

    ts_ns: int
    path: str
    size_bytes: int
    cached_bytes: int | None
    file_system: str
    device: int
    inode: int


@dataclass(frozen=True, slots=True)
class Reading:
    """A value read at a moment: cgroup throttling and memory pressure, load, frequency,
    major faults, NVML. `name` says what and in which unit (`cgroup_throttled_ns`),
    `subject` of what ("", "gpu0", "cpu1", a pid); counters are as read, not differences."""

    ts_ns: int
    name: str
    subject: str
    value: float


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
    | ThreadRan
    | ThreadWaited
    | PagesCached
    | DeviceTransferred
    | Connected
    | NameLookedUp
    | DriverCalled
    | FileCached
    | Reading
)
