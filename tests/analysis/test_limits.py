"""What held a start back: by made-up readings."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from analysis.report.json import to_json
from analysis.report.limits import limits_line
from analysis.result import Limits, Result
from probes.events import ProcessId, Reading
from tests.analysis.synthetic import ROOT, Story, at

GROUP = "/sys/fs/cgroup/\x1b[31mjob"


def story(*readings: tuple[float, str, str, float]) -> Story:
    """`config` for 500 ms, then `load` for as long."""
    made = Story()
    for ms in range(0, 1000, 10):
        made.sample(ms, "main config" if ms < 500 else "main load")
    machine = [(0.0, "machine_busy_ns", "", 5e9), (1000.0, "machine_busy_ns", "", 5e9)]
    for ms, name, subject, value in [*machine, *readings]:
        made.events.append(Reading(at(ms), name, subject, value))
    return made


def result_of(folder: Path, *readings: tuple[float, str, str, float]) -> Result:
    return story(*readings).start(folder, 1000, host={"cpus": 2}).result


def limits_of(folder: Path, *readings: tuple[float, str, str, float]) -> Limits:
    limits = result_of(folder, *readings).limits
    assert limits is not None
    return limits


def test_without_readings_nothing_is_claimed(tmp_path: Path) -> None:
    result = Story().sample(10, "main").start(tmp_path, 100).result
    assert result.limits is None and limits_line(result) is None
    assert json.loads(to_json(result))["limits"] is None


def test_a_quiet_machine(tmp_path: Path) -> None:
    result = result_of(tmp_path, (0, "affinity_cpus", str(ROOT.pid), 2))
    assert limits_line(result) == "Limits: none was felt."


@pytest.mark.parametrize(
    ("first_ms", "last_ms", "config", "load"),
    [(0, 200, 80, 0), (600, 800, 0, 80), (400, 600, 40, 40), (900, 1100, 0, 0)],
)
def test_what_a_counter_grew_by_goes_to_the_sub_steps_of_that_time(
    tmp_path: Path, first_ms: int, last_ms: int, config: int, load: int
) -> None:
    limits = limits_of(
        tmp_path,
        (first_ms, "cgroup_throttled_ns", GROUP, 7e6),
        (last_ms, "cgroup_throttled_ns", GROUP, 87e6),
    )
    told = {name: time_ns / 1e6 for name, time_ns in limits.throttled_ns.items()}
    assert told.get("config", 0) == pytest.approx(config, abs=3)
    assert told.get("weights", 0) == pytest.approx(load, abs=3)


def test_throttling_adds_up_over_cgroups_and_pressure_does_not(tmp_path: Path) -> None:
    limits = limits_of(
        tmp_path,
        *((ms, "cgroup_throttled_ns", g, ms * 1e5) for g in ("a", "b") for ms in (0.0, 1000.0)),
        *((ms, "cgroup_memory_some_ns", g, ms * 1e5) for g in ("a", "b") for ms in (0.0, 1000.0)),
        (0, "memory_some_ns", "", 0),
        (1000, "memory_some_ns", "", 2e8),
    )
    assert sum(limits.throttled_ns.values()) == pytest.approx(2e8, abs=2)
    assert sum(limits.memory_pressure_ns.values()) == pytest.approx(2e8, abs=2)


def test_others_are_the_machine_less_ones_own(tmp_path: Path) -> None:
    limits = limits_of(
        tmp_path,
        (1000, "machine_busy_ns", "", 6.5e9),
        (0, "machine_steal_ns", "", 1e9),
        (1000, "machine_steal_ns", "", 1.1e9),
        (100, "process_cpu_ns", str(ROOT.pid), 0.1e9),
        (900, "process_cpu_ns", str(ROOT.pid), 0.9e9),
    )
    assert limits.others_cores == pytest.approx(0.6)
    assert limits.stolen_cores == pytest.approx(0.1)


def test_a_process_found_running_had_used_some_before(tmp_path: Path) -> None:
    other = ProcessId(300, at(-1000))
    made = story(
        (1000, "machine_busy_ns", "", 6.5e9),
        (100, "process_cpu_ns", "300", 40.1e9),
        (900, "process_cpu_ns", "300", 40.9e9),
    ).found(other, ROOT, 0)
    limits = made.start(tmp_path, 1000).result.limits
    assert limits is not None and limits.others_cores == pytest.approx(0.7)


def test_all_that_was_felt_is_told_and_escaped(tmp_path: Path) -> None:
    result = result_of(
        tmp_path,
        (0, "affinity_cpus", "1", 2),
        (10, "affinity_cpus", "2", 1),
        (0, "cgroup_quota_cpus", "/", 0),
        (0, "cgroup_quota_cpus", "/wide", 4),
        (0, "cgroup_quota_cpus", GROUP, 0.5),
        (600, "cgroup_throttled_ns", GROUP, 0),
        (700, "cgroup_throttled_ns", GROUP, 250e6),
        (100, "memory_some_ns", "", 0),
        (200, "memory_some_ns", "", 50e6),
        (1000, "machine_busy_ns", "", 6.5e9),
        (0, "numa_node", "1", 0),
        (0, "numa_node", "2", 1),
        (0, "cpu_hz", "cpu0", 3e9),
        (500, "cpu_hz", "cpu0", 1.2e9),
    )
    assert limits_line(result) == (
        "Limits: a process was allowed 1 of 2 cores;"
        " a quota of 0.5 cores (/sys/fs/cgroup/\\x1b[31mjob);"
        " its threads were stopped for 0.250 s on all cores, most of it in Weights;"
        " memory pressure for 0.050 s on all cores, most of it in Config;"
        " other programs used 1.50 cores; processes ran on 2 NUMA nodes;"
        " cores ran at 1.2 to 3.0 GHz."
    )
    told = json.loads(to_json(result))["limits"]
    assert (told["quota_cpus"], told["throttled_s"], told["others_cores"]) == (
        0.5, {"weights": 0.25}, 1.5
    )  # fmt: skip
