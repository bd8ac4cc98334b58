"""The loop that turns sources into a trace file.

    with Recorder(
        sources, writer, session, until="ready",
        meta={"coldtrace": VERSION, "command": [...], "options": {...}},
        required={"py-spy"}, observers=[progress.observe], say=print_line,
        asked_to_stop=stop,
    ) as recorder:               # opens the sources and follows the session's root
        let_the_command_go()
        recording = recorder.run()
    recording.outcome            # "ready", "failed" or "interrupted"
    recording.problem            # None, or one line: why the recording ended early

Leaving the block without `run` closes the sources and removes the file.
"""

from __future__ import annotations

import os
import resource
import select
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Literal, Protocol, runtime_checkable

from probes.events import Event, ProcessExited, ProcessId
from probes.source import Source, SourceUnavailable
from tracer.errors import ColdtraceError
from tracer.session import Session
from tracer.trace import TraceWriter

Until = Literal["ready", "exit"] | float
"""When a recording ends: at readiness, with the root process, or after so many seconds.
The root's exit and `asked_to_stop` end every recording."""

Observer = Callable[[Sequence[Event]], None]
"""Given the events of every pass of the loop, none in a quiet one, once the session
knows them."""

COMMIT_S = 0.5
WAIT_S = 0.05
"""How long a quiet pass waits."""
BATCH_EVENTS = 4096
MIN_PASS_S = 0.005
"""A pass for each event would cost more than the event: a busy one takes many along."""


@runtime_checkable
class _Noting(Protocol):
    """A source that has remarks of its own."""

    def take_notes(self) -> Iterable[tuple[int, str]]:
        """The remarks since the last call, as (CLOCK_MONOTONIC ns, one line)."""


@dataclass(frozen=True, slots=True)
class Recording:
    """How a recording ended; `problem` is one line where it ended before it should."""

    outcome: str
    problem: str | None


class Recorder:
    """Records one start from several sources into one file.

    `meta` goes into the file as it is; `required` names the sources that were asked
    for: one that can't open raises ColdtraceError, where another is skipped with a
    note. `say` gets one line for the user at a time. `asked_to_stop` is called on
    every pass.
    """

    def __init__(
        self,
        sources: Iterable[Source],
        writer: TraceWriter,
        session: Session,
        *,
        until: Until = "ready",
        meta: Mapping[str, object] | None = None,
        required: Collection[str] = (),
        observers: Iterable[Observer] = (),
        say: Callable[[str], None] = lambda line: None,
        asked_to_stop: Callable[[], bool] = lambda: False,
    ) -> None:
        self._offered = list(sources)
        self._sources: list[Source] = []
        self._writer = writer
        self._session = session
        self._until = until
        self._meta = dict(meta or {})
        self._required = required
        self._observers = list(observers)
        self._say = say
        self._asked_to_stop = asked_to_stop
        self._problem: str | None = None
        self._finished = False
        self._root_fd: int | None = None
        self._seen_from_ns: int | None = None

    def __enter__(self) -> Recorder:
        try:
            self._open()
        except BaseException:
            self._abandon()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if not self._finished:
            self._abandon()

    def run(self) -> Recording:
        """Record until the end; the file is closed then, whatever came in between."""
        began_cpu_s = _cpu_s()
        try:
            self._loop()
        finally:
            self._finish(began_cpu_s)
        return Recording(self._session.outcome, self._problem)

    def add_source(self, source: Source, process: ProcessId, why: str) -> None:
        """Have `source` observe `process` as well from now on; `why` is told the user.

        May be called from within a source's `poll`; a source that is open already
        only follows one more process.
        """
        try:
            if source not in self._sources:
                source.open()
                self._sources.append(source)
                self._writer.set_source(source.name, "open", "")
            source.follow(process)
        except Exception as error:
            self._drop(source, error)
        else:
            self.note(why)

    def note(self, text: str) -> None:
        """Tell the user `text` now, and every reader of the trace later."""
        self._writer.note(time.monotonic_ns(), text)
        self._say(text)

    # Opening and closing

    def _open(self) -> None:
        root = self._session.root
        with suppress(OSError):  # gone already: its exit will be told by a source
            self._root_fd = os.pidfd_open(root.pid)
        problems = [problem for source in self._offered if (problem := self._begin(source))]
        if not self._sources:
            raise ColdtraceError(f"nothing can observe here: {'; '.join(problems)}")
        self._follow(root)
        self._describe()
        self._writer.commit()

    def _begin(self, source: Source) -> str | None:
        """Open `source`; return why that can't be, None where it can."""
        try:
            source.open()
        except Exception as error:
            problem = f"{source.name}: {_describe_error(error)}"
            if source.name in self._required:
                raise ColdtraceError(problem) from error
            with suppress(Exception):  # it may be half open
                source.close()
            self._writer.set_source(source.name, "skipped", _describe_error(error))
            self.note(f"recording without {problem}")
            return problem
        self._sources.append(source)
        self._writer.set_source(source.name, "open", "")
        return None

    def _follow(self, process: ProcessId) -> None:
        for source in list(self._sources):
            try:
                source.follow(process)
            except Exception as error:
                self._drop(source, error)

    def _describe(self) -> None:
        session, writer, system = self._session, self._writer, os.uname()
        writer.set_meta("clock", {"monotonic_ns": time.monotonic_ns(), "wall_ns": time.time_ns()})
        host = {"kernel": system.release, "machine": system.machine, "cpus": os.cpu_count() or 0}
        writer.set_meta("host", host)
        writer.set_meta("root", writer.process_id(session.root))
        for key, value in self._meta.items():
            writer.set_meta(key, value)
        if session.joined:
            self._seen_from_ns = time.monotonic_ns()
            self._tell_moments()

    def _abandon(self) -> None:
        for source in self._sources:
            with suppress(Exception):
                source.close()
        self._close_root_fd()
        self._writer.discard()

    def _close_root_fd(self) -> None:
        if self._root_fd is not None:
            os.close(self._root_fd)
            self._root_fd = None

    # The loop

    def _loop(self) -> None:
        began_s = commit_s = time.monotonic()
        while self._sources and self._problem is None:
            pass_s = time.monotonic()
            self._take(self._poll(WAIT_S))
            if self._is_over(pass_s - began_s):
                return
            if pass_s - commit_s >= COMMIT_S:
                commit_s = pass_s
                self._commit()
            time.sleep(max(0.0, MIN_PASS_S - (time.monotonic() - pass_s)))
        if self._problem is None:
            self._stop_short("every source has failed")

    def _poll(self, wait_s: float) -> list[Event]:
        """What has come from every source; only the first one waits."""
        events: list[Event] = []
        for number, source in enumerate(list(self._sources)):
            try:
                events += source.poll(0 if number else wait_s)
            except Exception as error:
                self._drop(source, error)
        return events

    def _take(self, events: Sequence[Event]) -> None:
        tell, add, session = self._session.take, self._writer.add, self._session
        moments = session.begin_ns, session.ready_ns
        for event in events:
            tell(event)
            add(event)
        if moments != (session.begin_ns, session.ready_ns):
            self._tell_moments()
        for observe in list(self._observers):
            try:
                observe(events)
            except Exception as error:
                self._observers.remove(observe)
                self.note(f"no more progress is shown: {_describe_error(error)}")

    def _tell_moments(self) -> None:
        session, writer = self._session, self._writer
        if session.begin_ns is not None:
            writer.set_meta("begin_ns", session.begin_ns)
            writer.set_meta("seen_from_ns", self._seen_from_ns or session.begin_ns)
        if session.ready_ns is not None:
            writer.set_meta("ready_ns", session.ready_ns)

    def _is_over(self, elapsed_s: float) -> bool:
        if self._asked_to_stop():
            self._session.interrupt()
            return True
        if self._root_is_gone():
            return True
        if self._until == "ready":
            return self._session.ready_ns is not None
        return isinstance(self._until, (int, float)) and elapsed_s >= self._until

    def _root_is_gone(self) -> bool:
        if not self._session.root_state.alive:
            return True
        if self._root_fd is None or not select.select([self._root_fd], [], [], 0)[0]:
            return False
        self._take(self._poll(0))  # what it did last may have come since
        if self._session.root_state.alive:  # nobody told how it ended
            self._take([ProcessExited(time.monotonic_ns(), self._session.root, None)])
        return True

    def _commit(self) -> None:
        try:
            for source in list(self._sources):
                self._count(source)
            self._writer.commit()
        except ColdtraceError as error:
            self._stop_short(error.message)

    def _count(self, source: Source) -> None:
        try:
            self._writer.set_counts(source.name, source.stats())
            for ts_ns, text in source.take_notes() if isinstance(source, _Noting) else ():
                self._writer.note(ts_ns, text)
                self._say(text)
        except Exception as error:
            self._drop(source, error)

    def _drop(self, source: Source, error: Exception) -> None:
        if source in self._sources:
            self._sources.remove(source)
        with suppress(Exception):  # it has failed, and its failure is told
            source.close()
        reason = _describe_error(error)
        self._writer.set_source(source.name, "failed", reason)
        self.note(f"{source.name} has failed, recording goes on without it: {reason}")

    def _stop_short(self, problem: str) -> None:
        self._problem = problem
        self.note(f"recording has stopped, the program goes on: {problem}")

    # The end

    def _finish(self, began_cpu_s: float) -> None:
        self._finished = True
        end_ns = time.monotonic_ns()
        for source in list(self._sources):
            self._take_leave(source)
        self._close_root_fd()
        writer, session = self._writer, self._session
        self._tell_moments()  # again, as a failed commit may have lost them
        writer.set_meta("end_ns", end_ns)
        writer.set_meta("outcome", session.outcome)
        writer.set_meta("wait_status", session.root_state.wait_status)
        cpu_s = round(_cpu_s() - began_cpu_s, 6)
        writer.set_meta("recorder", {"cpu_s": cpu_s, "peak_rss_bytes": _peak_rss_bytes()})
        try:
            writer.close()
        except ColdtraceError as error:
            if self._problem is None:
                self._stop_short(error.message)

    def _take_leave(self, source: Source) -> None:
        try:
            self._take(list(source.poll(0)))
            rest = iter(source.close())
            while batch := list(islice(rest, BATCH_EVENTS)):
                self._take(batch)
        except Exception as error:
            self._drop(source, error)
            return
        self._count(source)


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _peak_rss_bytes() -> int:
    """Of this program: getrusage(2) would count what it was forked from as well."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0


def _describe_error(error: Exception) -> str:
    """One line, whatever the error's text."""
    text = " ".join(str(error).split())
    if isinstance(error, (ColdtraceError, SourceUnavailable)):
        return text
    return f"{type(error).__name__}: {text}"
