"""What the tables of all reports are made of.

Every text that comes from the traced side is escaped: names may hold anything.
"""

from __future__ import annotations

from collections.abc import Iterable

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from analysis.result import ProcessLife, Result, Segment
from analysis.start import Start
from tracer.text import escape


def time_table(first: str, second: str) -> Table:
    """A table of names, something about each, and its time and share."""
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    table.add_column(first, width=46, no_wrap=True, overflow="ellipsis")
    table.add_column(second, justify="right", no_wrap=True, width=7)
    table.add_column("seconds", justify="right", no_wrap=True)
    table.add_column("share", justify="right", no_wrap=True)
    return table


def add_time(table: Table, name: str, extra: str, duration_ns: int, whole_ns: int) -> None:
    """One row of a `time_table`."""
    share = duration_ns / whole_ns if whole_ns else 0.0
    table.add_row(safe(name), extra, f"{duration_ns / 1e9:.3f}", f"{share:.1%}")


def function_times(start: Start, segments: Iterable[Segment]) -> list[tuple[str, int]]:
    """Time by the innermost function, the largest first."""
    times: dict[str, int] = {}
    for segment in segments:
        name = start.stacks.innermost(segment.stack_id) or "(no Python seen)"
        times[name] = times.get(name, 0) + segment.duration_ns
    return sorted(times.items(), key=lambda item: -item[1])


def unnamed(result: Result) -> list[Segment]:
    """The unattributed segments."""
    return [each for each in result.segments if each.substep is None and not each.missed]


def role_title(start: Start, life: ProcessLife) -> str:
    """What a process is, for people: its role or else its program."""
    role = start.signatures.roles.get(life.role)
    return role.title if role else escape(life.program) or life.role


def who(start: Start, life: ProcessLife) -> str:
    """A process for people, by what it is and its pid."""
    return f"{role_title(start, life)} (pid {life.pid})"


def command_line(start: Start, life: ProcessLife, longest: int) -> str:
    """How a process was called last, cut to `longest` characters; "" where unknown."""
    execs = start.trace.processes[life.id].execs
    text = " ".join(execs[-1].argv) if execs else ""
    return escape(text[:longest]) + ("…" if len(text) > longest else "")


def safe(text: str) -> Text:
    """A cell with text from the traced side; a plain string would be read as markup."""
    return Text(escape(text))


def in_seconds(duration_ns: int) -> str:
    """To the millisecond, with the unit."""
    return f"{duration_ns / 1e9:.3f} s"


def in_bytes(count: int) -> str:
    """With a decimal unit; a dash for none."""
    if count == 0:
        return "-"
    value = float(count)
    for unit in ("B", "kB", "MB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} GB"
