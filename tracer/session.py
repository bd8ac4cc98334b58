"""One start as it happens: who descends from whom, and whether it is ready.

Nothing here knows an engine: what readiness looks like comes as a ReadyRule.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from probes.events import (
    Event,
    FunctionSeen,
    ProcessExecuted,
    ProcessExited,
    ProcessForked,
    ProcessFound,
    ProcessId,
    SampleCause,
    SocketListening,
    StackSampled,
)

Frames = tuple[tuple[str, str], ...]
"""A stack as (file, name), innermost frame first; ("", "<unknown>") where lost."""

_UNKNOWN = ("", "<unknown>")


class ReadyRule(Protocol):
    """Tells the listening socket that means "the server is up" from all others."""

    def is_ready(self, session: Session, event: SocketListening, frames: Frames) -> bool:
        """Whether `event` is readiness; `frames` is the stack of the thread that listens,
        empty where nobody sampled it."""


@dataclass(slots=True)
class ProcessState:
    """What is known of a process by now."""

    process: ProcessId
    parent: ProcessId | None = None
    filename: str = ""
    argv: tuple[str, ...] = ()
    alive: bool = True
    wait_status: int | None = None
    is_python: bool | None = None
    """None until a Python function was seen in it."""
    functions: dict[int, tuple[str, str]] = field(default_factory=dict)
    edges: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """The last stack with an exact moment, by thread."""


class Session:
    """The processes of one start, from its root down.

    `joined`: the tracer came while the start was under way (attach), so that it
    began with the root's own start; otherwise it begins with the root's first exec.
    """

    def __init__(self, root: ProcessId, ready: ReadyRule, *, joined: bool = False) -> None:
        self.root = root
        self.joined = joined
        self.begin_ns = root.start_ns if joined else None
        self.ready_ns: int | None = None
        self.processes = {root: ProcessState(root)}
        self._ready = ready
        self._interrupted = False
        self._takers: dict[type, Callable[[Any], None]] = {
            ProcessFound: self._take_found,
            ProcessForked: self._take_forked,
            ProcessExecuted: self._take_executed,
            ProcessExited: self._take_exited,
            FunctionSeen: self._take_function,
            StackSampled: self._take_sample,
            SocketListening: self._take_listening,
        }

    def take(self, event: Event) -> None:
        """Learn from `event`; kinds that tell nothing here are passed over."""
        taker = self._takers.get(type(event))
        if taker is not None:
            taker(event)

    def interrupt(self) -> None:
        """The recording was told to stop; what exits from now on didn't fail."""
        self._interrupted = True

    @property
    def root_state(self) -> ProcessState:
        """The process that the start is about."""
        return self.processes[self.root]

    @property
    def outcome(self) -> str:
        """ "ready", "failed" (the root ended before that) or "interrupted"."""
        if self.ready_ns is not None:
            return "ready"
        if self._interrupted or self.root_state.alive:
            return "interrupted"
        return "failed"

    def living(self) -> list[ProcessState]:
        """The root and its descendants that still run, oldest first."""
        states = [state for state in self.processes.values() if state.alive]
        return sorted(states, key=lambda state: state.process.start_ns)

    def children(self, process: ProcessId) -> list[ProcessState]:
        """The children of `process`, ended ones too, in the order they were seen."""
        return [state for state in self.processes.values() if state.parent == process]

    def _state(self, process: ProcessId) -> ProcessState:
        state = self.processes.get(process)
        if state is None:
            state = self.processes[process] = ProcessState(process)
        return state

    def _take_found(self, event: ProcessFound) -> None:
        state = self._state(event.process)
        state.parent = event.parent
        state.argv = event.argv

    def _take_forked(self, event: ProcessForked) -> None:
        parent, child = self._state(event.process), self._state(event.child)
        child.parent = event.process
        child.filename, child.argv = parent.filename, parent.argv

    def _take_executed(self, event: ProcessExecuted) -> None:
        state = self._state(event.process)
        state.filename, state.argv = event.filename, event.argv
        state.is_python = None
        state.edges.clear()
        if self.begin_ns is None and event.process == self.root:
            self.begin_ns = event.ts_ns

    def _take_exited(self, event: ProcessExited) -> None:
        state = self._state(event.process)
        state.alive = False
        state.wait_status = event.wait_status
        state.functions.clear()
        state.edges.clear()

    def _take_function(self, event: FunctionSeen) -> None:
        state = self._state(event.process)
        state.is_python = True
        state.functions[event.key] = (event.file, event.name)

    def _take_sample(self, event: StackSampled) -> None:
        if event.cause == SampleCause.EDGE:
            self._state(event.process).edges[event.tid] = event.frames

    def _take_listening(self, event: SocketListening) -> None:
        if self.ready_ns is None and self._ready.is_ready(self, event, self._frames(event)):
            self.ready_ns = event.ts_ns

    def _frames(self, event: SocketListening) -> Frames:
        state = self._state(event.process)
        keys = state.edges.pop(event.tid, ())
        return tuple(state.functions.get(key, _UNKNOWN) for key in keys)
