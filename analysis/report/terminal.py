"""The result as text for a terminal: 80 columns, plain where it is piped.

Every text that comes from the traced side is escaped: names may hold anything.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from analysis.modules import time_by_package
from analysis.report.attribution import attribution_lines, together, verdict
from analysis.report.caches import caches_line
from analysis.report.cells import function_times, in_seconds, role_title, safe, unnamed, who
from analysis.report.limits import limits_line
from analysis.result import UNATTRIBUTED, Failure, ProcessLife, Result, Segment, SubstepTime
from analysis.start import Start
from tracer.text import escape

BAR_WIDTH = 14
TOP_PACKAGES = 5
NOTEWORTHY_SHARE = 0.01
"""An unattributed share above this is explained."""


# The steps --------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Row:
    """A title over its sub-steps; `why_not` instead of a time where it didn't happen."""

    title: str
    substeps: Sequence[SubstepTime]
    why_not: str | None

    @property
    def duration_ns(self) -> int:
        return sum(substep.duration_ns for substep in self.substeps)


def report(start: Start, view: str = "paper") -> RenderableType:
    """The table of steps, by one of VIEWS, and what else is to be known of the start."""
    result = start.result
    rows = _paper_rows(result) if view == "paper" else _view_rows(start, view)
    return Group(
        Text(headline(result), style="bold"),
        _step_table(result, rows),
        *_paragraphs(start),
        _process_table(start),
        *map(Text, _other_processes(start)),
        *map(Text, closing_lines(result)),
    )


def headline(result: Result) -> str:
    """What was started and how that ended, in one line."""
    engine = result.engine or " ".join(map(escape, result.command[:1])) or "a command"
    version = result.versions.get(engine)
    name = f"{engine} {escape(version)}" if version else engine
    after = {"ready": "ready after", "failed": "failed after", "interrupted": "interrupted after"}
    return f"Cold start of {name}: {after[result.outcome]} {in_seconds(result.wall_ns)}"


def _paper_rows(result: Result) -> list[_Row]:
    rows = []
    for number, step in enumerate(result.steps, 1):
        mark = "+" if step is result.steps[-1] else number
        rows.append(_Row(f"{mark} {step.title}", step.substeps, step.why_not))
    return rows


def _view_rows(start: Start, view: str) -> list[_Row]:
    known = {substep.id: substep for step in start.result.steps for substep in step.substeps}
    return [
        _Row(group.title, [known[substep] for substep in group.substeps], None)
        for group in start.signatures.view(view)
    ]


def _step_table(result: Result, rows: Iterable[_Row]) -> Table:
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    table.add_column("step", width=34, no_wrap=True, overflow="ellipsis")
    table.add_column("seconds", justify="right", no_wrap=True)
    table.add_column("share", justify="right", no_wrap=True)
    table.add_column("mostly", no_wrap=True)
    table.add_column("", no_wrap=True, width=BAR_WIDTH)
    attribution = result.attribution
    longest_ns = max((sub.duration_ns for step in result.steps for sub in step.substeps), default=0)
    for row in rows:
        if row.why_not is not None:
            table.add_row(row.title, "-", "", "", "", style="bold")
            continue
        substeps = [substep.id for substep in row.substeps]
        cells = (*_time(row.duration_ns, result), verdict(together(attribution, substeps)))
        table.add_row(row.title, *cells, "", style="bold")
        for substep in row.substeps:
            title = f"    {substep.title}"
            if substep.duration_ns:
                bar = _bar(substep.duration_ns, longest_ns)
                mostly = verdict(attribution.substeps.get(substep.id))
                table.add_row(title, *_time(substep.duration_ns, result), mostly, bar)
            else:
                table.add_row(title, "-", "", "", "", style="dim")
    table.add_section()
    mostly = verdict(attribution.substeps.get(UNATTRIBUTED))
    table.add_row("unattributed", *_time(result.unattributed_ns, result), mostly, "")
    if result.missed_ns:
        table.add_row("missed before the tracer came", *_time(result.missed_ns, result), "", "")
    mostly = verdict(attribution.whole)
    table.add_row("wall clock", *_time(result.wall_ns, result), mostly, "", style="bold")
    return table


def _time(duration_ns: int, result: Result) -> tuple[str, str]:
    share = duration_ns / result.wall_ns if result.wall_ns else 0.0
    return f"{duration_ns / 1e9:.3f}", f"{share:.1%}"


def _bar(duration_ns: int, longest_ns: int) -> str:
    """A bar in eighths of a character."""
    eighths = round(BAR_WIDTH * 8 * duration_ns / longest_ns)
    full, rest = divmod(eighths, 8)
    return "█" * full + (" ▏▎▍▌▋▊▉"[rest] if rest else "")


# What else is to be known -------------------------------------------------------


def _paragraphs(start: Start) -> Iterator[Text]:
    style = "bold red" if start.result.failure is not None else ""
    for remark in remarks(start):
        yield Text(remark, style=style)
        style = ""
    yield Text("")


def remarks(start: Start) -> Iterator[str]:
    """What the times alone don't tell; of a failed start where it died first."""
    result = start.result
    if result.failure is not None:
        yield _failure_line(start, result.failure)
    if result.outcome == "interrupted" and result.segments:
        yield _interruption_line(start, result.segments[-1])
    for why_not, titles in _absent(result).items():
        yield f"{_listed(titles)} didn't happen: {why_not}."
    if result.unattributed_ns > NOTEWORTHY_SHARE * result.wall_ns:
        yield f"Unattributed is mostly: {_top_functions(start, unnamed(result))}."
    yield from attribution_lines(result.attribution)
    yield from _import_lines(start)
    compilers = _compilers(result)
    if compilers:
        yield compilers
    yield caches_line(result)
    limits = limits_line(result)
    if limits:
        yield limits


def _absent(result: Result) -> dict[str, list[str]]:
    """What didn't happen, by reason: steps, and sub-steps of steps that did."""
    absent: dict[str, list[str]] = {}
    for step in result.steps:
        reasons = [(step.why_not, step.title)]
        reasons += [(substep.why_not, substep.title) for substep in step.substeps]
        for why_not, title in reasons:
            if why_not is not None:
                absent.setdefault(why_not, []).append(title)
    return absent


def _listed(words: Sequence[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else words[0]


def _failure_line(start: Start, failure: Failure) -> str:
    titles = {step.id: step.title for step in start.result.steps}
    where = f" in {titles[failure.step]}" if failure.step else ""
    functions = [failure.function, failure.engine_function]
    seen = [escape(function) for function in dict.fromkeys(functions) if function]
    last = f", last seen in {', below '.join(seen)}" if seen else ""
    dead = next(life for life in start.result.processes if life.id == failure.process_id)
    return f"It died{where}: {who(start, dead)} {_ended(failure.wait_status)}{last}."


def _interruption_line(start: Start, last: Segment) -> str:
    lives = {life.id: life for life in start.result.processes}
    titles = {sub.id: sub.title for step in start.result.steps for sub in step.substeps}
    doing = f"at {titles[last.substep]}" if last.substep else "busy with what has no name"
    function = start.stacks.innermost(last.stack_id)
    where = f", in {escape(function)}" if function else ""
    return f"At its end {who(start, lives[last.process_id])} was {doing}{where}."


def _ended(wait_status: int | None) -> str:
    if wait_status is None:
        return "ended"
    if os.WIFSIGNALED(wait_status):
        number = os.WTERMSIG(wait_status)
        name = signal.strsignal(number) or "unknown"
        return f"was killed by signal {number} ({name})"
    return f"exited with status {os.waitstatus_to_exitcode(wait_status)}"


def _top_functions(start: Start, segments: Iterable[Segment], top: int = 3) -> str:
    times = function_times(start, segments)[:top]
    return ", ".join(f"{escape(name)} {in_seconds(ns)}" for name, ns in times)


def _import_lines(start: Start) -> Iterator[str]:
    """The packages that most of the imports' time went to, a line a process."""
    for life in start.result.processes:
        packages = time_by_package(start.imports.get(life.id, ()))
        total_ns = sum(packages.values())
        if total_ns < NOTEWORTHY_SHARE * start.result.wall_ns:
            continue
        top = list(packages.items())[:TOP_PACKAGES]
        parts = ", ".join(f"{escape(name)} {in_seconds(ns)}" for name, ns in top)
        yield f"Imports of {who(start, life)}, {in_seconds(total_ns)}: {parts}."


def _compilers(result: Result) -> str | None:
    """The external compilers, those that others call counted with their caller."""
    compilers = {life.id: life for life in result.processes if life.role == "compiler"}
    outermost = [life for life in compilers.values() if life.parent_id not in compilers]
    if not outermost:
        return None
    by_program: dict[str, list[int]] = {}
    for life in outermost:
        end_ns = result.end_ns if life.end_ns is None else min(life.end_ns, result.end_ns)
        by_program.setdefault(life.program, []).append(max(end_ns - life.start_ns, 0))
    parts = (
        f"{escape(name)} {len(times)} times, {in_seconds(sum(times))}"
        for name, times in by_program.items()
    )
    return f"External compilers: {'; '.join(parts)}."


def _process_table(start: Start) -> Table:
    """The processes that are parts of the server."""
    result = start.result
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    table.add_column("process", no_wrap=True)
    for name in ("pid", "from", "to"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("program", no_wrap=True, overflow="ellipsis")
    for life in result.processes:
        if start.is_part(life.id):
            table.add_row(
                safe(role_title(start, life)),
                str(life.pid),
                f"{(life.start_ns - result.start_ns) / 1e9:.3f}",
                _end(life, result),
                safe(life.program),
            )
    return table


def _other_processes(start: Start) -> Iterator[str]:
    """How many there were of each program that is no part of the server."""
    counts: dict[str, int] = {}
    for life in start.result.processes:
        if not start.is_part(life.id):
            name = escape(life.program)
            counts[name] = counts.get(name, 0) + 1
    if counts:
        parts = ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))
        yield f"Other processes: {parts}."


def _end(life: ProcessLife, result: Result) -> str:
    if life.end_ns is None or life.end_ns > result.end_ns:
        return "lives"
    return f"{(life.end_ns - result.start_ns) / 1e9:.3f}"


def closing_lines(result: Result) -> Iterator[str]:
    """Losses, cost, sources and notes: what a reader has to know to trust the rest."""
    lost = ", ".join(f"{kind} {count}" for kind, count in result.lost.items() if count)
    yield f"Lost events: {result.lost_events}{f' ({escape(lost)})' if lost else ''}."
    yield f"Cost: {_cost(result)}."
    for source in result.sources:
        if source.state != "open":
            reason = f": {escape(source.reason)}" if source.reason else ""
            yield f"Source {escape(source.name)} was {source.state}{reason}"
    for note in result.notes:
        yield f"Note: {escape(note)}"


def _cost(result: Result) -> str:
    overhead = result.overhead
    parts = []
    if overhead.recorder_cpu_s is not None:
        share = overhead.recorder_cpu_s / max(result.wall_ns / 1e9, 1e-9)
        parts.append(f"recorder {overhead.recorder_cpu_s:.2f} s of CPU ({share:.1%} of one core)")
    if overhead.recorder_peak_rss_bytes is not None:
        parts.append(f"{overhead.recorder_peak_rss_bytes / 1e6:.0f} MB")
    parts.append(f"{in_seconds(overhead.observed_cost_ns)} inside the observed processes")
    return ", ".join(parts)
