"""Which cgroups limit a process, and what they say of it.

Both hierarchies: the unified one (v2) and the controllers' own (v1), which many
machines have side by side. Like probes/proc.py, each reader takes the root of the
/proc tree, and of the file system that the mounts lie in.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from probes.mounts import mounts
from probes.proc import PROC

MAX_DEPTH = 64
_READ_BYTES = 16 * 1024


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """One mounted cgroup tree: `controller` is "" for the unified one."""

    controller: str
    folder: str
    root: str
    """The cgroup that `folder` shows."""


@dataclass(frozen=True, slots=True)
class Throttling:
    """How long and how often the threads of a cgroup had to stop for its quota.
    `throttled_ns` adds up over its run queues."""

    throttled_ns: int
    throttled_periods: int


@dataclass(frozen=True, slots=True)
class Pressure:
    """How long some, and all, of the tasks were held up for want of memory."""

    some_ns: int
    full_ns: int


class Counter:
    """A small file of counters, kept open: it costs a third of opening it each time."""

    __slots__ = ("_fd",)

    def __init__(self, path: str) -> None:
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._fd = -1

    def read(self) -> str:
        """Its text now; empty where there is none, or none any more."""
        try:
            return _text(os.pread(self._fd, _READ_BYTES, 0)) if self._fd >= 0 else ""
        except OSError:
            return ""

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def hierarchies(proc: Path = PROC, root: str = "/") -> list[Hierarchy]:
    """The unified tree and that of the v1 controller `cpu`, where they are mounted."""
    found: dict[str, Hierarchy] = {}
    for mount in mounts(proc):
        folder = os.path.join(root, mount.folder.lstrip("/"))
        if mount.file_system == "cgroup2":
            found.setdefault("", Hierarchy("", folder, mount.root))
        elif mount.file_system == "cgroup" and "cpu" in mount.options:
            found.setdefault("cpu", Hierarchy("cpu", folder, mount.root))
    return list(found.values())


def folders(pid: int, trees: list[Hierarchy], proc: Path = PROC) -> list[str]:
    """The cgroups that `pid` is in, as folders, each followed by those around it.

    One that isn't below what is mounted here (another container's) is left out.
    """
    found: list[str] = []
    for line in _read(str(proc / str(pid) / "cgroup")).split("\n"):
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        for tree in trees:
            # an empty list of controllers is the unified tree
            if tree.controller in controllers.split(","):
                found += _upwards(tree, path)
    return list(dict.fromkeys(found))


def _upwards(tree: Hierarchy, path: str) -> Iterator[str]:
    root = tree.root.rstrip("/")
    if ".." in path.split("/") or not f"{path.rstrip('/')}/".startswith(f"{root}/"):
        return
    parts = [part for part in path[len(root) :].split("/") if part][:MAX_DEPTH]
    for length in range(len(parts), -1, -1):
        yield os.path.join(tree.folder, *parts[:length])


def throttling(text: str) -> Throttling | None:
    """What a `cpu.stat` says; None where no quota can be set (v2's root)."""
    numbers = _numbers(text)
    periods = numbers.get("nr_throttled")
    if periods is None:
        return None
    if "throttled_usec" in numbers:
        return Throttling(numbers["throttled_usec"] * 1000, periods)
    return Throttling(numbers.get("throttled_time", 0), periods)


def quota_cpus(folder: str) -> float | None:
    """The cores that the threads of a cgroup may use in all; None for no limit."""
    quota, _, period = _read(f"{folder}/cpu.max").partition(" ")
    if not quota:
        quota = _read(f"{folder}/cpu.cfs_quota_us")
        period = _read(f"{folder}/cpu.cfs_period_us")
    with suppress(ValueError, ZeroDivisionError):
        cpus = int(quota) / int(period)  # "max" is no number, and v1 says -1
        return cpus if cpus > 0 else None
    return None


def pressure(text: str) -> Pressure | None:
    """What a PSI file says (memory.pressure, /proc/pressure/memory)."""
    totals = {}
    for line in text.splitlines():
        kind, _, rest = line.partition(" ")
        with suppress(ValueError):
            totals[kind] = int(rest.rpartition("total=")[2]) * 1000
    if "some" not in totals:
        return None
    return Pressure(totals["some"], totals.get("full", 0))


def _numbers(text: str) -> dict[str, int]:
    numbers = {}
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        with suppress(ValueError):
            numbers[name] = int(value)
    return numbers


def _read(path: str) -> str:
    counter = Counter(path)
    try:
        return counter.read()
    finally:
        counter.close()


def _text(data: bytes) -> str:
    return data.decode("utf-8", "backslashreplace")
