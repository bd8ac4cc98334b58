"""What a start's imports, files or one of its steps were in detail."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from analysis.files import FileUse, files_of
from analysis.modules import ModuleNode, time_by_package
from analysis.report.attribution import share_table, together
from analysis.report.cells import (
    add_time,
    function_times,
    in_bytes,
    in_seconds,
    role_title,
    time_table,
    unnamed,
    who,
)
from analysis.result import UNATTRIBUTED, Result, Segment
from analysis.start import Start
from tracer.text import escape

TOP_MODULES = 20
TOP_FILES = 10
TOP_FUNCTIONS = 15
SMALL_BRANCH = 0.02
"""Branches of the import tree below this share of it are left out."""


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
        title = f"{who(start, life)}: {len(nodes)} module bodies, {in_seconds(total_ns)}"
        parts += [Text(title, style="bold"), _package_table(roots, nodes, total_ns)]
        parts += [_module_table(nodes, total_ns), _nested_table(roots, total_ns), Text("")]
    if not parts:
        return Text("No module body was seen: the trace has no exact imports.")
    return Group(*parts)


def _package_table(roots: list[ModuleNode], nodes: list[ModuleNode], total_ns: int) -> Table:
    table = time_table("package", "modules")
    counts: dict[str, int] = {}
    for node in nodes:
        counts[node.package] = counts.get(node.package, 0) + 1
    for package, self_ns in list(time_by_package(roots).items())[:TOP_MODULES]:
        add_time(table, package, str(counts[package]), self_ns, total_ns)
    return table


def _module_table(nodes: list[ModuleNode], total_ns: int) -> Table:
    table = time_table("module, without what it imports", "")
    for node in sorted(nodes, key=lambda node: -node.self_ns)[:TOP_MODULES]:
        add_time(table, node.name, "", node.self_ns, total_ns)
    return table


def _nested_table(roots: list[ModuleNode], total_ns: int) -> Table:
    """The tree, its small branches left out."""
    table = time_table("module, with what it imports", "")
    least_ns = max(round(SMALL_BRANCH * total_ns), 1)
    pending = [(root, 0) for root in reversed(roots)]
    while pending:
        node, depth = pending.pop()
        if node.total_ns < least_ns:
            continue
        add_time(table, " " * depth + node.name, "", node.total_ns, total_ns)
        pending += [(child, depth + 1) for child in reversed(node.children)]
    return table


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
            bold = (title, str(opens), "", in_seconds(open_ns), in_bytes(read), in_bytes(mapped))
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
            in_seconds(use.open_ns),
            in_bytes(use.read_bytes),
            in_bytes(use.mapped_bytes),
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
    segments = unnamed(result)
    if substeps is not None:
        segments = [each for each in result.segments if each.substep in substeps]
    total_ns = sum(segment.duration_ns for segment in segments)
    title = Text(f"{step_id}: {in_seconds(total_ns)}", style="bold")
    if not segments:
        why_not = _reasons(result).get(step_id)
        return Group(
            title, Text(f"It didn't happen: {why_not}." if why_not else "It took no time.")
        )
    functions = time_table("function on the critical path, its own time", "")
    for name, duration_ns in function_times(start, segments)[:TOP_FUNCTIONS]:
        add_time(functions, name, "", duration_ns, total_ns)
    ids = [UNATTRIBUTED] if substeps is None else substeps
    shares = share_table(together(result.attribution, ids))
    parts: list[RenderableType] = [title, _owner_table(start, segments, total_ns), shares]
    parts.append(functions)
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
    table = time_table("process and sub-step", "pid")
    lives = {life.id: life for life in start.result.processes}
    times: dict[tuple[int, str], int] = {}
    for segment in segments:
        key = (segment.process_id, segment.substep or UNATTRIBUTED)
        times[key] = times.get(key, 0) + segment.duration_ns
    for (process_id, substep), duration_ns in sorted(times.items(), key=lambda item: -item[1]):
        life = lives[process_id]
        name = f"{role_title(start, life)}: {substep}"
        add_time(table, name, str(life.pid), duration_ns, total_ns)
    return table
