"""Small readers of /proc.

Each takes the root of the /proc tree, so that tests can hand in a tree of plain
files. A process that is gone, or that this user may not see, reads as None (or
as nothing at all where a list is asked for): between any two reads it may end.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from probes.events import ProcessId

PROC = Path("/proc")

_STAT_BYTES = 4096
_STATUS_BYTES = 16 * 1024
_ARGV_BYTES = 128 * 1024
_TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Stat:
    """What /proc/PID/stat says of a process.

    `start_ns` is CLOCK_MONOTONIC, to the kernel's tick (10 ms) and never later
    than the true start by more than that. `ended` is true for a zombie.
    """

    pid: int
    parent_pid: int
    start_ns: int
    ended: bool


def stat(pid: int, proc: Path = PROC) -> Stat | None:
    """Parent, start and state of `pid`."""
    text = _read(proc / str(pid) / "stat", _STAT_BYTES)
    if text is None:
        return None
    # The command's name stands in brackets and may itself hold brackets and blanks.
    fields = text[text.rfind(b")") + 1 :].split()
    try:
        state, parent_pid, start_ticks = fields[0], int(fields[1]), int(fields[19])
    except (IndexError, ValueError):
        return None
    start_ns = start_ticks * _TICK_NS - _boot_before_monotonic_ns()
    return Stat(pid, parent_pid, start_ns, ended=state in (b"Z", b"X"))


def process_id(pid: int, proc: Path = PROC) -> ProcessId | None:
    """The name of the process that has `pid` now; None for a zombie."""
    now = stat(pid, proc)
    return None if now is None or now.ended else ProcessId(pid, now.start_ns)


def is_running(process: ProcessId, proc: Path = PROC) -> bool:
    """Whether `process` still runs: its pid may meanwhile be another's.

    Starts are compared to two ticks, as `process` may carry the exact moment.
    """
    now = stat(process.pid, proc)
    if now is None or now.ended:
        return False
    return abs(now.start_ns - process.start_ns) <= 2 * _TICK_NS


def argv(pid: int, proc: Path = PROC) -> tuple[str, ...] | None:
    """The command line, at most 128 KiB of it; empty for a zombie or a kernel thread.

    Bytes that aren't UTF-8 read as backslash escapes.
    """
    text = _read(proc / str(pid) / "cmdline", _ARGV_BYTES)
    if text is None:
        return None
    words = text.removesuffix(b"\0").split(b"\0") if text else []
    return tuple(word.decode("utf-8", "backslashreplace") for word in words)


def uid(pid: int, proc: Path = PROC) -> int | None:
    """The real user id."""
    return _status_number(pid, b"Uid:", 0, proc)


def namespace_pid(pid: int, proc: Path = PROC) -> int | None:
    """The pid as `pid` itself sees it, in the innermost of its PID namespaces."""
    return _status_number(pid, b"NSpid:", -1, proc)


def threads(pid: int, proc: Path = PROC) -> tuple[int, ...]:
    """The thread ids of `pid`, ascending."""
    return _numbers_in(proc / str(pid) / "task")


def descendants(pid: int, proc: Path = PROC) -> tuple[int, ...]:
    """All processes under `pid`, parents before their children, zombies too.

    One pass over all processes: the kernel's own lists of children may skip
    some while others end.
    """
    children: dict[int, list[int]] = defaultdict(list)
    for other in _numbers_in(proc):
        entry = stat(other, proc)
        if entry is not None:
            children[entry.parent_pid].append(other)
    found = [pid]
    seen = {pid}
    for one in found:  # grows as it goes
        fresh = [child for child in children.get(one, ()) if child not in seen]
        seen.update(fresh)
        found.extend(fresh)
    return tuple(found[1:])


def _status_number(pid: int, label: bytes, column: int, proc: Path) -> int | None:
    text = _read(proc / str(pid) / "status", _STATUS_BYTES)
    for line in (text or b"").split(b"\n"):  # the name, which comes first, may hold "\r"
        if line.startswith(label):
            try:
                return int(line[len(label) :].split()[column])
            except (IndexError, ValueError):
                return None
    return None


def _numbers_in(folder: Path) -> tuple[int, ...]:
    try:
        names = os.listdir(folder)
    except OSError:
        return ()
    return tuple(sorted(int(name) for name in names if name.isascii() and name.isdigit()))


def _read(path: Path, limit_bytes: int) -> bytes | None:
    try:
        with open(path, "rb") as file:
            return file.read(limit_bytes)
    except OSError:
        return None


def _boot_before_monotonic_ns() -> int:
    """How far CLOCK_BOOTTIME, which /proc uses, is ahead: the time spent suspended."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) - time.monotonic_ns()
