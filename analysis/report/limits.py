"""What held a start back from outside, as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from analysis.report.cells import in_seconds
from analysis.result import UNATTRIBUTED, Limits, Result
from tracer.text import escape

NOTEWORTHY_NS = 10_000_000
NOTEWORTHY_CORES = 0.05
NOTEWORTHY_SLOWDOWN = 0.8


def limits_line(result: Result) -> str | None:
    """What held it back, in one paragraph; None where nobody looked."""
    if result.limits is None:
        return None
    told = list(_told(result, result.limits))
    return f"Limits: {'; '.join(told)}." if told else "Limits: none was felt."


def _told(result: Result, limits: Limits) -> Iterator[str]:
    if limits.allowed_cpus is not None and limits.allowed_cpus < (limits.cpus or 0):
        yield f"a process was allowed {limits.allowed_cpus:g} of {limits.cpus} cores"
    if limits.quota_cpus is not None:
        yield f"a quota of {limits.quota_cpus:g} cores ({escape(limits.cgroup or '')})"
    yield from _by_substep(result, "its threads were stopped for", limits.throttled_ns)
    yield from _by_substep(result, "memory pressure for", limits.memory_pressure_ns)
    if limits.others_cores > NOTEWORTHY_CORES:
        yield f"other programs used {limits.others_cores:.2f} cores"
    if limits.stolen_cores > NOTEWORTHY_CORES:
        yield f"the hypervisor took {limits.stolen_cores:.2f} cores"
    if limits.numa_nodes > 1:
        yield f"processes ran on {limits.numa_nodes} NUMA nodes"
    lowest_hz, highest_hz = limits.lowest_hz or 0, limits.highest_hz or 0
    if lowest_hz < NOTEWORTHY_SLOWDOWN * highest_hz:
        yield f"cores ran at {lowest_hz / 1e9:.1f} to {highest_hz / 1e9:.1f} GHz"


def _by_substep(result: Result, what: str, times_ns: Mapping[str, int]) -> Iterator[str]:
    whole_ns = sum(times_ns.values())
    if whole_ns < NOTEWORTHY_NS:
        return
    titles = {sub.id: sub.title for step in result.steps for sub in step.substeps}
    first = next(iter(times_ns))
    title = titles.get(first, UNATTRIBUTED)
    yield f"{what} {in_seconds(whole_ns)} on all cores, most of it in {title}"
