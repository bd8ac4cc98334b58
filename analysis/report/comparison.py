"""A comparison as text for a terminal, and as a page."""

from __future__ import annotations

from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from analysis.compare import ENOUGH_STARTS, Cause, Comparison, Difference, Moved
from analysis.report.cells import in_bytes, in_seconds, safe
from analysis.report.html import document
from analysis.sides import Side
from tracer.text import escape

KINDS = {
    "cpu": "on a core",
    "runnable": "waiting for a core",
    "throttled": "throttled by a quota",
    "child": "waiting for a child",
    "other_wait": "other waits",
}
"""Where a kind's own name says too little."""


def report(comparison: Comparison) -> RenderableType:
    """What differs beyond the spread, the largest first, and what is behind it."""
    parts: list[RenderableType] = [
        Text("Comparison of cold starts", style="bold"),
        *(Text(line) for line in _sides(comparison)),
        _table(comparison),
        *(Text(line) for line in _verdicts(comparison)),
    ]
    for difference in comparison.beyond:
        lines = _behind(difference)
        if lines:
            change = _signed(difference.difference_ns)
            parts.append(Text(f"\n{difference.title}, {change} s in B:", style="bold"))
            parts += [Padding(Text(line), (0, 0, 0, 2), expand=False) for line in lines]
    return Group(*parts)


def to_html(comparison: Comparison) -> str:
    """The same as one self-contained page."""
    data = _page(comparison)
    scripts, styles = ("base.js", "comparison.js"), ("page.css", "comparison.css")
    return document(str(data["headline"]), data, scripts, styles)


def _page(comparison: Comparison) -> dict[str, Any]:
    """Data for the page's scripts; times in microseconds."""
    return {
        "headline": "Comparison of cold starts",
        "sides": _sides(comparison),
        "verdicts": _verdicts(comparison),
        "wall": _row(comparison.wall),
        "substeps": [_row(each) for each in comparison.substeps],
    }


def _row(difference: Difference) -> dict[str, Any]:
    return {
        "title": difference.title,
        "a": [value / 1000 for value in difference.a.values_ns],
        "b": [value / 1000 for value in difference.b.values_ns],
        "medians": [difference.a.median_ns / 1000, difference.b.median_ns / 1000],
        "spread": difference.spread_ns / 1000,
        "beyond": difference.is_beyond,
        "behind": _behind(difference),
    }


def _sides(comparison: Comparison) -> list[str]:
    lines = [_side("A", comparison.a), _side("B", comparison.b)]
    lines += [f"Not alike: {_cause(cause)}" for cause in comparison.circumstances]
    lines += [escape(line) for side in (comparison.a, comparison.b) for line in side.left_out]
    return lines


def _side(letter: str, side: Side) -> str:
    count = len(side.starts)
    return f"{letter}: {escape(side.name)}, {count} start{'s' if count > 1 else ''}"


def _table(comparison: Comparison) -> Table:
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    table.add_column("step", width=34, no_wrap=True, overflow="ellipsis")
    for name in ("A, s", "B, s", "B - A, s", "spread, s"):
        table.add_column(name, justify="right", no_wrap=True)
    beyond = comparison.beyond
    for difference in beyond:
        _add(table, difference, "bold")
    if beyond:
        table.add_section()
    for difference in comparison.substeps:
        if not difference.is_beyond and (difference.a.median_ns or difference.b.median_ns):
            _add(table, difference, "dim")
    table.add_section()
    _add(table, comparison.wall, "bold" if comparison.wall.is_beyond else "")
    return table


def _add(table: Table, difference: Difference, style: str) -> None:
    table.add_row(
        safe(difference.title),
        f"{difference.a.median_ns / 1e9:.3f}",
        f"{difference.b.median_ns / 1e9:.3f}",
        _signed(difference.difference_ns),
        f"{difference.spread_ns / 1e9:.3f}",
        style=style,
    )


def _verdicts(comparison: Comparison) -> list[str]:
    """What of it all counts, and how much equal starts were taken to differ."""
    lines = []
    if not comparison.beyond and not comparison.wall.is_beyond:
        lines.append("No difference beyond the spread.")
    elif not comparison.beyond:
        lines.append("No sub-step differs beyond the spread; only their sum does.")
    else:
        first = comparison.beyond[0]
        lines.append(
            f"{len(comparison.beyond)} of {len(comparison.substeps)} sub-steps differ beyond the"
            f" spread, most of all {first.title}: {_signed(first.difference_ns)} s in B."
        )
    if comparison.is_disturbed:
        lines.append(
            f"Other programs used up to {comparison.others_cores:.1f} cores during a start: what"
            " either side waited longer for a core is part of the spread."
        )
    counts = [len(side.starts) for side in (comparison.a, comparison.b)]
    if min(counts) < ENOUGH_STARTS:
        lines.append(
            "With fewer than three starts on a side the spread is a guess (15 %, at least 0.15 s):"
            " give more starts of each, as a folder or with commas between."
        )
    return lines


def _behind(difference: Difference) -> list[str]:
    return [*map(_moved, difference.moved), *map(_cause, difference.causes)]


def _moved(moved: Moved) -> str:
    kind = KINDS.get(moved.kind, moved.kind)
    what = f" ({escape(moved.what)})" if moved.what and moved.what != moved.kind else ""
    return (
        f"{_signed(moved.difference_ns)} s {kind}{what}:"
        f" {in_seconds(moved.a_ns)} in A, {in_seconds(moved.b_ns)} in B"
    )


def _cause(cause: Cause) -> str:
    a, b = _value(cause.a, cause.unit), _value(cause.b, cause.unit)
    return f"{escape(cause.subject)}: {a} in A, {b} in B"


def _value(value: float | str, unit: str) -> str:
    if isinstance(value, str):
        return escape(value)
    if unit == "ns":
        return in_seconds(round(value))
    if unit == "bytes":
        return in_bytes(round(value)) if value else "nothing"
    return f"{value:.1f}" if unit == "cores" else f"{value:g}"


def _signed(duration_ns: int) -> str:
    return f"{duration_ns / 1e9:+.3f}"
