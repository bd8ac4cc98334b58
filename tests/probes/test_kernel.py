"""The in-kernel source on known workloads, with exact expected counts."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from probes import kernel
from probes.events import (
    BUCKET_NS,
    Connected,
    DeviceTransferred,
    Event,
    FileUsed,
    FunctionSeen,
    ModuleExecuted,
    NameLookedUp,
    PagesCached,
    ProcessExecuted,
    ProcessExited,
    ProcessForked,
    ProcessId,
    SampleCause,
    SocketAccepted,
    SocketListening,
    StackSampled,
    ThreadRan,
    ThreadWaited,
    WaitState,
)
from probes.kernel import KernelSource
from probes.source import SourceStats
from tests.probes.pythons import STACKS, every_python, told

pytestmark = pytest.mark.real_kernel

PATIENCE_S = 30
PYTHON = os.path.realpath(sys._base_executable)
T = TypeVar("T")


class Traced:
    """What one command did, as the kernel source told it."""

    def __init__(self, events: list[Event], stats: SourceStats, root: ProcessId, out: str) -> None:
        self.events, self.stats, self.root, self.out = events, stats, root, out

    def of(self, kind: type[T]) -> list[T]:
        return [event for event in self.events if isinstance(event, kind)]

    def functions(self) -> dict[int, FunctionSeen]:
        return {event.key: event for event in self.of(FunctionSeen)}

    def stacks(self, cause: SampleCause) -> list[tuple[int, list[str]]]:
        """(tid, names innermost first) of the samples with a cause."""
        names = self.functions()
        return [
            (sample.tid, [names[key].name for key in sample.frames])
            for sample in self.of(StackSampled)
            if sample.cause is cause
        ]


def trace(
    command: list[str],
    *,
    source: KernelSource | None = None,
    until: Callable[[Event], bool] | None = None,
    poll_s: float = 0.02,
) -> Traced:
    """Run a command, held before its exec until it is followed, to its end
    (or until an event; then it is killed)."""
    source = source or KernelSource(program=command[0])
    source.open()
    hold = ["/bin/sh", "-c", 'echo; read -r _; exec "$@"', "sh", *command]
    with subprocess.Popen(
        hold, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        process.stdout.readline()
        root = ProcessId(process.pid, time.monotonic_ns())
        source.follow(root)
        process.stdin.write("\n")
        process.stdin.flush()
        events: list[Event] = []
        deadline = time.monotonic() + PATIENCE_S
        stop = until or (lambda event: isinstance(event, ProcessExited) and event.process == root)
        while not any(map(stop, fresh := source.poll(poll_s))):
            events += fresh
            assert time.monotonic() < deadline, "the workload never ended"
        events += fresh
        events += source.close()
        if until:
            os.killpg(process.pid, signal.SIGKILL)
        out = process.stdout.read()
    return Traced(events, source.stats(), root, out)


def python(text: str, *arguments: str) -> list[str]:
    return [PYTHON, "-c", textwrap.dedent(text), *arguments]


def lost(traced: Traced) -> int:
    return sum(traced.stats.lost.values())


# --- Processes ----------------------------------------------------------------


def test_23_execs_are_23_execs():
    traced = trace(["/bin/sh", "-c", "for i in $(seq 23); do /bin/true one $i; done"])
    execs = [e for e in traced.of(ProcessExecuted) if e.argv[0] == "/bin/true"]
    assert [e.argv for e in execs] == [("/bin/true", "one", str(i)) for i in range(1, 24)]
    assert all(os.path.basename(e.filename) == "true" and not e.truncated for e in execs)
    assert len({e.process for e in execs}) == 23
    ends = {e.process: e.wait_status for e in traced.of(ProcessExited)}
    assert [ends[e.process] for e in execs] == [0] * 23
    assert lost(traced) == 0


def test_7_forks_deep():
    text = """
        import os
        for _ in range(7):
            child = os.fork()
            if child:
                os.waitpid(child, 0)
                break
    """
    traced = trace(python(text))
    parents = {fork.child: fork.process for fork in traced.of(ProcessForked)}
    assert len(parents) == 7
    deepest = next(iter(set(parents) - set(parents.values())))
    chain = [deepest]
    while chain[-1] in parents:
        chain.append(parents[chain[-1]])
    assert len(chain) == 8 and chain[-1] == traced.root
    assert len(traced.of(ProcessExited)) == 8


@pytest.mark.parametrize(
    ("end", "status"),
    [
        ("exit 0", 0),
        ("exit 3", 3 << 8),
        ("kill -9 $$", signal.SIGKILL),
        ("kill -15 $$", signal.SIGTERM),
        ("kill -CHLD $$; exit 5", 5 << 8),
    ],
)
def test_how_a_process_ends(end, status):
    traced = trace(["/bin/sh", "-c", end])
    assert [e.wait_status for e in traced.of(ProcessExited)] == [status]


def test_the_status_is_that_of_the_process_not_of_the_threads_it_kills():
    text = """
        import os, threading, time
        for _ in range(5):
            threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
        threading.Thread(target=os._exit, args=(7,)).start()
        time.sleep(60)
    """
    traced = trace(python(text))
    assert [e.wait_status for e in traced.of(ProcessExited)] == [7 << 8]


def test_a_long_command_line_is_whole_or_says_that_it_is_not():
    words = [f"{i}-" + "x" * 200 for i in range(100)]
    traced = trace(["/bin/sh", "-c", '/bin/true "$@"; sleep 0.2 "$@" || exec sleep 0.2', *words])
    for event in traced.of(ProcessExecuted)[2:]:
        assert event.truncated or len(event.argv) in (2, 101)


def test_a_ring_buffer_too_small_loses_aloud():
    source = KernelSource(ring_bytes=os.sysconf("SC_PAGE_SIZE"))
    command = ["/bin/sh", "-c", "for i in $(seq 23); do /bin/true; done"]
    traced = trace(command, source=source, poll_s=0.0, until=_sleep_at_first(1.5))
    execs = len(traced.of(ProcessExecuted))
    assert traced.stats.seen["exec"] == execs
    assert traced.stats.lost["exec"] > 0
    assert execs + traced.stats.lost["exec"] == 23 + 2  # the shell itself, and seq


def _sleep_at_first(seconds: float) -> Callable[[Event], bool]:
    """Stops at the first event, after a while in which nobody reads."""

    def stop(_event: Event) -> bool:
        time.sleep(seconds)
        return True

    return stop


# --- Python -------------------------------------------------------------------


@every_python
def test_the_walk_names_what_the_program_says_of_itself(python):
    source = KernelSource(program=python[0])
    source.open()
    with subprocess.Popen([*python, str(STACKS)], stdout=subprocess.PIPE, text=True) as program:
        source.follow(ProcessId(program.pid, time.monotonic_ns()))
        events: list[Event] = []
        os.set_blocking(program.stdout.fileno(), False)
        line, deadline = "", time.monotonic() + PATIENCE_S
        while not line.endswith("\n") and time.monotonic() < deadline:
            events += source.poll(0.02)
            with contextlib.suppress(BlockingIOError):
                line += os.read(program.stdout.fileno(), 1 << 16).decode()
        settled = time.monotonic() + 0.3
        while time.monotonic() < settled:
            events += source.poll(0.02)
        events += source.close()
        program.kill()  # dying threads run without a stack
    names = {e.key: [e.file, e.name, e.line] for e in events if isinstance(e, FunctionSeen)}
    last = {e.tid: [names[key] for key in e.frames] for e in events if isinstance(e, StackSampled)}
    expected = told(line)
    assert len(expected) == 10
    assert {tid: last.get(tid) for tid in expected} == expected
    assert sum(source.stats().lost.values()) == 0


def test_a_stack_of_600_frames_says_that_it_is_cut():
    text = """
        import sys, time
        sys.setrecursionlimit(2000)
        def down(n):
            return down(n - 1) if n else time.sleep(0.3)
        down(600)
    """
    traced = trace(python(text))
    deepest = max(traced.of(StackSampled), key=lambda sample: len(sample.frames))
    assert len(deepest.frames) == 512 and deepest.truncated
    assert not any(s.truncated for s in traced.of(StackSampled) if len(s.frames) < 512)


def test_samples_follow_the_cpu_clock_and_waits_have_a_stack():
    text = """
        import time
        def burn():
            while time.thread_time() < 1.0: pass
        def wait():
            time.sleep(0.4)
        burn(); wait()
    """
    traced = trace(python(text))
    burning = [names for _, names in traced.stacks(SampleCause.ON_CPU) if "burn" in names]
    assert 80 <= len(burning) <= 110  # 99 Hz of the CPU's own clock, one second of it
    assert ["wait", "<module>"] in [names for _, names in traced.stacks(SampleCause.WAIT)]


@pytest.mark.skipif(not os.path.exists("/usr/bin/unshare"), reason="no unshare(1)")
def test_threads_are_known_in_another_pid_namespace():
    text = """
        import threading, time
        def burn():
            while time.thread_time() < 0.3: pass
        thread = threading.Thread(target=burn); thread.start(); thread.join()
    """
    traced = trace(["/usr/bin/unshare", "--pid", "--fork", *python(text)])
    burning = [names for _, names in traced.stacks(SampleCause.ON_CPU) if "burn" in names]
    assert len(burning) > 15


def test_101_module_bodies(tmp_path):
    """A chain and a row: 50 modules that each import the next, then 51 more."""
    for i in range(50):
        following = f"import chain{i + 1}" if i < 49 else ""
        (tmp_path / f"chain{i}.py").write_text(f"eval('1'); exec('2'); {following}\n")
    for i in range(51):
        broken = "raise ValueError" if i == 7 else ""
        (tmp_path / f"row{i}.py").write_text(f"x = {i}; {broken}\n")
    (tmp_path / "main.py").write_text(
        "import chain0\nfor i in range(51):\n"
        "    try: __import__(f'row{i}')\n    except ValueError: pass\n"
    )
    traced = trace([PYTHON, str(tmp_path / "main.py")])
    names = traced.functions()
    bodies = {
        Path(names[module.key].file).stem: module
        for module in traced.of(ModuleExecuted)
        if names[module.key].file.startswith(str(tmp_path))
    }
    assert Counter(name.rstrip("0123456789") for name in bodies) == {
        "chain": 50, "row": 51, "main": 1
    }  # fmt: skip
    main = bodies["main"]
    for i in range(50):
        body, outer = bodies[f"chain{i}"], bodies[f"chain{i - 1}"] if i else main
        assert body.depth == outer.depth + 1
        assert outer.ts_ns < body.ts_ns < body.end_ns <= outer.end_ns
    assert all(bodies[f"row{i}"].depth == main.depth + 1 for i in range(51))
    assert lost(traced) == 0


def test_a_module_that_is_never_left_has_no_end(tmp_path):
    (tmp_path / "endless.py").write_text("import time; time.sleep(60)\n")
    main = tmp_path / "main.py"
    main.write_text("import endless\n")
    traced = trace(
        [PYTHON, str(main)],
        until=lambda e: (
            isinstance(e, StackSampled) and e.cause is SampleCause.WAIT and len(e.frames) > 3
        ),
    )
    names = traced.functions()
    ends = {Path(names[m.key].file).stem: m.end_ns for m in traced.of(ModuleExecuted)}
    assert ends["main"] is None and ends["endless"] is None


# --- Files and sockets --------------------------------------------------------


def test_bytes_read_and_mapped_are_exact(tmp_path):
    weights, tokenizer = tmp_path / "w.safetensors", tmp_path / "tokenizer.json"
    weights.write_bytes(bytes(1_000_003))
    tokenizer.write_bytes(bytes(70_001))
    (tmp_path / "noise.txt").write_text("x")
    text = """
        import mmap, os, sys, time
        os.chdir(sys.argv[1])
        with open("w.safetensors", "rb") as f:
            f.read(8)
            mapped = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)
        with open("tokenizer.json", "rb", buffering=0) as f:
            f.read(70_001)
            os.pread(f.fileno(), 100, 5)
        open("noise.txt").read()
        try: open("missing.json")
        except OSError: pass
        still = open("tokenizer.json", "rb", buffering=0); still.read(3)
        time.sleep(0.5)
        os._exit(0)
    """
    traced = trace(python(text, str(tmp_path)))
    used = [f for f in traced.of(FileUsed) if f.path.startswith(str(tmp_path))]
    assert [(Path(f.path).name, f.size_bytes, f.mapped_bytes) for f in used] == [
        ("w.safetensors", 1_000_003, 1_000_003),
        ("tokenizer.json", 70_001, 0),
        ("tokenizer.json", None, 0),  # the process, and so its root, is gone by then
    ]
    # A buffered file reads ahead; the others take what they ask for.
    assert [f.read_bytes for f in used[1:]] == [70_101, 3]
    assert [f.closed_ns is None for f in used] == [False, False, True]


def test_tcp_listens_and_only_the_first_accept(tmp_path):
    text = """
        import socket, sys
        unix = socket.socket(socket.AF_UNIX); unix.bind(sys.argv[1]); unix.listen()
        udp = socket.socket(type=socket.SOCK_DGRAM); udp.bind(("127.0.0.1", 0))
        def serve():
            tcp.listen()
        tcp = socket.socket(); tcp.bind(("127.0.0.1", 0)); serve(); tcp.listen()
        for _ in range(3):
            client = socket.create_connection(tcp.getsockname()); tcp.accept()
        print(tcp.getsockname()[1])
    """
    traced = trace(python(text, str(tmp_path / "socket")))
    port = int(traced.out)
    (listening,) = traced.of(SocketListening)
    assert (listening.family, listening.port) == (socket.AF_INET, port)
    assert [accepted.port for accepted in traced.of(SocketAccepted)] == [port]
    before = traced.events[traced.events.index(listening) - 1]
    assert isinstance(before, StackSampled) and before.cause is SampleCause.EDGE
    assert traced.stacks(SampleCause.EDGE) == [(traced.root.pid, ["serve", "<module>"])]


# --- Cores, waits, disks, network -------------------------------------------------


def test_a_thread_ran_as_long_as_the_kernel_says():
    text = """
        import time
        while time.process_time() < 0.7: pass
        time.sleep(0.2)
        print(time.process_time_ns())
    """
    traced = trace(python(text))
    ran_ns = sum(r.ran_ns for r in traced.of(ThreadRan) if r.process == traced.root)
    assert ran_ns == pytest.approx(int(traced.out), rel=0.02, abs=20_000_000)
    assert all(r.ts_ns % BUCKET_NS == 0 and r.ran_ns <= BUCKET_NS for r in traced.of(ThreadRan))


def test_a_wait_says_how_long_in_what_and_who_ended_it():
    text = """
        import threading, time
        lock = threading.Lock()
        def hold():
            with lock:
                held.set(); time.sleep(0.3)
        held = threading.Event()
        thread = threading.Thread(target=hold); thread.start(); held.wait()
        lock.acquire()
        print(thread.native_id)
        time.sleep(0.2)
    """
    traced = trace(python(text))
    waits = [w for w in traced.of(ThreadWaited) if w.tid == traced.root.pid]
    for_lock = max((w for w in waits if _in(w, "futex")), key=_length_ns)
    assert _length_ns(for_lock) == pytest.approx(300_000_000, abs=40_000_000)
    assert (for_lock.waker_pid, for_lock.waker_tid) == (traced.root.pid, int(traced.out))
    assert for_lock.ts_ns < for_lock.woken_ns <= for_lock.end_ns
    asleep = max((w for w in waits if _in(w, "nanosleep")), key=_length_ns)
    assert _length_ns(asleep) == pytest.approx(200_000_000, abs=40_000_000)
    assert asleep.state is WaitState.SLEEPING


def _in(wait: ThreadWaited, part: str) -> bool:
    return any(part in function for function in wait.kernel)


def _length_ns(wait: ThreadWaited) -> int:
    return wait.end_ns - wait.ts_ns


def test_waiting_for_a_core_is_told():
    text = """
        import os, time
        os.sched_setaffinity(0, {0})
        for _ in range(3): os.fork()
        end = time.monotonic() + 0.5
        while time.monotonic() < end: pass
    """
    traced = trace(python(text))
    waits = [w for w in traced.of(ThreadWaited) if w.process == traced.root]
    runnable_ns = sum(w.end_ns - w.woken_ns for w in waits if w.state is WaitState.PREEMPTED)
    assert runnable_ns > 250_000_000  # eight processes share one core


def test_bytes_from_the_disk_are_exact_to_the_page(tmp_path):
    file = tmp_path / "w.safetensors"
    file.write_bytes(os.urandom(3_000_001))
    text = """
        import os, sys, time
        fd = os.open(sys.argv[1], os.O_RDONLY)
        while os.read(fd, 1 << 20): pass
        os.close(fd)
        time.sleep(0.3)
    """
    whole = -(-3_000_001 // 4096)
    for cold in (True, False):
        fd = os.open(file, os.O_RDONLY)
        os.fsync(fd)
        if cold:
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        status = os.fstat(fd)
        os.close(fd)
        traced = trace(python(text, str(file)))
        here = [p for p in traced.of(PagesCached) if p.inode == status.st_ino]
        assert {p.device for p in here} <= {status.st_dev}
        pages = sum(p.added_bytes for p in here) // 4096
        if cold:
            assert pages >= whole
        assert pages - whole * cold <= whole // 10  # some machines drop pages meanwhile
        (used,) = (f for f in traced.of(FileUsed) if f.path == str(file))
        assert (used.device, used.inode) == (status.st_dev, status.st_ino)


def test_connections_and_lookups_are_named():
    text = """
        import socket, urllib.request
        server = socket.create_server(("127.0.0.1", 0))
        socket.create_connection(server.getsockname())
        try: socket.getaddrinfo("no-such-host.invalid", 80)
        except OSError: pass
        print(server.getsockname()[1])
    """
    traced = trace(python(text))
    (connected,) = (c for c in traced.of(Connected) if c.address == "127.0.0.1")
    assert (connected.port, connected.error) == (int(traced.out), 0)
    (lookup,) = (u for u in traced.of(NameLookedUp) if u.name == "no-such-host.invalid")
    assert lookup.error != 0 and lookup.end_ns > lookup.ts_ns


def test_a_sample_says_where_its_code_lies():
    text = """
        import hashlib, os, time
        data = bytes(1 << 20)
        while time.process_time() < 0.4: hashlib.sha256(data)
        while time.process_time() < 0.8: os.stat("/")
    """
    traced = trace(python(text))
    places = Counter(s.place for s in traced.of(StackSampled) if s.cause is SampleCause.ON_CPU)
    in_crypto = sum(n for place, n in places.items() if place.startswith(("libcrypto", "_hashlib")))
    in_kernel = sum(n for place, n in places.items() if place.startswith("kernel:"))
    assert in_crypto > 20 and in_kernel > 5, places


# --- The source itself ----------------------------------------------------------


def test_what_is_not_followed_is_not_seen():
    source = KernelSource()
    source.open()
    subprocess.run([PYTHON, "-c", "import json"], check=True)
    seen = source.poll(0.05) + source.close()
    assert [e for e in seen if not isinstance(e, DeviceTransferred)] == []
    assert set(source.stats().seen) <= {"block"}


def test_a_process_that_already_runs_is_joined():
    program = [PYTHON, "-c", "def work():\n while 1: sum(range(99))\nwork()"]
    source = KernelSource()
    source.open()
    with subprocess.Popen(program) as running:
        time.sleep(0.5)
        source.follow(ProcessId(running.pid, 12345))
        events = _poll_for(source, 0.5)
        running.kill()
    source.close()
    samples = [e for e in events if isinstance(e, StackSampled)]
    assert len(samples) > 20
    assert {sample.process for sample in samples} == {ProcessId(running.pid, 12345)}


def _poll_for(source: KernelSource, seconds: float) -> list[Event]:
    events: list[Event] = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        events += source.poll(0.02)
    return events


def test_the_environment_is_left_as_it_was():
    before = dict(os.environ)
    source = KernelSource()
    source.open()
    source.close()
    assert dict(os.environ) == before


def test_a_missing_tracepoint_leaves_its_subject_out(monkeypatch, tmp_path):
    events = tmp_path / "events"
    for folder in (kernel.TRACEFS / "events").iterdir():
        if folder.is_dir() and folder.name != "sock":
            (events / folder.name).parent.mkdir(exist_ok=True)
            (events / folder.name).symlink_to(folder)
    monkeypatch.setattr(kernel, "TRACEFS", tmp_path)
    missing = kernel.missing_subjects()
    assert list(missing) == ["sockets.bpf.c"]
    assert "sock/inet_sock_set_state" in missing["sockets.bpf.c"]
    assert len(trace(["/bin/true"]).of(ProcessExecuted)) == 1
