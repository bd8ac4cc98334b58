"""The partition: every nanosecond of a start belongs to one sub-step, or to none.

A moment's owner is found from the root process down: what its main thread's
stack says by its innermost signature, or, where that is waiting for another
role, what a living process of that role says, and so on. A stack holds from its
sample until the thread's next one. Where the two differ in what they say, the
edge between them is estimated:

- after a sample on the CPU the change may lie anywhere before the next sample:
  the middle, so that the error is at most half a period while the thread runs;
- after a wait the thread can't have run longer than a period without a sample,
  so the wait ended at most a period before the next sample: the middle of that;
- a sampler that reports changes says when: the change itself;
- where one of the two waits for another process, that one's own taking up or
  letting go of work, if it lies in between: a thread that spins or is preempted
  may have no sample for long.

An edge that was seen exactly stands in for an estimate: a module body's entry or
return, exec, fork, exit, and the listening that ends a start.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import TypeVar

from analysis.modules import ModuleNode
from analysis.result import Segment
from analysis.stacks import UNKNOWN, Label, Stacks
from probes.events import SampleCause
from tracer.trace import Process, Sample

_Item = TypeVar("_Item")

MAX_HANDOVERS = 16
"""Longest chain of processes that wait for one another."""


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
    before_python: what it is at from its start to the first sign of Python.
    fixed_substep: what all its time is, whatever its stacks say.
    """

    process: Process
    role: str
    samples: list[Sample]
    imports: list[ModuleNode]
    before_python: str | None
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
        signs_ns = [sample.ts_ns for sample in samples[:1]] + [body.start_ns for body in bodies[:1]]
        if not member.process.found:
            python_ns = min(signs_ns, default=stop_ns)
            if start_ns < python_ns:
                yield Piece(start_ns, python_ns, Label(member.before_python), None)
            start_ns = python_ns
        # What no body explains before the first stack is still the interpreter's coming up.
        early = UNKNOWN if member.process.found else Label(member.before_python, outer=True)
        first = early if samples else UNKNOWN
        sampled = self._sampled(samples, bodies, start_ns, stop_ns, member.role, first)
        yield from _with_imports(sampled, bodies, Label(self._imports))

    def _sampled(
        self,
        samples: list[Sample],
        bodies: list[ModuleNode],
        start_ns: int,
        stop_ns: int,
        role: str,
        label: Label,
    ) -> Iterator[Piece]:
        """The samples' labels, each up to its edge with the next one's; `label` first."""
        edges = _Edges(bodies, self._period_ns, self._imports)
        stack_id: int | None = None
        before: Sample | None = None
        at_ns = start_ns
        for sample in samples:
            next_label = self._stacks.label(sample.stack_id, role)
            if before is None and not (bodies and bodies[0].start_ns < sample.ts_ns):
                edge = _Edge(start_ns)  # nothing tells that it was at anything else before
            else:
                edge = edges.between(before, label, sample, next_label)
            if at_ns < edge.ns:
                yield Piece(at_ns, edge.ns, label, stack_id, edge.after_ns, edge.until_ns)
                at_ns = edge.ns
            label, stack_id, before = next_label, sample.stack_id, sample
        if at_ns < stop_ns:
            yield Piece(at_ns, stop_ns, label, stack_id)


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
        """The edge; `before` is None where only module bodies ran so far."""
        after_ns = before.ts_ns if before else 0
        was_import = label.substep == self._imports or before is None
        if was_import != (next_label.substep == self._imports):
            exact_ns = self._body_edge(after_ns, sample.ts_ns, was_import)
            if exact_ns is not None:
                return _Edge(exact_ns)
        if before is None or sample.cause is SampleCause.CHANGE:
            return _Edge(sample.ts_ns)
        if before.cause is SampleCause.WAIT:
            after_ns = max(after_ns, sample.ts_ns - self._period_ns)
        return _Edge((after_ns + sample.ts_ns) // 2, after_ns, sample.ts_ns)

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


class Partition:
    """The critical path through the processes of one start."""

    def __init__(self, members: Mapping[int, Member], threads: Threads) -> None:
        self._members = members
        self._threads = threads
        self._timelines: dict[int, Timeline] = {}
        self._by_samples: dict[int, Timeline] = {}
        self._candidates: dict[tuple[int, str], list[Member]] = {}
        for member in members.values():
            for ancestor_id in self._ancestors(member):
                self._candidates.setdefault((ancestor_id, member.role), []).append(member)

    def segments(
        self, root_id: int, start_ns: int, seen_from_ns: int, end_ns: int, server: str
    ) -> list[Segment]:
        """From `start_ns` to `end_ns`, joined without gap or overlap.

        What was before `seen_from_ns` is missed. A root that has the role `server`
        below it (a shell, say) does nothing but wait for that.
        """
        seen_from_ns = min(max(seen_from_ns, start_ns), end_ns)
        segments: list[Segment] = []
        if start_ns < seen_from_ns:
            segments.append(Segment(start_ns, seen_from_ns, root_id, None, None, missed=True))
        whole = Segment(seen_from_ns, end_ns, root_id, None, None)
        if whole.duration_ns == 0:
            return segments
        if self._members[root_id].role != server and (root_id, server) in self._candidates:
            return segments + list(_joined(self._through(whole, server, 0)))
        return segments + list(_joined(self._owned(root_id, whole, 0)))

    def _ancestors(self, member: Member) -> Iterator[int]:
        at = member.process.parent_id
        for _ in range(MAX_HANDOVERS):
            if at is None or at not in self._members:
                return
            yield at
            at = self._members[at].process.parent_id

    def _timeline(self, process_id: int) -> Timeline:
        known = self._timelines.get(process_id)
        if known is None:
            known = Timeline(self._with_turns(process_id, self._sampled(process_id).pieces))
            self._timelines[process_id] = known
        return known

    def _sampled(self, process_id: int) -> Timeline:
        """The timeline by the process's own samples alone."""
        known = self._by_samples.get(process_id)
        if known is None:
            known = self._threads.timeline(self._members[process_id])
            self._by_samples[process_id] = known
        return known

    def _with_turns(self, process_id: int, pieces: list[Piece]) -> list[Piece]:
        """`pieces` where a wait for others begins and ends as these take up work and let go."""
        turned = list(pieces)
        for index in range(len(turned) - 1):
            piece, following = turned[index], turned[index + 1]
            if piece.label.waits_for == following.label.waits_for:
                continue
            edge_ns = self._turn_ns(process_id, piece, following)
            if edge_ns is not None and piece.start_ns < edge_ns < following.end_ns:
                turned[index] = replace(piece, end_ns=edge_ns)
                turned[index + 1] = replace(following, start_ns=edge_ns)
        return turned

    def _turn_ns(self, process_id: int, piece: Piece, following: Piece) -> int | None:
        if piece.end_after_ns is None or piece.end_until_ns is None:
            return None
        role = piece.label.waits_for or following.label.waits_for or ""
        ended = piece.label.waits_for is not None
        turns = [
            self._sampled(member.process.id).turn_ns(piece.end_after_ns, piece.end_until_ns, ended)
            for member in self._candidates.get((process_id, role), [])
        ]
        known = [turn for turn in turns if turn is not None]
        return (max(known) if ended else min(known)) if known else None

    def _owned(self, process_id: int, waiting: Segment, depth: int) -> Iterator[Segment]:
        """`waiting`, as `process_id` spent it; where that had no work it stays as it is."""
        fixed = self._members[process_id].fixed_substep
        at_ns = waiting.start_ns
        for piece in _runs(self._timeline(process_id).between(waiting.start_ns, waiting.end_ns)):
            if at_ns < piece.start_ns:
                yield replace(waiting, start_ns=at_ns, end_ns=piece.start_ns)
            at_ns = piece.end_ns
            label = piece.label
            substep = fixed or label.substep
            own = Segment(piece.start_ns, piece.end_ns, process_id, substep, piece.stack_id)
            if label.idle and not fixed:
                yield replace(waiting, start_ns=piece.start_ns, end_ns=piece.end_ns)
            elif label.waits_for is None or fixed or depth == MAX_HANDOVERS:
                yield own
            else:
                yield from self._through(own, label.waits_for, depth + 1)
        if at_ns < waiting.end_ns:
            yield replace(waiting, start_ns=at_ns)

    def _through(self, waiting: Segment, role: str, depth: int) -> Iterator[Segment]:
        """`waiting`, as those of `role` below its process spent it: while several live
        the one that let go last, while none lives nobody."""
        candidates = self._candidates.get((waiting.process_id, role), [])
        parts: list[tuple[Segment, int | None]] = []
        free = [waiting]
        for member in sorted(candidates, key=lambda each: self._slowness(each, waiting.end_ns)):
            owner = member.process
            parts += [(_inside(part, owner), owner.id) for part in free if _overlaps(part, owner)]
            free = [rest for part in free for rest in _outside(part, owner)]
        parts += [(part, None) for part in free]
        for part, owner_id in sorted(parts, key=lambda each: each[0].start_ns):
            if owner_id is None:
                yield part
            else:
                yield from self._owned(owner_id, part, depth)

    def _slowness(self, member: Member, end_ns: int) -> tuple[int, int]:
        """Sorts the slowest first, and of equals the eldest."""
        return -self._timeline(member.process.id).last_busy_ns(end_ns), member.process.id


def _overlaps(part: Segment, process: Process) -> bool:
    ended = process.end_ns is not None and process.end_ns <= part.start_ns
    return process.start_ns < part.end_ns and not ended


def _inside(part: Segment, process: Process) -> Segment:
    """What of `part` lies in the life of `process`, which overlaps it."""
    end_ns = part.end_ns if process.end_ns is None else min(process.end_ns, part.end_ns)
    return replace(part, start_ns=max(process.start_ns, part.start_ns), end_ns=end_ns)


def _outside(part: Segment, process: Process) -> Iterator[Segment]:
    """What of `part` lies before and after the life of `process`."""
    if not _overlaps(part, process):
        yield part
        return
    inside = _inside(part, process)
    if part.start_ns < inside.start_ns:
        yield replace(part, end_ns=inside.start_ns)
    if inside.end_ns < part.end_ns:
        yield replace(part, start_ns=inside.end_ns)


def _runs(pieces: Iterable[Piece]) -> Iterator[Piece]:
    """`pieces` where one wait for the same role, sampled many times, is one piece."""
    run: Piece | None = None
    for piece in pieces:
        if run and run.label.waits_for and run.label == piece.label:
            run = replace(run, end_ns=piece.end_ns)
            continue
        if run:
            yield run
        run = piece
    if run:
        yield run


def _joined(segments: Iterable[Segment]) -> Iterator[Segment]:
    """`segments` with equal neighbours made one."""
    last: Segment | None = None
    for segment in segments:
        if last and _same(last, segment):
            last = replace(last, end_ns=segment.end_ns)
            continue
        if last:
            yield last
        last = segment
    if last:
        yield last


def _same(one: Segment, other: Segment) -> bool:
    return (one.process_id, one.substep, one.stack_id) == (
        other.process_id,
        other.substep,
        other.stack_id,
    )
