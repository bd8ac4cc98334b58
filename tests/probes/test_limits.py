"""Quotas, pressure, cores and load: from made-up trees, and held against this process."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import pytest

from probes import cgroups, proc
from probes.events import ProcessExecuted, ProcessExited, ProcessForked, ProcessId, Reading
from probes.limits import LimitsSource
from probes.mounts import file_system, mounts
from probes.readings import Pace, Readings
from probes.source import SourceUnavailable

MOUNTS = r"""
21 1 8:1 / / rw - ext4 /dev/sda1 rw
22 21 0:30 / /sys/fs/cgroup rw - tmpfs tmpfs rw
23 22 0:31 / /sys/fs/cgroup/cpu,cpuacct rw shared:9 - cgroup cgroup rw,cpu,cpuacct
24 22 0:32 /outer /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
25 22 0:33 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
26 21 0:40 / /mnt/two\040words rw - nfs4 server:/export rw
26 21 x:y / /wrong rw - ext4 /dev/x rw
cut short
"""
V1_STAT = "nr_periods 9\nnr_throttled 4\nthrottled_time 123456\nnr_bursts 0\n"
V2_STAT = "usage_usec 10\nnr_periods 9\nnr_throttled 5\nthrottled_usec 77\n"
PSI = (
    "some avg10=0.00 avg60=0.00 avg300=0.00 total=1500\nfull avg10=0.00 avg60=0.00 avg300=0.00"
    " total=500\n"
)


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def stat_line(pid: int, name: str, majflt: int, ticks: tuple[int, int], cpu: int) -> str:
    rest = ["0"] * 50
    rest[0], rest[1], rest[9] = "S", "1", str(majflt)
    rest[11], rest[12], rest[36] = str(ticks[0]), str(ticks[1]), str(cpu)
    return f"{pid} ({name}) {' '.join(rest)}\n"


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A machine with both hierarchies, on which this very pid runs on CPU 3 of 2 nodes."""
    pid = os.getpid()
    return write(
        tmp_path,
        {
            "proc/self/mountinfo": MOUNTS.lstrip(),
            "proc/stat": "cpu  100 5 50 800 20 3 2 7 0 0\ncpu0 1 2\nprocs_running 4\nsoftirq 1\n",
            "proc/pressure/memory": PSI,
            f"proc/{pid}/stat": stat_line(pid, "a) S (b", 12, (200, 50), 3),
            f"proc/{pid}/cgroup": "4:memory:/m\n3:cpu,cpuacct:/jobs/one\n0::/outer/in/deep\n",
            "sys/fs/cgroup/cpu,cpuacct/jobs/one/cpu.stat": V1_STAT,
            "sys/fs/cgroup/cpu,cpuacct/jobs/one/cpu.cfs_quota_us": "150000",
            "sys/fs/cgroup/cpu,cpuacct/jobs/one/cpu.cfs_period_us": "100000",
            "sys/fs/cgroup/cpu,cpuacct/jobs/cpu.stat": V1_STAT.replace("123456", "9"),
            "sys/fs/cgroup/cpu,cpuacct/jobs/cpu.cfs_quota_us": "-1",
            "sys/fs/cgroup/cpu,cpuacct/jobs/cpu.cfs_period_us": "100000",
            "sys/fs/cgroup/unified/in/deep/cpu.stat": V2_STAT,
            "sys/fs/cgroup/unified/in/deep/cpu.max": "50000 100000\n",
            "sys/fs/cgroup/unified/in/deep/memory.pressure": PSI,
            "sys/fs/cgroup/unified/in/cpu.max": "max 100000\n",
            "sys/fs/cgroup/unified/cpu.stat": "usage_usec 10\n",
            "sys/devices/system/node/node0/cpulist": "0-1,8\n",
            "sys/devices/system/node/node1/cpulist": "2-3\n",
            "sys/devices/system/cpu/cpu3/cpufreq/scaling_cur_freq": "2400000\n",
        },
    )


def values(readings: Iterable[Reading], root: Path) -> dict[tuple[str, str], float]:
    return {(each.name, each.subject.removeprefix(f"{root}/")): each.value for each in readings}


def test_every_kind_of_limit_is_read(machine: Path) -> None:
    source = LimitsSource(machine / "proc", machine)
    source.open()
    source.follow(ProcessId(os.getpid(), 1))
    readings = [*source.poll(0), *source.close()]
    assert source.stats().seen == {"reading": len(readings)}
    told = values(readings, machine)
    pid, tick = str(os.getpid()), 1_000_000_000 // os.sysconf("SC_CLK_TCK")
    v1, v2 = "sys/fs/cgroup/cpu,cpuacct/jobs", "sys/fs/cgroup/unified/in/deep"
    assert told == {
        ("process_cpu_ns", pid): 250 * tick,
        ("process_major_faults", pid): 12,
        ("affinity_cpus", pid): len(os.sched_getaffinity(0)),
        ("numa_node", pid): 1,
        ("cpu_hz", "cpu3"): 2.4e9,
        ("cgroup_throttled_ns", f"{v1}/one"): 123456,
        ("cgroup_throttled_periods", f"{v1}/one"): 4,
        ("cgroup_quota_cpus", f"{v1}/one"): 1.5,
        ("cgroup_throttled_ns", v1): 9,
        ("cgroup_throttled_periods", v1): 4,
        ("cgroup_quota_cpus", v1): 0,
        ("cgroup_quota_cpus", "sys/fs/cgroup/cpu,cpuacct"): 0,
        ("cgroup_throttled_ns", v2): 77_000,
        ("cgroup_throttled_periods", v2): 5,
        ("cgroup_quota_cpus", v2): 0.5,
        ("cgroup_memory_some_ns", v2): 1_500_000,
        ("cgroup_memory_full_ns", v2): 500_000,
        ("cgroup_quota_cpus", "sys/fs/cgroup/unified/in"): 0,
        ("cgroup_quota_cpus", "sys/fs/cgroup/unified"): 0,
        ("machine_busy_ns", ""): 160 * tick,
        ("machine_idle_ns", ""): 800 * tick,
        ("machine_iowait_ns", ""): 20 * tick,
        ("machine_steal_ns", ""): 7 * tick,
        ("machine_running", ""): 4,
        ("memory_some_ns", ""): 1_500_000,
        ("memory_full_ns", ""): 500_000,
    }


def test_a_cgroup_that_a_program_begins_in_is_seen_at_once(machine: Path) -> None:
    own = ProcessId(os.getpid(), 1)
    source = LimitsSource(machine / "proc", machine)
    source.open()
    source.follow(own)
    source.poll(0)
    write(machine, {"sys/fs/cgroup/unified/new/cpu.stat": V2_STAT})
    write(machine, {f"proc/{own.pid}/cgroup": "0::/outer/new\n"})
    assert not source.poll(0)  # nothing is due
    source.observe([ProcessExecuted(1, own, "a", ("a",), False)])
    told = values(source.poll(0), machine)
    assert told["cgroup_throttled_ns", "sys/fs/cgroup/unified/new"] == 77_000
    source.close()


def test_what_is_missing_is_left_out(tmp_path: Path) -> None:
    with pytest.raises(SourceUnavailable, match="can't read /proc/stat"):
        LimitsSource(tmp_path, tmp_path).open()
    write(tmp_path, {"stat": "cpu 1 2\n"})
    source = LimitsSource(tmp_path, tmp_path)
    source.open()
    source.follow(ProcessId(os.getpid(), 1))  # no such file
    names = {reading.name for reading in source.poll(0)}
    assert names == {
        "machine_busy_ns", "machine_idle_ns", "machine_iowait_ns", "machine_steal_ns"
    }  # fmt: skip
    source.close()


def test_processes_come_and_go_as_the_events_say() -> None:
    own = proc.process_id(os.getpid())
    assert own is not None
    source = LimitsSource()
    source.open()
    source.follow(own)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        other = ProcessId(child.pid, 1)
        source.observe([ProcessForked(1, own, other), ProcessForked(1, ProcessId(1, 1), own)])
        told = {(each.name, each.subject) for each in source.poll(0)}
        assert ("process_cpu_ns", str(child.pid)) in told
        assert child.stdin is not None
        child.stdin.close()
    source.observe([ProcessExited(2, other, 0)])
    assert str(child.pid) not in {each.subject for each in source.close()}
    source.close()


def test_a_process_that_went_unheard_is_let_go() -> None:
    source = LimitsSource()
    source.open()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        source.follow(ProcessId(child.pid, 1))
        child.terminate()
    assert {each.subject for each in source.poll(0)}.isdisjoint({str(child.pid)})
    source.close()


def test_cpu_time_of_a_process_is_its_own(tmp_path: Path) -> None:
    own = proc.process_id(os.getpid())
    assert own is not None
    source = LimitsSource()
    source.open()
    source.follow(own)
    told = list(source.poll(0))
    before, end = time.process_time(), time.process_time() + 0.3
    while time.process_time() < end:
        pass
    told += source.close()
    used = [each.value for each in told if each.name == "process_cpu_ns"]
    assert (used[-1] - used[0]) / 1e9 == pytest.approx(time.process_time() - before, abs=0.05)


def test_looking_costs_at_most_three_thousandths_of_a_core() -> None:
    own = proc.process_id(os.getpid())
    assert own is not None
    source = LimitsSource()
    source.open()
    for pid in proc.descendants(1)[-10:]:
        source.follow(proc.process_id(pid) or own)
    source.poll(0)  # the first look opens files
    seconds, spent_ns = 3.0, 0
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        began_ns = time.thread_time_ns()
        source.poll(0)
        spent_ns += time.thread_time_ns() - began_ns
        time.sleep(0.05)
    source.close()
    assert spent_ns / seconds / 1e9 < 0.003


def test_a_source_that_may_wait_does(machine: Path) -> None:
    source = LimitsSource(machine / "proc", machine)
    source.open()
    source.poll(0)
    began = time.monotonic()
    source.poll(0.05)
    assert time.monotonic() - began >= 0.045
    source.close()


def test_a_pace_slows_down_for_what_is_dear() -> None:
    pace = Pace(100, 0.01)
    assert pace.is_due(0)
    pace.looked(0, cost_ns=1)
    assert not pace.is_due(99) and pace.is_due(100)
    pace.looked(100, cost_ns=50)
    assert not pace.is_due(5099) and pace.is_due(5100)


def test_a_value_that_stays_is_told_when_it_came_and_when_it_was_last_seen() -> None:
    readings = Readings()
    told = [
        (each.ts_ns, each.value)
        for ts_ns, value in ((1, 5), (2, 5), (3, 5), (4, 6), (5, 7), (6, 7))
        for each in readings.tell(ts_ns, "n", "s", value)
    ]
    assert told == [(1, 5), (3, 5), (4, 6), (5, 7)]
    assert list(readings.forget("other")) == []
    assert list(readings.rest()) == [Reading(6, "n", "s", 7)]


def test_cgroups_of_another_container_are_left_out(tmp_path: Path) -> None:
    trees = [cgroups.Hierarchy("", "/sys/fs/cgroup", "/mine")]
    write(tmp_path, {"7/cgroup": "0::/../other\n", "8/cgroup": "0::/miners/x\n", "9/cgroup": "z\n"})
    assert [cgroups.folders(pid, trees, tmp_path) for pid in (7, 8, 9, 10)] == [[], [], [], []]
    write(tmp_path, {"7/cgroup": "0::/mine/a\x0b0::/mine/b\n"})  # a name is no line
    assert "/sys/fs/cgroup/b" not in cgroups.folders(7, trees, tmp_path)
    write(tmp_path, {"7/cgroup": "0::/mine\n"})
    assert cgroups.folders(7, trees, tmp_path) == ["/sys/fs/cgroup"]


@pytest.mark.parametrize(
    "text", ["", "some\n", "full total=5\n", "some total=\n", "nr_throttled x"]
)
def test_counters_that_cannot_be_read_are_none(text: str) -> None:
    assert cgroups.pressure(text) is None
    assert cgroups.throttling(text) is None


def test_mounts_are_read_and_name_file_systems(machine: Path) -> None:
    mounted = mounts(machine / "proc")
    assert len(mounted) == 6
    assert file_system(os.makedev(0, 40), "/nowhere", mounted) == "nfs4"
    assert file_system(1, "/mnt/two words/model", mounted) == "nfs4"
    assert file_system(1, "/mnt/two wordsmore", mounted) == "ext4"
    assert mounts(machine / "none") == [] and file_system(1, "/a", []) == ""
