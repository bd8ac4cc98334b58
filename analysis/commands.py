"""`coldtrace analyze`: from a trace file to a report."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from analysis.start import Start
from tracer.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

PLAIN_WIDTH = 80


def analyze(
    path: str | Path,
    json: bool = False,
    view: str = "paper",
    imports: bool = False,
    files: bool = False,
    step: str | None = None,
    stream: TextIO | None = None,
    outputs: Mapping[str, Path] | None = None,
    critical_path: bool = False,
) -> int:
    """Write the report on the trace in `path` to `stream`; return the exit status.

    With `outputs`, files by format (see export), these are written, and a report only
    where one is asked for as well. Raises TraceError for what is no readable trace,
    UsageError for an unknown step.
    """
    start = Start.open(path)
    stream = stream or sys.stdout
    if outputs:
        _export(start, Path(path), outputs)
        if not (json or imports or files or step or critical_path):
            return 0
    if json:
        from analysis.report.json import to_json

        print(to_json(start.result), file=stream)
        return 0
    details = list(_details(start, imports, files, step, critical_path))
    _print(start, view, details, stream)
    return 0


def compare(a: str, b: str, html: Path | None = None, stream: TextIO | None = None) -> None:
    """Print what differs between two sides (see Side.open), and write it as a page too.

    Raises TraceError for what is no readable trace, UsageError for a side with no start
    that became ready, or a page that would replace a trace.
    """
    from analysis.compare import compare
    from analysis.report import comparison as reports
    from analysis.sides import Side
    from analysis.signature import Signatures

    sides = Side.open(a), Side.open(b)
    comparison = compare(*sides, Signatures.load())
    if html is not None:
        from analysis.export import write

        traces = [start.path for side in sides for start in side.starts]
        if any(html.exists() and html.samefile(trace) for trace in traces):
            raise UsageError(f"{html} is one of the traces; choose another file")
        write(html, reports.to_html(comparison))
    _console(stream or sys.stdout).print(reports.report(comparison))


def _export(start: Start, trace: Path, outputs: Mapping[str, Path]) -> None:
    from analysis.export import export
    from analysis.report.cells import in_bytes
    from tracer.text import escape

    for path, size_bytes in export(start, trace, outputs):
        print(f"{escape(str(path))}: {in_bytes(size_bytes)}", file=sys.stderr)


def _print(start: Start, view: str, details: list[RenderableType], stream: TextIO) -> None:
    from analysis.report.terminal import report

    console = _console(stream)
    for part in details or [report(start, view)]:
        console.print(part)


def _console(stream: TextIO) -> Console:
    from rich.console import Console

    if isinstance(stream, TextIOWrapper):  # names may hold what its encoding doesn't
        stream.reconfigure(errors="replace")
    width = None if stream.isatty() else PLAIN_WIDTH
    return Console(file=stream, width=width, highlight=False, markup=False, emoji=False)


def _details(
    start: Start, imports: bool, files: bool, step: str | None, critical_path: bool
) -> Iterator[RenderableType]:
    if not imports and not files and step is None and not critical_path:
        return
    from analysis.report import details
    from analysis.report.attribution import critical_path_report

    if step is not None and step not in details.step_ids(start):
        known = ", ".join(details.step_ids(start))
        raise UsageError(f"no step is called {step}; there are: {known}")
    if imports:
        yield details.imports_report(start)
    if files:
        yield details.files_report(start)
    if step is not None:
        yield details.step_report(start, step)
    if critical_path:
        yield critical_path_report(start)
