"""`coldtrace run` and `coldtrace attach`, from options to exit status; nothing is parsed here."""

from __future__ import annotations

import os
import re
import shlex
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal, NoReturn, Protocol

from probes import gpu
from probes.cache import CachedFiles
from probes.events import Event, ProcessId
from probes.kernel import KernelSource
from probes.limits import LimitsSource
from probes.pyspy import PySpySource
from probes.source import Source
from tracer import doctor, launch, target, waiter, warmth
from tracer.errors import ColdtraceError, NotPermitted, UsageError
from tracer.owner import Owner
from tracer.recorder import Recorder, Until
from tracer.session import ReadyRule, Session
from tracer.text import escape
from tracer.trace import TraceWriter
from tracer.versions import Versions

Sampler = Literal["auto", "bpf", "py-spy"]
Report = Callable[[Path, Path | None], None]
"""Prints the table of a trace on standard error, and writes its JSON to the second path."""


@dataclass(frozen=True, slots=True)
class Options:
    """What `run` and `attach` have in common."""

    output: Path | None = None
    until: Until = "ready"
    sampler: Sampler = "auto"
    hz: int = 99
    user: str | None = None
    json: Path | None = None
    cold: bool = False
    """Begin with the model's files out of the page cache; and"""
    cold_compile: bool = False
    """refuse to begin with warm compile caches. Both are `run`'s alone."""


class Progress(Protocol):
    """Shows the steps of a start as they end."""

    def observe(self, events: Sequence[Event]) -> None:
        """Take the events of one pass along."""

    def finish(self) -> None:
        """Show what is left."""


@dataclass(frozen=True, slots=True)
class Analysis:
    """What the layer above lends a recording: nothing here imports it.

    `load_report` is called in a process of its own, before that becomes the user.
    """

    ready: ReadyRule
    progress: Progress
    load_report: Callable[[], Report]


def run(command: Sequence[str], options: Options, analysis: Analysis) -> NoReturn:
    """Start `command` and trace it; end as it ends.

    Raises ColdtraceError where it can't be started or traced: then nothing has run.
    """
    caller = _caller()
    user = Owner.named(options.user) if options.user else caller
    environment = launch.caller_environment(user)
    if options.cold_compile:
        warmth.require_cold_compile(environment, user)
    if options.cold:
        warmth.cool(command, user, environment, say)
    cached = CachedFiles(warmth.warmth(command, user, environment))
    trace = options.output or _new_name(command[0])
    _require_json(options.json, trace, caller)
    mask = waiter.block()
    launched = launch.start(command, user, environment, mask)
    pid = launched.process.pid
    stop = _Stop(pid)
    try:
        with _recorder(
            launched.process,
            trace,
            caller,
            options,
            analysis,
            stop,
            command,
            launched.program,
            cached,
        ) as recorder:
            begun = not stop()  # it takes a moment to get here: Ctrl-C may have come
            if begun:
                launched.release()
                _record(recorder)
    finally:
        launched.give_up()
    if not begun:
        waiter.end_like(stop.signal)
    with suppress(OSError):  # no room for another process: the command comes first
        _report(trace, caller, options, analysis)
    waiter.become_waiter(pid, user.uid, user.gid)


def _record(recorder: Recorder) -> None:
    """Whatever goes wrong from here on is ours: the command goes on."""
    try:
        recorder.run()
    except Exception as error:
        say(f"recording has failed, the command goes on: {error!r}")


def attach(pid: int, options: Options, analysis: Analysis) -> NoReturn:
    """Trace the start that process `pid` is part of, from now on.

    Ends with 0 if it became ready or the time was over, 1 if it failed, and by the
    signal that interrupted the recording. Raises ColdtraceError where there is
    nothing to join.
    """
    caller = _caller()
    owner = Owner.named(options.user) if options.user else caller
    root = target.check(pid, owner, anyones=caller.uid == 0 and options.user is None)
    trace = options.output or _new_name(target.program_name(root.pid))
    _require_json(options.json, trace, caller)
    stop = _Stop(None)
    waiter.block()
    with _recorder(root, trace, caller, options, analysis, stop) as recorder:
        recording = recorder.run()
    _report(trace, caller, options, analysis)
    if stop.signal:
        waiter.end_like(stop.signal)
    sys.exit(1 if recording.outcome == "failed" or recording.problem else 0)


class _Stop:
    """Forwards what signals have come, and tells whether one asked us to end."""

    def __init__(self, pid: int | None) -> None:
        self._pid = pid
        self.signal = 0

    def __call__(self) -> bool:
        for number in waiter.take(self._pid) & waiter.ENDING:
            if signal.getsignal(number) != signal.SIG_IGN:  # as nohup has it
                self.signal = number
        return self.signal != 0


def _recorder(
    root: ProcessId,
    trace: Path,
    caller: Owner,
    options: Options,
    analysis: Analysis,
    stop: _Stop,
    command: Sequence[str] = (),
    program: str | None = None,
    cached: CachedFiles | None = None,
) -> Recorder:
    """A recorder that isn't open yet; without `command` it joins what runs."""
    sampling = _Sampling(options, program)
    limits = LimitsSource()
    meta: dict[str, object] = {
        "coldtrace": metadata.version("coldtrace"),
        "options": {
            "until": options.until,
            "sampler": options.sampler,
            "hz": options.hz,
            "cold": options.cold,
            "cold_compile": options.cold_compile,
        },
    }
    sources: list[Source] = [*sampling.sources, limits]
    if gpu.is_present():
        sources.append(gpu.GpuSource())
    if cached is not None:
        sources.append(cached)
    if command:
        meta["command"] = list(command)
    else:
        sources.append(target.RunningProcesses(sampling.follow))
    writer = TraceWriter(trace, caller)
    sampling.recorder = Recorder(
        sources,
        writer,
        Session(root, analysis.ready, joined=not command),
        until=options.until,
        meta=meta,
        required={source.name for source in sampling.sources},
        observers=[
            sampling.observe,
            limits.observe,
            Versions(writer).observe,
            analysis.progress.observe,
        ],
        say=say,
        asked_to_stop=stop,
    )
    return sampling.recorder


class _Sampling:
    """Who takes the stacks: the in-kernel walk, py-spy, or py-spy where the walk can't."""

    def __init__(self, options: Options, program: str | None) -> None:
        self._falls_back = options.sampler == "auto"
        only_pyspy = options.sampler == "py-spy"
        self._pyspy = PySpySource(options.hz, subprocesses=only_pyspy)
        hz = 0 if only_pyspy else options.hz
        kernel = KernelSource(hz, on_unknown=self._on_unknown, program=program)
        self.sources: list[Source] = [kernel, self._pyspy] if only_pyspy else [kernel]
        self.recorder: Recorder | None = None

    def follow(self, process: ProcessId) -> None:
        for source in self.sources:
            source.follow(process)

    def observe(self, events: Sequence[Event]) -> None:
        self._pyspy.observe(events)

    def _on_unknown(self, process: ProcessId, reason: str) -> None:
        if self.recorder is None:
            return
        if self._falls_back:
            why = f"py-spy samples process {process.pid}, the in-kernel walk can't: {reason}"
            self.recorder.add_source(self._pyspy, process, why)
        else:
            self.recorder.note(f"no stacks of process {process.pid}: {reason}")


def _caller() -> Owner:
    """Who asked for this, once it's certain that it can be done."""
    if os.geteuid() != 0:
        program = os.path.abspath(sys.argv[0])
        raise NotPermitted(f"tracing needs root: sudo {program} {' '.join(sys.argv[1:2])} ...")
    try:
        os.getcwd()
    except FileNotFoundError:
        raise ColdtraceError("the working directory was deleted; change to another") from None
    doctor.mount_tracefs()
    return Owner.of_caller(os.environ)


def _require_json(path: Path | None, trace: Path, caller: Owner) -> None:
    """Raise now, not after a long start, if `path` can't be written, or is the trace's."""
    if path is None:
        return
    if path.absolute() == trace.absolute():
        raise UsageError(f"{path} is the trace itself; choose another file for --json")
    with caller.acting():
        try:
            exists = os.path.lexists(path)
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK, 0o600))
            if not exists:
                os.unlink(path)
        except OSError as error:
            raise ColdtraceError(f"can't write {path}: {error.strerror}") from error


def _new_name(program: str) -> Path:
    """Never hidden, nor anything that looks like an option."""
    name = re.sub(r"[^\w.+-]", "_", os.path.basename(program)).lstrip(".-")[:64] or "start"
    return Path(f"{name}-{time.strftime('%Y%m%d-%H%M%S')}.coldtrace")


def _report(trace: Path, caller: Owner, options: Options, analysis: Analysis) -> None:
    """Have a process without root read the trace and show it."""
    with suppress(OSError, ValueError):  # as `say`
        analysis.progress.finish()
    pid = os.fork()
    if pid == 0:
        try:
            report = analysis.load_report()  # as root: the user may not reach our code
            launch.become(caller)
            report(trace, options.json)
        except ColdtraceError as error:
            say(error.message)
        except BaseException as error:
            say(f"the table can't be shown: {error!r}")
        finally:
            with suppress(OSError, ValueError):
                sys.stderr.flush()
            os._exit(0)
    os.waitpid(pid, 0)
    say(f"the trace is {trace}; `coldtrace analyze {shlex.quote(str(trace))}` shows more of it")


def say(line: str) -> None:
    """One line for the user; a terminal that has gone is no reason to stop."""
    with suppress(OSError, ValueError):
        print(f"coldtrace: {escape(line)}", file=sys.stderr, flush=True)
