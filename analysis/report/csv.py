"""A start as CSV files, one a table, for spreadsheets and data frames.

Times are seconds since the start. A text that a spreadsheet would take for a formula
is preceded by an apostrophe.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Iterator
from itertools import chain

from analysis.files import files_of
from analysis.modules import ModuleNode
from analysis.report.cores import cores_of
from analysis.report.folded import names_of
from analysis.report.lines import lines_of
from analysis.report.shares import waited_for
from analysis.start import Start
from tracer.text import escape

Cell = str | int | float | None
Row = tuple[Cell, ...]

_FORMULA = ("=", "+", "-", "@")


def to_csv(start: Start) -> Iterator[tuple[str, str]]:
    """The name and the text of each file; what nobody measured has none."""
    for name, (columns, rows_of) in _TABLES.items():
        rows = rows_of(start)
        first = next(rows, None)
        if first is not None:
            yield f"{name}.csv", _text(columns, chain([first], rows))


def _text(columns: str, rows: Iterable[Row]) -> str:
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(columns.split())
    writer.writerows([_safe(cell) for cell in row] for row in rows)
    return stream.getvalue()


def _safe(cell: Cell) -> Cell:
    if not isinstance(cell, str):
        return cell
    text = escape(cell)
    return f"'{text}" if text.startswith(_FORMULA) else text


def _since(start: Start, moment_ns: int | None) -> float | None:
    return None if moment_ns is None else _seconds(moment_ns - start.begin_ns)


def _seconds(duration_ns: int) -> float:
    return round(duration_ns / 1e9, 9)


def _pid(start: Start, process_id: int) -> int:
    return start.trace.processes[process_id].pid


# The tables -------------------------------------------------------------------------


def _steps(start: Start) -> Iterator[Row]:
    result = start.result
    for step in result.steps:
        for sub in step.substeps:
            yield step.id, sub.id, _seconds(sub.duration_ns), sub.why_not or step.why_not
    yield None, "unattributed", _seconds(result.unattributed_ns), None
    yield None, "missed", _seconds(result.missed_ns), None


def _segments(start: Start) -> Iterator[Row]:
    for segment in start.segments:
        times = _since(start, segment.start_ns), _since(start, segment.end_ns)
        names = names_of(start, segment)
        function = start.stacks.innermost(segment.stack_id)
        yield *times, _pid(start, segment.process_id), names[0], names[-1], function


def _processes(start: Start) -> Iterator[Row]:
    for life in start.result.processes:
        names = life.role, life.program
        times = _since(start, life.start_ns), _since(start, life.end_ns)
        yield life.pid, life.parent_pid, *names, *times, life.wait_status


def _imports(start: Start) -> Iterator[Row]:
    for process_id, roots in start.imports.items():
        pending: list[tuple[int, ModuleNode]] = [(0, root) for root in reversed(roots)]
        while pending:
            depth, node = pending.pop()
            names = node.name, node.package, node.file
            times = _since(start, node.start_ns), _seconds(node.total_ns), _seconds(node.self_ns)
            yield _pid(start, process_id), depth, *names, *times
            pending += [(depth + 1, child) for child in reversed(node.children)]


def _files(start: Start) -> Iterator[Row]:
    for use in files_of(start):
        times = _since(start, use.first_ns), _seconds(use.open_ns)
        asked = use.size_bytes, use.read_bytes, use.mapped_bytes
        came = use.added_bytes, use.cached_bytes, use.file_system
        yield use.path, use.kind, use.opens, *times, *asked, *came


def _cores(start: Start) -> Iterator[Row]:
    cores = cores_of(start)
    if cores is None:
        return
    for cpu, busy_ns in cores.busy_ns.items():
        for bucket, ran_ns in enumerate(busy_ns):
            begin_ns = cores.first_ns + bucket * cores.bucket_ns
            yield cpu, _since(start, begin_ns), _seconds(ran_ns)


def _waits(start: Start) -> Iterator[Row]:
    trace = start.trace
    for life in start.result.processes:
        for wait in trace.waits(life.id):
            kernel = trace.kernel_stacks[wait.kernel_stack_id]
            doing = waited_for(start, life.id, wait)
            moments = wait.ts_ns, wait.woken_ns, wait.end_ns
            times = (_since(start, moment_ns) for moment_ns in moments)
            woken_by = wait.waker_pid, wait.waker_tid
            yield life.pid, wait.tid, *times, doing.kind, doing.what, *woken_by, " ".join(kernel)


def _lines(start: Start) -> Iterator[Row]:
    for line in lines_of(start):
        for moment_ns, value in zip(line.times_ns, line.values, strict=True):
            yield line.title, line.subject, line.unit, _since(start, moment_ns), value


def _network(start: Start) -> Iterator[Row]:
    for link in start.trace.connections():
        times = _since(start, link.ts_ns), _since(start, link.end_ns)
        pid = _pid(start, link.process_id)
        yield "connect", pid, *times, f"{link.address} port {link.port}", link.error
    for lookup in start.trace.lookups():
        times = _since(start, lookup.ts_ns), _since(start, lookup.end_ns)
        yield "lookup", _pid(start, lookup.process_id), *times, lookup.name, lookup.error


def _sources(start: Start) -> Iterator[Row]:
    for source in start.result.sources:
        counts = start.trace.counts.get(source.name)
        seen, lost = (sum(counts.seen.values()), sum(counts.lost.values())) if counts else (0, 0)
        yield source.name, source.state, source.reason, seen, lost


_TABLES: dict[str, tuple[str, Callable[[Start], Iterator[Row]]]] = {
    "steps": ("step substep seconds why_not", _steps),
    "segments": ("from_s to_s pid step substep function", _segments),
    "processes": ("pid parent_pid role program start_s end_s wait_status", _processes),
    "imports": ("pid depth module package file start_s total_s own_s", _imports),
    "files": (
        "path kind opens first_s open_s size_bytes read_bytes mapped_bytes added_bytes"
        " cached_bytes file_system",
        _files,
    ),
    "cores": ("cpu from_s busy_s", _cores),
    "waits": ("pid tid from_s woken_s to_s kind what waker_pid waker_tid kernel", _waits),
    "lines": ("figure subject unit at_s value", _lines),
    "network": ("what pid from_s to_s peer error", _network),
    "sources": ("name state reason seen lost", _sources),
}
