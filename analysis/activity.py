"""What a thread did at each moment: ran, could have run, or waited.

Every wait of a main thread is told, so what lies between two waits it may have run.
It did so only as long as its time on the cores says: the rest, in which a wait was
lost or nobody looked, stays unknown.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum

from probes.events import BUCKET_NS, WaitState
from tracer.trace import Process, Ran, Trace, Wait


class State(Enum):
    """What a thread did."""

    RAN = "ran"
    RUNNABLE = "runnable"
    """It waited for a core."""
    WAITED = "waited"


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of a thread's time.

    In one that it RAN it was on a core for `ran_ns`, evenly; what it did for the
    rest is unknown. The others have the wait that they are a part of.
    """

    start_ns: int
    end_ns: int
    state: State
    ran_ns: int = 0
    wait: Wait | None = None

    @property
    def duration_ns(self) -> int:
        return self.end_ns - self.start_ns

    def cut(self, start_ns: int, end_ns: int) -> Span:
        """What of it lies from `start_ns` to `end_ns`, which are within; the parts of
        a span have together what it has."""
        if start_ns == self.start_ns and end_ns == self.end_ns:
            return self
        ran_ns = self._ran_until(end_ns) - self._ran_until(start_ns) if self.ran_ns else 0
        return Span(start_ns, end_ns, self.state, ran_ns, self.wait)

    def _ran_until(self, moment_ns: int) -> int:
        return self.ran_ns * (moment_ns - self.start_ns) // self.duration_ns


class Activity:
    """The spans of one thread, from `start_ns` to `end_ns`, without a gap.

    waits: its waits, by begin. ran: its time on the cores, in any order.
    """

    def __init__(
        self, waits: Iterable[Wait], ran: Iterable[Ran], start_ns: int, end_ns: int
    ) -> None:
        self._buckets: dict[int, int] = {}
        for each in ran:
            bucket = each.ts_ns // BUCKET_NS
            self._buckets[bucket] = self._buckets.get(bucket, 0) + each.ran_ns
        self._known_buckets = sorted(self._buckets)
        self.spans = list(self._with_ran(list(_waited(waits, start_ns, end_ns))))
        self._starts = [span.start_ns for span in self.spans]

    @property
    def is_known(self) -> bool:
        """Whether it was told when the thread ran."""
        return bool(self._buckets)

    def between(self, start_ns: int, end_ns: int) -> Iterator[Span]:
        """The spans from `start_ns` to `end_ns`, without a gap; where there is no
        thread its state is unknown."""
        at_ns = start_ns
        for index in range(max(bisect_right(self._starts, start_ns) - 1, 0), len(self.spans)):
            span = self.spans[index]
            if span.start_ns >= end_ns:
                break
            start, end = max(span.start_ns, start_ns), min(span.end_ns, end_ns)
            if start >= end:
                continue
            if at_ns < start:
                yield Span(at_ns, start, State.RAN)
            yield span.cut(start, end)
            at_ns = end
        if at_ns < end_ns:
            yield Span(at_ns, end_ns, State.RAN)

    def _with_ran(self, spans: list[Span]) -> Iterator[Span]:
        """`spans` where those between waits are cut into buckets, and have run as long
        as each bucket says."""
        pieces: list[Span] = []
        for span in spans:
            if span.wait is None:
                pieces += self._in_buckets(span.start_ns, span.end_ns)
            else:
                pieces.append(span)
        free_ns: dict[int, int] = {}
        for piece in pieces:
            if piece.wait is None:
                bucket = piece.start_ns // BUCKET_NS
                free_ns[bucket] = free_ns.get(bucket, 0) + piece.duration_ns
        shared_ns: dict[int, int] = {}
        for piece in pieces:
            if piece.wait is not None:
                yield piece
                continue
            bucket = piece.start_ns // BUCKET_NS
            free = free_ns[bucket]
            ran_ns = min(self._buckets.get(bucket, 0), free)
            before_ns = shared_ns.get(bucket, 0)
            after_ns = shared_ns[bucket] = before_ns + piece.duration_ns
            share_ns = ran_ns * after_ns // free - ran_ns * before_ns // free
            yield Span(piece.start_ns, piece.end_ns, State.RAN, share_ns)

    def _in_buckets(self, start_ns: int, end_ns: int) -> Iterator[Span]:
        """That time, cut at the edges of the buckets that are known: it may last for
        months before the first one."""
        index = bisect_left(self._known_buckets, start_ns // BUCKET_NS)
        while start_ns < end_ns:
            until_ns = end_ns
            if index < len(self._known_buckets):
                bucket_ns = self._known_buckets[index] * BUCKET_NS
                if bucket_ns <= start_ns:
                    bucket_ns += BUCKET_NS
                    index += 1
                until_ns = min(bucket_ns, end_ns)
            yield Span(start_ns, until_ns, State.RAN)
            start_ns = until_ns


def _waited(waits: Iterable[Wait], start_ns: int, end_ns: int) -> Iterator[Span]:
    """The waits, each cut where it becomes runnable, and what lies between them."""
    at_ns = start_ns
    for wait in waits:
        begin_ns, stop_ns = max(wait.ts_ns, at_ns), min(wait.end_ns, end_ns)
        if begin_ns >= stop_ns:
            continue
        if at_ns < begin_ns:
            yield Span(at_ns, begin_ns, State.RAN)
        preempted = wait.state is WaitState.PREEMPTED
        woken_ns = begin_ns if preempted else min(max(wait.woken_ns, begin_ns), stop_ns)
        if begin_ns < woken_ns:
            yield Span(begin_ns, woken_ns, State.WAITED, wait=wait)
        if woken_ns < stop_ns:
            yield Span(woken_ns, stop_ns, State.RUNNABLE, wait=wait)
        at_ns = stop_ns
    if at_ns < end_ns:
        yield Span(at_ns, end_ns, State.RAN)


class Activities:
    """The threads of one trace, from `begin_ns` to `end_ns`, each worked out when first
    asked for."""

    def __init__(self, trace: Trace, begin_ns: int, end_ns: int) -> None:
        self._trace = trace
        self._begin_ns = begin_ns
        self._end_ns = end_ns
        self._threads: dict[tuple[int, int], Activity] = {}
        self._by_thread: dict[int, tuple[dict[int, list[Wait]], dict[int, list[Ran]]]] = {}

    def main(self, process_id: int) -> Activity:
        """The main thread of a process."""
        return self.thread(process_id, self._trace.processes[process_id].pid)

    def thread(self, process_id: int, tid: int) -> Activity:
        """A thread; one that isn't known did nothing that is."""
        known = self._threads.get((process_id, tid))
        if known is None:
            process = self._trace.processes[process_id]
            waits, ran = self.waits(process_id, tid), self._of(process_id)[1].get(tid, [])
            start_ns = max(self.birth_ns(process, tid), self._begin_ns)
            end_ns = self._end_ns if process.end_ns is None else min(process.end_ns, self._end_ns)
            known = Activity(waits, ran, start_ns, end_ns)
            self._threads[process_id, tid] = known
        return known

    def waits(self, process_id: int, tid: int) -> list[Wait]:
        """The waits of one thread, by begin."""
        return self._of(process_id)[0].get(tid, [])

    def birth_ns(self, process: Process, tid: int) -> int:
        """When a thread came to be: a main thread exactly; another one as long before
        its first wait, or the end of its first bucket, as it ran in that."""
        by_thread = self._of(process.id)
        waits, ran = by_thread[0].get(tid, []), by_thread[1].get(tid, [])
        if tid == process.pid or not (waits or ran):
            return process.start_ns
        if not ran or (waits and waits[0].ts_ns < ran[0].ts_ns):
            return max(waits[0].ts_ns, process.start_ns)
        first_ns = ran[0].ts_ns
        until_ns = min([first_ns + BUCKET_NS, *(wait.ts_ns for wait in waits[:1])])
        ran_ns = sum(each.ran_ns for each in ran if each.ts_ns == first_ns)
        return max(until_ns - ran_ns, first_ns, process.start_ns)

    def _of(self, process_id: int) -> tuple[dict[int, list[Wait]], dict[int, list[Ran]]]:
        known = self._by_thread.get(process_id)
        if known is None:
            waits: dict[int, list[Wait]] = {}
            for wait in self._trace.waits(process_id):
                waits.setdefault(wait.tid, []).append(wait)
            ran: dict[int, list[Ran]] = {}
            for each in self._trace.ran(process_id):
                ran.setdefault(each.tid, []).append(each)
            known = self._by_thread[process_id] = (waits, ran)
        return known
