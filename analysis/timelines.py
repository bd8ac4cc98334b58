"""What the main thread of each process was at, from its start to its end.

A stack holds from its sample until the thread's next one. Where the two differ
in what they say, the edge between them is estimated:

- after a sample on the CPU the change may lie anywhere before the next sample:
  the middle, so that the error is at most half a period while the thread runs;
- after a wait the thread can't have run longer than a period without a sample,
  so the wait ended at most a period before the next sample: the middle of that;
- a sampler that reports changes says when: the change itself.

A running thread has a sample every period, unless it yields to others, or is kept
from running, all the time. What it was at then can't be told: if a process that it
made has work meanwhile, the time is taken to be that one's.

An edge that was seen exactly stands in for an estimate: a module body's entry or
return, exec, fork and exit.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import TypeVar

from analysis.modules import ModuleNode
from analysis.stacks import UNKNOWN, Label, Stacks
from probes.events import SampleCause
from tracer.trace import Process, Sample

_Item = TypeVar("_Item")

SILENT_PERIODS = 3
"""A running thread without a sample for longer is silent."""


@dataclass(frozen=True, slots=True)
class Piece:
    """What a process's main thread was at from `start_ns` to `end_ns`.

    `end_after_ns` and `end_until_ns`, where `end_ns` is an estimate, are what it
    lies between.
    """

    start_ns: int
    end_ns: int
    label: Label
    stack_id: int | None
    end_after_ns: int | None = None
    end_until_ns: int | None = None


@dataclass(frozen=True, slots=True)
class Member:
    """A process as the partition needs it.

    samples: its main thread's, by time, those without Python left out.
    imports: the outermost module bodies of its main thread, by time.
    programs_ns: when the bodies of programs themselves were entered there.
    before_python: what it is at from its start until its program is entered.
    child_role: the role of a process that it made. One that was running when the
        tracer came, and gives no sign, is taken to wait for that.
    fixed_substep: what all its time is, whatever its stacks say.
    """

    process: Process
    role: str
    samples: list[Sample]
    imports: list[ModuleNode]
    programs_ns: list[int]
    before_python: str
    child_role: str | None = None
    fixed_substep: str | None = None


class Timeline:
    """The pieces of one process from its start to its end, without a gap."""

    def __init__(self, pieces: list[Piece]) -> None:
        self.pieces = pieces
        self._starts = [piece.start_ns for piece in pieces]
        self._busy_ends = list(accumulate(map(_busy_end_ns, pieces), max))

    def between(self, start_ns: int, end_ns: int) -> Iterator[Piece]:
        """The pieces from `start_ns` to `end_ns`, the first and last one cut."""
        for index in range(max(bisect_right(self._starts, start_ns) - 1, 0), len(self.pieces)):
            piece = self.pieces[index]
            if piece.start_ns >= end_ns:
                return
            start, end = max(piece.start_ns, start_ns), min(piece.end_ns, end_ns)
            if start < end:
                yield replace(piece, start_ns=start, end_ns=end)

    def turn_ns(self, after_ns: int, until_ns: int, idle: bool) -> int | None:
        """The last moment in between at which the process became `idle`, or, for busy,
        the first; None where it did not."""
        first = bisect_right(self._starts, after_ns)
        last = bisect_right(self._starts, until_ns)
        turns = [
            self._starts[index]
            for index in range(max(first, 1), last)
            if self.pieces[index].label.idle is idle
            and self.pieces[index - 1].label.idle is not idle
        ]
        return None if not turns else turns[-1] if idle else turns[0]

    def last_busy_ns(self, before_ns: int) -> int:
        """The last moment up to `before_ns` at which the process had work."""
        index = bisect_right(self._starts, before_ns) - 1
        return min(self._busy_ends[index], before_ns) if index >= 0 else 0


def _busy_end_ns(piece: Piece) -> int:
    return 0 if piece.label.idle else piece.end_ns


class Threads:
    """Turns what was seen of main threads into timelines.

    end_ns: where the start ends. period_ns: the sampling period. imports: the
    sub-step of a module body.
    """

    def __init__(self, stacks: Stacks, end_ns: int, period_ns: int, imports: str) -> None:
        self._stacks = stacks
        self._end_ns = end_ns
        self._period_ns = period_ns
        self._imports = imports

    def timeline(self, member: Member) -> Timeline:
        """What `member`'s main thread was at from its start to the end, or its own."""
        process = member.process
        stop_ns = self._end_ns if process.end_ns is None else min(process.end_ns, self._end_ns)
        pieces: list[Piece] = []
        for start_ns, until_ns in _programs(process, stop_ns):
            pieces += self._program(member, start_ns, until_ns)
        return Timeline(pieces)

    def _program(self, member: Member, start_ns: int, stop_ns: int) -> Iterator[Piece]:
        samples = _within(member.samples, start_ns, stop_ns, lambda sample: sample.ts_ns)
        bodies = _within(member.imports, start_ns, stop_ns, lambda body: body.start_ns)
        label: Label | None = UNKNOWN
        if member.process.found:
            label = Label(None, waits_for=member.child_role) if member.child_role else None
        up_ns = _up_ns(member, samples, bodies, start_ns, stop_ns)
        pieces = [Piece(start_ns, up_ns, Label(member.before_python, outer=True), None)]
        pieces += self._sampled(self._knots(member, samples), bodies, up_ns, stop_ns, label)
        yield from _with_imports(pieces, bodies, Label(self._imports))

    def _knots(self, member: Member, samples: list[Sample]) -> Iterator[_Knot]:
        """What each sample says, and between two that lie far apart that it was silent."""
        before: _Knot | None = None
        for sample in samples:
            label = self._stacks.label(sample.stack_id, member.role)
            knot = _Knot(sample.ts_ns, sample.cause, label, sample.stack_id)
            if before and member.child_role and self._is_silence(before, knot):
                yield from self._silence(before, knot, member.child_role)
            yield knot
            before = knot

    def _is_silence(self, before: _Knot, knot: _Knot) -> bool:
        # Of a wait it is known how long it took.
        on_cpu = before.cause in (SampleCause.ON_CPU, SampleCause.YIELDED)
        return on_cpu and knot.ts_ns - before.ts_ns > SILENT_PERIODS * self._period_ns

    def _silence(self, before: _Knot, knot: _Knot, role: str) -> Iterator[_Knot]:
        """As long as a process of `role` has work, the time is that one's."""
        half_way_ns = (before.ts_ns + knot.ts_ns) // 2
        for ts_ns, near in ((before.ts_ns + self._period_ns // 2, before), (half_way_ns, knot)):
            label = replace(near.label, outer=False, waits_for=near.label.waits_for or role)
            yield _Knot(ts_ns, SampleCause.CHANGE, label, near.stack_id)

    def _sampled(
        self,
        knots: Iterable[_Knot],
        bodies: list[ModuleNode],
        start_ns: int,
        stop_ns: int,
        label: Label | None,
    ) -> Iterator[Piece]:
        """The knots' labels, each up to its edge with the next one's. It begins with
        `label`; without one the first knot's holds from the start."""
        edges = _Edges(bodies, self._period_ns, self._imports)
        before = None if label is None else _Knot(0, SampleCause.CHANGE, label, None)
        at_ns = start_ns
        for knot in knots:
            if before is not None:
                edge = edges.between(before, knot)
                if at_ns < edge.ns:
                    ends = (edge.after_ns, edge.until_ns)
                    yield Piece(at_ns, edge.ns, before.label, before.stack_id, *ends)
                    at_ns = edge.ns
            before = knot
        if at_ns < stop_ns:
            last = before or _Knot(0, SampleCause.CHANGE, UNKNOWN, None)
            yield Piece(at_ns, stop_ns, last.label, last.stack_id)


def _up_ns(
    member: Member, samples: list[Sample], bodies: list[ModuleNode], start_ns: int, stop_ns: int
) -> int:
    """When a program's interpreter was up: its body was entered, or a stack was seen;
    where that can't be told the first import began."""
    if member.process.found:
        return start_ns
    index = bisect_left(member.programs_ns, start_ns)
    signs_ns = [sample.ts_ns for sample in samples[:1]]
    signs_ns += member.programs_ns[index : index + 1]
    signs_ns = signs_ns or [body.start_ns for body in bodies[:1]]
    return min([*signs_ns, stop_ns])


def _programs(process: Process, stop_ns: int) -> Iterator[tuple[int, int]]:
    """From each program start (fork or exec) of a process to the next."""
    starts = [process.start_ns]
    if not process.found:
        starts += [execution.ts_ns for execution in process.execs]
    inside = sorted({start for start in starts if process.start_ns <= start < stop_ns})
    yield from pairwise([*inside, stop_ns])


def _within(
    items: list[_Item], start_ns: int, stop_ns: int, moment_ns: Callable[[_Item], int]
) -> list[_Item]:
    """Those of `items`, which are by time, from `start_ns` up to but not at `stop_ns`."""
    first = bisect_left(items, start_ns, key=moment_ns)
    return items[first : bisect_left(items, stop_ns, key=moment_ns)]


@dataclass(frozen=True, slots=True)
class _Knot:
    """What a thread was at from about `ts_ns` on, and how that is known."""

    ts_ns: int
    cause: SampleCause
    label: Label
    stack_id: int | None


@dataclass(frozen=True, slots=True)
class _Edge:
    """A moment and, where it is an estimate, what it lies between."""

    ns: int
    after_ns: int | None = None
    until_ns: int | None = None


class _Edges:
    """Where, between two samples of a thread, what the first one says gave way."""

    def __init__(self, bodies: list[ModuleNode], period_ns: int, imports: str) -> None:
        self._starts = [body.start_ns for body in bodies]
        self._ends = [body.end_ns for body in bodies]
        self._period_ns = period_ns
        self._imports = imports

    def between(self, before: _Knot, knot: _Knot) -> _Edge:
        """The edge; without a stack before, the next one holds for a period back at most."""
        if before.stack_id is None:
            return _Edge(self._first_edge_ns(before.label, knot))
        was_import = before.label.substep == self._imports
        if was_import != (knot.label.substep == self._imports):
            exact_ns = self._body_edge(before.ts_ns, knot.ts_ns, was_import)
            if exact_ns is not None:
                return _Edge(exact_ns)
        if knot.cause is SampleCause.CHANGE:
            return _Edge(knot.ts_ns)
        after_ns = before.ts_ns
        if before.cause in (SampleCause.WAIT, SampleCause.CHANGE):
            after_ns = max(after_ns, knot.ts_ns - self._period_ns)
        return _Edge((after_ns + knot.ts_ns) // 2, after_ns, knot.ts_ns)

    def _first_edge_ns(self, label: Label, knot: _Knot) -> int:
        if knot.cause is SampleCause.CHANGE:
            return knot.ts_ns
        earliest_ns = knot.ts_ns - self._period_ns
        if not label.outer:  # it waited until then
            return (earliest_ns + knot.ts_ns) // 2
        returned_ns = self._body_edge(0, knot.ts_ns, returned=True)
        if returned_ns is None or knot.label.substep == self._imports:
            return earliest_ns
        return max(earliest_ns, returned_ns)

    def _body_edge(self, after_ns: int, until_ns: int, returned: bool) -> int | None:
        """The last return, or the first entry, of a module body in between."""
        if returned:
            index = bisect_right(self._ends, until_ns) - 1
            return self._ends[index] if index >= 0 and self._ends[index] > after_ns else None
        index = bisect_right(self._starts, after_ns)
        found = index < len(self._starts) and self._starts[index] <= until_ns
        return self._starts[index] if found else None


def _with_imports(
    pieces: Iterable[Piece], bodies: list[ModuleNode], imports: Label
) -> Iterator[Piece]:
    """`pieces` where a module body that ran within an outer one is an import."""
    index = 0
    for piece in pieces:
        if not piece.label.outer:
            yield piece
            continue
        at_ns = piece.start_ns
        while index < len(bodies) and bodies[index].start_ns < piece.end_ns:
            body = bodies[index]
            start_ns, end_ns = max(body.start_ns, at_ns), min(body.end_ns, piece.end_ns)
            if start_ns < end_ns:
                if at_ns < start_ns:
                    yield replace(piece, start_ns=at_ns, end_ns=start_ns)
                yield Piece(start_ns, end_ns, imports, piece.stack_id)
                at_ns = end_ns
            if body.end_ns > piece.end_ns:
                break
            index += 1
        if at_ns < piece.end_ns:
            yield replace(piece, start_ns=at_ns)
