"""What times went to, as the page shows it; kinds are told by their number in KINDS."""

from __future__ import annotations

from typing import Any

from analysis.attribution import Tally
from analysis.report.cells import who
from analysis.report.cores import count_of, width_ns
from analysis.result import KINDS, Link, TimeShares
from analysis.start import Start
from analysis.waits import Doing
from probes.events import WaitState
from tracer.text import escape
from tracer.trace import Wait

TOP_SHARES = 8
TOP_WAITS = 400
PREEMPTED = Doing("runnable", "preempted")


def shares(times: TimeShares) -> dict[str, Any]:
    """Times in µs: the verdict and what speaks for it, sums by kind, the largest shares."""
    return {
        "bound": times.bound,
        "boundTime": round(times.bound_ns / 1000),
        "kinds": [round(times.of(kind) / 1000) for kind in KINDS],
        "top": [
            [KINDS.index(share.kind), escape(share.what or ""), round(share.duration_ns / 1000)]
            for share in times.shares[:TOP_SHARES]
        ],
    }


def link(
    start: Start, each: Link, processes: dict[int, int], substeps: dict[str, int]
) -> dict[str, Any]:
    """A link of the critical path; times in µs."""
    pid = start.trace.processes[each.process_id].pid
    return {
        "from": round((each.start_ns - start.begin_ns) / 1000),
        "to": round((each.end_ns - start.begin_ns) / 1000),
        "process": processes[each.process_id],
        "thread": "" if each.tid == pid else f"thread {each.tid}",
        "substep": -1 if each.substep is None else substeps[each.substep],
        "handover": each.handover,
        "shares": shares(each.times),
        "beside": [
            [
                processes[beside.process_id],
                round(beside.busy_ns / 1000),
                round(beside.slack_ns / 1000),
            ]
            for beside in each.beside
            if beside.process_id in processes
        ],
    }


def threads(start: Start) -> dict[str, Any] | None:
    """What the critical path and each main thread did, by kind, bucket by bucket, in per
    mille; None where nobody saw it."""
    if not any(start.trace.ran(process_id) for process_id in start.trace.processes):
        return None
    buckets = _Buckets(start)
    path = buckets.tallies()
    for segment in start.segments:
        if not segment.missed:
            buckets.spend(segment.process_id, segment.start_ns, segment.end_ns, path)
    rows = [{"title": "The critical path", "kinds": buckets.by_kind(path)}]
    for life in start.result.processes:
        if start.is_part(life.id):
            tallies = buckets.tallies()
            end_ns = start.end_ns if life.end_ns is None else min(life.end_ns, start.end_ns)
            buckets.spend(life.id, max(life.start_ns, start.begin_ns), end_ns, tallies)
            rows.append({"title": who(start, life), "kinds": buckets.by_kind(tallies)})
    from_us = round((buckets.first * buckets.width_ns - start.begin_ns) / 1000)
    return {"from": from_us, "bucket": round(buckets.width_ns / 1000), "rows": rows}


class _Buckets:
    """Shares out what threads did."""

    def __init__(self, start: Start) -> None:
        self._start = start
        self.width_ns = width_ns(start)
        self.first = start.begin_ns // self.width_ns

    def tallies(self) -> list[Tally]:
        """One for each bucket."""
        return [Tally() for _ in range(count_of(self._start, self.width_ns))]

    def spend(self, process_id: int, begin_ns: int, end_ns: int, tallies: list[Tally]) -> None:
        """Add what a main thread did from `begin_ns` to `end_ns`."""
        pid = self._start.trace.processes[process_id].pid
        at_ns = begin_ns
        while at_ns < end_ns:
            bucket = at_ns // self.width_ns
            until_ns = min((bucket + 1) * self.width_ns, end_ns)
            tally = tallies[bucket - self.first]
            self._start.attributor.spend(process_id, pid, at_ns, until_ns, tally)
            at_ns = until_ns

    def by_kind(self, tallies: list[Tally]) -> dict[int, list[int]]:
        """Per mille of a bucket by kind, of those kinds that there are."""
        times = [tally.shares() for tally in tallies]
        return {
            number: values
            for number, kind in enumerate(KINDS)
            if any(values := [round(1000 * each.of(kind) / self.width_ns) for each in times])
        }


def waits(start: Start, processes: dict[int, int]) -> list[list[Any]]:
    """What was waited for, the longest in all first: process, thread, kind, what, how
    often, µs in all, µs of the longest, µs of all that were waited for a core.

    The threads of a process that aren't its main one are taken together.
    """
    groups: dict[tuple[int, str, Doing], list[Wait]] = {}
    for process_id, number in processes.items():
        pid = start.trace.processes[process_id].pid
        for wait in start.trace.waits(process_id):
            if wait.ts_ns < start.end_ns:
                thread = "main" if wait.tid == pid else "others"
                key = (number, thread, waited_for(start, process_id, wait))
                groups.setdefault(key, []).append(wait)
    rows = [_wait_row(start, *key, group) for key, group in groups.items()]
    return sorted(rows, key=lambda row: -row[5])[:TOP_WAITS]


def waited_for(start: Start, process_id: int, wait: Wait) -> Doing:
    """What a wait was for, a core included."""
    if wait.state is WaitState.PREEMPTED:
        return PREEMPTED
    return start.attributor.doing(process_id, wait)


def _wait_row(
    start: Start, process: int, thread: str, doing: Doing, group: list[Wait]
) -> list[Any]:
    lengths = [min(wait.end_ns, start.end_ns) - wait.ts_ns for wait in group]
    queued_ns = sum(wait.end_ns - max(wait.woken_ns, wait.ts_ns) for wait in group)
    times = (round(ns / 1000) for ns in (sum(lengths), max(lengths), queued_ns))
    what = escape(doing.what or "")
    return [process, thread, KINDS.index(doing.kind), what, len(group), *times]
