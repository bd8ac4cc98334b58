"""The two sides of a comparison: one start or several each, cut down to what it needs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from analysis.files import UNCLASSED, files_of
from analysis.inodes import Inodes
from analysis.modules import time_by_package
from analysis.result import UNATTRIBUTED, Result, Segment
from analysis.start import Start
from probes.events import BUCKET_NS
from tracer.errors import UsageError

SUFFIX = ".coldtrace"
MAX_STARTS = 1000
"""Of one side."""

Kind = tuple[str, str | None]
"""What a time went to, as Share has it: kind, and in or for what."""


# What is kept of one start -------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Measured:
    """What a comparison needs of one start; times by sub-step, UNATTRIBUTED included."""

    path: Path
    result: Result
    titles: Mapping[str, str]
    times_ns: Mapping[str, int]
    shares_ns: Mapping[str, Mapping[Kind, int]]
    disk_bytes: Mapping[str, Mapping[str, int]]
    """What came into the page cache during a sub-step, by file."""
    files: Mapping[str, Mapping[str, int]]
    """How many files a sub-step opened, by class."""
    packages_ns: Mapping[str, int]
    """The own time of imports in all processes."""
    host: Mapping[str, object]
    others_cores: float | None
    """How many cores' time other programs used meanwhile."""

    @classmethod
    def open(cls, path: Path) -> Measured:
        """Read the trace in `path`; raise TraceError where it can't be read."""
        return cls.of(path, Start.open(path))

    @classmethod
    def of(cls, path: Path, start: Start) -> Measured:
        """What `start`, from the trace in `path`, comes to."""
        result = start.result
        titles = {sub.id: sub.title for step in result.steps for sub in step.substeps}
        spans = _spans(result.segments)
        return cls(
            path,
            result,
            titles | {UNATTRIBUTED: "unattributed"},
            {substep: sum(end - begin for begin, end in of) for substep, of in spans.items()},
            {
                substep: {(share.kind, share.what): share.duration_ns for share in times.shares}
                for substep, times in result.attribution.substeps.items()
            },
            _disk_bytes(start, spans),
            {substep: _files(start, of) for substep, of in spans.items()},
            _packages(start),
            start.trace.meta.get("host", {}),
            result.limits.others_cores if result.limits else None,
        )


def _spans(segments: Iterable[Segment]) -> dict[str, list[tuple[int, int]]]:
    """The stretches of time of each sub-step."""
    spans: dict[str, list[tuple[int, int]]] = {}
    for segment in segments:
        if not segment.missed:
            of = spans.setdefault(segment.substep or UNATTRIBUTED, [])
            of.append((segment.start_ns, segment.end_ns))
    return spans


def _disk_bytes(
    start: Start, spans: Mapping[str, list[tuple[int, int]]]
) -> dict[str, dict[str, int]]:
    """Each bucket's bytes go to the sub-step that had most of the bucket."""
    inodes = Inodes(start.trace)
    owners = _owners(spans)
    found: dict[str, dict[str, int]] = {}
    for pages in start.trace.page_cache():
        substep = owners.get(pages.ts_ns // BUCKET_NS)
        if substep is not None:
            path = inodes.path(pages.device, pages.inode)
            of = found.setdefault(substep, {})
            of[path] = of.get(path, 0) + pages.added_bytes
    return found


def _owners(spans: Mapping[str, list[tuple[int, int]]]) -> dict[int, str]:
    """Bucket -> the sub-step that had most of it."""
    most: dict[int, tuple[int, str]] = {}
    held: dict[tuple[int, str], int] = {}
    for substep, of in spans.items():
        for begin_ns, end_ns in of:
            for bucket in range(begin_ns // BUCKET_NS, (end_ns - 1) // BUCKET_NS + 1):
                inside = min(end_ns, (bucket + 1) * BUCKET_NS) - max(begin_ns, bucket * BUCKET_NS)
                held[bucket, substep] = held.get((bucket, substep), 0) + inside
    for (bucket, substep), time_ns in held.items():
        most[bucket] = max(most.get(bucket, (0, "")), (time_ns, substep))
    return {bucket: substep for bucket, (_, substep) in most.items()}


def _files(start: Start, spans: list[tuple[int, int]]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for use in files_of(start, spans):
        if use.kind != UNCLASSED:
            counts[use.kind] = counts.get(use.kind, 0) + use.opens
    return counts


def _packages(start: Start) -> dict[str, int]:
    totals: dict[str, int] = {}
    for roots in start.imports.values():
        for package, time_ns in time_by_package(roots).items():
            totals[package] = totals.get(package, 0) + time_ns
    return totals


# Sides -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Side:
    """The starts of one side, and those that aren't compared, a line each."""

    name: str
    starts: tuple[Measured, ...]
    left_out: tuple[str, ...]

    @classmethod
    def open(cls, name: str) -> Side:
        """The trace, the folder of traces, or the traces with commas between that
        `name` stands for; raise UsageError where there is none that became ready."""
        starts, left_out = [], []
        for path in paths_of(name):
            measured = Measured.open(path)
            if measured.result.outcome == "ready":
                starts.append(measured)
            else:
                left_out.append(f"{path} is left out: its start {_ended(measured.result)}")
        if not starts:
            raise UsageError(f"{name} holds no start that became ready: {'; '.join(left_out)}")
        return cls(name, tuple(starts), tuple(left_out))


def paths_of(name: str) -> list[Path]:
    """The traces that one side's `name` stands for, by name; at least one."""
    if not name.strip(","):
        raise UsageError("a side has no name: give a trace, several with commas, or a folder")
    path = Path(name)
    if path.is_dir():
        paths = sorted(islice(path.glob(f"*{SUFFIX}"), MAX_STARTS))
        if not paths:
            raise UsageError(f"{name} holds no trace: none of its files ends in {SUFFIX}")
        return paths
    if path.exists() or "," not in name:
        return [path]
    return [Path(part) for part in name.split(",") if part]


def _ended(result: Result) -> str:
    return "failed" if result.outcome == "failed" else "was interrupted"
