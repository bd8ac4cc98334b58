"""One line for each step of a start, printed as the step ends.

A step may come back (the engine has a tokenizer too): then it is printed again.

This runs in the recording process: it looks at each sample once, with a few
dictionary look-ups, and imports nothing heavy. Its times are good to about a
sampling period; the table that follows is exact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, TextIO

from analysis.signature import Mark, Signatures
from analysis.stacks import UNKNOWN, Label, read_marks
from probes.events import (
    Event,
    FunctionSeen,
    ProcessExecuted,
    ProcessExited,
    ProcessForked,
    ProcessFound,
    ProcessId,
    SocketListening,
    StackSampled,
)

QUIET_NS = 1_000_000_000
"""A step is over when a later one has gone on, and it wasn't seen itself, for this long."""
GROWTH_NS = 250_000_000
"""One that comes back and takes at least so much more is printed again."""
MAX_KNOWN_STACKS = 20_000


@dataclass(frozen=True, slots=True)
class _Told:
    """What one stack tells: of the moment, of its process, and of what that forks."""

    label: Label = UNKNOWN
    role: str | None = None
    makes: str | None = None


@dataclass(slots=True)
class _Process:
    """What is known of a process by now."""

    role: str = ""
    parent: ProcessId | None = None
    children: list[ProcessId] = field(default_factory=list)
    marks: dict[int, Mark] = field(default_factory=dict)
    stacks: dict[tuple[int, ...], _Told] = field(default_factory=dict)
    now: _Told = _Told()


class Progress:
    """Prints to `stream` as events come in; `finish` prints what is left."""

    def __init__(self, stream: TextIO, signatures: Signatures | None = None) -> None:
        self._stream = stream
        self._signatures = signatures or Signatures.load()
        self._steps = [step.id for step in self._signatures.steps]
        self._titles = {step.id: step.title for step in self._signatures.steps}
        self._processes: dict[ProcessId, _Process] = {}
        self._root: ProcessId | None = None
        self._begin_ns = 0
        self._now_ns = 0
        self._took_ns: dict[str, int] = {}
        self._last_ns: dict[str, int] = {}
        self._told_ns: dict[str, int] = {}

    def observe(self, events: Iterable[Event]) -> None:
        """Take the events of one pass along; print the steps that are over by now."""
        for event in events:
            take = _TAKERS.get(type(event))
            if take is not None:
                take(self, event)
        self._print_ended()

    def finish(self) -> None:
        """Print the steps that happened and weren't printed yet, or not as they are."""
        for step in self._steps:
            if self._has_news(step):
                self._print(step)

    def _print_ended(self) -> None:
        for index, step in enumerate(self._steps):
            if self._has_news(step) and self._is_over(step, self._steps[index + 1 :]):
                self._print(step)

    def _has_news(self, step: str) -> bool:
        """Whether a step happened and wasn't printed, or has come back and grown since."""
        took_ns, told_ns = self._took_ns.get(step, 0), self._told_ns.get(step)
        return took_ns > 0 if told_ns is None else took_ns - told_ns > GROWTH_NS

    def _is_over(self, step: str, later_steps: list[str]) -> bool:
        last_ns = self._last_ns[step]
        gone_on = any(self._last_ns.get(later, 0) > last_ns for later in later_steps)
        return gone_on and self._now_ns - last_ns >= QUIET_NS

    def _print(self, step: str) -> None:
        ended_s = (self._last_ns[step] - self._begin_ns) / 1e9
        took_ns = self._took_ns[step]
        in_all = " in all" if step in self._told_ns else ""
        self._told_ns[step] = took_ns
        line = f"coldtrace: {ended_s:6.1f} s  {self._titles[step]} took {took_ns / 1e9:.1f} s"
        print(f"{line}{in_all}", file=self._stream, flush=True)

    # -- whose time it is ---------------------------------------------------

    def _advance(self, ts_ns: int) -> None:
        """Give the time up to `ts_ns` to the step of whoever owned it."""
        if ts_ns <= self._now_ns:
            return
        substep = self._owner().substep
        if substep is not None and self._now_ns >= self._begin_ns:
            step = self._signatures.step_of(substep)
            self._took_ns[step] = self._took_ns.get(step, 0) + ts_ns - self._now_ns
            self._last_ns[step] = ts_ns
        self._now_ns = ts_ns

    def _owner(self) -> Label:
        """The label that counts: the server's, or that of whom it waits for."""
        process = self._processes.get(self._root) if self._root else None
        if process is None:
            return UNKNOWN
        server = self._signatures.ready.role
        if process.role != server:
            process = self._below(process, server) or process
        while process.now.label.waits_for is not None:
            below = self._below(process, process.now.label.waits_for)
            if below is None or below.now.label.idle:
                break
            process = below
        return process.now.label

    def _below(self, process: _Process, role: str) -> _Process | None:
        """A descendant of `role`, one that has work if there is one."""
        found = None
        pending = list(process.children)
        while pending:
            child = self._processes.get(pending.pop())
            if child is None:
                continue
            if child.role == role and (found is None or found.now.label.idle):
                found = child
            pending += child.children
        return found

    # -- events -------------------------------------------------------------

    def _process(self, process: ProcessId) -> _Process:
        known = self._processes.get(process)
        if known is None:
            if self._root is None:
                self._root = process
            known = self._processes[process] = _Process()
        return known

    def _take_found(self, event: ProcessFound) -> None:
        process = self._process(event.process)
        self._begin_ns = min(self._begin_ns or event.process.start_ns, event.process.start_ns)
        self._now_ns = max(self._now_ns, event.ts_ns)
        if event.parent is not None and event.parent in self._processes:
            self._adopt(event.parent, event.process)
        if not process.role:
            self._name(process, event.argv[0] if event.argv else "", event.argv)

    def _take_forked(self, event: ProcessForked) -> None:
        self._advance(event.ts_ns)
        parent, child = self._process(event.process), self._process(event.child)
        self._adopt(event.process, event.child)
        if parent.now.makes is not None:
            child.role = parent.now.makes
        child.now = self._before_python(child)

    def _take_executed(self, event: ProcessExecuted) -> None:
        self._advance(event.ts_ns)
        process = self._process(event.process)
        if event.process == self._root and not self._begin_ns:
            self._begin_ns = self._now_ns = event.ts_ns
        process.marks.clear()  # its keys were addresses in a program that is gone
        process.stacks.clear()
        self._name(process, event.filename, event.argv)
        process.now = self._before_python(process)

    def _take_exited(self, event: ProcessExited) -> None:
        self._advance(event.ts_ns)
        process = self._processes.pop(event.process, None)
        if process is not None and process.parent is not None and process.parent in self._processes:
            siblings = self._processes[process.parent].children
            siblings.remove(event.process)
            siblings += process.children

    def _take_function(self, event: FunctionSeen) -> None:
        process = self._process(event.process)
        mark = self._signatures.mark(event.file, event.name)
        if process.marks.get(event.key) == mark:
            return
        process.stacks.clear()  # the key stands for something else from now on
        if mark is None:
            del process.marks[event.key]
        else:
            process.marks[event.key] = mark

    def _take_sample(self, event: StackSampled) -> None:
        if event.tid != event.process.pid or not event.frames:
            return
        self._advance(event.ts_ns)
        process = self._process(event.process)
        told = process.stacks.get(event.frames)
        if told is None:
            told = self._read(process, event.frames)
        process.now = told
        process.role = told.role or process.role

    def _take_listening(self, event: SocketListening) -> None:
        self._advance(event.ts_ns)

    def _read(self, process: _Process, frames: tuple[int, ...]) -> _Told:
        marks = [process.marks[key] for key in frames if key in process.marks]
        role = next((mark.role for mark in marks if mark.role), None)
        known = self._signatures.roles.get(role or process.role)
        if known is not None and known.substep is not None:
            label = Label(known.substep)
        else:
            label = read_marks(marks, role or process.role, self._signatures.imports)
        makes = next((mark.makes for mark in marks if mark.makes), None)
        if len(process.stacks) >= MAX_KNOWN_STACKS:
            process.stacks.clear()
        told = process.stacks[frames] = _Told(label, role, makes)
        return told

    def _before_python(self, process: _Process) -> _Told:
        role = self._signatures.roles.get(process.role)
        return _Told(Label(role.before_python)) if role else _Told()

    def _name(self, process: _Process, filename: str, argv: tuple[str, ...]) -> None:
        process.role = self._signatures.role_of_command(filename, argv) or process.role

    def _adopt(self, parent: ProcessId, child: ProcessId) -> None:
        self._process(child).parent = parent
        self._process(parent).children.append(child)
        while self._root is not None and (above := self._processes[self._root].parent):
            self._root = above  # something else of its tree was heard of first


_TAKERS: dict[type, Callable[[Progress, Any], None]] = {
    ProcessFound: Progress._take_found,
    ProcessForked: Progress._take_forked,
    ProcessExecuted: Progress._take_executed,
    ProcessExited: Progress._take_exited,
    FunctionSeen: Progress._take_function,
    StackSampled: Progress._take_sample,
    SocketListening: Progress._take_listening,
}
