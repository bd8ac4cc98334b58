"""py-spy as a source of stacks: for interpreters that the in-kernel walk doesn't know.

py-spy is a program; it runs as a child of the tracer and reads the memory of the
observed process (`--nonblocking`: it never stops it with ptrace). It writes its
`chrometrace` output only when it ends, so all stacks come from close().

Clock: the output counts microseconds from py-spy's own start, which isn't
written. It is taken as the moment its exec returned, bounded by the lines that
it prints later. Against programs that note the moments of their own phases the
clocks agreed to 2 ms on an idle machine and 4 ms with every core busy twice over
(24 runs); the 'Sampling process' line alone would be up to 170 ms late, as it
comes only once the interpreter is found. To this comes the sampling itself:
intervals are exponential with mean 1/hz, and on a busy machine a sample may lag
by some 100 ms.

Names are qualified (co_qualname) from Python 3.11 on and plain before; files are
full co_filename. The OS thread id is known from 3.11 on; before, and in
containers, a thread other than the main one gets an invented id, above any that
Linux gives. The main thread's is always the pid.

What py-spy can't see: a thread's end (its last stack stays), a child in the
first 0.1 to 0.2 s of its life, a child that becomes Python later than that, the
CPU a thread runs on (told as 0), whether it is running or waiting. 1 to 3 % of
the samples fail since the process isn't stopped; they are counted as lost.
"""

from __future__ import annotations

import ctypes
import heapq
import os
import re
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from probes import proc
from probes.chrometrace import ChromeTraceError, Frame, Stack, last_time_us, read_stacks
from probes.events import (
    Event,
    FunctionSeen,
    ProcessExecuted,
    ProcessExited,
    ProcessForked,
    ProcessFound,
    ProcessId,
    SampleCause,
    StackSampled,
)
from probes.source import SourceStats, SourceUnavailable

_STOP_S = 10.0
_FIRST_RETRY_S = 0.05
_LAST_RETRY_S = 2.0
_LINE_BYTES = 4096
_INVENTED_TID = 1 << 22  # Linux's PID_MAX_LIMIT: no real thread has an id from here on
_START_SLACK_NS = 20_000_000  # how far the two clocks may be apart

_WROTE = re.compile(r"Wrote chrome trace .* Samples: (\d+) Errors: (\d+)")
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


@dataclass(slots=True, eq=False)
class _Run:
    """One py-spy, from its exec until it has written its file."""

    child: subprocess.Popen[bytes]
    output: Path
    executed_ns: int
    sampling_ns: int | None = None
    wrote_ns: int | None = None
    said: str = ""
    """Its error, or the last line that it printed."""
    taken: int = 0
    failed: int = 0
    unread: bytes = b""

    def hear(self, piece: bytes, now_ns: int) -> None:
        *lines, self.unread = (self.unread + piece).split(b"\n")
        self.unread = self.unread[-_LINE_BYTES:]
        for line in lines:
            self._hear_line(line[:_LINE_BYTES].decode("utf-8", "replace").strip(), now_ns)

    def _hear_line(self, line: str, now_ns: int) -> None:
        if "Sampling process" in line:
            self.sampling_ns = now_ns
        elif found := _WROTE.search(line):
            self.wrote_ns = now_ns
            self.taken, self.failed = int(found[1]), int(found[2])
        elif line and not self.said.startswith(("Error", "Permission")):
            self.said = line

    def clock_starts_ns(self) -> int:
        """The moment that the output calls 0 us."""
        bounds = [self.executed_ns]
        if self.sampling_ns is not None:
            bounds.append(self.sampling_ns)
        last_us = last_time_us(str(self.output))
        if self.wrote_ns is not None and last_us is not None:
            bounds.append(self.wrote_ns - last_us * 1000)
        return min(bounds)


@dataclass(slots=True, eq=False)
class _Followed:
    """A process to follow, over all the attempts that it takes."""

    process: ProcessId
    run: _Run
    failures: int = 0
    next_try_ns: int | None = None
    over: bool = False


@dataclass(slots=True)
class _Threads:
    """Names the threads of one process; `inner_pid` is its pid as it sees it."""

    process: ProcessId
    inner_pid: int
    main: int | None = None
    invented: dict[int, int] = field(default_factory=dict)
    last: dict[int, tuple[Frame, ...]] = field(default_factory=dict)

    def tid(self, stack: Stack) -> int:
        if self._is_main(stack):
            return self.process.pid
        if stack.tid is not None and self.inner_pid == self.process.pid:
            return stack.tid
        own = stack.tid or stack.thread
        return self.invented.setdefault(own, _INVENTED_TID + len(self.invented))

    def _is_main(self, stack: Stack) -> bool:
        if stack.tid is not None:
            return stack.tid == self.inner_pid
        # Until `threading` is imported no thread has a name, and the main one is alone.
        if self.main is None and stack.thread_name in (None, "MainThread"):
            self.main = stack.thread
        return stack.thread == self.main

    def changed(self, tid: int, frames: tuple[Frame, ...]) -> bool:
        before = self.last.get(tid)
        self.last[tid] = frames
        return before != frames


class PySpySource:
    """Stacks by py-spy; satisfies probes.source.Source.

    `subprocesses`: one py-spy follows a process and its children (as the only
    sampler); else each followed process gets its own (as the fall-back for one
    interpreter). `program` is found beside the tracer's own Python or on PATH.

    Pass every batch of process events to `observe`: they say which process has
    a pid at which moment, and when one executes anew.
    """

    name = "py-spy"

    def __init__(self, hz: int, *, subprocesses: bool, program: Path | None = None) -> None:
        self._hz = hz
        self._subprocesses = subprocesses
        self._program = program
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._selector = selectors.DefaultSelector()
        self._followed: list[_Followed] = []
        self._runs: list[_Run] = []
        self._processes: dict[int, list[_Threads]] = {}
        self._keys: dict[Frame, int] = {}
        self._known: set[tuple[ProcessId, int]] = set()
        self._lost: Counter[str] = Counter()
        self._notes: list[tuple[int, str]] = []

    def open(self) -> None:
        """Find py-spy and make a private folder; SourceUnavailable without py-spy."""
        self._program = self._program or find_program()
        if self._program is None or not os.access(self._program, os.X_OK):
            raise SourceUnavailable("py-spy isn't installed: pip install py-spy")
        self._folder = tempfile.TemporaryDirectory(prefix="coldtrace-py-spy-")  # mode 0700

    def follow(self, process: ProcessId) -> None:
        """Observe `process`, as soon as a Python interpreter runs in it."""
        self._note_process(process)
        self._followed.append(_Followed(process, self._start(process)))

    def observe(self, events: Iterable[Event]) -> None:
        """Learn from the process events of other sources."""
        for event in events:
            match event:
                case ProcessFound(process=process):
                    self._note_process(process)
                case ProcessForked(child=child):
                    self._note_process(child)
                case ProcessExecuted(ts_ns=ts_ns, process=process):
                    self._restart(process, ts_ns)
                case ProcessExited(process=process):
                    self._end(process)

    def poll(self, timeout_s: float) -> Iterable[Event]:
        """Look after the py-spy programs for up to `timeout_s`; events come from close()."""
        now_ns = time.monotonic_ns()
        for followed in self._followed:
            self._advance(followed, now_ns)
        self._listen(timeout_s)
        return ()

    def stats(self) -> SourceStats:
        """Samples by py-spy's own count; complete once close()'s events are consumed."""
        taken = sum(run.taken for run in self._runs)
        failed = sum(run.failed for run in self._runs)
        lost = self._lost + Counter(sample=failed)
        return SourceStats(seen={"sample": taken}, lost=dict(lost))

    def take_notes(self) -> list[tuple[int, str]]:
        """What went wrong since the last call, as (CLOCK_MONOTONIC ns, one line)."""
        notes, self._notes = self._notes, []
        return notes

    def close(self) -> Iterable[Event]:
        """Stop every py-spy within 10 s, then read what each wrote, in order of time."""
        running = [run for run in self._runs if self._is_heard(run)]
        for run in running:
            self._stop(run)
        deadline_s = time.monotonic() + _STOP_S
        while (left_s := deadline_s - time.monotonic()) > 0 and any(map(self._is_heard, running)):
            self._listen(left_s)
        for run in filter(self._is_heard, running):
            run.child.kill()
            self._forget(run)
            self._lost["output"] += 1
            self._note(f"py-spy didn't stop within {_STOP_S:.0f} s and was killed")
        for followed in self._followed:
            if not followed.over and followed.run.wrote_ns is None:
                self._give_up(followed)
        self._selector.close()
        return self._events()

    # One py-spy at a time: start, listen, end.

    def _start(self, process: ProcessId) -> _Run:
        assert self._program is not None and self._folder is not None, "not open"
        folder = Path(self._folder.name)
        output = folder / f"{len(self._runs)}.json"
        words = [str(self._program), "record", "--format", "chrometrace", "--output", str(output)]
        words += ["--rate", str(self._hz), "--pid", str(process.pid)]
        words += ["--nonblocking", "--idle", "--threads", "--function"]
        words += ["--subprocesses"] if self._subprocesses else []
        child = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env={"RUST_BACKTRACE": "0"},
            start_new_session=True,  # Ctrl-C is the tracer's, which stops py-spy in its own time
            preexec_fn=_die_with_parent,
        )
        run = _Run(child, output, executed_ns=time.monotonic_ns())
        assert child.stdout is not None
        self._selector.register(child.stdout, selectors.EVENT_READ, run)
        self._runs.append(run)
        return run

    def _listen(self, timeout_s: float) -> None:
        if not self._selector.get_map():
            time.sleep(timeout_s)
            return
        for key, _ in self._selector.select(timeout_s):
            piece = os.read(key.fd, 65536)
            if piece:
                key.data.hear(piece, time.monotonic_ns())
            else:
                self._forget(key.data)

    def _forget(self, run: _Run) -> None:
        """`run` has closed its output: it has ended, or does at once."""
        assert run.child.stdout is not None
        self._selector.unregister(run.child.stdout)
        run.child.stdout.close()
        run.child.wait()

    def _is_heard(self, run: _Run) -> bool:
        return run.child.stdout is not None and not run.child.stdout.closed

    def _stop(self, run: _Run) -> None:
        """By SIGINT it writes what it has; before its first sample there is nothing."""
        if self._is_heard(run):
            run.child.send_signal(signal.SIGINT if run.sampling_ns else signal.SIGKILL)

    # A followed process, until py-spy has found a Python in it.

    def _advance(self, followed: _Followed, now_ns: int) -> None:
        """Try again where py-spy gave up, unless that can't help."""
        run = followed.run
        if followed.over or self._is_heard(run):
            return
        if run.wrote_ns is not None:
            followed.over = True
        elif _is_denied(run.said) or not proc.is_running(followed.process):
            self._give_up(followed)
        elif followed.next_try_ns is None:
            delay_s = min(_LAST_RETRY_S, _FIRST_RETRY_S * 2 ** min(followed.failures, 10))
            followed.failures += 1
            followed.next_try_ns = now_ns + int(delay_s * 1e9)
        elif now_ns >= followed.next_try_ns:
            followed.run, followed.next_try_ns = self._start(followed.process), None

    def _give_up(self, followed: _Followed) -> None:
        followed.over = True
        self._lost["process"] += 1
        reason = followed.run.said or "it ended before an interpreter was found"
        self._note(f"py-spy saw no stack of process {followed.process.pid}: {_plain(reason)}")

    def _restart(self, process: ProcessId, ts_ns: int) -> None:
        """What py-spy learnt of `process` is void once it has executed anew."""
        for followed in self._followed:
            run = followed.run
            if followed.process == process and run.executed_ns < ts_ns:
                self._stop(run)
                self._followed.remove(followed)
                self._followed.append(_Followed(process, self._start(process)))
                return

    def _end(self, process: ProcessId) -> None:
        """`process` is gone: a py-spy that hasn't found it has nothing to wait for."""
        for followed in self._followed:
            if followed.process == process and followed.run.sampling_ns is None:
                self._stop(followed.run)

    # From output to events.

    def _events(self) -> Iterator[Event]:
        try:
            yield from heapq.merge(
                *map(self._run_events, self._runs), key=lambda event: event.ts_ns
            )
        finally:
            if self._folder is not None:
                self._folder.cleanup()

    def _run_events(self, run: _Run) -> Iterator[Event]:
        if not run.output.exists():
            return
        starts_ns = run.clock_starts_ns()
        try:
            with open(run.output, encoding="utf-8", errors="backslashreplace") as file:
                for stack in read_stacks(file):
                    yield from self._stack_events(stack, starts_ns + stack.ts_us * 1000)
        except (ChromeTraceError, OSError) as error:
            self._lost["output"] += 1
            self._note(f"py-spy's output can't be read to its end: {_plain(str(error))}")

    def _stack_events(self, stack: Stack, ts_ns: int) -> Iterator[Event]:
        threads = self._threads_at(stack.pid, ts_ns)
        if threads is None:
            self._lost["stack of an unknown process"] += 1
            return
        tid = threads.tid(stack)
        if not threads.changed(tid, stack.frames):
            return
        process = threads.process
        keys = tuple(self._keys.setdefault(frame, len(self._keys) + 1) for frame in stack.frames)
        for key, frame in zip(keys, stack.frames, strict=True):
            if (process, key) not in self._known:
                self._known.add((process, key))
                yield FunctionSeen(ts_ns, process, key, frame.file, frame.name, frame.line)
        yield StackSampled(ts_ns, process, tid, 0, SampleCause.CHANGE, keys, truncated=False)

    def _note_process(self, process: ProcessId) -> None:
        sharing = self._processes.setdefault(process.pid, [])
        if not any(threads.process == process for threads in sharing):
            inner_pid = proc.namespace_pid(process.pid) or process.pid
            sharing.append(_Threads(process, inner_pid))
            sharing.sort(key=lambda threads: threads.process.start_ns)

    def _threads_at(self, pid: int, ts_ns: int) -> _Threads | None:
        """Of the processes that had `pid`, the one at that moment."""
        sharing = self._processes.get(pid)
        if not sharing:
            return None
        starts = [threads.process.start_ns for threads in sharing]
        return sharing[max(0, bisect_right(starts, ts_ns + _START_SLACK_NS) - 1)]

    def _note(self, text: str) -> None:
        self._notes.append((time.monotonic_ns(), text))


def find_program() -> Path | None:
    """py-spy beside the tracer's own Python, else on PATH."""
    beside = Path(sys.executable).parent / "py-spy"
    if beside.is_file():
        return beside
    found = shutil.which("py-spy")
    return Path(found) if found else None


def _die_with_parent() -> None:
    """In the child, before its exec: a killed tracer leaves no py-spy behind."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _is_denied(said: str) -> bool:
    return "permission denied" in said.lower() or "Operation not permitted" in said


def _plain(text: str) -> str:
    """One printable line: what a process calls itself may hold terminal escapes."""
    return "".join(char if char.isprintable() else f"\\x{ord(char):02x}" for char in text[:500])
