"""A start as trace events, which ui.perfetto.dev and chrome://tracing open.

Steps and sub-steps are slices of a process of their own, which has the lines as
counters too. A process has its life and its imports, nested, on its main thread; beside
each thread lie its Python stacks and its waits.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import groupby
from typing import Any

from analysis.modules import ModuleNode
from analysis.report.cells import command_line, who
from analysis.report.cores import cores_of
from analysis.report.folded import names_of
from analysis.report.frames import Frames
from analysis.report.lines import lines_of
from analysis.report.terminal import headline
from analysis.result import ProcessLife, Segment
from analysis.start import Start
from probes.events import SampleCause
from tracer.text import escape
from tracer.trace import Wait

FIRST_TRACK = 1 << 23
"""Tracks beside the threads have numbers that no thread can have."""
MIN_WAIT_NS = 1_000_000
MAX_ARGUMENTS = 1000
"""Characters of a command line."""


def to_perfetto(start: Start) -> str:
    """One JSON object; times are µs since the start, exact to the ns."""
    events = _Events(start)
    events.add_path()
    events.add_counters()
    for order, life in enumerate(start.result.processes, 1):
        events.add_process(life, order)
    return json.dumps(
        {
            "traceEvents": events.list,
            "displayTimeUnit": "ms",
            "otherData": {"name": headline(start.result)},
        },
        separators=(",", ":"),
    )


class _Events:
    """Collects the events; one process, named by `pid`, a process of the start."""

    def __init__(self, start: Start) -> None:
        self.list: list[dict[str, Any]] = []
        self._start = start
        self._frames = Frames(start)
        self._pids: set[int] = set()
        self._next = FIRST_TRACK

    # The start as a whole

    def add_path(self) -> None:
        """Steps, sub-steps, and the moment at which it was ready."""
        start = self._start
        self._pid = self._number()
        self._name_process("Critical path", 0)
        for order, title in enumerate(("Steps", "Sub-steps")):
            track = self._track(title, order)
            for name, begin_ns, end_ns in _stretches(start, order):
                self._slice(name, track, begin_ns, end_ns)
        if start.result.outcome == "ready":
            self._add("i", "ready", track, start.end_ns, s="g")

    def add_counters(self) -> None:
        """Cores and lines."""
        cores = cores_of(self._start)
        if cores is not None:
            for cpu, busy_ns in cores.busy_ns.items():
                for bucket, ran_ns in enumerate([*busy_ns, 0]):
                    ts_ns = cores.first_ns + bucket * cores.bucket_ns
                    share = ran_ns * 100 / cores.bucket_ns
                    self._counter(f"CPU {cpu} busy", "%", ts_ns, share)
        for line in lines_of(self._start):
            name = f"{line.title}: {line.subject}" if line.subject else line.title
            for ts_ns, value in zip(line.times_ns, line.values, strict=True):
                self._counter(name, line.unit, ts_ns, value)

    # One process

    def add_process(self, life: ProcessLife, order: int) -> None:
        """Its life and imports, and the stacks and waits of its threads."""
        start = self._start
        self._pid = life.pid if life.pid not in self._pids else self._number()
        self._pids.add(life.pid)
        self._name_process(who(start, life), order)
        self._add("M", "thread_name", life.pid, args={"name": "main thread"})
        end_ns = start.end_ns if life.end_ns is None else min(life.end_ns, start.end_ns)
        arguments = {"command": command_line(start, life, MAX_ARGUMENTS)}
        self._slice(escape(life.program) or "process", life.pid, life.start_ns, end_ns, arguments)
        for root in start.imports.get(life.id, []):
            self._add_imports(root)
        self._add_stacks(life, end_ns)
        self._add_waits(life)
        for socket in start.trace.sockets():
            if socket.process_id == life.id and socket.kind == "listen":
                self._add("i", f"listens on port {socket.port}", life.pid, socket.ts_ns, s="p")

    def _add_imports(self, root: ModuleNode) -> None:
        pending = [root]
        while pending:
            node = pending.pop()
            name = f"import {escape(node.name)}"
            self._slice(name, node.tid, node.start_ns, node.end_ns)
            pending += reversed(node.children)

    def _add_stacks(self, life: ProcessLife, end_ns: int) -> None:
        """Each function from the sample that saw it first to the one that didn't."""
        by_thread: dict[int, list[tuple[int, tuple[int, ...]]]] = {}
        for sample in self._start.trace.samples(life.id):
            if sample.cause is not SampleCause.EDGE and sample.ts_ns < end_ns:
                frames = self._frames.of(sample.stack_id)
                by_thread.setdefault(sample.tid, []).append((sample.ts_ns, frames))
        for tid, stacks in by_thread.items():
            if not any(frames for _, frames in stacks):
                continue
            track = self._track(f"{_thread(life, tid)}: Python", tid)
            open_: tuple[int, ...] = ()
            for ts_ns, frames in [*stacks, (end_ns, ())]:
                self._turn(track, ts_ns, open_, frames)
                open_ = frames

    def _turn(
        self, track: int, ts_ns: int, before: tuple[int, ...], after: tuple[int, ...]
    ) -> None:
        """End the functions that aren't in `after`, begin those that weren't in `before`."""
        same = 0
        while same < min(len(before), len(after)) and before[same] == after[same]:
            same += 1
        for _ in before[same:]:
            self._add("E", "", track, ts_ns)
        for function_id in after[same:]:
            self._add("B", escape(self._start.stacks.title(function_id)), track, ts_ns)

    def _add_waits(self, life: ProcessLife) -> None:
        tracks: dict[int, int] = {}
        for wait in self._start.trace.waits(life.id):
            if wait.end_ns - wait.ts_ns < MIN_WAIT_NS or wait.ts_ns >= self._start.end_ns:
                continue
            if wait.tid not in tracks:
                tracks[wait.tid] = self._track(f"{_thread(life, wait.tid)}: waits", wait.tid)
            self._add_wait(life.id, wait, tracks[wait.tid])

    def _add_wait(self, process_id: int, wait: Wait, track: int) -> None:
        """A wait until it was over, and from there until a core was free."""
        start = self._start
        end_ns = min(wait.end_ns, start.end_ns)
        woken_ns = min(wait.woken_ns, end_ns)
        if wait.ts_ns < woken_ns:
            doing = start.attributor.doing(process_id, wait)
            kernel = start.trace.kernel_stacks[wait.kernel_stack_id]
            arguments: dict[str, Any] = {"kernel": escape(" ".join(kernel))}
            if wait.waker_pid is not None:
                arguments["woken by pid"] = wait.waker_pid
            name = f"{doing.kind}: {escape(doing.what)}" if doing.what else doing.kind
            self._slice(name, track, wait.ts_ns, woken_ns, arguments)
        self._slice("waits for a core", track, woken_ns, end_ns)

    # The events themselves

    def _number(self) -> int:
        self._next += 1
        return self._next

    def _name_process(self, name: str, order: int) -> None:
        self._add("M", "process_name", 0, args={"name": name})
        self._add("M", "process_sort_index", 0, args={"sort_index": order})

    def _track(self, name: str, order: int) -> int:
        track = self._number()
        self._add("M", "thread_name", track, args={"name": name})
        self._add("M", "thread_sort_index", track, args={"sort_index": order})
        return track

    def _slice(
        self,
        name: str,
        tid: int,
        begin_ns: int,
        end_ns: int,
        arguments: dict[str, Any] | None = None,
    ) -> None:
        begin_ns = max(begin_ns, self._start.begin_ns)
        if begin_ns < end_ns:
            extra = {"args": arguments} if arguments else {}
            self._add("X", name, tid, begin_ns, dur=(end_ns - begin_ns) / 1000, **extra)

    def _counter(self, name: str, unit: str, ts_ns: int, value: float) -> None:
        self._add("C", name, 0, ts_ns, args={unit or "value": round(value, 3)})

    def _add(self, phase: str, name: str, tid: int, ts_ns: int | None = None, **more: Any) -> None:
        event = {"ph": phase, "pid": self._pid, "tid": tid, **more}
        if name:
            event["name"] = name
        if ts_ns is not None:
            event["ts"] = max(ts_ns - self._start.begin_ns, 0) / 1000
        self.list.append(event)


def _stretches(start: Start, depth: int) -> Iterator[tuple[str, int, int]]:
    """The critical path by step (0) or sub-step (1), or what stands for both."""

    def title(segment: Segment) -> str:
        names = names_of(start, segment)
        return names[min(depth, len(names) - 1)]

    for name, same in groupby(start.segments, title):
        segments = list(same)
        yield name, segments[0].start_ns, segments[-1].end_ns


def _thread(life: ProcessLife, tid: int) -> str:
    return "main thread" if tid == life.pid else f"thread {tid}"
