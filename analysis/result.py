"""What one start came to: the one object that every report is made from.

Times are integer nanoseconds; `start_ns` of the result is CLOCK_MONOTONIC, all
others that are named `*_ns` and mean a moment are too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

UNATTRIBUTED = "unattributed"
"""Stands for a sub-step where no signature names the moment."""

BOUNDS = {
    "cpu": ("python", "native", "kernel", "cpu", "runnable", "throttled"),
    "disk": ("disk",),
    "gpu": ("gpu",),
    "network": ("network",),
    "wait": ("lock", "pipe", "child", "sleep", "other_wait"),
    "unknown": ("unknown",),
}
"""What a time can go to, by what it is then bound by.

On a core: python, native (by library), kernel (by system call or fault), cpu (in what
isn't known). For a core: runnable, throttled (by a cgroup's quota). Waiting: disk (by
file), gpu (the driver, on a core or waiting), network (by name or address), lock,
pipe (pipes and sockets between processes), child, sleep, other_wait.
"""

KINDS = tuple(kind for kinds in BOUNDS.values() for kind in kinds)


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of the critical path: who held it, as what, with which stack.

    `substep` is None where no signature names the moment, and `missed` is True
    before the tracer came. Segments of one start join without gap or overlap.
    """

    start_ns: int
    end_ns: int
    process_id: int
    substep: str | None
    stack_id: int | None
    missed: bool = False

    @property
    def duration_ns(self) -> int:
        return self.end_ns - self.start_ns


@dataclass(frozen=True, slots=True)
class Share:
    """What a part of a time went to: one of KINDS and, where known, in or for what."""

    kind: str
    what: str | None
    duration_ns: int


@dataclass(frozen=True, slots=True)
class TimeShares:
    """What a time went to, the largest share first; they add up to it exactly."""

    shares: tuple[Share, ...]

    @property
    def duration_ns(self) -> int:
        return sum(share.duration_ns for share in self.shares)

    def of(self, *kinds: str) -> int:
        """The time that went to `kinds`, in ns."""
        return sum(share.duration_ns for share in self.shares if share.kind in kinds)

    @property
    def bound(self) -> str:
        """The verdict: which of BOUNDS took most of the time."""
        return max(BOUNDS, key=lambda bound: self.of(*BOUNDS[bound])) if self.shares else "unknown"

    @property
    def bound_ns(self) -> int:
        """The time that speaks for the verdict."""
        return self.of(*BOUNDS[self.bound])


@dataclass(frozen=True, slots=True)
class Cores:
    """For how much of a start its processes kept no core, one or several busy.

    By 100 ms: one means that from half to one and a half core's time was used.
    `busy_ns` is the time of all cores together.
    """

    none_ns: int
    one_ns: int
    several_ns: int
    busy_ns: int


@dataclass(frozen=True, slots=True)
class Attribution:
    """Where the time went, by sub-step (or UNATTRIBUTED) and on the whole.

    `cores` is None where it isn't known; `whys` say, a line each, why some or all of
    the time went to what is unknown.
    """

    substeps: Mapping[str, TimeShares]
    whole: TimeShares
    cores: Cores | None
    whys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CacheState:
    """How warm a cache was when it was needed: warm, partly warm, cold, unused or unknown.

    `detail` says what shows it. `held_bytes` of `size_bytes` were there, None where
    the cache isn't measured so.
    """

    id: str
    title: str
    state: str
    detail: str
    held_bytes: int | None
    size_bytes: int | None


@dataclass(frozen=True, slots=True)
class Limits:
    """What held a start back from outside.

    `allowed_cpus` is the least that a process was allowed of the machine's `cpus`;
    `quota_cpus` what its threads may use in all, set by `cgroup`; None for no limit.
    `throttled_ns` and `memory_pressure_ns` are by sub-step, the most first. Cores are
    means over the start: those that other programs used, and the hypervisor took.
    """

    cpus: int | None
    allowed_cpus: float | None
    quota_cpus: float | None
    cgroup: str | None
    throttled_ns: Mapping[str, int]
    memory_pressure_ns: Mapping[str, int]
    others_cores: float
    stolen_cores: float
    numa_nodes: int
    lowest_hz: float | None
    highest_hz: float | None


@dataclass(frozen=True, slots=True)
class Beside:
    """A process that ran beside a link, and how much longer it could have taken."""

    process_id: int
    busy_ns: int
    slack_ns: int


@dataclass(frozen=True, slots=True)
class Link:
    """A stretch of the critical path: a thread that all that came later waited for.

    `handover` says how it let the next one go on: "woke" it, "forked" it, "went on"
    (the same thread, in another sub-step) or, the last one, "ended" the start.
    """

    start_ns: int
    end_ns: int
    process_id: int
    tid: int
    substep: str | None
    handover: str
    times: TimeShares
    process_ids: tuple[int, ...]
    """All that were on the path meanwhile: a link that isn't worth one of its own is told
    with the one before it, and so are tools that follow one another."""
    beside: tuple[Beside, ...]

    @property
    def duration_ns(self) -> int:
        return self.end_ns - self.start_ns


@dataclass(frozen=True, slots=True)
class SubstepTime:
    """One sub-step and its time on the critical path.

    `why_not` says why it took none, where that is known.
    """

    id: str
    title: str
    duration_ns: int
    why_not: str | None = None


@dataclass(frozen=True, slots=True)
class StepTime:
    """One step; `why_not` says why it didn't happen, None when it did."""

    id: str
    title: str
    substeps: tuple[SubstepTime, ...]
    why_not: str | None

    @property
    def duration_ns(self) -> int:
        return sum(substep.duration_ns for substep in self.substeps)

    @property
    def happened(self) -> bool:
        return self.why_not is None


@dataclass(frozen=True, slots=True)
class ProcessLife:
    """A process of the start, from its own start or that of the whole; `end_ns` is
    None while it lives."""

    id: int
    pid: int
    parent_id: int | None
    parent_pid: int | None
    role: str
    program: str
    start_ns: int
    end_ns: int | None
    wait_status: int | None


@dataclass(frozen=True, slots=True)
class Failure:
    """Where a start that never became ready stopped.

    `function` ran last, called, at whatever depth, by `engine_function`, the
    innermost of the engine's own.
    """

    step: str | None
    substep: str | None
    process_id: int
    pid: int
    role: str
    function: str | None
    engine_function: str | None
    wait_status: int | None
    root_wait_status: int | None


@dataclass(frozen=True, slots=True)
class SourceState:
    """A source of events: open, skipped or failed, and why."""

    name: str
    state: str
    reason: str | None


@dataclass(frozen=True, slots=True)
class Overhead:
    """What observing cost: the recorder's own, and inside the observed processes."""

    recorder_cpu_s: float | None
    recorder_peak_rss_bytes: int | None
    observed_cost_ns: int


@dataclass(frozen=True, slots=True)
class Result:
    """One start, from `start_ns` to `end_ns`; the segments add up to it exactly."""

    outcome: str
    engine: str | None
    command: tuple[str, ...]
    start_ns: int
    end_ns: int
    steps: tuple[StepTime, ...]
    unattributed_ns: int
    missed_ns: int
    segments: tuple[Segment, ...]
    processes: tuple[ProcessLife, ...]
    lost: Mapping[str, int]
    overhead: Overhead
    failure: Failure | None
    versions: Mapping[str, str]
    sources: tuple[SourceState, ...]
    notes: tuple[str, ...]
    attribution: Attribution
    critical_path: tuple[Link, ...]
    caches: tuple[CacheState, ...]
    limits: Limits | None

    @property
    def wall_ns(self) -> int:
        return self.end_ns - self.start_ns

    @property
    def lost_events(self) -> int:
        return sum(self.lost.values())
