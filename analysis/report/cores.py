"""What each core was busy with, bucket by bucket."""

from __future__ import annotations

from dataclasses import dataclass

from analysis.report.cells import role_title
from analysis.result import ProcessLife
from analysis.start import Start
from probes.events import BUCKET_NS
from tracer.text import escape

TOP_GROUPS = 7


@dataclass(frozen=True, slots=True)
class Cores:
    """The time on the CPU of the traced processes in buckets of BUCKET_NS.

    first_ns: when the first bucket begins; a whole one may begin before the start.
    busy_ns: by core, by bucket.
    owners: by core, by bucket, the process (its id) that had most of it, None for none.
    groups: by what processes are, most first, the small ones as one: ns by bucket.
    """

    first_ns: int
    busy_ns: dict[int, list[int]]
    owners: dict[int, list[int | None]]
    groups: dict[str, list[int]]


def cores_of(start: Start) -> Cores | None:
    """None where nobody watched the cores."""
    first = start.begin_ns // BUCKET_NS
    buckets = max(-(-start.end_ns // BUCKET_NS) - first, 1)
    busy_ns: dict[int, list[int]] = {}
    most_ns: dict[int, list[int]] = {}
    owners: dict[int, list[int | None]] = {}
    groups: dict[str, list[int]] = {}
    for life in start.result.processes:
        group = groups.setdefault(group_title(start, life), [0] * buckets)
        own_ns: dict[tuple[int, int], int] = {}
        for ran in start.trace.ran(life.id):
            bucket = ran.ts_ns // BUCKET_NS - first
            if 0 <= bucket < buckets:
                own_ns[ran.cpu, bucket] = own_ns.get((ran.cpu, bucket), 0) + ran.ran_ns
                group[bucket] += ran.ran_ns
        for (cpu, bucket), ran_ns in own_ns.items():
            if cpu not in busy_ns:
                busy_ns[cpu], most_ns[cpu] = [0] * buckets, [0] * buckets
                owners[cpu] = [None] * buckets
            busy_ns[cpu][bucket] += ran_ns
            if ran_ns > most_ns[cpu][bucket]:
                most_ns[cpu][bucket], owners[cpu][bucket] = ran_ns, life.id
    if not busy_ns:
        return None
    by_cpu = dict(sorted(busy_ns.items()))
    return Cores(first * BUCKET_NS, by_cpu, owners, _largest(groups))


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
