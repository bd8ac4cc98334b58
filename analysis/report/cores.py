"""What each core was busy with, bucket by bucket."""

from __future__ import annotations

from dataclasses import dataclass

from analysis.report.cells import role_title
from analysis.result import ProcessLife
from analysis.start import Start
from probes.events import BUCKET_NS
from tracer.text import escape

TOP_GROUPS = 7
MAX_BUCKETS = 3000
MAX_CELLS = 400_000
"""Of all cores together. A start that is longer has wider buckets."""


@dataclass(frozen=True, slots=True)
class Cores:
    """The time on the CPU of the traced processes, bucket by bucket.

    first_ns: when the first bucket begins, as a rule a little before the start.
    bucket_ns: how long each is.
    busy_ns: by core, by bucket.
    owners: by core, by bucket, the process (its id) that had most of it, None for none.
    groups: by what processes are, most first, the small ones as one: ns by bucket.
    """

    first_ns: int
    bucket_ns: int
    busy_ns: dict[int, list[int]]
    owners: dict[int, list[int | None]]
    groups: dict[str, list[int]]


def cores_of(start: Start) -> Cores | None:
    """None where nobody watched the cores."""
    cpus = {ran.cpu for life in start.result.processes for ran in start.trace.ran(life.id)}
    if not cpus:
        return None
    bucket_ns = width_ns(start, len(cpus))
    first, count = start.begin_ns // bucket_ns, count_of(start, bucket_ns)
    busy_ns = {cpu: [0] * count for cpu in sorted(cpus)}
    most_ns = {cpu: [0] * count for cpu in cpus}
    owners: dict[int, list[int | None]] = {cpu: [None] * count for cpu in cpus}
    groups: dict[str, list[int]] = {}
    for life in start.result.processes:
        group = groups.setdefault(group_title(start, life), [0] * count)
        own_ns: dict[tuple[int, int], int] = {}
        for ran in start.trace.ran(life.id):
            bucket = ran.ts_ns // bucket_ns - first
            if 0 <= bucket < count:
                own_ns[ran.cpu, bucket] = own_ns.get((ran.cpu, bucket), 0) + ran.ran_ns
                group[bucket] += ran.ran_ns
        for (cpu, bucket), ran_ns in own_ns.items():
            busy_ns[cpu][bucket] += ran_ns
            if ran_ns > most_ns[cpu][bucket]:
                most_ns[cpu][bucket], owners[cpu][bucket] = ran_ns, life.id
    return Cores(first * bucket_ns, bucket_ns, busy_ns, owners, _largest(groups))


def width_ns(start: Start, cpus: int = 1) -> int:
    """The width of buckets that don't get too many: BUCKET_NS or a multiple of it."""
    most = max(min(MAX_BUCKETS, MAX_CELLS // cpus) - 1, 1)  # the last one may be cut in two
    return BUCKET_NS * max(-(-count_of(start, BUCKET_NS) // most), 1)


def count_of(start: Start, bucket_ns: int) -> int:
    """How many buckets there are from the first moment to the last."""
    return max(-(-start.end_ns // bucket_ns) - start.begin_ns // bucket_ns, 1)


def group_title(start: Start, life: ProcessLife) -> str:
    """A part of the server by its role, a tool by its program."""
    return role_title(start, life) if start.is_part(life.id) else escape(life.program) or "other"


def _largest(groups: dict[str, list[int]]) -> dict[str, list[int]]:
    by_size = sorted(groups.items(), key=lambda item: -sum(item[1]))
    largest = {name: values for name, values in by_size[:TOP_GROUPS] if any(values)}
    small = (values for _, values in by_size[TOP_GROUPS:])
    rest = [sum(values) for values in zip(*small, strict=True)]
    if any(rest):
        largest["others"] = rest
    return largest
