"""The in-kernel source: BPF programs compiled and attached through bcc.

One program text is put together from bpf/, a subject a file. A subject whose
tracepoints this kernel lacks is left out and named in `skipped`.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import struct
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Final

from probes import cpython, proc, rootfs, sums, uprobes, wire
from probes.decode import Decoder
from probes.elf import ElfError, ElfFile, probe_offset
from probes.events import (
    BUCKET_NS,
    DeviceTransferred,
    DriverCalled,
    Event,
    PagesCached,
    ProcessExecuted,
    ProcessExited,
    ProcessId,
    ThreadRan,
    WaitState,
)
from probes.places import KernelStacks, MappedCode, c_library
from probes.ring import RingBuffer
from probes.source import SourceStats, SourceUnavailable

TRACEFS: Final = Path("/sys/kernel/tracing")
_BPF_FOLDER: Final = Path(__file__).parent / "bpf"
_AT_FDCWD: Final = -100

REQUIRED: Final = ("process.bpf.c", "sched.bpf.c")
OPTIONAL: Final = (
    "modules.bpf.c",
    "files.bpf.c",
    "sockets.bpf.c",
    "disk.bpf.c",
    "network.bpf.c",
    "driver.bpf.c",
)
"""Subjects: what can be seen, each in a file of its own."""
_COMMON: Final = ("events.h", "common.bpf.h", "python.bpf.c")
"""What they share, the stack walk among it; it goes before them."""
_SUMS: Final = {
    "sched.bpf.c": ("ran",),
    "disk.bpf.c": ("pages", "blocks"),
    "driver.bpf.c": ("drivers",),
}
"""The maps in which a subject adds up what it sees."""
FETCH_SUMS_S: Final = 1.0

MAX_PROBED_FILES: Final = 256
"""Of each kind: as many as `file_layouts` has room for."""

DEFAULT_HZ: Final = 99
DEFAULT_RING_BYTES: Final = 4 << 20

KERNEL_STACKS: Final = 16384
"""As in common.bpf.h: where the numbers of the second map begin."""

BURST_OF_WALKS: Final = 256
"""Waits of one thread that are walked at once; then one each time as long as"""
MAIN_REFILL_NS: Final = 1_000_000
"""in a main thread (the steps follow it), and"""
OTHER_REFILL_NS: Final = 5_000_000
"""in any other. A wait where the last sample was taken is known without."""

_LOOK_AGAIN_S: Final = (0.0, 0.003, 0.01, 0.02, 0.04, 0.08, 0.15, 0.3, 0.6, 1.2, 2.5)
"""When, after an exec, a process is looked at for its interpreter."""

_KINDS: Final = tuple(kind.name.lower() for kind in wire.Kind)

_SUM_KINDS: Final[dict[type, str]] = {
    ThreadRan: "ran",
    PagesCached: "pages",
    DeviceTransferred: "block",
    DriverCalled: "driver",
}

UnknownInterpreter = Callable[[ProcessId, str], None]
"""Told of a Python process that the walk can't read, and why."""


class KernelSource:
    """Process tree, Python stacks, module bodies, files and sockets.

    Parameters: `hz` samples a second and CPU, 0 for no stacks (another sampler
    takes them); `ring_bytes` of the ring buffer, a power of two; `on_unknown`
    is called for a Python process whose interpreter the walk doesn't know;
    `program` is the executable that is about to be started, if it is known.
    """

    name = "bpf"

    def __init__(
        self,
        hz: int = DEFAULT_HZ,
        ring_bytes: int = DEFAULT_RING_BYTES,
        on_unknown: UnknownInterpreter | None = None,
        program: str | None = None,
    ) -> None:
        self._hz = hz
        self._ring_bytes = ring_bytes
        self._on_unknown = on_unknown
        self._program = program
        self._undecoded = 0
        self._set_aside: Counter[str] = Counter()
        self._fetched: Counter[str] = Counter()
        self._surroundings = _Surroundings()
        self._decoder = Decoder(self._surroundings)
        self._sums: frozenset[str] = frozenset()
        self._fetched_s = 0.0
        self._bpf: Any = None
        self._bodies: _BodyProbes | None = None
        self._lookups: _LookupProbes | None = None
        self._looking: dict[ProcessId, tuple[float, int]] = {}
        self._final: SourceStats | None = None
        self.skipped: dict[str, str] = {}
        """Subjects left out, and why."""

    def open(self) -> None:
        """Compile, load and attach. Raises SourceUnavailable."""
        if os.uname().machine != "x86_64":
            raise SourceUnavailable("the BPF programs are for x86-64 only")
        self.skipped = missing_subjects()
        for subject in REQUIRED:
            if subject in self.skipped:
                raise SourceUnavailable(self.skipped[subject])
        subjects = [s for s in (*REQUIRED, *OPTIONAL) if s not in self.skipped]
        self._bpf = _compile(subjects, self._hz, self._ring_bytes)
        self._surroundings.use(self._bpf)
        self._sums = frozenset(name for s in subjects for name in _SUMS.get(s, ()))
        self._load_walkers()
        if "modules.bpf.c" in subjects:
            try:
                self._bodies = _BodyProbes(self._bpf)
                if self._program:
                    self._attach_beforehand(self._bodies, self._program)
            except OSError as error:
                self.skipped["modules.bpf.c"] = f"uprobes can't be attached: {error}"
        if "network.bpf.c" in subjects:
            self._lookups = _LookupProbes(self._bpf)
            self._lookups.attach(os.getpid())
        self._ring = RingBuffer(self._bpf["events"].map_fd, self._ring_bytes)
        _give_back_memory()
        self._bpf.ksym(0)  # the first question makes bcc read all symbols: not during a start

    def follow(self, process: ProcessId) -> None:
        """Observe `process`, its threads and, from now on, its children. One
        that is observed already, as a child, keeps the start it has."""
        tracked, pid = self._bpf["tracked"], ctypes.c_uint32(process.pid)
        if pid in tracked:
            return
        tracked[pid] = ctypes.c_uint64(process.start_ns)
        threads = self._bpf["known_threads"]
        for tid in proc.threads(process.pid):
            threads[ctypes.c_uint32(tid)] = threads.Leaf(process.start_ns, process.pid)
        self._looking[process] = (time.monotonic(), 0)
        self._look_for_interpreters()

    def poll(self, timeout_s: float) -> list[Event]:
        """Wait up to `timeout_s`; an exec, exit or listen ends the wait."""
        self._ring.wait(timeout_s)
        events = self._decode_all(self._ring.records())
        for event in events:
            if isinstance(event, ProcessExecuted):
                self._looking[event.process] = (time.monotonic(), 0)
                self._surroundings.code.forget(event.process)
            elif isinstance(event, ProcessExited):
                self._looking.pop(event.process, None)
                self._surroundings.code.forget(event.process)
        if self._looking:
            self._look_for_interpreters()
        now_s = time.monotonic()
        if now_s - self._fetched_s >= FETCH_SUMS_S:
            self._fetched_s = now_s
            now_ns = time.monotonic_ns()
            events += self._fetch_sums(now_ns - now_ns % BUCKET_NS - BUCKET_NS)
        return events

    def _fetch_sums(self, before_ns: int) -> list[Event]:
        fetched = list(sums.fetch(self._bpf, self._sums, before_ns))
        self._fetched.update(_SUM_KINDS[type(event)] for event in fetched)
        return fetched

    def stats(self) -> SourceStats:
        """What was seen and lost by kind, and the time it took the traced
        processes where that is measured (stacks and module bodies)."""
        if self._final:
            return self._final
        if self._bpf is None:
            return SourceStats()
        lost = self._counts("lost_count")
        if self._undecoded:
            lost["undecoded"] = self._undecoded
        sent = Counter(self._counts("seen_count"))
        return SourceStats(sent - self._set_aside + self._fetched, lost, self._counts("cost_ns"))

    def close(self) -> list[Event]:
        """Detach; what was still under way (open files, module bodies being
        executed) ends with no end time."""
        if self._bpf is None:
            return []
        threads = {tid.value: thread for tid, thread in self._bpf["known_threads"].items()}
        for table in ("tracked", "known_threads"):
            self._bpf[table].clear()  # from here on no program does anything
        stopped_ns = time.monotonic_ns()
        self._detach()
        events = self._decode_all(
            chain(
                self._ring.records(),
                self._unfinished_files(),
                self._unfinished_bodies(),
                self._unfinished_waits(threads, stopped_ns),
            )
        )
        events += self._unfinished_runs(threads, stopped_ns)
        events += self._fetch_sums(stopped_ns + BUCKET_NS)
        self._final = self.stats()
        self._ring.close()
        self._bpf.cleanup()
        self._bpf = None
        return events

    # -- records ----------------------------------------------------------

    def _decode_all(self, records: Iterable[bytes]) -> list[Event]:
        events: list[Event] = []
        for record in records:
            try:
                event = self._decoder.decode(record)
            except (ValueError, IndexError, struct.error):
                self._undecoded += 1
                continue
            if event is None:
                self._set_aside[wire.Kind(record[wire.KIND_OFFSET]).name.lower()] += 1
                continue
            if isinstance(event, ProcessExecuted) and event.truncated:
                event = _with_whole_command(event)
            events.append(event)
        return events

    def _counts(self, table: str) -> dict[str, int]:
        values = self._bpf[table]
        sums = {kind: int(values.sum(i).value) for i, kind in enumerate(_KINDS)}
        return {kind: n for kind, n in sums.items() if n}

    def _unfinished_files(self) -> Iterator[bytes]:
        if "files.bpf.c" in self.skipped:
            return
        for key, file in self._bpf["open_files"].items():
            header = wire.HEADER.pack(
                file.opened_ns, file.start_ns, key.pid, file.tid, wire.Kind.FILE, 0, 0
            )
            yield header + wire.FILE.pack(
                0, file.read_bytes, file.mapped_bytes, file.directory_fd, key.fd, file.path
            )

    def _unfinished_bodies(self) -> Iterator[bytes]:
        if "modules.bpf.c" in self.skipped:
            return
        for at, body in self._bpf["bodies"].items():
            if body.key:
                pid, tid = at.id >> 32, at.id & 0xFFFFFFFF
                header = wire.HEADER.pack(
                    body.ts_ns, body.start_ns, pid, tid, wire.Kind.MODULE, 0, 0
                )
                yield header + wire.MODULE.pack(0, body.key, at.depth)

    def _unfinished_waits(self, threads: dict[int, Any], stopped_ns: int) -> Iterator[bytes]:
        """The waits of main threads that go on: a server that is ready waits."""
        for tid, wait in self._bpf["off_cpus"].items():
            thread = threads.get(tid.value)
            if thread and thread.pid == tid.value and wait.left_ns < stopped_ns:
                header = wire.HEADER.pack(
                    wait.left_ns, thread.start_ns, thread.pid, tid.value, wire.Kind.WAIT, 0, 0
                )
                woken_ns, waker = wait.woken_ns, (wait.waker_pid, wait.waker_tid)
                if wait.state != WaitState.PREEMPTED and not woken_ns:
                    woken_ns = stopped_ns
                yield header + wire.WAIT.pack(
                    stopped_ns, woken_ns, *waker, wait.kernel_stack, wait.state
                )

    def _unfinished_runs(self, threads: dict[int, Any], stopped_ns: int) -> Iterator[Event]:
        """What the threads that are on a core ran since it was last added up."""
        for tid, on in self._bpf["running"].items():
            thread = threads.get(tid.value)
            if thread and on.since_ns < stopped_ns:
                process = ProcessId(thread.pid, thread.start_ns)
                bucket_ns = on.since_ns - on.since_ns % BUCKET_NS
                ran_ns = stopped_ns - on.since_ns
                yield ThreadRan(bucket_ns, process, tid.value, on.cpu, ran_ns)

    # -- programs ---------------------------------------------------------

    def _load_walkers(self) -> None:
        from bcc import BPF, PerfSWConfig, PerfType

        walkers = [("edge_walkers", b"walk_on_edge", BPF.TRACEPOINT)]
        if "sockets.bpf.c" in self.skipped:
            walkers = []
        if self._hz:
            walkers += [
                ("clock_walkers", b"walk_on_clock", BPF.PERF_EVENT),
                ("switch_walkers", b"walk_on_switch", BPF.TRACEPOINT),
            ]
        for table, function, kind in walkers:
            loaded = self._bpf.load_func(function, kind)
            self._bpf[table][ctypes.c_int(0)] = ctypes.c_int(loaded.fd)
        if self._hz:
            self._bpf.attach_perf_event(
                ev_type=PerfType.SOFTWARE,
                ev_config=PerfSWConfig.CPU_CLOCK,
                fn_name=b"on_clock",
                sample_freq=self._hz,
            )

    def _attach_beforehand(self, bodies: _BodyProbes, program: str) -> None:
        """Probe the CPython in a program, or in the libpython beside it, before
        it is started: even its first module bodies are then seen."""
        beside = Path(program).resolve().parent.parent / "lib"
        for file in (program, *map(str, beside.glob("libpython3.*.so.1.0"))):
            bodies.attach(file)

    def _detach(self) -> None:
        """Take every program off its event. Each waits for a grace period of
        the kernel, tens of milliseconds: they wait side by side."""
        from bcc import PerfSWConfig, PerfType

        tasks: list[Callable[[], object]] = [
            partial(self._bpf.detach_tracepoint, name) for name in self._bpf.tracepoint_fds
        ]
        if self._hz:
            clock = (PerfType.SOFTWARE, PerfSWConfig.CPU_CLOCK)
            tasks.append(partial(self._bpf.detach_perf_event, *clock))
        tasks += [probes.close for probes in (self._bodies, self._lookups) if probes]
        with ThreadPoolExecutor(len(tasks)) as pool:
            for done in [pool.submit(task) for task in tasks]:
                done.result()

    # -- interpreters -----------------------------------------------------

    def _look_for_interpreters(self) -> None:
        """Look at processes that have just become something else, again and
        again for a while: a shared libpython is mapped late, and the runtime
        is filled in later still."""
        now = time.monotonic()
        for process, (since, tries) in list(self._looking.items()):
            if now - since < _LOOK_AGAIN_S[tries]:
                continue
            if self._settled(process) or tries + 1 == len(_LOOK_AGAIN_S):
                del self._looking[process]
            else:
                self._looking[process] = (since, tries + 1)

    def _settled(self, process: ProcessId) -> bool:
        """True when nothing more is to be learnt about the process."""
        try:
            found = cpython.find_interpreter(process.pid)
        except OSError:  # protected even from root, or on a file system that fails
            return True
        if isinstance(found, cpython.NoPython):
            return False
        if self._lookups:
            self._lookups.attach(process.pid)
        image = found if isinstance(found, cpython.Interpreter) else found.image
        if self._bodies and image:
            self._bodies.attach(image.open_path)
        if isinstance(found, cpython.NotInitialised):
            return False
        if isinstance(found, cpython.UnknownLayout):
            if self._on_unknown and self._hz:
                self._on_unknown(process, found.reason)
            return True
        layouts = self._bpf["layouts"]
        layouts[ctypes.c_uint32(process.pid)] = layouts.Leaf.from_buffer_copy(found.layout.pack())
        return True


class _Pair:
    """Two programs, at the entry and at the return of functions."""

    def __init__(self, bpf: Any, entry: bytes, leaving: bytes) -> None:
        multi = uprobes.multi_supported()
        kind = uprobes.MULTI_ATTACH_TYPE if multi else -1
        self._attach: uprobes.Attach = uprobes.attach_multi if multi else uprobes.attach_perf
        self._entry, self._return = (
            bpf.load_func(function, bpf.KPROBE, attach_type=kind).fd
            for function in (entry, leaving)
        )
        self._links: list[int] = []

    def attach(self, path: str, offset: int, cookie: int = 0) -> None:
        """At a place in a file, for all processes that map it; raises OSError.
        The return first: an entry that is seen must find its return seen."""
        for program, at_return in ((self._return, True), (self._entry, False)):
            self._links.append(self._attach(program, path, offset, cookie, at_return))

    def close(self) -> None:
        """Detach all."""
        for link in self._links:
            os.close(link)
        self._links.clear()


class _BodyProbes:
    """The uprobes on PyEval_EvalCode, a pair for each ELF file that has it."""

    def __init__(self, bpf: Any) -> None:
        self._pair = _Pair(bpf, b"on_body_entry", b"on_body_return")
        self._layouts = bpf["file_layouts"]
        self._attached: set[cpython.FileIdentity] = set()
        self.close = self._pair.close

    def attach(self, path: str) -> None:
        """Probe the CPython in this file. Nothing happens where there is none,
        or where it is probed already."""
        with contextlib.suppress(OSError):
            found = cpython.inspect_file(path)
            if found is None or found.identity in self._attached:
                return
            if len(self._attached) >= MAX_PROBED_FILES:
                return
            self._attached.add(found.identity)
            cookie = len(self._attached)
            self._layouts[ctypes.c_uint64(cookie)] = self._layouts.Leaf.from_buffer_copy(
                found.layout.pack()
            )
            self._pair.attach(path, found.eval_code.offset, cookie)


class _LookupProbes:
    """The uprobes on getaddrinfo, a pair for each C library."""

    def __init__(self, bpf: Any) -> None:
        self._pair = _Pair(bpf, b"on_lookup_entry", b"on_lookup_return")
        self._attached: set[tuple[int, int]] = set()
        self.close = self._pair.close

    def attach(self, pid: int) -> None:
        """Probe the C library of a process, unless it is probed already."""
        path = c_library(pid)
        if path is None:
            return
        with contextlib.suppress(OSError, ElfError), ElfFile.open(path) as elf:
            status = os.stat(path)
            identity = (status.st_dev, status.st_ino)
            symbol = elf.exported(["getaddrinfo"]).get("getaddrinfo")
            if len(self._attached) >= MAX_PROBED_FILES:
                return
            if identity not in self._attached and symbol is not None:
                self._attached.add(identity)
                self._pair.attach(path, probe_offset(elf, symbol).offset)


def missing_subjects() -> dict[str, str]:
    """The subjects that can't run here, with the tracepoints they lack."""
    missing = {}
    for subject in (*REQUIRED, *OPTIONAL):
        lacking = [t for t in tracepoints(subject) if not (TRACEFS / "events" / t).exists()]
        if lacking:
            missing[subject] = f"no tracepoint {', '.join(lacking)} in {TRACEFS}"
    return missing


def tracepoints(subject: str) -> list[str]:
    """The tracepoints that a subject can't do without, as group/name."""
    text = (_BPF_FOLDER / subject).read_text()
    text = re.sub(r"#ifdef HAVE_OPEN\n.*?#endif", "", text, flags=re.DOTALL)
    return [f"{group}/{name}" for group, name in _TRACEPOINT.findall(text)]


_TRACEPOINT = re.compile(r"^TRACEPOINT_PROBE\((\w+), (\w+)\)", re.MULTILINE)


def _compile(subjects: Iterable[str], hz: int, ring_bytes: int) -> Any:
    """The bcc object of one program text; its tracepoints are attached."""
    try:
        from bcc import BPF
    except ImportError as error:
        raise SourceUnavailable(
            f"bcc is not importable ({error}): install Debian's python3-bpfcc"
        ) from error
    text = "\n".join((_BPF_FOLDER / part).read_text() for part in (*_COMMON, *subjects))
    with _environment(BCC_KERNEL_SOURCE=str(_BPF_FOLDER / "headers")):
        try:
            return BPF(text=text.replace("#pragma once", ""), cflags=_flags(hz, ring_bytes))
        except Exception as error:  # bcc raises bare Exceptions
            raise SourceUnavailable(f"the BPF programs can't be loaded: {error}") from error


def _flags(hz: int, ring_bytes: int) -> list[str]:
    cookie = "bpf_get_attach_cookie(ctx)" if uprobes.multi_supported() else "0"
    flags = [
        "-include",
        str(_BPF_FOLDER / "headers/include/linux/types.h"),
        f"-DRING_PAGES={ring_bytes // os.sysconf('SC_PAGE_SIZE')}",
        f"-DPERIOD_NS={10**9 // max(hz, 1)}ull",
        f"-DBURST_OF_WALKS={BURST_OF_WALKS}",
        f"-DMAIN_REFILL_NS={MAIN_REFILL_NS}ull",
        f"-DOTHER_REFILL_NS={OTHER_REFILL_NS}ull",
        f"-DGET_COOKIE(ctx)={cookie}",
    ]
    exit_format = (TRACEFS / "events/sched/sched_process_exit/format").read_text()
    if "group_dead" in exit_format:  # since Linux 6.16
        flags.append("-DHAVE_GROUP_DEAD")
    cache_format = TRACEFS / "events/filemap/mm_filemap_add_to_page_cache/format"
    if cache_format.exists() and "order" in cache_format.read_text():  # since Linux 6.0
        flags.append("-DHAVE_ORDER")
    if (TRACEFS / "events/syscalls/sys_enter_open").exists():
        flags.append("-DHAVE_OPEN")
    if hz:
        flags.append("-DSAMPLING")
    return flags


_MADV_DONTNEED: Final = 4


def _give_back_memory() -> None:
    """What the compiler took isn't needed any more: tens of MB of heap, and
    of its libraries' code, which the kernel reads again if need be."""
    libc = ctypes.CDLL(None, use_errno=True)
    with contextlib.suppress(AttributeError):  # glibc's own
        libc.malloc_trim(0)
    for line in Path("/proc/self/maps").read_text().splitlines():
        if re.search(r" r-xp .*/lib(LLVM|clang|bcc)", line):
            start, end = (int(part, 16) for part in line.split()[0].split("-"))
            libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), _MADV_DONTNEED)


@contextlib.contextmanager
def _environment(**variables: str) -> Iterator[None]:
    """Set variables for a while: what is started later must not inherit them."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _with_whole_command(event: ProcessExecuted) -> ProcessExecuted:
    """A command line that the kernel side cut, from /proc while it is there."""
    argv = proc.argv(event.process.pid)
    if not argv or len(argv) < len(event.argv):
        return event
    return replace(event, argv=argv, truncated=False)


class _Surroundings:
    """What records point to, looked up in /proc and in the kernel's tables."""

    def __init__(self) -> None:
        self.code = MappedCode()
        self._stacks = KernelStacks(lambda stack: (), str)
        self._folders: dict[tuple[ProcessId, int], str] = {}

    def use(self, bpf: Any) -> None:
        """Take the kernel's stacks and symbols from `bpf`."""
        tables = bpf["kernel_stacks"], bpf["more_kernel_stacks"]
        self._stacks = KernelStacks(
            lambda stack: list(tables[stack >= KERNEL_STACKS].walk(stack % KERNEL_STACKS)),
            lambda address: bpf.ksym(address).decode("utf-8", "backslashreplace"),
        )

    def file(
        self, process: ProcessId, directory_fd: int, path: str
    ) -> tuple[str, os.stat_result | None]:
        """What can't be told any more stays as it was opened."""
        if not path.startswith("/"):
            path = os.path.join(self._folder(process, directory_fd), path)
        return path, rootfs.stat_in_root(process.pid, path)

    def place(self, process: ProcessId, ip: int, kernel_stack: int) -> str:
        """By the instruction in user space, else by the kernel's stack."""
        return self.code.name(process, ip) if ip else self._stacks.place(kernel_stack)

    def kernel_frames(self, kernel_stack: int) -> tuple[str, ...]:
        """The functions of a stack of the kernel, innermost first."""
        return self._stacks.frames(kernel_stack)

    def _folder(self, process: ProcessId, directory_fd: int) -> str:
        """Where relative paths start; when the process has ended, where they
        started last time."""
        link = "cwd" if directory_fd == _AT_FDCWD else f"fd/{directory_fd}"
        with contextlib.suppress(OSError):
            self._folders[process, directory_fd] = os.readlink(f"/proc/{process.pid}/{link}")
        return self._folders.get((process, directory_fd), "")
