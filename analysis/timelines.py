"""What the main thread of each process was at, from its start to its end.

A stack holds from its sample until the thread's next one. Where the two differ
in what they say, the edge between them is estimated:

- after a sample on the CPU the change may lie anywhere before the next sample:
  the middle, so that the error is at most half a period while the thread runs;
- after a wait the thread can't have run longer than a period without a sample,
  so the wait ended at most a period before the next sample: the middle of that;
- a sampler that reports changes says when: the change itself.

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
        pieces += self._sampled(samples, bodies, up_ns, stop_ns, member.role, label)
        yield from _with_imports(pieces, bodies, Label(self._imports))

    def _sampled(
        self,
        samples: list[Sample],
        bodies: list[ModuleNode],
        start_ns: int,
        stop_ns: int,
        role: str,
        label: Label | None,
    ) -> Iterator[Piece]:
        """The samples' labels, each up to its edge with the next one's. It begins with
        `label`; without one the first sample's holds from the start."""
        edges = _Edges(bodies, self._period_ns, self._imports)
        stack_id: int | None = None
        before: Sample | None = None
        at_ns = start_ns
        for sample in samples:
            next_label = self._stacks.label(sample.stack_id, role)
            if label is not None:
                edge = edges.between(before, label, sample, next_label)
                if at_ns < edge.ns:
                    yield Piece(at_ns, edge.ns, label, stack_id, edge.after_ns, edge.until_ns)
                    at_ns = edge.ns
            label, stack_id, before = next_label, sample.stack_id, sample
        if at_ns < stop_ns:
            yield Piece(at_ns, stop_ns, label or UNKNOWN, stack_id)


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

    def between(
        self, before: Sample | None, label: Label, sample: Sample, next_label: Label
    ) -> _Edge:
        """The edge; without a sample before, the stack holds for a period back at most."""
        if before is None:
            return _Edge(self._first_edge_ns(label, sample, next_label))
        after_ns = before.ts_ns
        was_import = label.substep == self._imports
        if was_import != (next_label.substep == self._imports):
            exact_ns = self._body_edge(after_ns, sample.ts_ns, was_import)
            if exact_ns is not None:
                return _Edge(exact_ns)
        if sample.cause is SampleCause.CHANGE:
            return _Edge(sample.ts_ns)
        if before.cause is SampleCause.WAIT:
            after_ns = max(after_ns, sample.ts_ns - self._period_ns)
        return _Edge((after_ns + sample.ts_ns) // 2, after_ns, sample.ts_ns)

    def _first_edge_ns(self, label: Label, sample: Sample, next_label: Label) -> int:
        if sample.cause is SampleCause.CHANGE:
            return sample.ts_ns
        earliest_ns = sample.ts_ns - self._period_ns
        if not label.outer:  # it waited until then
            return (earliest_ns + sample.ts_ns) // 2
        returned_ns = self._body_edge(0, sample.ts_ns, returned=True)
        if returned_ns is None or next_label.substep == self._imports:
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
