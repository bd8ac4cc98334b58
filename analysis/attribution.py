"""Where the time of each sub-step went: cores, disks, GPUs, networks, others.

A sub-step's time on the critical path belongs to main threads. What such a thread
waited in and how long it ran is exact; what it ran is shared out by the samples that
were taken on a core. The shares of a sub-step add up to its time exactly.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from errno import EINPROGRESS
from functools import cached_property
from itertools import accumulate, chain, pairwise

from analysis.activity import Activities, Activity, Span, State
from analysis.inodes import Inodes
from analysis.result import UNATTRIBUTED, Attribution, Cores, Segment, Share, TimeShares
from analysis.waits import ON_CPU, POLL, UNKNOWN, Doing, is_woken_by_thread, ran_in, waited_in
from probes.events import BUCKET_NS, SampleCause
from tracer.trace import Connection, Lookup, Trace, Wait

KERNEL_SOURCE = "bpf"
RAN = Doing(ON_CPU)
RECENT_NS = 30_000_000_000
"""A wait on the network is for what its thread last asked, if that isn't so long ago."""
RUNNABLE = Doing("runnable")
THROTTLED = Doing("throttled")
DRIVER_CALL = Doing("gpu", "driver call")
SHORT = Doing("other_wait", "waits of less than 1 ms")
LOOPBACK = ("127.", "::1", "::ffff:127.")
SOON_NS = 1_000_000_000
"""What follows a look-up or connect later than that may have nothing to do with it."""


class Tally:
    """What times went to, and what the samples on a core were at meanwhile."""

    def __init__(self) -> None:
        self._times: dict[Doing, int] = {}
        self._samples: dict[Doing, int] = {}

    def spend(self, doing: Doing, duration_ns: int) -> None:
        """A time went to `doing`."""
        if duration_ns:
            self._times[doing] = self._times.get(doing, 0) + duration_ns

    def sample(self, doing: Doing) -> None:
        """Of the time on a core a sample was at `doing`."""
        self._samples[doing] = self._samples.get(doing, 0) + 1

    def shares(self) -> TimeShares:
        """All of the time: that on a core by what the samples were at, where there are any."""
        times = dict(self._times)
        ran_ns, count = times.get(RAN, 0), sum(self._samples.values())
        if ran_ns and count:
            del times[RAN]
            before_ns = 0
            numbers = accumulate(self._samples.values())
            for doing, number in zip(self._samples, numbers, strict=True):
                until_ns = ran_ns * number // count
                times[doing] = times.get(doing, 0) + until_ns - before_ns
                before_ns = until_ns
        return _sorted_shares(times)


def _sorted_shares(times: dict[Doing, int]) -> TimeShares:
    shares = [Share(doing.kind, doing.what, spent) for doing, spent in times.items() if spent]
    return TimeShares(tuple(sorted(shares, key=lambda share: -share.duration_ns)))


class Attributor:
    """What the threads of one trace spent their time on, up to `end_ns`."""

    def __init__(self, trace: Trace, begin_ns: int, end_ns: int) -> None:
        self._trace = trace
        self._begin_ns = begin_ns
        self._end_ns = end_ns
        self.activities = Activities(trace, begin_ns, end_ns)
        self._doings: dict[tuple[int, int], Doing] = {}
        self._files = _Files(trace)
        self._networks = _Networks(trace)
        self._throttle = _Throttle(trace)
        self._samples: dict[int, dict[int, tuple[list[int], list[Doing]]]] = {}
        self._places: dict[str, Doing] = {}
        self._driver_users = {calls.process_id for calls in trace.driver_calls()}

    def attribution(self, segments: Iterable[Segment]) -> Attribution:
        """The shares of every sub-step that has one of `segments`, which are by time."""
        tallies: dict[str, Tally] = {}
        missed = Tally()
        for segment in segments:
            start_ns, end_ns = segment.start_ns, segment.end_ns
            if segment.missed:
                missed.spend(UNKNOWN, segment.duration_ns)
                continue
            tally = tallies.setdefault(segment.substep or UNATTRIBUTED, Tally())
            tid = self._trace.processes[segment.process_id].pid
            self.spend(segment.process_id, tid, start_ns, end_ns, tally)
        substeps = {substep: tally.shares() for substep, tally in tallies.items()}
        whole: dict[Doing, int] = {}
        for share in chain(missed.shares().shares, *(each.shares for each in substeps.values())):
            doing = Doing(share.kind, share.what)
            whole[doing] = whole.get(doing, 0) + share.duration_ns
        return Attribution(substeps, _sorted_shares(whole), self._cores(), tuple(self._whys()))

    def spend(self, process_id: int, tid: int, start_ns: int, end_ns: int, tally: Tally) -> None:
        """Add to `tally` what a thread did, all of the time from `start_ns` to `end_ns`."""
        thread = self.activities.thread(process_id, tid)
        is_main = tid == self._trace.processes[process_id].pid
        rest = UNKNOWN if is_main or not thread.is_known else SHORT
        free_ns = ran_ns = runnable_ns = throttled_ns = 0
        for span in thread.between(start_ns, end_ns):
            if span.state is State.RAN:
                free_ns += span.duration_ns
                ran_ns += span.ran_ns
            elif span.state is State.RUNNABLE:
                runnable_ns += span.duration_ns
                throttled_ns += self._throttle.of(thread, span)
            elif span.wait is not None:
                doing = self._waited(process_id, span.wait, span.start_ns, span.end_ns)
                tally.spend(doing, span.duration_ns)
        tally.spend(RAN, ran_ns)
        tally.spend(rest, free_ns - ran_ns)
        tally.spend(THROTTLED, throttled_ns)
        tally.spend(RUNNABLE, runnable_ns - throttled_ns)
        for doing in self._sampled(process_id, tid, start_ns, end_ns):
            tally.sample(doing)

    def doing(self, process_id: int, wait: Wait) -> Doing:
        """What `wait`, of a thread of that process, was in, up to its end."""
        return self._waited(process_id, wait, wait.ts_ns, wait.woken_ns)

    def _waited(self, process_id: int, wait: Wait, start_ns: int, end_ns: int) -> Doing:
        key = (wait.kernel_stack_id, wait.state)
        doing = self._doings.get(key)
        if doing is None:
            kernel = self._trace.kernel_stacks[wait.kernel_stack_id]
            doing = self._doings[key] = waited_in(kernel, wait.state)
        if doing.kind == "disk":
            path = self._files.read(process_id, start_ns, end_ns)
            return Doing("disk", path) if path else doing
        if doing.kind in (POLL, "network"):
            return self._networks.told(process_id, wait, doing)
        return doing

    def _sampled(self, process_id: int, tid: int, start_ns: int, end_ns: int) -> Iterator[Doing]:
        """What the samples on a core, of a thread, were at."""
        times, doings = self._samples_of(process_id).get(tid, ([], []))
        yield from doings[bisect_left(times, start_ns) : bisect_left(times, end_ns)]

    def _samples_of(self, process_id: int) -> dict[int, tuple[list[int], list[Doing]]]:
        """The samples on a core of a process's threads, those that tell what they were at."""
        known = self._samples.get(process_id)
        if known is None:
            known = self._samples[process_id] = {}
            for sample in self._trace.samples(process_id):
                if sample.cause is SampleCause.ON_CPU and sample.place:
                    times, doings = known.setdefault(sample.tid, ([], []))
                    times.append(sample.ts_ns)
                    doings.append(self._ran_in(process_id, sample.place))
        return known

    def _ran_in(self, process_id: int, place: str) -> Doing:
        if place == "kernel:ioctl" and process_id in self._driver_users:
            return DRIVER_CALL
        doing = self._places.get(place)
        if doing is None:
            doing = self._places[place] = ran_in(place)
        return doing

    @cached_property
    def _has_ran(self) -> bool:
        return any(self._trace.ran(process_id) for process_id in self._trace.processes)

    def _whys(self) -> Iterator[str]:
        """Why some of it, or all, is unknown."""
        reasons = [
            f"{name} was {source.state}{f': {source.reason}' if source.reason else ''}"
            for name, source in self._trace.sources.items()
            if source.state != "open" and name == KERNEL_SOURCE
        ]
        because = f" ({'; '.join(reasons)})" if reasons else ""
        if not self._has_ran:
            yield f"Who had the cores was not recorded{because}: where the time went is unknown."
        elif not any(self._trace.waits(process_id) for process_id in self._trace.processes):
            yield f"Waits were not recorded{because}: what was waited for is unknown."
        if self._has_ran and not any(
            sample.place
            for process_id in self._trace.processes
            for sample in self._trace.samples(process_id)
        ):
            yield "In which code the cores were was not recorded: Python isn't told from libraries."

    def _cores(self) -> Cores | None:
        """How many cores' time was used, bucket by bucket; None where that isn't known."""
        used: dict[int, int] = {}
        for process_id in self._trace.processes:
            for ran in self._trace.ran(process_id):
                inside_ns = min(ran.ran_ns, max(self._end_ns - ran.ts_ns, 0))  # what came later
                used[ran.ts_ns] = used.get(ran.ts_ns, 0) + inside_ns
        if not used:
            return None
        none_ns = one_ns = several_ns = busy_ns = 0
        for ts_ns, ran_ns in used.items():
            length_ns = min(ts_ns + BUCKET_NS, self._end_ns) - max(ts_ns, self._begin_ns)
            if length_ns <= 0:
                continue
            busy_ns += ran_ns
            if 2 * ran_ns < length_ns:
                none_ns += length_ns
            elif 2 * ran_ns < 3 * length_ns:
                one_ns += length_ns
            else:
                several_ns += length_ns
        none_ns += self._end_ns - self._begin_ns - none_ns - one_ns - several_ns
        return Cores(none_ns, one_ns, several_ns, busy_ns)


class _Files:
    """Which file a process waited for: the one of which most came into the page cache
    meanwhile."""

    def __init__(self, trace: Trace) -> None:
        inodes = Inodes(trace)
        added: dict[tuple[int, int], dict[tuple[int, int], int]] = {}
        for pages in trace.page_cache():
            files = added.setdefault((pages.process_id, pages.ts_ns // BUCKET_NS), {})
            inode = (pages.device, pages.inode)
            files[inode] = files.get(inode, 0) + pages.added_bytes
        self._most: dict[tuple[int, int], tuple[int, str]] = {}
        for bucket, files in added.items():
            inode = max(files, key=files.__getitem__)
            self._most[bucket] = files[inode], inodes.path(*inode)

    def read(self, process_id: int, start_ns: int, end_ns: int) -> str | None:
        """The path, or that it is another file; None where nothing was read."""
        first, last = start_ns // BUCKET_NS, max(end_ns - 1, start_ns) // BUCKET_NS
        most = [
            self._most[process_id, bucket]
            for bucket in range(first, last + 1)
            if (process_id, bucket) in self._most
        ]
        return max(most)[1] if most else None


@dataclass(frozen=True, slots=True)
class _Call:
    """A look-up or a connect: with whom, and whether that is on this machine."""

    ts_ns: int
    end_ns: int
    name: str
    is_local: bool
    goes_on: bool
    """It had not yet come about when it returned."""

    def is_polled(self, wait: Wait) -> bool:
        """Whether a wait for one of several things was for this."""
        is_inside = self.ts_ns <= wait.ts_ns < self.end_ns
        return is_inside or (self.goes_on and wait.ts_ns - self.end_ns < SOON_NS)


class _Networks:
    """Whom a thread waited for that waited in a socket, or for one of several things."""

    def __init__(self, trace: Trace) -> None:
        self._pids = {process.pid for process in trace.processes.values()}
        self._calls: dict[tuple[int, int], list[_Call]] = {}
        looked_up: dict[tuple[int, int], Lookup] = {}
        calls_made: list[Connection | Lookup] = [*trace.connections(), *trace.lookups()]
        for call in sorted(calls_made, key=lambda call: call.ts_ns):
            thread = (call.process_id, call.tid)
            is_local = goes_on = False
            if isinstance(call, Lookup):
                looked_up[thread] = call
                name = call.name
            else:
                is_local = call.address.startswith(LOOPBACK)
                goes_on = call.error == EINPROGRESS
                name = _host(call, looked_up.get(thread))
            calls = self._calls.setdefault(thread, [])
            calls.append(_Call(call.ts_ns, call.end_ns, name, is_local, goes_on))

    def told(self, process_id: int, wait: Wait, doing: Doing) -> Doing:
        """`doing` by the thread's last look-up or connect before the end of its wait,
        else by its waker: a peer on this machine, or not."""
        call = self._last_call(process_id, wait)
        if call is not None and (doing.kind != POLL or call.is_polled(wait)):
            return Doing("pipe" if call.is_local else "network", call.name)
        if wait.waker_pid in self._pids and is_woken_by_thread(wait):
            return Doing("pipe", doing.what)
        return Doing("other_wait", doing.what) if doing.kind == POLL else doing

    def _last_call(self, process_id: int, wait: Wait) -> _Call | None:
        calls = self._calls.get((process_id, wait.tid), [])
        index = bisect_left(calls, wait.woken_ns, key=lambda call: call.ts_ns) - 1
        if index < 0 or wait.ts_ns - calls[index].end_ns > RECENT_NS:
            return None
        return calls[index]


def _host(connection: Connection, before: Lookup | None) -> str:
    """The name that was looked up just before, or the address, and the port."""
    host = connection.address
    if before is not None and connection.ts_ns - before.end_ns < SOON_NS:
        host = before.name
    return f"[{host}]:{connection.port}" if ":" in host else f"{host}:{connection.port}"


class _Throttle:
    """How much of the time that a thread could have run its cgroup's quota took.

    A cgroup's counter is read now and then. Of the time between two readings no more
    than it grew by was throttled, and no more than the thread was runnable; the
    counter adds up cores, so where several were stopped all that was runnable was.
    """

    def __init__(self, trace: Trace) -> None:
        by_cgroup: dict[str, list[tuple[int, int]]] = {}
        for reading in trace.readings():
            if reading.name == "cgroup_throttled_ns":
                by_cgroup.setdefault(reading.subject, []).append(
                    (reading.ts_ns, round(reading.value))
                )
        self._grown: list[tuple[int, int, int]] = []
        for readings in by_cgroup.values():
            for (start_ns, before), (end_ns, after) in pairwise(readings):
                if after > before:
                    self._grown.append((start_ns, end_ns, after - before))
        self._grown.sort()
        self._starts = [start_ns for start_ns, _, _ in self._grown]
        self._runnable: dict[tuple[Activity, int], int] = {}

    def of(self, thread: Activity, span: Span) -> int:
        """How much of `span`, in which `thread` was runnable, was throttled."""
        if not self._grown:
            return 0
        throttled_ns = 0
        at_ns = span.start_ns
        first = max(bisect_right(self._starts, span.start_ns) - 1, 0)
        for index in range(first, len(self._grown)):
            start_ns, end_ns, grown_ns = self._grown[index]
            if start_ns >= span.end_ns:
                break
            start, end = max(start_ns, at_ns), min(end_ns, span.end_ns)
            if start >= end:
                continue
            runnable_ns = self._runnable_ns(thread, index)
            throttled_ns += (end - start) * min(grown_ns, runnable_ns) // max(runnable_ns, 1)
            at_ns = end
        return throttled_ns

    def _runnable_ns(self, thread: Activity, index: int) -> int:
        key = (thread, index)
        known = self._runnable.get(key)
        if known is None:
            start_ns, end_ns, _ = self._grown[index]
            spans = thread.between(start_ns, end_ns)
            known = sum(span.duration_ns for span in spans if span.state is State.RUNNABLE)
            self._runnable[key] = known
        return known
