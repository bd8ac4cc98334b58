"""py-spy as a source: with programs that act like it, then with the real one."""

from __future__ import annotations

import os
import shlex
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from probes import proc
from probes.events import (
    Event,
    FunctionSeen,
    ProcessExecuted,
    ProcessExited,
    ProcessForked,
    ProcessId,
    SampleCause,
    StackSampled,
)
from probes.pyspy import PySpySource, find_program
from probes.source import SourceUnavailable

RECORDED = Path(__file__).parent / "data" / "forked.chrometrace.json"
PARENT, CHILD = ProcessId(3412, 0), ProcessId(3414, 1)
STOPPED = "py-spy> Wrote chrome trace to 'x'. Samples: 32 Errors: 3\npy-spy> Visit chrome://tracing"

PHASES = """
import os, sys, threading, time

class Phase:
    def spin(self, seconds):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            pass

def snooze(seconds):
    time.sleep(seconds)

def say(word):
    print(os.getpid(), word, time.monotonic_ns(), flush=True)

def work():
    say("spin")
    Phase().spin(0.6)
    say("snooze")
    snooze(0.5)
    say("again")
    Phase().spin(0.4)
    say("end")

time.sleep(0.3)
if "fork" in sys.argv and os.fork() == 0:
    work()
    os._exit(0)
thread = threading.Thread(target=snooze, args=(0.7,))
thread.start()
work()
time.sleep(0.2)
"""


def poll_until(source: PySpySource, done: Callable[[], object]) -> None:
    deadline = time.monotonic() + 10
    while not done():
        assert time.monotonic() < deadline
        source.poll(0.02)


@dataclass(frozen=True, slots=True)
class Sampled:
    """What a source gave for a program, with the names of the functions."""

    samples: list[tuple[StackSampled, tuple[str, ...]]]
    notes: list[str]
    lost: dict[str, int]

    def changes(self, pid: int) -> list[tuple[int, str]]:
        """When the main thread of `pid` came to run another innermost function of ours."""
        found: list[tuple[int, str]] = []
        for sample, names in self.samples:
            if (sample.process.pid, sample.tid) == (pid, pid) and names:
                own = next((name for name in names if name in ("Phase.spin", "snooze")), "")
                if own and (not found or found[-1][1] != own):
                    found.append((sample.ts_ns, own))
        return found


def collect(source: PySpySource) -> Sampled:
    names: dict[tuple[ProcessId, int], str] = {}
    samples = []
    times = []
    for event in source.close():
        times.append(event.ts_ns)
        if isinstance(event, FunctionSeen):
            names[event.process, event.key] = event.name
        elif isinstance(event, StackSampled):
            frames = tuple(names[event.process, key] for key in event.frames)
            samples.append((event, frames))
    assert times == sorted(times)
    return Sampled(samples, [text for _, text in source.take_notes()], source.stats().lost)


# Programs in py-spy's place.


@pytest.fixture
def stand_in(tmp_path: Path) -> Callable[[str], Path]:
    """A program that runs a shell script in py-spy's place; $OUT is the file to write."""

    def make(script: str) -> Path:
        program = tmp_path / "py-spy"
        program.write_text(
            f'#!/bin/sh\nOUT="$5"\nCALLS={shlex.quote(str(tmp_path))}/calls\n{script}'
        )
        program.chmod(0o755)
        return program

    return make


@pytest.fixture
def sleeper() -> Iterator[ProcessId]:
    with subprocess.Popen(["sleep", "60"]) as child:
        process = proc.process_id(child.pid)
        assert process is not None
        yield process
        child.kill()


def opened(program: Path, *, subprocesses: bool = False) -> PySpySource:
    source = PySpySource(99, subprocesses=subprocesses, program=program)
    source.open()
    return source


def writes_recorded(copy: str = "cat") -> str:
    """A script that samples until it is interrupted, then writes the recorded file."""
    return f"""
trap '{copy} {shlex.quote(str(RECORDED))} > "$OUT"; echo "{STOPPED}"; exit 0' INT
echo 'py-spy> Sampling process 99 times a second. Press Control-C to exit.'
while :; do sleep 0.02; done
"""


def sampling(source: PySpySource) -> None:
    """Poll until the latest stand-in has said that it samples."""
    poll_until(source, lambda: source._runs[-1].sampling_ns)


def test_stacks_of_both_processes_on_our_clock(
    stand_in: Callable[[str], Path], sleeper: ProcessId
) -> None:
    source = opened(stand_in(writes_recorded()), subprocesses=True)
    before_ns = time.monotonic_ns()
    source.follow(sleeper)
    after_ns = time.monotonic_ns()
    source.observe([ProcessForked(1, sleeper, PARENT), ProcessForked(2, PARENT, CHILD)])
    sampling(source)
    found = collect(source)
    for process in (PARENT, CHILD):
        mine = [(s, names) for s, names in found.samples if s.process == process]
        assert [names[0] for _, names in mine] == ["Phase.spin", "snooze"]
        assert all(s.tid == process.pid and s.cause == SampleCause.CHANGE for s, _ in mine)
    first, _ = found.samples[0]
    assert before_ns - 604_090_000 <= first.ts_ns - 67_078_000 <= after_ns
    assert found.lost == {"sample": 3}
    assert source.stats().seen == {"sample": 32}
    assert found.notes == []


def test_processes_that_nobody_named_are_lost_not_guessed(
    stand_in: Callable[[str], Path], sleeper: ProcessId
) -> None:
    source = opened(stand_in(writes_recorded()))
    source.follow(sleeper)
    sampling(source)
    found = collect(source)
    assert found.samples == []
    assert found.lost["stack of an unknown process"] > 0


def test_a_reused_pid_goes_to_the_process_of_that_moment(
    stand_in: Callable[[str], Path], sleeper: ProcessId
) -> None:
    later = ProcessId(PARENT.pid, time.monotonic_ns() + 10**12)
    source = opened(stand_in(writes_recorded()))
    source.follow(sleeper)
    source.observe([ProcessForked(1, sleeper, later), ProcessForked(1, sleeper, PARENT)])
    sampling(source)
    assert {s.process for s, _ in collect(source).samples} == {PARENT}


def test_the_folder_is_private_and_removed(
    stand_in: Callable[[str], Path], sleeper: ProcessId
) -> None:
    source = opened(stand_in(writes_recorded()))
    assert source._folder is not None
    folder = Path(source._folder.name)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    source.follow(sleeper)
    sampling(source)
    collect(source)
    assert not folder.exists()


def test_no_py_spy(tmp_path: Path) -> None:
    with pytest.raises(SourceUnavailable, match="pip install py-spy"):
        PySpySource(99, subprocesses=False, program=tmp_path / "none").open()


def test_it_tries_again_until_there_is_a_python(
    stand_in: Callable[[str], Path], tmp_path: Path, sleeper: ProcessId
) -> None:
    script = """
echo call >> "$CALLS"
[ $(wc -l < "$CALLS") -ge 3 ] || { echo 'Error: Failed to find python version' >&2; exit 1; }
"""
    source = opened(stand_in(script + writes_recorded()))
    source.follow(sleeper)
    source.observe([ProcessForked(1, sleeper, PARENT)])
    sampling(source)
    found = collect(source)
    assert found.samples
    assert found.notes == []
    assert (tmp_path / "calls").read_text().count("call") == 3


def test_a_refusal_is_told_once_and_not_tried_again(
    stand_in: Callable[[str], Path], tmp_path: Path, sleeper: ProcessId
) -> None:
    script = 'echo call >> "$CALLS"; printf "Permission Denied: \\033[2J try sudo\\n" >&2; exit 1'
    source = opened(stand_in(script))
    source.follow(sleeper)
    for _ in range(30):
        source.poll(0.02)
    found = collect(source)
    (note,) = found.notes
    assert "Permission Denied: \\x1b[2J try sudo" in note
    assert found.lost == {"process": 1}
    assert (tmp_path / "calls").read_text().count("call") == 1


def test_a_process_that_ends_first_is_told(stand_in: Callable[[str], Path]) -> None:
    with subprocess.Popen(["sleep", "60"]) as child:
        process = proc.process_id(child.pid)
        assert process is not None
        source = opened(stand_in("exec sleep 60"))
        source.follow(process)
        child.kill()
    source.observe([ProcessExited(time.monotonic_ns(), process, 9)])
    poll_until(source, lambda: source.stats().lost == {"process": 1})
    (note,) = collect(source).notes
    assert f"process {process.pid}" in note


def test_one_that_does_not_stop_is_killed_and_counted(
    stand_in: Callable[[str], Path], sleeper: ProcessId, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("probes.pyspy._STOP_S", 0.3)
    source = opened(stand_in("trap '' INT; echo 'Sampling process'; exec sleep 60"))
    source.follow(sleeper)
    sampling(source)
    found = collect(source)
    assert found.lost["output"] == 1
    assert any("didn't stop" in note for note in found.notes)


def test_output_cut_short_keeps_what_came_before(
    stand_in: Callable[[str], Path], sleeper: ProcessId
) -> None:
    source = opened(stand_in(writes_recorded("head -c 9000")))
    source.follow(sleeper)
    source.observe([ProcessForked(1, sleeper, PARENT)])
    sampling(source)
    found = collect(source)
    assert found.samples
    assert found.lost["output"] == 1
    assert any("cut short" in note for note in found.notes)


def test_a_new_program_in_the_process_starts_py_spy_anew(
    stand_in: Callable[[str], Path], tmp_path: Path, sleeper: ProcessId
) -> None:
    source = opened(stand_in('echo call >> "$CALLS"' + writes_recorded()))
    source.follow(sleeper)
    sampling(source)
    source.observe([ProcessExecuted(1, sleeper, "earlier", (), truncated=False)])
    assert len(source._runs) == 1
    source.observe([ProcessExecuted(time.monotonic_ns(), sleeper, "now", (), truncated=False)])
    assert len(source._runs) == 2
    sampling(source)
    collect(source)
    assert (tmp_path / "calls").read_text().count("call") == 2


# The real py-spy.


def trace(argv: Sequence[str], *, subprocesses: bool, seconds: float) -> tuple[Sampled, list[str]]:
    """Run `argv` under the real py-spy; also gives the lines that it printed."""
    source = PySpySource(99, subprocesses=subprocesses)
    source.open()
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as child:
        process = proc.process_id(child.pid)
        assert process is not None
        source.follow(process)
        known = {child.pid}
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            source.poll(0.02)
            source.observe(forks(process, known))
        found = collect(source)
        child.kill()
        assert child.stdout is not None
        return found, child.stdout.read().splitlines()


def forks(parent: ProcessId, known: set[int]) -> list[Event]:
    events: list[Event] = []
    for pid in proc.descendants(parent.pid):
        child = proc.process_id(pid)
        if pid not in known and child is not None:
            known.add(pid)
            events.append(ProcessForked(child.start_ns, parent, child))
    return events


def moments(lines: Sequence[str]) -> dict[int, list[int]]:
    said: dict[int, list[int]] = {}
    for line in lines:
        pid, _, ts_ns = line.split()
        said.setdefault(int(pid), []).append(int(ts_ns))
    return said


def pythons() -> list[str]:
    """One of each version from 3.10 on, as far as there are any."""
    found = [sys.executable]
    for minor in range(10, 15):
        path = shutil.which(f"python3.{minor}")
        if path and subprocess.run([path, "-c", ""], stderr=subprocess.DEVNULL).returncode == 0:
            found.append(path)
    return found


@pytest.mark.real_kernel
@pytest.mark.parametrize("python", pythons())
def test_real_phases(tmp_path: Path, python: str) -> None:
    program = tmp_path / "phases.py"
    program.write_text(PHASES)
    found, lines = trace([python, str(program)], subprocesses=False, seconds=2.4)
    ((pid, said),) = moments(lines).items()
    changes = found.changes(pid)
    expected = ["Phase.spin", "snooze", "Phase.spin"]
    plain = [name.removeprefix("Phase.") for name in expected]
    assert [name.removeprefix("Phase.") for _, name in changes] == plain
    for (ts_ns, _), moment_ns in zip(changes, said, strict=False):
        assert -20_000_000 < ts_ns - moment_ns < 150_000_000
    others = {s.tid for s, names in found.samples if s.tid != pid and "snooze" in names}
    assert len(others) == 1
    assert found.notes == []


@pytest.mark.real_kernel
def test_real_names_are_qualified_and_files_whole(tmp_path: Path) -> None:
    program = tmp_path / "phases.py"
    program.write_text(PHASES)
    source = PySpySource(99, subprocesses=False)
    source.open()
    with subprocess.Popen([sys.executable, str(program)], stdout=subprocess.DEVNULL) as child:
        process = proc.process_id(child.pid)
        assert process is not None
        source.follow(process)
        end = time.monotonic() + 0.8
        while time.monotonic() < end:
            source.poll(0.05)
        seen = {(e.name, e.file, e.line) for e in source.close() if isinstance(e, FunctionSeen)}
        child.kill()
    line = PHASES.splitlines().index("    def spin(self, seconds):") + 1
    assert ("Phase.spin", str(program), line) in seen


@pytest.mark.real_kernel
def test_real_fork_is_told_apart(tmp_path: Path) -> None:
    program = tmp_path / "phases.py"
    program.write_text(PHASES)
    found, lines = trace([sys.executable, str(program), "fork"], subprocesses=True, seconds=2.4)
    said = moments(lines)
    assert len(said) == 2
    for pid in said:
        assert [name for _, name in found.changes(pid)] == ["Phase.spin", "snooze", "Phase.spin"]


@pytest.mark.real_kernel
def test_real_program_that_becomes_python_later(tmp_path: Path) -> None:
    program = tmp_path / "phases.py"
    program.write_text(PHASES)
    script = f"sleep 0.4; exec {shlex.quote(sys.executable)} {shlex.quote(str(program))}"
    found, lines = trace(["sh", "-c", script], subprocesses=False, seconds=2.8)
    ((pid, _),) = moments(lines).items()
    assert [name for _, name in found.changes(pid)] == ["Phase.spin", "snooze", "Phase.spin"]


@pytest.mark.real_kernel
def test_real_program_that_dies_early() -> None:
    code = "import os, time; time.sleep(0.4); os._exit(3)"
    found, _ = trace([sys.executable, "-c", code], subprocesses=False, seconds=1.0)
    assert found.samples
    assert found.notes == []


@pytest.mark.real_kernel
def test_real_program_that_is_no_python() -> None:
    found, _ = trace(["sleep", "5"], subprocesses=False, seconds=1.0)
    assert found.samples == []
    (note,) = found.notes
    # On a busy machine py-spy may not come to its verdict in time.
    assert "Failed to find python version" in note or "before an interpreter was found" in note
    assert found.lost == {"process": 1}


def test_py_spy_is_found_beside_the_tracer() -> None:
    program = find_program()
    assert program is not None
    assert os.access(program, os.X_OK)
