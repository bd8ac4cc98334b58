"""What is observed beside the kernel's events: recorded, and what fails told in one line."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from analysis.report.terminal import closing_lines
from analysis.start import Start
from probes import proc
from probes.events import ProcessExecuted, ProcessId
from probes.gpu import GpuSource
from probes.limits import LimitsSource
from tests.probes.test_gpu import Nvml, NVMLError
from tests.tracer.test_recorder import AnyListen, FakeSource
from tracer.recorder import Recorder
from tracer.session import Session
from tracer.trace import Trace, TraceWriter

MODEL_BYTES = 8 << 20
SOME_BYTES = MODEL_BYTES // 20
"""A kernel short of memory may let go of so much meanwhile, which is read again."""


@pytest.fixture
def sleeper() -> Iterator[ProcessId]:
    with subprocess.Popen(["sleep", "60"]) as process:
        yield proc.process_id(process.pid) or ProcessId(process.pid, 0)
        process.kill()


def record(folder: Path, process: ProcessId, gpu: GpuSource, until_s: float = 0.6) -> Start:
    """Record `process` for a while, by a source that tells of its exec, limits and a GPU."""
    executed = ProcessExecuted(time.monotonic_ns(), process, "sleep", ("sleep", "60"), False)
    path, said = folder / "t.coldtrace", []
    limits = LimitsSource()
    with Recorder(
        [FakeSource("fake", [[executed]]), limits, gpu],
        TraceWriter(path),
        Session(process, AnyListen()),
        until=until_s,
        observers=[limits.observe],
        say=said.append,
    ) as recorder:
        recorder.run()
    assert len(said) <= 1
    return Start.open(path)


def test_a_gpu_is_recorded_beside_the_limits(tmp_path: Path, sleeper: ProcessId) -> None:
    start = record(tmp_path, sleeper, GpuSource(Nvml))
    readings = start.trace.readings()
    names = {reading.name for reading in readings}
    assert {
        "gpu_busy_percent",
        "gpu_memory_used_bytes",
        "process_cpu_ns",
        "machine_busy_ns",
    } <= names
    assert {r.subject for r in readings if r.name == "gpu_busy_percent"} == {"gpu0", "gpu1"}
    assert not start.trace.notes
    busy = [r.ts_ns for r in readings if (r.name, r.subject) == ("gpu_busy_percent", "gpu0")]
    assert 0.3e9 < busy[-1] - busy[0] < 1e9  # told until the end, though it stayed


def test_nvml_that_fails_midway_is_one_line_of_the_report(
    tmp_path: Path, sleeper: ProcessId
) -> None:
    nvml = Nvml()
    began = time.monotonic()

    def rates(handle: int) -> Any:
        if time.monotonic() - began > 0.25:
            raise NVMLError("GPU is lost")
        return Nvml.nvmlDeviceGetUtilizationRates(nvml, handle)

    nvml.nvmlDeviceGetUtilizationRates = rates  # type: ignore[method-assign]
    start = record(tmp_path, sleeper, GpuSource(lambda: nvml))
    lines = [line for line in closing_lines(start.result) if line.startswith("Source ")]
    assert lines == ["Source gpu was failed: NVML has failed: GPU is lost"]
    names = {reading.name for reading in start.trace.readings()}
    assert {"gpu_busy_percent", "machine_busy_ns"} <= names
    last_ns = max(r.ts_ns for r in start.trace.readings() if r.name == "machine_busy_ns")
    assert last_ns > start.begin_ns + 0.4e9  # the rest went on


def test_nvml_that_is_missing_is_one_line_of_the_report(
    tmp_path: Path, sleeper: ProcessId, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    start = record(tmp_path, sleeper, GpuSource())
    lines = [line for line in closing_lines(start.result) if line.startswith("Source ")]
    assert lines == [
        "Source gpu was skipped: no Python binding of NVML: install nvidia-ml-py beside coldtrace"
    ]
    names = {reading.name for reading in start.trace.readings()}
    assert "machine_busy_ns" in names and not any(name.startswith("gpu") for name in names)


SERVER = """
import socket, sys, time
with open(sys.argv[1] + "/model.safetensors", "rb") as file:
    while file.read(1 << 20):
        pass
end = time.process_time() + 0.5
while time.process_time() < end:
    pass
server = socket.create_server(("127.0.0.1", 0))
"""


@pytest.mark.real_kernel
def test_a_cold_run_says_what_it_dropped_and_how_warm_all_was(coldtrace_bin: Path) -> None:
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        model = Path(name) / "model"
        model.mkdir()
        (model / "config.json").write_text("{}")
        (model / "model.safetensors").write_bytes(os.urandom(MODEL_BYTES))
        for cold in (True, False):
            start, said = run(coldtrace_bin, Path(name), model, cold)
            dropped = "dropped the model's 2 files (8.4 MB) from the page cache: nothing of them"
            assert (dropped in said) is cold
            states = {cache.id: cache for cache in start.result.caches}
            weights = states["page_cache.weights"]
            assert weights.state == ("cold" if cold else "warm")
            held = MODEL_BYTES if not cold else 0
            assert weights.held_bytes == pytest.approx(held, abs=SOME_BYTES)
            added = {pages.inode: 0 for pages in start.trace.page_cache()}
            for pages in start.trace.page_cache():
                added[pages.inode] += pages.added_bytes
            inode = (model / "model.safetensors").stat().st_ino
            assert added.get(inode, 0) == pytest.approx(MODEL_BYTES - held, abs=SOME_BYTES)
            assert "Caches: page cache: weights" in " ".join(said.split())


def run(coldtrace: Path, folder: Path, model: Path, cold: bool) -> tuple[Start, str]:
    trace = folder / f"{'cold' if cold else 'warm'}.coldtrace"
    options = ["--cold"] if cold else []
    command = [coldtrace, "run", *options, "-o", trace, "--", sys.executable, "-c", SERVER, model]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    start = Start.open(trace)
    names = {reading.name for reading in start.trace.readings()}
    assert {"process_cpu_ns", "affinity_cpus", "machine_busy_ns"} <= names
    root = start.trace.processes[start.trace.meta["root"]]
    used = [
        reading.value
        for reading in start.trace.readings()
        if (reading.name, reading.subject) == ("process_cpu_ns", str(root.pid))
    ]
    assert 0.4e9 < used[-1] < 2e9
    return start, done.stderr


@pytest.mark.real_kernel
def test_a_quota_is_seen_to_throttle(coldtrace_bin: Path, tmp_path: Path) -> None:
    group = make_cgroup(quota_cpus=0.25)
    if group is None:
        pytest.skip("no cgroup with a CPU quota can be made here")
    (tmp_path / "model").mkdir()
    (tmp_path / "model/model.safetensors").write_bytes(b"x")
    trace = tmp_path / "t.coldtrace"
    enter = (
        f"echo $$ > {group}/cgroup.procs && exec {sys.executable} -c '{SERVER}' {tmp_path}/model"
    )
    try:
        command = [coldtrace_bin, "run", "-o", trace, "--", "sh", "-c", enter]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
    finally:
        remove_cgroup(group)
    readings = [each for each in Trace.open(trace).readings() if each.subject == str(group)]
    throttled = [each.value for each in readings if each.name == "cgroup_throttled_ns"]
    assert throttled[-1] - throttled[0] > 0.3e9
    assert {each.value for each in readings if each.name == "cgroup_quota_cpus"} == {0.25}
    [seconds] = [Start.open(trace).result.attribution.whole.of("throttled") / 1e9]
    assert seconds > 0.3


def make_cgroup(quota_cpus: float) -> Path | None:
    """A cgroup whose processes may use so much of the cores; None where that can't be."""
    name, quota_us = f"coldtrace-test-{os.getpid()}", round(quota_cpus * 100_000)
    tries = (
        (Path("/sys/fs/cgroup/cpu"), {"cpu.cfs_quota_us": f"{quota_us}"}),  # of 100 ms by default
        (Path("/sys/fs/cgroup"), {"cpu.max": f"{quota_us} 100000"}),
    )
    for root, values in tries:
        group = root / name
        try:
            group.mkdir()
            for file, value in values.items():
                (group / file).write_text(value)
        except OSError:
            remove_cgroup(group)
            continue
        return group
    return None


def remove_cgroup(group: Path) -> None:
    end = time.monotonic() + 5
    while group.exists() and time.monotonic() < end:
        try:
            group.rmdir()
        except OSError:
            time.sleep(0.1)
