"""The critical path: from the end of a start back to its exec, through who woke whom.

It begins with the thread that made the start ready and follows it back to its last
wait of any length that another thread of the start ended: from there on it follows
that thread, and a thread's first moment leads to the one that made it. What a thread
waited for that no thread ended (a disk, the time, a network) is its own time.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, replace
from itertools import accumulate, groupby

from analysis.attribution import Attributor, Tally
from analysis.result import Beside, Link, Segment
from analysis.waits import is_woken_by_thread
from probes.events import BUCKET_NS
from tracer.trace import Trace, Wait

FOLLOWED_NS = 1_000_000
"""A shorter wait is its own thread's time: others' are not told."""
FOLLOWED = frozenset({"lock", "pipe", "child", "other_wait"})
"""Kinds of waits that a thread ends, no interrupt."""
NOTEWORTHY_SHARE = 0.005
"""Of the whole; a shorter link is told as a part of the one beside it."""
BESIDE_SHARE = 0.05
"""Of a link; what ran beside it for less isn't told."""


@dataclass(frozen=True, slots=True)
class _Stretch:
    """A thread on the path. `handover` as in Link."""

    start_ns: int
    end_ns: int
    process_id: int
    tid: int
    handover: str
    owner: int | None
    """The process, None for a tool of one."""
    substep: str | None = None

    @property
    def duration_ns(self) -> int:
        return self.end_ns - self.start_ns


class CriticalPath:
    """The chain of one start from `begin_ns` to `end_ns`.

    segments: the partition, which names the chain's moments and its last thread.
    parts: the processes that are parts of the server, not tools of one.
    """

    def __init__(
        self,
        trace: Trace,
        attributor: Attributor,
        segments: Sequence[Segment],
        parts: Set[int],
        begin_ns: int,
        end_ns: int,
    ) -> None:
        self._trace = trace
        self._attributor = attributor
        self._segments = segments
        self._parts = parts
        self._begin_ns = begin_ns
        self._end_ns = end_ns
        self._followed: dict[tuple[int, int], list[Wait]] = {}
        self._by_pid: dict[int, list[tuple[int, int]]] = {}
        for process in sorted(trace.processes.values(), key=lambda each: each.start_ns):
            self._by_pid.setdefault(process.pid, []).append((process.start_ns, process.id))

    def links(self) -> list[Link]:
        """The chain, by time, without gap or overlap from begin to end; none where it
        wasn't recorded who waited."""
        processes = self._trace.processes
        if not self._segments or not any(map(self._trace.waits, processes)):
            return []
        stretches = list(self._by_substep(self._chain()[::-1]))
        least_ns = int(NOTEWORTHY_SHARE * (self._end_ns - self._begin_ns))
        busy = {process_id: _Busy(self._trace, process_id) for process_id in processes}
        return [self._link(parts, busy) for parts in _gathered(stretches, least_ns)]

    def _chain(self) -> list[_Stretch]:
        """The threads on the path, the last one first."""
        process_id = self._segments[-1].process_id
        tid = self._trace.processes[process_id].pid
        at_ns, handover = self._end_ns, "ended"
        chain: list[_Stretch] = []
        while at_ns > self._begin_ns:
            birth_ns = self._birth_ns(process_id, tid)
            wait = self._ended_by_thread(process_id, tid, max(birth_ns, self._begin_ns), at_ns)
            from_ns = birth_ns if wait is None else wait.woken_ns
            maker = self._maker(process_id, tid, birth_ns) if wait is None else None
            if wait is None and maker is None:
                from_ns = self._begin_ns
            from_ns = min(max(from_ns, self._begin_ns), at_ns)
            if from_ns < at_ns:
                owner = process_id if process_id in self._parts else None
                chain.append(_Stretch(from_ns, at_ns, process_id, tid, handover, owner))
            at_ns = from_ns
            if wait is not None:
                process_id, tid = self._waker(wait) or (process_id, tid)
                handover = "woke"
            elif maker is not None:
                process_id, tid = maker
                handover = "forked"
        return chain

    def _birth_ns(self, process_id: int, tid: int) -> int:
        return self._attributor.activities.birth_ns(self._trace.processes[process_id], tid)

    def _maker(self, process_id: int, tid: int, birth_ns: int) -> tuple[int, int] | None:
        """The thread that made another one; of a process the parent's main thread, if
        it lived before."""
        process = self._trace.processes[process_id]
        if tid != process.pid:
            return process_id, process.pid
        if process.parent_id is None or process.found:
            return None
        parent = self._trace.processes[process.parent_id]
        return (parent.id, parent.pid) if parent.start_ns < birth_ns else None

    def _ended_by_thread(
        self, process_id: int, tid: int, after_ns: int, before_ns: int
    ) -> Wait | None:
        """A thread's last wait before a moment that another thread of the start ended."""
        waits = self._followed.get((process_id, tid))
        if waits is None:
            waits = [
                wait
                for wait in self._attributor.activities.waits(process_id, tid)
                if self._is_followed(process_id, wait)
            ]
            self._followed[process_id, tid] = waits
        index = bisect_left(waits, before_ns, key=lambda wait: wait.woken_ns) - 1
        return waits[index] if index >= 0 and waits[index].woken_ns > after_ns else None

    def _is_followed(self, process_id: int, wait: Wait) -> bool:
        if wait.woken_ns - wait.ts_ns < FOLLOWED_NS or not is_woken_by_thread(wait):
            return False
        return self._attributor.doing(process_id, wait).kind in FOLLOWED and bool(self._waker(wait))

    def _waker(self, wait: Wait) -> tuple[int, int] | None:
        """The process and thread that ended a wait, of those that then lived."""
        if wait.waker_pid is None or wait.waker_tid is None:
            return None
        lives = self._by_pid.get(wait.waker_pid, [])
        index = bisect_right(lives, (wait.woken_ns, len(self._trace.processes) + 1)) - 1
        return (lives[index][1], wait.waker_tid) if index >= 0 else None

    def _by_substep(self, stretches: Sequence[_Stretch]) -> Iterator[_Stretch]:
        """`stretches`, by time, cut where the start as a whole went from one sub-step to
        another."""
        runs = [list(run) for _, run in groupby(self._segments, key=lambda each: each.substep)]
        index = 0
        for stretch in stretches:
            at_ns = stretch.start_ns
            while at_ns < stretch.end_ns:
                while runs[index][-1].end_ns <= at_ns and index + 1 < len(runs):
                    index += 1
                until_ns = runs[index][-1].end_ns
                end_ns = min(until_ns, stretch.end_ns) if until_ns > at_ns else stretch.end_ns
                yield replace(
                    stretch,
                    start_ns=at_ns,
                    end_ns=end_ns,
                    substep=runs[index][0].substep,
                    handover=stretch.handover if end_ns == stretch.end_ns else "went on",
                )
                at_ns = end_ns

    def _link(self, parts: Sequence[_Stretch], busy: dict[int, _Busy]) -> Link:
        """One link from stretches that join; the longest names it."""
        tally = Tally()
        for part in parts:
            self._attributor.spend(part.process_id, part.tid, part.start_ns, part.end_ns, tally)
        start_ns, end_ns = parts[0].start_ns, parts[-1].end_ns
        longest = max(parts, key=lambda part: part.duration_ns)
        return Link(
            start_ns,
            end_ns,
            longest.process_id,
            longest.tid,
            longest.substep,
            next(part.handover for part in reversed(parts) if part.owner == longest.owner),
            tally.shares(),
            tuple(dict.fromkeys(part.process_id for part in parts)),
            tuple(_beside(busy, {part.process_id for part in parts}, start_ns, end_ns)),
        )


def _gathered(stretches: Sequence[_Stretch], least_ns: int) -> Iterator[list[_Stretch]]:
    """`stretches` in runs of one owner and sub-step; a run shorter than `least_ns` is
    a part of the one before it, or of the first."""
    runs: list[list[_Stretch]] = []
    for stretch in stretches:
        if runs and _fits(runs[-1][-1], stretch):
            runs[-1].append(stretch)
        else:
            runs.append([stretch])
    whole: list[list[_Stretch]] = []
    for run in runs:
        is_short = run[-1].end_ns - run[0].start_ns < least_ns
        if whole and (is_short or _fits(_longest(whole[-1]), run[0])):
            whole[-1] += run
        elif whole and len(whole) == 1 and _length_ns(whole[0]) < least_ns:
            whole[0] += run
        else:
            whole.append(run)
    yield from whole


def _length_ns(run: Sequence[_Stretch]) -> int:
    return run[-1].end_ns - run[0].start_ns


def _longest(run: Sequence[_Stretch]) -> _Stretch:
    return max(run, key=lambda part: part.duration_ns)


def _fits(one: _Stretch, other: _Stretch) -> bool:
    return (one.owner, one.substep) == (other.owner, other.substep)


def _beside(busy: dict[int, _Busy], own: set[int], start_ns: int, end_ns: int) -> Iterator[Beside]:
    """The processes that ran beside a link, the busiest first."""
    duration_ns = end_ns - start_ns
    ran = {
        process_id: min(times.between(start_ns, end_ns), duration_ns)
        for process_id, times in busy.items()
        if process_id not in own
    }
    for process_id in sorted(ran, key=lambda each: -ran[each]):
        if ran[process_id] > BESIDE_SHARE * duration_ns:
            yield Beside(process_id, ran[process_id], duration_ns - ran[process_id])


class _Busy:
    """How long a process ran, all its threads together, up to any moment."""

    def __init__(self, trace: Trace, process_id: int) -> None:
        used: dict[int, int] = {}
        for ran in trace.ran(process_id):
            used[ran.ts_ns] = used.get(ran.ts_ns, 0) + ran.ran_ns
        self._buckets = sorted(used)
        self._ran = [used[bucket] for bucket in self._buckets]
        self._before = [0, *accumulate(self._ran)]

    def between(self, start_ns: int, end_ns: int) -> int:
        """The time it ran from `start_ns` to `end_ns`, in ns."""
        return self._until(end_ns) - self._until(start_ns)

    def _until(self, moment_ns: int) -> int:
        index = bisect_right(self._buckets, moment_ns) - 1
        if index < 0:
            return 0
        inside_ns = min(moment_ns - self._buckets[index], BUCKET_NS)
        return self._before[index] + self._ran[index] * inside_ns // BUCKET_NS
