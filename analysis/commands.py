"""`coldtrace analyze`: from a trace file to a report."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TextIO

from analysis.start import Start
from tracer.errors import UsageError

PLAIN_WIDTH = 80


def analyze(
    path: str | Path,
    json: bool = False,
    view: str = "paper",
    imports: bool = False,
    files: bool = False,
    step: str | None = None,
    stream: TextIO | None = None,
) -> int:
    """Write the report on the trace in `path` to `stream`; return the exit status.

    Raises TraceError for what is no readable trace, UsageError for an unknown step.
    """
    start = Start.open(path)
    stream = stream or sys.stdout
    if json:
        from analysis.report.json import to_json

        print(to_json(start.result), file=stream)
        return 0
    _print(start, view, imports, files, step, stream)
    return 0


def _print(
    start: Start, view: str, imports: bool, files: bool, step: str | None, stream: TextIO
) -> None:
    from rich.console import Console

    from analysis.report import terminal

    parts = []
    if imports:
        parts.append(terminal.imports_report(start))
    if files:
        parts.append(terminal.files_report(start))
    if step is not None:
        known = terminal.step_ids(start)
        if step not in known:
            raise UsageError(f"no step is called {step}; there are: {', '.join(known)}")
        parts.append(terminal.step_report(start, step))
    console = Console(file=stream, width=None if stream.isatty() else PLAIN_WIDTH, highlight=False)
    for part in parts or [terminal.report(start, view)]:
        console.print(part)
