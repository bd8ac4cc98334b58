"""One recorded start, taken apart: the way from a trace to its result."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from analysis.attribution import Attributor
from analysis.caches import caches_of
from analysis.critical_path import CriticalPath
from analysis.limits import limits_of
from analysis.modules import ModuleNode, imports_of, is_import, programs_of
from analysis.reasons import Reasons
from analysis.result import (
    Attribution,
    CacheState,
    Failure,
    Link,
    Overhead,
    ProcessLife,
    Result,
    Segment,
    SourceState,
    StepTime,
    SubstepTime,
)
from analysis.roles import OTHER, assign_roles, program
from analysis.signature import Signatures, StepSignature
from analysis.stacks import Stacks
from analysis.steps import Partition
from analysis.timelines import Member, Threads
from probes.events import SampleCause
from tracer.memory import without_collection
from tracer.trace import Module, Process, Sample, Trace

DEFAULT_HZ = 99
NEW_PERIODS = 3
"""Sampling periods that a sub-step must have taken for a failure to be put into it."""


@dataclass(frozen=True)
class Start:
    """A trace and all that is derived from it, each worked out when first asked for."""

    trace: Trace
    signatures: Signatures = field(repr=False)

    @classmethod
    def open(cls, path: str | Path) -> Start:
        """Read the trace in `path`; raise TraceError where it can't be read."""
        return cls(Trace.open(path), Signatures.load())

    @cached_property
    def stacks(self) -> Stacks:
        """What the stacks tell."""
        return Stacks(self.trace, self.signatures)

    @cached_property
    def engine(self) -> str | None:
        """The engine's name; None where nothing of it was seen."""
        engine = self.signatures.engine
        commands = (each for process in self.trace.processes.values() for each in process.execs)
        if any(self.signatures.is_command(each.argv) for each in commands):
            return engine
        return engine if self.stacks.ran_in(f"/{engine}/") else None

    @cached_property
    def roles(self) -> dict[int, str]:
        """The role of each process, by process id."""
        root_role = OTHER if self.engine is None else self.signatures.ready.role
        return assign_roles(self.trace, self.signatures, self.stacks, root_role)

    @cached_property
    def begin_ns(self) -> int:
        """The exec of the command, or the start of the process that was joined."""
        return int(self.trace.meta["begin_ns"])

    @cached_property
    def end_ns(self) -> int:
        """Readiness; where it never came, the root's end or that of the recording."""
        meta = self.trace.meta
        root_end = self.trace.processes[meta["root"]].end_ns
        end_ns: int = meta["end_ns"]
        if meta["outcome"] == "ready" and "ready_ns" in meta:
            end_ns = meta["ready_ns"]
        elif meta["outcome"] == "failed" and root_end is not None:
            end_ns = root_end
        return max(end_ns, self.begin_ns)

    @cached_property
    def imports(self) -> dict[int, list[ModuleNode]]:
        """The outermost imports of each process that had any, by process id."""
        by_process: dict[int, list[Module]] = {}
        for module in self.trace.modules():
            by_process.setdefault(module.process_id, []).append(module)
        # Generated code is executed as a module is, and isn't imported either.
        importable = {
            function_id: function
            for function_id, function in self.trace.functions.items()
            if function.name == "<module>" and self.signatures.file_class(function.file) is None
        }
        return {
            process_id: imports_of(
                self.trace.processes[process_id], modules, importable, self.end_ns
            )
            for process_id, modules in by_process.items()
        }

    @cached_property
    def segments(self) -> list[Segment]:
        """The critical path from begin to end, without gap or overlap."""
        members = {process.id: self._member(process) for process in self.trace.processes.values()}
        threads = Threads(self.stacks, self.end_ns, self._period_ns, self.signatures.imports)
        meta = self.trace.meta
        return Partition(members, threads).segments(
            meta["root"],
            self.begin_ns,
            meta["seen_from_ns"],
            self.end_ns,
            self.signatures.ready.role,
        )

    @cached_property
    def attributor(self) -> Attributor:
        """What any thread spent its time on."""
        seen_from_ns = max(self.begin_ns, self.trace.meta["seen_from_ns"])
        return Attributor(self.trace, seen_from_ns, self.end_ns)

    @cached_property
    def attribution(self) -> Attribution:
        """Where the time of each sub-step went."""
        return self.attributor.attribution(self.segments)

    @cached_property
    def critical_path(self) -> tuple[Link, ...]:
        """From the exec to the end, by time, through who woke whom."""
        parts = frozenset(filter(self.is_part, self.trace.processes))
        path = CriticalPath(
            self.trace, self.attributor, self.segments, parts, self.begin_ns, self.end_ns
        )
        return tuple(path.links())

    @cached_property
    def result(self) -> Result:
        """What the start came to."""
        with without_collection():
            return self._result()

    def _result(self) -> Result:
        meta = self.trace.meta
        unnamed = [segment for segment in self.segments if segment.substep is None]
        return Result(
            outcome=meta["outcome"],
            engine=self.engine,
            command=tuple(meta.get("command", ())),
            start_ns=self.begin_ns,
            end_ns=self.end_ns,
            steps=self._steps(),
            unattributed_ns=sum(s.duration_ns for s in unnamed if not s.missed),
            missed_ns=sum(s.duration_ns for s in unnamed if s.missed),
            segments=tuple(self.segments),
            processes=tuple(self._lives()),
            lost=self._lost(),
            overhead=self._overhead(),
            failure=self._failure() if meta["outcome"] == "failed" else None,
            versions=self._versions(),
            sources=self._sources(),
            notes=tuple(self._notes()),
            attribution=self.attribution,
            critical_path=self.critical_path,
            caches=self._caches(),
            limits=limits_of(self.trace, self.segments, self.end_ns),
        )

    def is_part(self, process_id: int) -> bool:
        """Whether a process is a part of the server, not a tool of one."""
        role = self.signatures.roles.get(self.roles[process_id])
        return process_id == self.trace.meta["root"] or (role is not None and not role.inherits)

    @property
    def _period_ns(self) -> int:
        hz = self.trace.meta.get("options", {}).get("hz", DEFAULT_HZ)
        return round(1e9 / hz) if isinstance(hz, (int, float)) and hz > 0 else 0

    def _member(self, process: Process) -> Member:
        role = self.roles[process.id]
        known = self.signatures.roles.get(role)
        imports = self.imports.get(process.id, [])
        return Member(
            process,
            role,
            list(self._holding(process)),
            [body for body in imports if body.tid == process.pid],
            self._programs_ns.get(process.id, []),
            known.before_python if known else self.signatures.before_python,
            self._made_roles.get(process.id),
            known.substep if known else None,
        )

    @cached_property
    def _made_roles(self) -> dict[int, str]:
        """The role that each process may wait for: that of the last part it made."""
        processes = sorted(self.trace.processes.values(), key=lambda process: process.start_ns)
        return {
            process.parent_id: self.roles[process.id]
            for process in processes
            if process.parent_id is not None and self.roles[process.id] in self.signatures.waited
        }

    def _holding(self, process: Process) -> Iterator[Sample]:
        """The samples of a main thread that tell until when they hold: one that was
        taken of something exact does, if others were taken regularly around it."""
        regular_ns = 0
        for sample in self.trace.samples(process.id):
            if sample.tid != process.pid or not self.stacks.is_python(sample.stack_id):
                continue
            if sample.cause is not SampleCause.EDGE:
                regular_ns = sample.ts_ns
            elif sample.ts_ns - regular_ns > 2 * self._period_ns:
                continue
            yield sample

    @cached_property
    def _programs_ns(self) -> dict[int, list[int]]:
        """When the outermost body that is no import was entered on each main thread."""
        entered: dict[int, list[int]] = {}
        programs: dict[int, frozenset[str]] = {}
        for module in self.trace.modules():
            process = self.trace.processes[module.process_id]
            if module.tid != process.pid or module.depth != 0:
                continue
            if process.id not in programs:
                programs[process.id] = programs_of(process)
            function = self.trace.functions[module.function_id]
            if not is_import(function, programs[process.id]):
                entered.setdefault(process.id, []).append(module.ts_ns)
        return entered

    @cached_property
    def _substeps_ns(self) -> dict[str, int]:
        """What each sub-step took that took any time."""
        times: dict[str, int] = {}
        for segment in self.segments:
            if segment.substep is not None:
                times[segment.substep] = times.get(segment.substep, 0) + segment.duration_ns
        return times

    def _steps(self) -> tuple[StepTime, ...]:
        return tuple(self._step(step, self._substeps_ns) for step in self.signatures.steps)

    def _caches(self) -> tuple[CacheState, ...]:
        roles = frozenset(self.roles.values())
        return caches_of(
            self.trace,
            self.signatures,
            self._substeps_ns,
            roles,
            self.end_ns,
            is_engine=self.engine is not None,
        )

    @cached_property
    def _reasons(self) -> Reasons:
        return Reasons(self.trace, self.stacks, self.signatures.absences)

    def _step(self, step: StepSignature, times: dict[str, int]) -> StepTime:
        happened = any(times.get(substep.id) for substep in step.substeps)
        substeps = []
        for substep in step.substeps:
            duration_ns = times.get(substep.id, 0)
            why_not = None if duration_ns or not happened else self._reasons.known(substep.id)
            substeps.append(SubstepTime(substep.id, substep.title, duration_ns, why_not))
        why_not = None if happened else self._reasons.of_step(step.id)
        return StepTime(step.id, step.title, tuple(substeps), why_not)

    def _lives(self) -> Iterator[ProcessLife]:
        processes = self.trace.processes
        programs: dict[int | None, str] = {None: ""}
        for process in sorted(processes.values(), key=lambda each: (each.start_ns, each.id)):
            forked_as = programs.get(process.parent_id, "")
            programs[process.id] = program(process) or forked_as
            if process.start_ns >= self.end_ns:
                return
            yield ProcessLife(
                process.id,
                process.pid,
                process.parent_id,
                None if process.parent_id is None else processes[process.parent_id].pid,
                self.roles[process.id],
                programs[process.id],
                max(process.start_ns, self.begin_ns),
                process.end_ns,
                process.wait_status,
            )

    def _lost(self) -> dict[str, int]:
        lost: dict[str, int] = {}
        for stats in self.trace.counts.values():
            for kind, count in stats.lost.items():
                lost[kind] = lost.get(kind, 0) + count
        return lost

    def _overhead(self) -> Overhead:
        recorder = self.trace.meta.get("recorder", {})
        cost_ns = sum(sum(stats.costs_ns.values()) for stats in self.trace.counts.values())
        return Overhead(recorder.get("cpu_s"), recorder.get("peak_rss_bytes"), cost_ns)

    def _versions(self) -> dict[str, str]:
        versions = dict(self.trace.meta.get("versions", {}))
        engine = self.trace.meta.get("engine", {})
        if "name" in engine and "version" in engine:
            versions.setdefault(engine["name"], engine["version"])
        return versions

    def _sources(self) -> tuple[SourceState, ...]:
        return tuple(
            SourceState(name, source.state, source.reason)
            for name, source in self.trace.sources.items()
        )

    def _notes(self) -> Iterator[str]:
        yield from (note.text for note in self.trace.notes)
        if self.engine is None:
            yield (
                f"nothing of {self.signatures.engine} was seen:"
                " ready means the first TCP port that the command listened on"
            )

    def _failure(self) -> Failure:
        """By the part of the server whose death, not asked for, came first: others died
        of it."""
        root = self.trace.processes[self.trace.meta["root"]]
        dead = [
            process
            for process in self.trace.processes.values()
            if process.wait_status and process.end_ns and self.is_part(process.id)
        ]
        first = min(dead, key=lambda process: process.end_ns or 0, default=root)
        segment = self._newest(first.end_ns or self.end_ns)
        stack_id = segment.stack_id if segment else None
        return Failure(
            step=self.signatures.step_of(segment.substep) if segment and segment.substep else None,
            substep=segment.substep if segment else None,
            process_id=first.id,
            pid=first.pid,
            role=self.roles[first.id],
            function=self.stacks.innermost(stack_id),
            engine_function=self.stacks.innermost(stack_id, f"/{self.signatures.engine}/"),
            wait_status=first.wait_status,
            root_wait_status=root.wait_status,
        )

    def _newest(self, end_ns: int) -> Segment | None:
        """The last of what was new before `end_ns`: an exception that passes out of a
        step goes through those that are around it, which were all seen before."""
        before = [segment for segment in self.segments if segment.start_ns < end_ns]
        if self.engine is None:
            return before[-1] if before else None
        first: dict[str, int] = {}
        times: dict[str, int] = {}
        last: dict[str, Segment] = {}
        for segment in before:
            substep = segment.substep
            if substep is not None:
                first.setdefault(substep, segment.start_ns)
                times[substep] = times.get(substep, 0) + segment.duration_ns
                last[substep] = segment
        least_ns = min(NEW_PERIODS * self._period_ns, max(times.values(), default=0))
        new = [substep for substep, time_ns in times.items() if time_ns >= least_ns]
        return last[max(new, key=first.__getitem__)] if new else None
