"""The partition: every nanosecond of a start belongs to one sub-step, or to none.

A moment's owner is found from the root process down: what its main thread's
stack says by its innermost signature, or, where that is waiting for another
role, what a living process of that role says, and so on. Of several that are
waited for at once the one that let go last counts.

A wait begins and ends at the waiter's own edges (see timelines). If the process
that is waited for took up or let go of work within what such an edge is known
to lie in, that moment is the edge: a waiter that spins, or is preempted, may
have no sample for long.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from analysis.result import Segment
from analysis.timelines import Member, Piece, Threads, Timeline
from tracer.trace import Process

MAX_HANDOVERS = 16
"""Longest chain of processes that wait for one another."""


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
