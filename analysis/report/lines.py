"""What was measured over the time of a start: devices, page cache, GPUs, limits.

What nobody measured has no line, not one at zero.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from math import isfinite

from analysis.start import Start
from probes.events import BUCKET_NS
from tracer.text import escape

_PER_SECOND = 1_000_000_000 / BUCKET_NS


@dataclass(frozen=True, slots=True)
class Line:
    """A value of `subject` over time; a figure has the lines of one title.

    `times_ns` are CLOCK_MONOTONIC. Where it `holds`, a value does until the next time;
    else a straight line leads there.
    """

    title: str
    unit: str
    subject: str
    holds: bool
    times_ns: list[int]
    values: list[float]


@dataclass(frozen=True, slots=True)
class _Measure:
    """How readings of one name become a line: times `scale`, a counter by its growth a ns."""

    title: str
    unit: str
    scale: float = 1.0
    counter: bool = False


_MEASURES = {
    "gpu_busy_percent": _Measure("GPU busy", "%"),
    "gpu_memory_busy_percent": _Measure("GPU memory busy", "%"),
    "gpu_memory_used_bytes": _Measure("GPU memory", "GB", 1e-9),
    "gpu_pcie_received_bytes": _Measure("GPU received over PCIe", "MB/s", 1e3, counter=True),
    "gpu_pcie_sent_bytes": _Measure("GPU sent over PCIe", "MB/s", 1e3, counter=True),
    "gpu_sm_clock_hz": _Measure("GPU clock", "MHz", 1e-6),
    "gpu_memory_clock_hz": _Measure("GPU memory clock", "MHz", 1e-6),
    "gpu_process_memory_bytes": _Measure("GPU memory by process", "GB", 1e-9),
    "gpu_process_busy_percent": _Measure("GPU busy by process", "%"),
    "cgroup_throttled_ns": _Measure("Throttled by a CPU quota", "threads", counter=True),
    "machine_busy_ns": _Measure("Whole machine, busy", "cores", counter=True),
    "machine_running": _Measure("Whole machine, runnable", "threads"),
    "machine_iowait_ns": _Measure("Idle, waiting for a disk", "cores", counter=True),
    "machine_steal_ns": _Measure("Taken by the hypervisor", "cores", counter=True),
    "cgroup_memory_some_ns": _Measure("Memory pressure", "%", 1e2, counter=True),
    "memory_some_ns": _Measure("Memory pressure", "%", 1e2, counter=True),
    "cpu_hz": _Measure("Frequency", "GHz", 1e-9),
}


def lines_of(start: Start) -> list[Line]:
    """All lines, those of one title together; none that is zero throughout but a GPU's."""
    lines = [*_disks(start), *_page_cache(start), *_drivers(start), *_readings(start)]
    titles = list(dict.fromkeys(line.title for line in lines))
    return sorted(lines, key=lambda line: titles.index(line.title))


def _disks(start: Start) -> Iterator[Line]:
    bytes_read: dict[int, dict[int, int]] = {}
    for transfer in start.trace.transfers():
        _add(bytes_read.setdefault(transfer.device, {}), transfer.ts_ns, transfer.read_bytes)
    for device, by_bucket in bytes_read.items():
        subject = f"device {os.major(device)}:{os.minor(device)}"
        yield _buckets("Disk reads", "MB/s", subject, by_bucket, 1e-6 * _PER_SECOND)


def _page_cache(start: Start) -> Iterator[Line]:
    added: dict[int, int] = {}
    for pages in start.trace.page_cache():
        _add(added, pages.ts_ns, pages.added_bytes)
    if added:
        subject = "the start's own"
        yield _buckets("Into the page cache", "MB/s", subject, added, 1e-6 * _PER_SECOND)


def _drivers(start: Start) -> Iterator[Line]:
    spent: dict[str, dict[int, int]] = {}
    for calls in start.trace.driver_calls():
        _add(spent.setdefault(calls.path, {}), calls.ts_ns, calls.spent_ns)
    for path, by_bucket in spent.items():
        yield _buckets("In driver calls", "threads", escape(path), by_bucket, 1 / BUCKET_NS)


def _readings(start: Start) -> Iterator[Line]:
    points: dict[str, dict[str, list[tuple[int, float]]]] = {name: {} for name in _MEASURES}
    for reading in start.trace.readings():
        if reading.name in points and isfinite(reading.value):
            known = points[reading.name].setdefault(reading.subject, [])
            known.append((reading.ts_ns, reading.value))
    for name, by_subject in points.items():
        for subject, values in by_subject.items():
            line = _line(_MEASURES[name], escape(subject), values)
            if any(line.values) or name.startswith("gpu_"):
                yield line


def _line(measure: _Measure, subject: str, points: list[tuple[int, float]]) -> Line:
    times = [ts_ns for ts_ns, _ in points]
    values = [value for _, value in points]
    if measure.counter:
        spans_ns = [max(until - since, 1) for since, until in pairwise(times)]
        growth = [max(after - before, 0) for before, after in pairwise(values)]
        values = [*(grown / span for grown, span in zip(growth, spans_ns, strict=True)), 0.0]
    scaled = [round(value * measure.scale, 4) for value in values]
    return Line(measure.title, measure.unit, subject, measure.counter, times, scaled)


def _add(by_bucket: dict[int, int], ts_ns: int, value: int) -> None:
    bucket = ts_ns // BUCKET_NS
    by_bucket[bucket] = by_bucket.get(bucket, 0) + value


def _buckets(title: str, unit: str, subject: str, by_bucket: dict[int, int], scale: float) -> Line:
    """A line that is zero in the buckets that there are none of."""
    times, values = [], []
    for bucket in _with_gaps(by_bucket):
        times.append(bucket * BUCKET_NS)
        values.append(round(by_bucket.get(bucket, 0) * scale, 4))
    return Line(title, unit, subject, True, times, values)


def _with_gaps(buckets: Iterable[int]) -> list[int]:
    """`buckets` by time, and the first one of each gap after them."""
    present = set(buckets)
    return sorted(present | {bucket + 1 for bucket in present})
