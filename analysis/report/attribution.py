"""Where the time went, and the critical path, for a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from os.path import basename

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from analysis.report.cells import add_time, in_seconds, role_title, safe, time_table
from analysis.result import (
    BOUNDS,
    UNATTRIBUTED,
    Attribution,
    Cores,
    Link,
    ProcessLife,
    Result,
    Share,
    TimeShares,
)
from analysis.start import Start
from tracer.text import escape

TOP_SHARES = 3
LEAST_SHARE = 0.005
"""A part below this share of the whole isn't named."""

BOUND_TITLES = {"cpu": "CPU", "gpu": "GPU"}
HANDOVERS = {"woke": "woke", "forked": "made"}
KIND_TITLES = {
    "python": "Python",
    "native": "native code",
    "kernel": "kernel",
    "cpu": "on a core, in unknown code",
    "runnable": "waiting for a core",
    "throttled": "throttled by a CPU quota",
    "disk": "disk",
    "gpu": "GPU",
    "network": "network",
    "lock": "lock",
    "pipe": "pipes and sockets",
    "child": "child process",
    "sleep": "sleep",
    "other_wait": "other waits",
    "unknown": "unknown",
}


def verdict(shares: TimeShares | None) -> str:
    """What a time was bound by and for how much of it: "disk 81%"."""
    if shares is None or not shares.duration_ns:
        return ""
    if shares.bound == "unknown":
        return "unknown"
    share = shares.bound_ns / shares.duration_ns
    return f"{BOUND_TITLES.get(shares.bound, shares.bound)} {share:.0%}"


def together(attribution: Attribution, substeps: Iterable[str]) -> TimeShares:
    """The shares of several sub-steps as those of one."""
    known = (attribution.substeps[id_] for id_ in substeps if id_ in attribution.substeps)
    return TimeShares(tuple(chain.from_iterable(each.shares for each in known)))


def attribution_lines(attribution: Attribution) -> Iterator[str]:
    """Where the time of the whole start went, how many cores were busy, what is unknown."""
    whole = attribution.whole
    if attribution.cores is not None:
        yield f"Where the time went: {'; '.join(_parts(whole))}."
        yield _cores_line(attribution.cores)
    yield from map(escape, attribution.whys)


def _parts(whole: TimeShares) -> Iterator[str]:
    """The kinds, the largest first, with what most of each went to."""
    spent = {kind: whole.of(kind) for kinds in BOUNDS.values() for kind in kinds}
    least_ns = LEAST_SHARE * whole.duration_ns
    for kind in sorted(spent, key=lambda kind: -spent[kind]):
        if spent[kind] < max(least_ns, 1):
            return
        shares = [share for share in whole.shares if share.kind == kind and share.what]
        named = [
            f"{_named(share)} {share.duration_ns / whole.duration_ns:.1%}"
            for share in shares
            if share.duration_ns >= least_ns
        ]
        if len(shares) == 1 and shares[0].duration_ns == spent[kind]:
            named = [] if shares[0].what == KIND_TITLES[kind] else [_named(shares[0])]
        detail = f" ({', '.join(named[:TOP_SHARES])})" if named else ""
        yield f"{KIND_TITLES[kind]} {spent[kind] / whole.duration_ns:.1%}{detail}"


def _named(share: Share) -> str:
    what = share.what or ""
    return escape(basename(what) or what)


def _cores_line(cores: Cores) -> str:
    total_ns = max(cores.none_ns + cores.one_ns + cores.several_ns, 1)
    return (
        f"Exactly one core was busy for {cores.one_ns / total_ns:.1%} of the start,"
        f" none for {cores.none_ns / total_ns:.1%}, several for"
        f" {cores.several_ns / total_ns:.1%}; {cores.busy_ns / total_ns:.2f} on average."
    )


def share_table(shares: TimeShares) -> Table:
    """Every share of a time."""
    table = time_table("went to", "")
    for share in shares.shares:
        what = f": {share.what}" if share.what else ""
        add_time(
            table, f"{KIND_TITLES[share.kind]}{what}", "", share.duration_ns, shares.duration_ns
        )
    return table


# The critical path ------------------------------------------------------------------


def critical_path_report(start: Start) -> RenderableType:
    """The chain from the end of the start back to its exec, the last link first."""
    result = start.result
    title = Text("Critical path, the last link first", style="bold")
    if not result.critical_path:
        return Group(title, Text("It isn't known: waits were not recorded."))
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    table.add_column("until", justify="right", no_wrap=True)
    table.add_column("seconds", justify="right", no_wrap=True)
    table.add_column("mostly", no_wrap=True)
    table.add_column("link", no_wrap=True, overflow="ellipsis", width=46)
    table.add_column("then", no_wrap=True)
    lives = {life.id: life for life in result.processes}
    for link in reversed(result.critical_path):
        until = f"{(link.end_ns - result.start_ns) / 1e9:.3f}"
        times = (until, f"{link.duration_ns / 1e9:.3f}", verdict(link.times))
        link_title = safe(_link_title(start, link, lives))
        table.add_row(*times, link_title, HANDOVERS.get(link.handover, ""))
        for beside in link.beside[:TOP_SHARES]:
            busy, slack = in_seconds(beside.busy_ns), in_seconds(beside.slack_ns)
            name = _short(start, lives[beside.process_id])
            table.add_row("", "", "", safe(f"  │ {name}: {busy}, slack {slack}"), "", style="dim")
    return Group(title, table)


def _link_title(start: Start, link: Link, lives: Mapping[int, ProcessLife]) -> str:
    mark = "" if link.handover == "ended" else "└─"
    name = _short(start, lives[link.process_id])
    if not start.is_part(link.process_id) and len(link.process_ids) > 1:
        name = f"{name} and {len(link.process_ids) - 1} more"
    return f"{mark}{name}: {_title(start.result, link)}"


def _short(start: Start, life: ProcessLife) -> str:
    return f"{role_title(start, life)} {life.pid}"


def _title(result: Result, link: Link) -> str:
    titles = {sub.id: sub.title for step in result.steps for sub in step.substeps}
    return titles[link.substep] if link.substep else UNATTRIBUTED
