"""What one start came to: the one object that every report is made from.

Times are integer nanoseconds; `start_ns` of the result is CLOCK_MONOTONIC, all
others that are named `*_ns` and mean a moment are too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


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

    @property
    def wall_ns(self) -> int:
        return self.end_ns - self.start_ns

    @property
    def lost_events(self) -> int:
        return sum(self.lost.values())
