"""What the page of a start shows, as plain data: lists, texts and numbers.

Times are whole microseconds since the start; sub-steps and processes are told by
their number in `substeps` and `processes`. Every text is safe to print.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import groupby
from typing import Any

from analysis.files import files_of
from analysis.modules import ModuleNode, time_by_package
from analysis.report.attribution import KIND_TITLES
from analysis.report.cells import command_line, role_title
from analysis.report.cores import cores_of
from analysis.report.flame import flames
from analysis.report.lines import Line, lines_of
from analysis.report.shares import link, shares, threads, waits
from analysis.report.terminal import closing_lines, headline, remarks
from analysis.result import KINDS, ProcessLife, SourceState, SubstepTime
from analysis.result import Cores as CoreUse
from analysis.start import Start
from probes.source import SourceStats
from tracer.text import escape

MAX_FILES = 3000
MAX_ARGUMENTS = 300
"""Characters of a command line."""


def page(start: Start) -> dict[str, Any]:
    """The data of the page for one start."""
    result = start.result
    substeps = [substep.id for step in result.steps for substep in step.substeps]
    numbers = {substep: number for number, substep in enumerate(substeps)}
    processes = {life.id: number for number, life in enumerate(result.processes)}
    return {
        "headline": headline(result),
        "command": escape(" ".join(result.command)),
        "outcome": result.outcome,
        "facts": list(_facts(start)),
        "wall": _micros(result.wall_ns),
        "steps": _steps(start),
        "unattributed": _micros(result.unattributed_ns),
        "kinds": [[kind, _capital(KIND_TITLES[kind])] for kind in KINDS],
        "whole": shares(result.attribution.whole),
        "usage": _usage(result.attribution.cores),
        "missed": _micros(result.missed_ns),
        "remarks": list(remarks(start)),
        "processes": [_process(start, life) for life in result.processes],
        "path": list(_path(start, numbers, processes)),
        "chain": [link(start, each, processes, numbers) for each in result.critical_path],
        "cores": _cores(start, processes),
        "threads": threads(start),
        "waits": waits(start, processes),
        "network": [*_lookups(start, processes), *_connections(start, processes)],
        "lines": [_line(start, line) for line in lines_of(start)],
        "flames": flames(start, numbers, processes),
        "imports": _imports(start, processes),
        "files": _files(start),
        "sources": [_source(start, source) for source in result.sources],
        "observation": list(closing_lines(result)),
    }


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _source(start: Start, source: SourceState) -> list[str | int]:
    """A source, its state, why, and its events seen and lost."""
    counts = start.trace.counts.get(source.name, SourceStats())
    numbers = sum(counts.seen.values()), sum(counts.lost.values())
    return [escape(source.name), source.state, escape(source.reason or ""), *numbers]


def _micros(time_ns: int) -> int:
    return round(time_ns / 1000)


def _facts(start: Start) -> Iterator[tuple[str, str]]:
    """When, where and of what versions the start was."""
    meta, versions = start.trace.meta, start.result.versions
    clock, host = meta.get("clock", {}), meta.get("host", {})
    if {"wall_ns", "monotonic_ns"} <= clock.keys():
        wall_s = (clock["wall_ns"] + start.begin_ns - clock["monotonic_ns"]) // 1_000_000_000
        if 0 <= wall_s < 1 << 36:
            yield "started", time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(wall_s))
    for name in ("cpus", "machine", "kernel"):
        if name in host:
            yield name, escape(str(host[name]))
    for name, version in versions.items():
        yield escape(name), escape(version)


def _steps(start: Start) -> list[dict[str, Any]]:
    return [
        {
            "title": step.title,
            "whyNot": step.why_not,
            "substeps": [_substep(start, substep) for substep in step.substeps],
        }
        for step in start.result.steps
    ]


def _substep(start: Start, substep: SubstepTime) -> dict[str, Any]:
    times = start.attribution.substeps.get(substep.id)
    return {
        "title": substep.title,
        "time": _micros(substep.duration_ns),
        "whyNot": substep.why_not,
        "shares": None if times is None else shares(times),
    }


def _usage(cores: CoreUse | None) -> list[int] | None:
    """For how long no core, one and several were busy."""
    return (
        None
        if cores is None
        else list(map(_micros, (cores.none_ns, cores.one_ns, cores.several_ns)))
    )


def _process(start: Start, life: ProcessLife) -> dict[str, Any]:
    ends = life.end_ns is not None and life.end_ns <= start.end_ns
    return {
        "pid": life.pid,
        "title": role_title(start, life),
        "program": escape(life.program),
        "command": command_line(start, life, MAX_ARGUMENTS),
        "part": start.is_part(life.id),
        "from": _micros(life.start_ns - start.begin_ns),
        "to": _micros(life.end_ns - start.begin_ns) if ends and life.end_ns is not None else None,
    }


def _path(
    start: Start, numbers: dict[str, int], processes: dict[int, int]
) -> Iterator[tuple[int, int, int, int]]:
    """The critical path without its stacks: from, to, process, sub-step (-1: unattributed,
    -2: missed)."""

    def key(segment: Any) -> tuple[int, int]:
        if segment.substep is None:
            return processes[segment.process_id], -2 if segment.missed else -1
        return processes[segment.process_id], numbers[segment.substep]

    for (process, substep), same in groupby(start.segments, key):
        segments = list(same)
        begin_ns, end_ns = segments[0].start_ns, segments[-1].end_ns
        yield _micros(begin_ns - start.begin_ns), _micros(end_ns - start.begin_ns), process, substep


# Figures over time ---------------------------------------------------------------


def _cores(start: Start, processes: dict[int, int]) -> dict[str, Any] | None:
    """Per mille of each core, bucket by bucket, with the process that had most of it."""
    cores = cores_of(start)
    if cores is None:
        return None
    return {
        "from": _micros(cores.first_ns - start.begin_ns),
        "bucket": _micros(cores.bucket_ns),
        "cores": [
            {
                "cpu": cpu,
                "busy": [round(1000 * ran_ns / cores.bucket_ns) for ran_ns in busy_ns],
                "owners": [
                    -1 if owner is None else processes[owner] for owner in cores.owners[cpu]
                ],
            }
            for cpu, busy_ns in cores.busy_ns.items()
        ],
        "groups": [
            {"title": title, "busy": [round(1000 * ran_ns / cores.bucket_ns) for ran_ns in values]}
            for title, values in cores.groups.items()
        ],
    }


def _line(start: Start, line: Line) -> dict[str, Any]:
    return {
        "title": line.title,
        "unit": line.unit,
        "subject": line.subject,
        "holds": line.holds,
        "times": [_micros(time_ns - start.begin_ns) for time_ns in line.times_ns],
        "values": line.values,
    }


# The network ---------------------------------------------------------------------


def _lookups(start: Start, processes: dict[int, int]) -> Iterator[list[Any]]:
    """Process, what, of whom, from, how long, error."""
    for each in start.trace.lookups():
        if each.process_id in processes:
            times = _micros(each.ts_ns - start.begin_ns), _micros(each.end_ns - each.ts_ns)
            name = escape(each.name)
            yield [processes[each.process_id], "look-up", name, *times, each.error]


def _connections(start: Start, processes: dict[int, int]) -> Iterator[list[Any]]:
    for each in start.trace.connections():
        if each.process_id in processes:
            times = _micros(each.ts_ns - start.begin_ns), _micros(each.end_ns - each.ts_ns)
            peer = f"{escape(each.address)} port {each.port}"
            yield [processes[each.process_id], "connect", peer, *times, each.error]


# Imports and files -----------------------------------------------------------------


def _imports(start: Start, processes: dict[int, int]) -> dict[str, Any]:
    """Each process's import tree, in pre-order: depth, number of the name, time with
    what it imported."""
    names: dict[str, int] = {}
    trees = []
    for process_id, number in processes.items():
        roots = start.imports.get(process_id)
        if not roots:
            continue
        packages = list(time_by_package(roots).items())
        modules = [
            [depth, names.setdefault(node.name, len(names)), _micros(node.total_ns)]
            for depth, node in _in_order(roots)
        ]
        trees.append(
            {
                "process": number,
                "packages": [[escape(name), _micros(own_ns)] for name, own_ns in packages],
                "modules": modules,
            }
        )
    return {"names": list(map(escape, names)), "trees": trees}


def _in_order(roots: list[ModuleNode]) -> Iterator[tuple[int, ModuleNode]]:
    pending = [(0, root) for root in reversed(roots)]
    while pending:
        depth, node = pending.pop()
        yield depth, node
        pending += [(depth + 1, child) for child in reversed(node.children)]


def _files(start: Start) -> dict[str, Any]:
    """The most used files, and how many others there are."""
    uses = files_of(start)
    titles = {group.id: group.title for group in start.signatures.files}
    return {
        "others": max(len(uses) - MAX_FILES, 0),
        "rows": [
            [
                escape(use.path),
                titles.get(use.kind, use.kind),
                use.opens,
                _micros(use.first_ns - start.begin_ns),
                _micros(use.open_ns),
                use.size_bytes,
                use.read_bytes,
                use.mapped_bytes,
                use.added_bytes,
                use.cached_bytes,
                escape(use.file_system or ""),
            ]
            for use in uses[:MAX_FILES]
        ],
    }
