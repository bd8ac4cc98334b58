"""What held a start back from outside: quotas, memory pressure, few cores, other load.

Counters were read several times a second. What one grew by between two readings is
spread evenly over the time between, and so over the sub-steps of that time.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from analysis.result import UNATTRIBUTED, Limits, Segment
from tracer.trace import ReadValue, Trace

Readings = dict[tuple[str, str], list[ReadValue]]
"""By name and subject, by time."""

MACHINE = ""
_PRESSURE = ("cgroup_memory_some_ns", "memory_some_ns")


def limits_of(trace: Trace, segments: Sequence[Segment], end_ns: int) -> Limits | None:
    """What the readings up to the end of a start say of its limits; None where there
    are none."""
    readings: Readings = {}
    for each in trace.readings():
        if each.ts_ns <= end_ns:
            readings.setdefault((each.name, each.subject), []).append(each)
    machine = readings.get(("machine_busy_ns", MACHINE), [])
    seen_ns = machine[-1].ts_ns - machine[0].ts_ns if machine else 0
    if not seen_ns:
        return None
    others_ns = machine[-1].value - machine[0].value - _own_ns(trace, readings)
    quotas = [
        (of[-1].value, cgroup)
        for (name, cgroup), of in readings.items()
        if name == "cgroup_quota_cpus" and of[-1].value > 0
    ]
    quota, cgroup = min(quotas, default=(None, None))
    return Limits(
        cpus=trace.meta.get("host", {}).get("cpus"),
        allowed_cpus=_least(readings, "affinity_cpus"),
        quota_cpus=quota,
        cgroup=cgroup,
        throttled_ns=_by_substep(_series(readings, "cgroup_throttled_ns"), segments),
        memory_pressure_ns=_by_substep(_most_pressed(readings), segments),
        others_cores=max(others_ns, 0) / seen_ns,
        stolen_cores=_grown(readings.get(("machine_steal_ns", MACHINE), [])) / seen_ns,
        numa_nodes=len(set(_values(readings, "numa_node"))),
        lowest_hz=_least(readings, "cpu_hz"),
        highest_hz=max(_values(readings, "cpu_hz"), default=None),
    )


def _values(readings: Readings, name: str) -> Iterator[float]:
    return (each.value for (known, _), of in readings.items() if known == name for each in of)


def _least(readings: Readings, name: str) -> float | None:
    return min(_values(readings, name), default=None)


def _grown(of: list[ReadValue]) -> float:
    return of[-1].value - of[0].value if of else 0.0


def _own_ns(trace: Trace, readings: Readings) -> float:
    """What the processes of the start used; one that ran before had used some."""
    found = {str(process.pid) for process in trace.processes.values() if process.found}
    return sum(
        _grown(of) if pid in found else of[-1].value
        for (name, pid), of in readings.items()
        if name == "process_cpu_ns"
    )


def _series(readings: Readings, name: str) -> list[list[ReadValue]]:
    return [of for (known, _), of in readings.items() if known == name]


def _most_pressed(readings: Readings) -> list[list[ReadValue]]:
    """The counter that grew most: those of a cgroup, of the ones around it and of the
    machine count the same waits."""
    series = [of for name in _PRESSURE for of in _series(readings, name)]
    return sorted(series, key=lambda of: of[0].value - of[-1].value)[:1]


def _by_substep(series: Iterable[list[ReadValue]], segments: Sequence[Segment]) -> dict[str, int]:
    """What counters grew by during each sub-step; the most first."""
    times: dict[str, float] = {}
    starts = [segment.start_ns for segment in segments]
    for of in series:
        for before, after in pairwise(of):
            grown, length_ns = after.value - before.value, after.ts_ns - before.ts_ns
            if grown <= 0 or length_ns <= 0:
                continue
            index = max(bisect_right(starts, before.ts_ns) - 1, 0)
            while index < len(segments) and starts[index] < after.ts_ns:
                segment = segments[index]
                inside_ns = min(segment.end_ns, after.ts_ns) - max(segment.start_ns, before.ts_ns)
                if inside_ns > 0:
                    name = segment.substep or UNATTRIBUTED
                    times[name] = times.get(name, 0) + grown * inside_ns / length_ns
                index += 1
    return {name: round(time) for name, time in sorted(times.items(), key=lambda item: -item[1])}
