"""What holds the traced processes back: quotas, memory pressure, cores, other load.

Readings, by subject:
  a cgroup's folder  cgroup_throttled_ns, cgroup_throttled_periods, cgroup_quota_cpus
                     (0: none), cgroup_memory_some_ns, cgroup_memory_full_ns
  a pid              process_cpu_ns, process_major_faults, affinity_cpus, numa_node
  cpuN               cpu_hz, where the kernel tells it
  "" (the machine)   machine_busy_ns, machine_idle_ns, machine_iowait_ns,
                     machine_steal_ns, machine_running, memory_some_ns, memory_full_ns

Counters are as read. What others used is machine_busy_ns less process_cpu_ns of all.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from probes import cgroups
from probes.events import (
    Event,
    ProcessExecuted,
    ProcessExited,
    ProcessForked,
    ProcessFound,
    ProcessId,
    Reading,
)
from probes.proc import PROC
from probes.readings import Pace, Readings
from probes.source import SourceStats, SourceUnavailable

PROCESSES_NS = 150_000_000
MACHINE_NS = 200_000_000
PLACES_NS = 1_000_000_000
"""How often: the processes and their cgroups, the machine, and what seldom changes."""
PROCESSES_SHARE = 0.0013
MACHINE_SHARE = 0.0005
PLACES_SHARE = 0.0003
"""Of a core, that each may cost; where it would cost more it looks less often."""
MAX_PROCESSES = 256

_TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
_STAT_BYTES = 4096
_MACHINE_BYTES = 256 * 1024
_MAX_NODES = 1024


class LimitsSource:
    """Reads /proc, /sys and the cgroups of the followed processes, several times a second.

    `observe` has to be given the events of the other sources: they tell which
    processes there are.
    """

    name = "limits"

    def __init__(self, proc: Path = PROC, root: Path = Path("/")) -> None:
        self._proc = proc
        self._root = root
        self._processes: dict[int, _Process] = {}
        self._trees: list[cgroups.Hierarchy] = []
        self._cgroups: dict[str, _Cgroup] = {}
        self._nodes: dict[int, int] = {}
        self._machine_fd = -1
        self._pressure = cgroups.Counter(str(proc / "pressure/memory"))
        self._paces = {
            self._look_at_places: Pace(PLACES_NS, PLACES_SHARE),
            self._look_at_processes: Pace(PROCESSES_NS, PROCESSES_SHARE),
            self._look_at_machine: Pace(MACHINE_NS, MACHINE_SHARE),
        }
        self._due_ns = 0
        self._readings = Readings()
        self._gone: list[Reading] = []
        self._seen = 0

    def open(self) -> None:
        """Raise SourceUnavailable where there is no /proc/stat."""
        try:
            self._machine_fd = os.open(self._proc / "stat", os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise SourceUnavailable(f"can't read /proc/stat: {error.strerror}") from error
        self._trees = cgroups.hierarchies(self._proc, str(self._root))
        self._nodes = _nodes(self._root)

    def follow(self, process: ProcessId) -> None:
        """Look after `process`, and the descendants that `observe` tells of."""
        if process.pid in self._processes or len(self._processes) >= MAX_PROCESSES:
            return
        with suppress(OSError):  # gone already
            self._processes[process.pid] = _Process(process.pid, self._proc)

    def observe(self, events: Sequence[Event]) -> None:
        """Learn which processes come and go."""
        for event in events:
            if isinstance(event, ProcessForked):
                if event.process.pid in self._processes:
                    self.follow(event.child)
            elif isinstance(event, ProcessFound):
                self.follow(event.process)
            elif isinstance(event, ProcessExecuted):
                self._join(event.process.pid)
            elif isinstance(event, ProcessExited):
                self._forget(event.process.pid)

    def poll(self, timeout_s: float) -> Iterable[Reading]:
        """What is due by now; waits for it where it may."""
        due_ns = self._due_ns - time.monotonic_ns()
        if timeout_s > 0 and due_ns > 0:
            time.sleep(min(timeout_s, due_ns / 1e9))
        elif due_ns > 0:
            return ()
        told, self._gone = self._gone, []
        for look, pace in self._paces.items():
            now_ns = time.monotonic_ns()
            if pace.is_due(now_ns):
                began_ns = time.thread_time_ns()
                for name, subject, value in look():
                    told += self._readings.tell(now_ns, name, subject, value)
                pace.looked(now_ns, time.thread_time_ns() - began_ns)
        self._due_ns = min(pace.next_ns for pace in self._paces.values())
        self._seen += len(told)
        return told

    def stats(self) -> SourceStats:
        """The number of readings."""
        return SourceStats(seen={"reading": self._seen})

    def close(self) -> Iterable[Reading]:
        """What there is at the very end, and until when the rest stayed as it was."""
        if self._machine_fd < 0:
            return []
        for pace in self._paces.values():
            pace.next_ns = self._due_ns = 0
        told = [*self.poll(0)]
        rest = [*self._gone, *self._readings.rest()]
        for pid in list(self._processes):
            self._forget(pid)
        for cgroup in self._cgroups.values():
            cgroup.close()
        self._cgroups.clear()
        self._pressure.close()
        os.close(self._machine_fd)
        self._machine_fd = -1
        self._seen += len(rest)
        return told + rest

    def _join(self, pid: int) -> None:
        """Watch the cgroups of a process at once: what starts one in a cgroup of its own
        moves it there first, and its counters tell nothing of before the first look."""
        if pid in self._processes:
            for folder in cgroups.folders(pid, self._trees, self._proc):
                if folder not in self._cgroups:
                    self._cgroups[folder] = _Cgroup(folder)
                    self._due_ns = self._paces[self._look_at_processes].next_ns = 0

    def _forget(self, pid: int) -> None:
        process = self._processes.pop(pid, None)
        if process is not None:
            process.close()
            self._gone += self._readings.forget(str(pid))

    def _look_at_processes(self) -> Iterator[tuple[str, str, float]]:
        for pid, process in list(self._processes.items()):
            if not process.look():
                self._forget(pid)
                continue
            yield "process_cpu_ns", str(pid), process.cpu_ns
            yield "process_major_faults", str(pid), process.major_faults
        for folder, cgroup in self._cgroups.items():
            stopped = cgroups.throttling(cgroup.cpu.read())
            if stopped is not None:
                yield "cgroup_throttled_ns", folder, stopped.throttled_ns
                yield "cgroup_throttled_periods", folder, stopped.throttled_periods
            held_up = cgroups.pressure(cgroup.memory.read())
            if held_up is not None:
                yield "cgroup_memory_some_ns", folder, held_up.some_ns
                yield "cgroup_memory_full_ns", folder, held_up.full_ns

    def _look_at_machine(self) -> Iterator[tuple[str, str, float]]:
        lines = os.pread(self._machine_fd, _MACHINE_BYTES, 0).split(b"\n")
        # user nice system idle iowait irq softirq steal; guests are part of user
        ticks = [int(field) * _TICK_NS for field in lines[0].split()[1:9]]
        ticks += [0] * (8 - len(ticks))
        yield "machine_busy_ns", "", sum(ticks[:3]) + ticks[5] + ticks[6]
        yield "machine_idle_ns", "", ticks[3]
        yield "machine_iowait_ns", "", ticks[4]
        yield "machine_steal_ns", "", ticks[7]
        for line in reversed(lines):
            if line.startswith(b"procs_running "):
                yield "machine_running", "", int(line.split()[1])
                break
        held_up = cgroups.pressure(self._pressure.read())
        if held_up is not None:
            yield "memory_some_ns", "", held_up.some_ns
            yield "memory_full_ns", "", held_up.full_ns

    def _look_at_places(self) -> Iterator[tuple[str, str, float]]:
        """Where the processes may run and where they do, and in which cgroups."""
        found: set[str] = set()
        cpus = set()
        for pid, process in self._processes.items():
            found.update(cgroups.folders(pid, self._trees, self._proc))
            with suppress(OSError):
                yield "affinity_cpus", str(pid), len(os.sched_getaffinity(pid))
            if process.cpu in self._nodes and len(set(self._nodes.values())) > 1:
                yield "numa_node", str(pid), self._nodes[process.cpu]
            cpus.add(process.cpu)
        self._watch(found)
        for folder in self._cgroups:
            yield "cgroup_quota_cpus", folder, cgroups.quota_cpus(folder) or 0
        for cpu in cpus:
            hertz = self._frequency(cpu)
            if hertz is not None:
                yield "cpu_hz", f"cpu{cpu}", hertz

    def _watch(self, folders: set[str]) -> None:
        for folder in folders - self._cgroups.keys():
            self._cgroups[folder] = _Cgroup(folder)
        for folder in self._cgroups.keys() - folders:
            self._cgroups.pop(folder).close()
            self._gone += self._readings.forget(folder)

    def _frequency(self, cpu: int) -> int | None:
        path = self._root / f"sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_cur_freq"
        try:
            return int(path.read_text()) * 1000
        except (OSError, ValueError):
            return None


class _Cgroup:
    """The counters of one cgroup."""

    __slots__ = ("cpu", "memory")

    def __init__(self, folder: str) -> None:
        self.cpu = cgroups.Counter(f"{folder}/cpu.stat")
        self.memory = cgroups.Counter(f"{folder}/memory.pressure")

    def close(self) -> None:
        self.cpu.close()
        self.memory.close()


class _Process:
    """One process's /proc/PID/stat; the open file is its own, whoever gets its pid."""

    __slots__ = ("_fd", "cpu", "cpu_ns", "major_faults")

    def __init__(self, pid: int, proc: Path) -> None:
        self._fd = os.open(proc / str(pid) / "stat", os.O_RDONLY | os.O_CLOEXEC)
        self.cpu = -1
        self.cpu_ns = 0
        self.major_faults = 0

    def look(self) -> bool:
        """Read it anew; False for a process that has gone."""
        try:
            text = os.pread(self._fd, _STAT_BYTES, 0)
            fields = text[text.rindex(b")") + 1 :].split()
            self.major_faults = int(fields[9])
            self.cpu_ns = (int(fields[11]) + int(fields[12])) * _TICK_NS
            self.cpu = int(fields[36])
        except (OSError, ValueError, IndexError):
            return False
        return True

    def close(self) -> None:
        os.close(self._fd)


def _nodes(root: Path) -> dict[int, int]:
    """The NUMA node of each CPU."""
    nodes: dict[int, int] = {}
    for path in list((root / "sys/devices/system/node").glob("node[0-9]*/cpulist"))[:_MAX_NODES]:
        with suppress(OSError, ValueError):
            node = int(path.parent.name.removeprefix("node"))
            for part in path.read_text().strip().split(","):
                first, _, last = part.partition("-")
                nodes |= dict.fromkeys(range(int(first), int(last or first) + 1), node)
    return nodes
