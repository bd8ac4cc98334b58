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

from analysis.files import FileUse, files_of
from analysis.modules import ModuleNode, time_by_package
from analysis.result import Failure, ProcessLife, Result, Segment, SubstepTime
from analysis.start import Start
from tracer.text import escape

UNATTRIBUTED = "unattributed"
BAR_WIDTH = 16
TOP_PACKAGES = 5
TOP_MODULES = 20
TOP_FILES = 10
TOP_FUNCTIONS = 15
SMALL_BRANCH = 0.02
"""Branches of the import tree below this share of it are left out."""
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
        Text(_headline(result), style="bold"),
        _step_table(result, rows),
        *_paragraphs(start),
        _process_table(start),
        *map(Text, _other_processes(start)),
        *map(Text, _closing_lines(result)),
    )


def _headline(result: Result) -> str:
    engine = result.engine or " ".join(map(escape, result.command[:1])) or "a command"
    version = result.versions.get(engine)
    name = f"{engine} {escape(version)}" if version else engine
    after = {"ready": "ready after", "failed": "failed after", "interrupted": "interrupted after"}
    return f"Cold start of {name}: {after[result.outcome]} {_seconds(result.wall_ns)}"


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
    table.add_column("", no_wrap=True, width=BAR_WIDTH)
    longest_ns = max((sub.duration_ns for step in result.steps for sub in step.substeps), default=0)
    for row in rows:
        if row.why_not is not None:
            table.add_row(row.title, "-", "", "", style="bold")
            continue
        table.add_row(row.title, *_time(row.duration_ns, result), "", style="bold")
        for substep in row.substeps:
            title = f"    {substep.title}"
            if substep.duration_ns:
                bar = _bar(substep.duration_ns, longest_ns)
                table.add_row(title, *_time(substep.duration_ns, result), bar)
            else:
                table.add_row(title, "-", "", "", style="dim")
    table.add_section()
    table.add_row("unattributed", *_time(result.unattributed_ns, result), "")
    if result.missed_ns:
        table.add_row("missed before the tracer came", *_time(result.missed_ns, result), "")
    table.add_row("wall clock", *_time(result.wall_ns, result), "", style="bold")
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
    result = start.result
    if result.failure is not None:
        yield Text(_failure_line(start, result.failure), style="bold red")
    for why_not, titles in _absent(result).items():
        yield Text(f"{_listed(titles)} didn't happen: {why_not}.")
    if result.unattributed_ns > NOTEWORTHY_SHARE * result.wall_ns:
        yield Text(f"Unattributed is mostly: {_top_functions(start, _unnamed(result))}.")
    yield from map(Text, _import_lines(start))
    compilers = _compilers(result)
    if compilers:
        yield Text(compilers)
    yield Text("")


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
    who = next(life for life in start.result.processes if life.id == failure.process_id)
    return f"It died{where}: {_who(start, who)} {_ended(failure.wait_status)}{last}."


def _ended(wait_status: int | None) -> str:
    if wait_status is None:
        return "ended"
    if os.WIFSIGNALED(wait_status):
        number = os.WTERMSIG(wait_status)
        name = signal.strsignal(number) or "unknown"
        return f"was killed by signal {number} ({name})"
    return f"exited with status {os.waitstatus_to_exitcode(wait_status)}"


def _unnamed(result: Result) -> list[Segment]:
    return [each for each in result.segments if each.substep is None and not each.missed]


def _top_functions(start: Start, segments: Iterable[Segment], top: int = 3) -> str:
    times = _function_times(start, segments)[:top]
    return ", ".join(f"{escape(name)} {_seconds(ns)}" for name, ns in times)


def _function_times(start: Start, segments: Iterable[Segment]) -> list[tuple[str, int]]:
    """Time by the innermost function, the largest first."""
    times: dict[str, int] = {}
    for segment in segments:
        name = start.stacks.innermost(segment.stack_id) or "(no Python seen)"
        times[name] = times.get(name, 0) + segment.duration_ns
    return sorted(times.items(), key=lambda item: -item[1])


def _import_lines(start: Start) -> Iterator[str]:
    """The packages that most of the imports' time went to, a line a process."""
    for life in start.result.processes:
        packages = time_by_package(start.imports.get(life.id, ()))
        total_ns = sum(packages.values())
        if total_ns < NOTEWORTHY_SHARE * start.result.wall_ns:
            continue
        top = list(packages.items())[:TOP_PACKAGES]
        parts = ", ".join(f"{escape(name)} {_seconds(ns)}" for name, ns in top)
        yield f"Imports of {_who(start, life)}, {_seconds(total_ns)}: {parts}."


def _compilers(result: Result) -> str | None:
    """The external compilers, those that others call counted with their caller."""
    pids = {life.pid for life in result.processes if life.role == "compiler"}
    outermost = [
        life for life in result.processes if life.pid in pids and life.parent_pid not in pids
    ]
    if not outermost:
        return None
    by_program: dict[str, list[int]] = {}
    for life in outermost:
        end_ns = result.end_ns if life.end_ns is None else min(life.end_ns, result.end_ns)
        by_program.setdefault(life.program, []).append(max(end_ns - life.start_ns, 0))
    parts = (
        f"{escape(name)} {len(times)} times, {_seconds(sum(times))}"
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
        if _is_part(start, life):
            table.add_row(
                _title(start, life),
                str(life.pid),
                f"{(life.start_ns - result.start_ns) / 1e9:.3f}",
                _end(life, result),
                _safe(life.program),
            )
    return table


def _other_processes(start: Start) -> Iterator[str]:
    """How many there were of each program that is no part of the server."""
    counts: dict[str, int] = {}
    for life in start.result.processes:
        if not _is_part(start, life):
            name = escape(life.program)
            counts[name] = counts.get(name, 0) + 1
    if counts:
        parts = ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))
        yield f"Other processes: {parts}."


def _is_part(start: Start, life: ProcessLife) -> bool:
    role = start.signatures.roles.get(life.role)
    return (role is not None and not role.inherits) or life.parent_pid is None


def _title(start: Start, life: ProcessLife) -> str:
    role = start.signatures.roles.get(life.role)
    return role.title if role else escape(life.program) or life.role


def _who(start: Start, life: ProcessLife) -> str:
    return f"{_title(start, life)} (pid {life.pid})"


def _end(life: ProcessLife, result: Result) -> str:
    if life.end_ns is None or life.end_ns > result.end_ns:
        return "lives"
    return f"{(life.end_ns - result.start_ns) / 1e9:.3f}"


def _closing_lines(result: Result) -> Iterator[str]:
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
    parts.append(f"{_seconds(overhead.observed_cost_ns)} inside the observed processes")
    return ", ".join(parts)


# The import tree ------------------------------------------------------------------


def imports_report(start: Start) -> RenderableType:
    """For each process, what its imports took: by package, by module, and nested."""
    parts: list[RenderableType] = []
    for life in start.result.processes:
        roots = start.imports.get(life.id)
        if not roots:
            continue
        nodes = [node for root in roots for node in root.walk()]
        total_ns = sum(root.total_ns for root in roots)
        title = f"{_who(start, life)}: {len(nodes)} module bodies, {_seconds(total_ns)}"
        parts += [Text(title, style="bold"), _package_table(roots, nodes, total_ns)]
        parts += [_module_table(nodes, total_ns), _nested_table(roots, total_ns), Text("")]
    if not parts:
        return Text("No module body was seen: the trace has no exact imports.")
    return Group(*parts)


def _package_table(roots: list[ModuleNode], nodes: list[ModuleNode], total_ns: int) -> Table:
    table = _time_table("package", "modules")
    counts: dict[str, int] = {}
    for node in nodes:
        counts[node.package] = counts.get(node.package, 0) + 1
    for package, self_ns in list(time_by_package(roots).items())[:TOP_MODULES]:
        _add_time(table, package, str(counts[package]), self_ns, total_ns)
    return table


def _module_table(nodes: list[ModuleNode], total_ns: int) -> Table:
    table = _time_table("module, without what it imports", "")
    for node in sorted(nodes, key=lambda node: -node.self_ns)[:TOP_MODULES]:
        _add_time(table, node.name, "", node.self_ns, total_ns)
    return table


def _nested_table(roots: list[ModuleNode], total_ns: int) -> Table:
    """The tree, its small branches left out."""
    table = _time_table("module, with what it imports", "")
    least_ns = max(round(SMALL_BRANCH * total_ns), 1)
    pending = [(root, 0) for root in reversed(roots)]
    while pending:
        node, depth = pending.pop()
        if node.total_ns < least_ns:
            continue
        _add_time(table, " " * depth + node.name, "", node.total_ns, total_ns)
        pending += [(child, depth + 1) for child in reversed(node.children)]
    return table


def _time_table(first: str, second: str) -> Table:
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    table.add_column(first, width=46, no_wrap=True, overflow="ellipsis")
    table.add_column(second, justify="right", no_wrap=True, width=7)
    table.add_column("seconds", justify="right", no_wrap=True)
    table.add_column("share", justify="right", no_wrap=True)
    return table


def _add_time(table: Table, name: str, extra: str, duration_ns: int, whole_ns: int) -> None:
    share = duration_ns / whole_ns if whole_ns else 0.0
    table.add_row(_safe(name), extra, f"{duration_ns / 1e9:.3f}", f"{share:.1%}")


# Files ------------------------------------------------------------------------------


def files_report(start: Start) -> RenderableType:
    """The files class by class, and the most used of each."""
    uses = files_of(start)
    if not uses:
        return Text("No file was seen: the trace has none.")
    table = _table_of_files()
    titles = {group.id: group.title for group in start.signatures.files}
    for kind in dict.fromkeys([*titles, *(use.kind for use in uses)]):
        same = [use for use in uses if use.kind == kind]
        if same:
            title = f"{titles.get(kind, kind)}: {len(same)} files"
            opens, open_ns = sum(use.opens for use in same), sum(use.open_ns for use in same)
            read, mapped = (sum(use.read_bytes for use in same), sum(u.mapped_bytes for u in same))
            bold = (title, str(opens), "", _seconds(open_ns), _bytes(read), _bytes(mapped))
            table.add_row(*bold, style="bold")
            _add_files(table, start, same[:TOP_FILES])
    return table


def _table_of_files() -> Table:
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    table.add_column("file", width=31, no_wrap=True)
    for name in ("opens", "first at", "open for", "read", "mapped"):
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _add_files(table: Table, start: Start, uses: list[FileUse]) -> None:
    for use in uses:
        table.add_row(
            Text("  " + _end_of(escape(use.path), 29)),
            str(use.opens),
            f"{(use.first_ns - start.begin_ns) / 1e9:.3f}",
            _seconds(use.open_ns),
            _bytes(use.read_bytes),
            _bytes(use.mapped_bytes),
        )


def _end_of(text: str, width: int) -> str:
    return text if len(text) <= width else "…" + text[-(width - 1) :]


# One step ----------------------------------------------------------------------------


def step_report(start: Start, step_id: str) -> RenderableType:
    """Where one step's time went: by process and by function, and its files.

    `step_id` is one of `step_ids`.
    """
    result = start.result
    substeps = _substeps_of(result, step_id)
    segments = _unnamed(result)
    if substeps is not None:
        segments = [each for each in result.segments if each.substep in substeps]
    total_ns = sum(segment.duration_ns for segment in segments)
    title = Text(f"{step_id}: {_seconds(total_ns)}", style="bold")
    if not segments:
        why_not = _reasons(result).get(step_id)
        return Group(
            title, Text(f"It didn't happen: {why_not}." if why_not else "It took no time.")
        )
    functions = _time_table("function on the critical path, its own time", "")
    for name, duration_ns in _function_times(start, segments)[:TOP_FUNCTIONS]:
        _add_time(functions, name, "", duration_ns, total_ns)
    parts: list[RenderableType] = [title, _owner_table(start, segments, total_ns), functions]
    uses = files_of(start, [(segment.start_ns, segment.end_ns) for segment in segments])
    if uses:
        table = _table_of_files()
        _add_files(table, start, uses[:TOP_FILES])
        parts += [Text(f"Opened meanwhile, {len(uses)} files:"), table]
    return Group(*parts)


def step_ids(start: Start) -> list[str]:
    """What `step_report` can be asked for: steps, sub-steps, and what has no name."""
    ids = []
    for step in start.result.steps:
        ids += [step.id, *(substep.id for substep in step.substeps)]
    return [*ids, UNATTRIBUTED]


def _reasons(result: Result) -> dict[str, str | None]:
    """Why steps and sub-steps didn't happen, by id."""
    reasons = {step.id: step.why_not for step in result.steps}
    reasons |= {sub.id: sub.why_not for step in result.steps for sub in step.substeps}
    return reasons


def _substeps_of(result: Result, step_id: str) -> set[str] | None:
    if step_id == UNATTRIBUTED:
        return None
    for step in result.steps:
        if step.id == step_id:
            return {substep.id for substep in step.substeps}
    return {step_id}


def _owner_table(start: Start, segments: list[Segment], total_ns: int) -> Table:
    table = _time_table("process and sub-step", "pid")
    lives = {life.id: life for life in start.result.processes}
    times: dict[tuple[int, str], int] = {}
    for segment in segments:
        key = (segment.process_id, segment.substep or UNATTRIBUTED)
        times[key] = times.get(key, 0) + segment.duration_ns
    for (process_id, substep), duration_ns in sorted(times.items(), key=lambda item: -item[1]):
        life = lives[process_id]
        _add_time(table, f"{_title(start, life)}: {substep}", str(life.pid), duration_ns, total_ns)
    return table


def _safe(text: str) -> Text:
    """A cell with text from the traced side; a plain string would be read as markup."""
    return Text(escape(text))


def _seconds(duration_ns: int) -> str:
    return f"{duration_ns / 1e9:.3f} s"


def _bytes(count: int) -> str:
    if count == 0:
        return "-"
    value = float(count)
    for unit in ("B", "kB", "MB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} GB"
