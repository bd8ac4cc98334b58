"""The recorder: from made-up sources into a real file, whatever goes wrong."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from probes.events import (
    Event,
    FunctionSeen,
    ProcessExecuted,
    ProcessExited,
    ProcessFound,
    ProcessId,
    SampleCause,
    SocketListening,
    StackSampled,
)
from probes.source import SourceStats, SourceUnavailable
from tracer import launch
from tracer.errors import ColdtraceError
from tracer.owner import Owner
from tracer.recorder import COMMIT_S, Recorder, Recording
from tracer.session import Frames, Session
from tracer.trace import Note, SourceState, Trace, TraceWriter

CHILD = ProcessId(4_000_001, 50)
AF_INET = 2


class AnyListen:
    def is_ready(self, session: Session, event: SocketListening, frames: Frames) -> bool:
        return True


class FakeSource:
    """Yields one batch of events a poll; None in their place raises."""

    def __init__(
        self,
        name: str,
        batches: Sequence[list[Event] | None] = (),
        *,
        last: Sequence[Event] = (),
        refusal: str | None = None,
    ) -> None:
        self.name = name
        self.batches = list(batches)
        self.last = last
        self.refusal = refusal
        self.followed: list[ProcessId] = []
        self.is_open = False
        self.closed = 0
        self.count = 0

    def open(self) -> None:
        if self.refusal:
            raise SourceUnavailable(self.refusal)
        self.is_open = True

    def follow(self, process: ProcessId) -> None:
        self.followed.append(process)

    def poll(self, timeout_s: float) -> Iterable[Event]:
        if not self.batches:
            time.sleep(timeout_s)
            return ()
        batch = self.batches.pop(0)
        if batch is None:
            raise OSError("the ring is gone")
        self.count += len(batch)
        return batch

    def stats(self) -> SourceStats:
        return SourceStats({"all": self.count}, {"all": 3}, {})

    def close(self) -> Iterable[Event]:
        self.closed += 1
        return iter(self.last)


class NotingSource(FakeSource):
    def take_notes(self) -> list[tuple[int, str]]:
        notes = [(7, f"{self.name} has a remark")] if self.count else []
        self.count = 0
        return notes


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    """A real process, which the recorder can watch."""
    with subprocess.Popen(["sleep", "60"]) as sleeper:
        yield sleeper
        sleeper.kill()


class Bench:
    """Everything that a recorder needs around it."""

    def __init__(self, folder: Path, pid: int) -> None:
        self.path = folder / "start.coldtrace"
        self.root = ProcessId(pid, 5)
        self.writer = TraceWriter(self.path)
        self.said: list[str] = []
        self.session = Session(self.root, AnyListen())

    def executed(self, ts_ns: int = 10) -> Event:
        return ProcessExecuted(ts_ns, self.root, "/bin/vllm", ("vllm",), False)

    def sample(self, ts_ns: int) -> Event:
        return StackSampled(ts_ns, self.root, self.root.pid, 0, SampleCause.ON_CPU, (), False)

    def listens(self, ts_ns: int = 30) -> Event:
        return SocketListening(ts_ns, self.root, self.root.pid, AF_INET, 8000)

    def recorder(self, *sources: FakeSource, **options: Any) -> Recorder:
        return Recorder(sources, self.writer, self.session, say=self.said.append, **options)

    def record(self, *sources: FakeSource, **options: Any) -> Recording:
        with self.recorder(*sources, **options) as recorder:
            return recorder.run()

    def trace(self) -> Trace:
        return Trace.open(self.path)


@pytest.fixture
def bench(tmp_path: Path, process: subprocess.Popen[bytes]) -> Bench:
    return Bench(tmp_path, process.pid)


# Ends


def test_it_ends_at_readiness_and_takes_along_what_was_under_way(bench: Bench) -> None:
    source = FakeSource(
        "kernel",
        [[bench.executed()], [bench.sample(20)], [bench.listens(), bench.sample(31)]],
        last=[bench.sample(32)],
    )
    recording = bench.record(source, meta={"coldtrace": "1.0", "command": ["vllm"]})
    assert recording == Recording("ready", None)
    assert source.followed == [bench.root] and source.closed == 1
    trace = bench.trace()
    root = trace.meta["root"]
    assert trace.processes[root].pid == bench.root.pid
    assert [sample.ts_ns for sample in trace.samples(root)] == [20, 31, 32]
    meta = trace.meta
    assert (meta["begin_ns"], meta["seen_from_ns"], meta["ready_ns"]) == (10, 10, 30)
    assert (meta["outcome"], meta["command"], meta["wait_status"]) == ("ready", ["vllm"], None)
    assert meta["end_ns"] <= time.monotonic_ns()
    assert 0 <= meta["recorder"]["cpu_s"] < 5 and meta["recorder"]["peak_rss_bytes"] > 1 << 20
    assert abs(meta["clock"]["wall_ns"] - time.time_ns()) < 60_000_000_000
    assert meta["host"]["cpus"] == os.cpu_count()
    assert trace.sources == {"kernel": SourceState("open", "")}
    assert (trace.counts["kernel"].seen["all"], trace.counts["kernel"].lost["all"]) == (4, 3)


def test_the_roots_exit_ends_it(bench: Bench) -> None:
    source = FakeSource("kernel", [[bench.executed(), ProcessExited(40, bench.root, 256)]])
    assert bench.record(source).outcome == "failed"
    assert bench.trace().meta["wait_status"] == 256


def test_a_root_whose_exit_nobody_tells_ends_it(
    bench: Bench, process: subprocess.Popen[bytes]
) -> None:
    source = FakeSource("py-spy", [[bench.executed()]])
    with bench.recorder(source) as recorder:
        process.send_signal(signal.SIGKILL)
        assert recorder.run().outcome == "failed"
    root = bench.trace().processes[1]
    assert root.end_ns is not None and root.wait_status is None


def test_until_exit_goes_on_after_readiness(bench: Bench) -> None:
    exited = ProcessExited(90, bench.root, 0)
    source = FakeSource(
        "kernel", [[bench.executed()], [bench.listens()], [bench.sample(80)], [exited]]
    )
    assert bench.record(source, until="exit").outcome == "ready"
    assert [sample.ts_ns for sample in bench.trace().samples(1)] == [80]


def test_a_number_of_seconds_ends_it(bench: Bench) -> None:
    began_s = time.monotonic()
    recording = bench.record(FakeSource("kernel", [[bench.executed()]]), until=0.2)
    assert recording == Recording("interrupted", None)
    assert 0.2 <= time.monotonic() - began_s < 1


def test_being_asked_to_stop_ends_it(bench: Bench) -> None:
    asked = iter([False, False, True])
    source = FakeSource("kernel", [[bench.executed()]], last=[ProcessExited(40, bench.root, 2)])
    recording = bench.record(source, asked_to_stop=lambda: next(asked))
    assert recording.outcome == "interrupted"
    assert bench.trace().meta["outcome"] == "interrupted"


def test_it_waits_in_the_source_and_not_in_a_circle(bench: Bench) -> None:
    passes: list[int] = []
    cpu_s = time.process_time()
    batches: list[list[Event] | None] = [[bench.executed()], *([] for _ in range(10_000))]
    source = FakeSource("kernel", batches)
    bench.record(source, until=0.5, observers=[lambda events: passes.append(len(events))])
    assert len(passes) < 150
    assert time.process_time() - cpu_s < 0.25


# Sources that fail


def test_a_source_that_cannot_open_is_skipped_with_its_reason(bench: Bench) -> None:
    gpu = FakeSource("gpu", refusal="no driver; install one")
    kernel = FakeSource("kernel", [[bench.executed(), bench.listens()]])
    assert bench.record(gpu, kernel).outcome == "ready"
    trace = bench.trace()
    assert trace.sources["gpu"] == SourceState("skipped", "no driver; install one")
    assert bench.said == ["recording without gpu: no driver; install one"]
    assert [note.text for note in trace.notes] == bench.said
    assert gpu.followed == []


@pytest.mark.parametrize("required", [["gpu"], []])
def test_without_a_source_that_is_needed_nothing_is_left_behind(
    bench: Bench, required: list[str]
) -> None:
    sources = [FakeSource("kernel")] if required else []
    gpu = FakeSource("gpu", refusal="no driver; install one")
    with (
        pytest.raises(ColdtraceError, match="gpu: no driver; install one"),
        bench.recorder(*sources, gpu, required=required),
    ):
        pytest.fail("the command must not start")
    assert not bench.path.exists()
    assert all(source.closed == 1 for source in sources)


def test_a_command_that_does_not_start_leaves_no_file(bench: Bench) -> None:
    source = FakeSource("kernel")
    with pytest.raises(ColdtraceError, match="not found"), bench.recorder(source):
        raise ColdtraceError("vlm: not found", 127)
    assert not bench.path.exists() and source.closed == 1


def test_a_source_that_fails_is_dropped_and_the_rest_goes_on(bench: Bench) -> None:
    bad = FakeSource("gpu", [[], None])
    good = FakeSource("kernel", [[bench.executed()], [], [], [bench.listens()]])
    assert bench.record(bad, good).outcome == "ready"
    assert bad.closed == 1
    assert bench.trace().sources["gpu"] == SourceState("failed", "OSError: the ring is gone")
    assert bench.said == ["gpu has failed, recording goes on without it: OSError: the ring is gone"]


def test_with_no_source_left_it_stops_and_says_so(bench: Bench) -> None:
    recording = bench.record(FakeSource("kernel", [[bench.executed()], None]))
    assert recording == Recording("interrupted", "every source has failed")
    assert "the program goes on" in bench.said[-1]


def test_a_source_may_be_added_from_within_a_poll(bench: Bench) -> None:
    fallback = FakeSource("py-spy", [[bench.sample(25)], [bench.listens()]])

    class Calling(FakeSource):
        def poll(self, timeout_s: float) -> Iterable[Event]:
            if self.batches:
                recorder.add_source(fallback, CHILD, "process 7 is seen by py-spy")
            return super().poll(timeout_s)

    kernel = Calling("kernel", [[bench.executed()], []])
    with bench.recorder(kernel) as recorder:
        assert recorder.run().outcome == "ready"
    assert fallback.followed == [CHILD, CHILD] and fallback.is_open
    trace = bench.trace()
    assert trace.sources["py-spy"].state == "open"
    assert len(trace.samples(1)) == 1
    assert bench.said == ["process 7 is seen by py-spy"] * 2


def test_a_source_added_in_vain_is_told(bench: Bench) -> None:
    kernel = FakeSource("kernel", [[bench.executed()], [bench.listens()]])
    with bench.recorder(kernel) as recorder:
        recorder.add_source(FakeSource("py-spy", refusal="not installed"), CHILD, "by py-spy")
        assert recorder.run().outcome == "ready"
    assert bench.trace().sources["py-spy"] == SourceState("failed", "not installed")
    assert bench.said == ["py-spy has failed, recording goes on without it: not installed"]


def test_the_remarks_of_a_source_are_kept(bench: Bench) -> None:
    bench.record(NotingSource("py-spy", [[bench.executed(), bench.listens()]]))
    assert bench.trace().notes == [Note(7, "py-spy has a remark")]
    assert bench.said == ["py-spy has a remark"]


# Observers


def test_observers_see_every_batch_once_the_session_knows_it(bench: Bench) -> None:
    seen: list[tuple[int, int | None]] = []
    source = FakeSource(
        "kernel", [[bench.executed()], [], [bench.listens(), bench.sample(31)]], last=[]
    )
    bench.record(
        source, observers=[lambda events: seen.append((len(events), bench.session.ready_ns))]
    )
    assert seen[:3] == [(1, None), (0, None), (2, 30)]


def test_an_observer_that_fails_costs_the_progress_only(bench: Bench) -> None:
    def fail(events: Sequence[Event]) -> None:
        raise BrokenPipeError("nobody\nreads")

    source = FakeSource("kernel", [[bench.executed()], [], [bench.listens()]])
    assert bench.record(source, observers=[fail]).outcome == "ready"
    assert bench.said == ["no more progress is shown: BrokenPipeError: nobody reads"]


# Joining


def test_a_start_that_is_joined_says_from_when_it_was_seen(bench: Bench) -> None:
    session = bench.session = Session(bench.root, AnyListen(), joined=True)
    began_ns = time.monotonic_ns()
    found = ProcessFound(began_ns, bench.root, None, ("vllm",))
    assert bench.record(FakeSource("kernel", [[found], [bench.listens()]])).outcome == "ready"
    meta = bench.trace().meta
    assert meta["begin_ns"] == session.begin_ns == bench.root.start_ns
    assert began_ns < meta["seen_from_ns"] < time.monotonic_ns()
    assert bench.trace().processes[1].found


# The file


def test_a_kill_loses_a_second_at_most(tmp_path: Path) -> None:
    path = tmp_path / "start.coldtrace"
    words = [sys.executable, "-m", "tests.tracer.endless_recorder", str(path)]
    folder = Path(__file__).parents[2]
    with subprocess.Popen(words, cwd=folder, stdout=subprocess.PIPE) as recorder:
        assert recorder.stdout is not None
        recorder.stdout.readline()
        time.sleep(2 * COMMIT_S + 0.3)
        killed_ns = time.monotonic_ns()
        recorder.kill()
    trace = Trace.open(path)
    assert trace.meta["outcome"] == "interrupted"
    assert 0 < killed_ns - trace.samples(1)[-1].ts_ns < 1_000_000_000
    assert trace.counts["endless"].seen["sample"] > 0


def test_a_full_disk_stops_the_recording_only(
    bench: Bench, process: subprocess.Popen[bytes]
) -> None:
    functions: list[Event] = [
        FunctionSeen(20, bench.root, key, "/a.py", f"function_{key}", 1) for key in range(20_000)
    ]
    source = FakeSource("kernel", [[bench.executed()], functions])
    with bench.recorder(source) as recorder:
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, before[1]))
        try:
            recording = recorder.run()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert process.poll() is None and source.closed == 1
    assert recording.outcome == "interrupted"
    assert recording.problem is not None and "can't write" in recording.problem
    assert bench.said == [f"recording has stopped, the program goes on: {recording.problem}"]
    assert [note.text for note in bench.trace().notes] == bench.said


# For real

SERVER = """
import json, socket, time
time.sleep(0.3)
def serve():
    server = socket.socket()
    server.bind(("127.0.0.1", 0))
    server.listen()
serve()
time.sleep(60)
"""


class Serving:
    """Readiness is a listen below `serve`."""

    def is_ready(self, session: Session, event: SocketListening, frames: Frames) -> bool:
        return any(name == "serve" for _, name in frames)


@pytest.mark.real_kernel
def test_a_real_server_is_recorded_from_its_first_instruction(tmp_path: Path) -> None:
    from probes.kernel import KernelSource

    owner = Owner.of_caller({})
    command = [sys.executable, "-c", SERVER]
    launched = launch.start(command, owner, dict(os.environb), set())
    path = tmp_path / "start.coldtrace"
    session = Session(launched.process, Serving())
    with Recorder([KernelSource()], TraceWriter(path, owner), session) as recorder:
        launched.release()
        recording = recorder.run()
    os.kill(launched.process.pid, signal.SIGKILL)
    os.waitpid(launched.process.pid, 0)
    assert recording == Recording("ready", None)
    trace = Trace.open(path)
    root = trace.processes[trace.meta["root"]]
    assert root.execs[0].argv == tuple(command)
    assert trace.meta["begin_ns"] == root.execs[0].ts_ns
    assert 0.3e9 < trace.meta["ready_ns"] - trace.meta["begin_ns"] < 10e9
    assert root.end_ns is None
    assert not any(stats.lost for stats in trace.counts.values())
    names = {trace.functions[module.function_id].file for module in trace.modules()}
    assert any(name.endswith("/json/__init__.py") for name in names)
