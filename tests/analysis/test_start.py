"""From a trace to a result: roles, reasons, failures, versions, losses."""

from __future__ import annotations

from pathlib import Path

import pytest

from analysis.start import Start
from probes.events import ProcessId
from probes.source import SourceStats
from tests.analysis.synthetic import BEGIN_NS, ROOT, Story, at
from tracer.trace import TraceWriter


def test_a_role_is_told_by_stack_then_command_then_maker(tmp_path: Path) -> None:
    story = Story().sample(10, "main spawn")
    by_stack = story.fork(20, 201)
    by_command = story.fork(21, 202)
    by_maker = story.fork(22, 203)
    story.run(23, by_stack, "python3", "-m", "toy.inspect").sample(30, "worker", by_stack)
    story.run(23, by_command, "python3", "-m", "toy.inspect")
    story.run(23, by_maker, "python3", "-c", "spawn_main()")
    start = story.start(tmp_path, 100)
    assert [start.roles[id] for id in (1, 2, 3, 4)] == ["server", "worker", "inspector", "engine"]


def test_another_program_forked_by_a_maker_is_no_part(tmp_path: Path) -> None:
    story = Story().sample(10, "main spawn")
    tool, compiler, copy = story.fork(20, 201), story.fork(21, 202), story.fork(22, 203)
    story.run(23, tool, "/bin/uname", "-p").run(23, compiler, "/usr/bin/g++-12", "-O2")
    # Before it became another program it was a copy of its parent, stack and all.
    story.sample(24, "serve spawn", copy).run(25, copy, "/bin/sh", "-c", "true")
    start = story.start(tmp_path, 100)
    assert [start.roles[id] for id in (2, 3, 4)] == ["other", "compiler", "other"]


@pytest.mark.parametrize(
    ("argv", "stack", "why"),
    [
        (("toy", "serve", "--dry"), "main config", "--dry loads nothing"),
        (("toy", "serve", "--dry=yes"), "main config", "--dry loads nothing"),
        (("toy", "serve"), "main /lib/toy/stub.py:Stub.go", "the stub has no model"),
        (("toy", "serve"), "main config", "none of its functions was seen"),
    ],
)
def test_a_step_that_did_not_happen_says_why(
    argv: tuple[str, ...], stack: str, why: str, tmp_path: Path
) -> None:
    start = Story(argv).sample(10, stack).start(tmp_path, 20)
    load = start.result.steps[1]
    assert (load.id, load.happened, load.why_not) == ("load", False, why)
    assert start.result.steps[0].why_not is None


def test_a_substep_says_why_if_its_step_happened(tmp_path: Path) -> None:
    start = Story().sample(10, "main load").start(tmp_path, 20)
    reasons = {sub.id: sub.why_not for sub in start.result.steps[1].substeps}
    assert reasons == {
        "weights": None,
        "trial": "no trial was held",
        "tokens_server": None,
        "tokens_engine": None,
    }


def test_a_start_that_was_cut_short_blames_that(tmp_path: Path) -> None:
    start = Story().sample(10, "main config").start(tmp_path, 20, "interrupted")
    assert start.result.steps[1].why_not == "the start ended before it"


def test_without_stacks_nothing_is_said_not_to_have_happened(tmp_path: Path) -> None:
    start = Story().body(10, 20).start(tmp_path, 100)
    assert start.result.steps[1].why_not == "not seen, since no stacks were taken"
    assert {substep.why_not for substep in start.result.steps[0].substeps} == {None}


def test_a_failure_names_the_first_process_that_died(tmp_path: Path) -> None:
    story = Story().sample(10, "main spawn")
    engine = story.fork(20, 200)
    tool = story.fork(20, 201)
    story.run(21, tool, "/bin/false").exit(22, tool, 256)
    story.wait(30, "main wait_for_engine").sample(40, "engine load helper", engine)
    # Its exception passes through what was on the stack before, and touches the new in passing.
    story.sample(80, "engine load helper", engine).sample(90, "engine trial", engine)
    story.sample(94, "engine spawn", engine)
    story.exit(160, engine, 9).sample(175, "main config").exit(190, ROOT, 256)
    result = story.start(tmp_path, 200, "failed").result
    assert result.wall_ns == at(190) - BEGIN_NS
    assert result.failure is not None
    failure = result.failure
    assert (failure.step, failure.substep) == ("load", "weights")
    assert (failure.pid, failure.role, failure.wait_status) == (200, "engine", 9)
    assert failure.function == "other:Other.help"
    assert failure.engine_function == "model:Model.load"
    assert failure.root_wait_status == 256


def test_a_failure_before_any_python(tmp_path: Path) -> None:
    result = Story().exit(5, ROOT, 127 << 8).start(tmp_path, 50, "failed").result
    assert result.failure is not None
    assert (result.failure.pid, result.failure.substep) == (ROOT.pid, "boot")
    assert result.failure.function is None


def test_a_recorder_that_was_killed_leaves_an_interrupted_start(tmp_path: Path) -> None:
    path = tmp_path / "killed.coldtrace"
    writer = TraceWriter(path)
    for event in Story().sample(10, "main load").sample(30, "main load").events:
        writer.add(event)
    writer.set_meta("root", 1)
    writer.set_meta("begin_ns", BEGIN_NS)
    writer.close()
    result = Start.open(path).result
    assert result.outcome == "interrupted"
    assert result.wall_ns == at(30) - BEGIN_NS


def test_losses_cost_sources_and_versions_come_along(tmp_path: Path) -> None:
    path = tmp_path / "losses.coldtrace"
    writer = TraceWriter(path)
    for event in Story().sample(10, "main load").events:
        writer.add(event)
    for key, value in {
        "root": 1,
        "begin_ns": BEGIN_NS,
        "outcome": "ready",
        "ready_ns": at(20),
        "versions": {"python": "3.12.1"},
        "engine": {"name": "toy", "version": "1.2"},
        "recorder": {"cpu_s": 0.5, "peak_rss_bytes": 1000},
    }.items():
        writer.set_meta(key, value)
    writer.set_counts("bpf", SourceStats({"sample": 9}, {"sample": 2}, {"sample": 700}))
    writer.set_counts("py-spy", SourceStats({"sample": 9}, {"sample": 1}, {}))
    writer.set_source("py-spy", "skipped", "not installed")
    writer.note(at(1), "a remark")
    writer.close()
    result = Start.open(path).result
    assert result.lost_events == 3
    assert result.lost == {"sample": 3}
    assert result.overhead.recorder_cpu_s == 0.5
    assert result.overhead.observed_cost_ns == 700
    assert result.versions == {"python": "3.12.1", "toy": "1.2"}
    assert [(each.name, each.state) for each in result.sources] == [("py-spy", "skipped")]
    assert "a remark" in result.notes


def test_a_command_that_is_not_the_engine_is_told_so(tmp_path: Path) -> None:
    start = Story(("python3", "app.py")).sample(10, "helper").start(tmp_path, 20)
    assert start.result.engine is None
    assert any("nothing of toy was seen" in note for note in start.result.notes)


def test_processes_are_listed_by_time_with_their_parents(tmp_path: Path) -> None:
    story = Story().sample(10, "main spawn")
    engine = story.fork(20, 200)
    story.exit(50, engine, 0)
    lives = story.start(tmp_path, 100).result.processes
    assert [(life.pid, life.parent_pid, life.role) for life in lives] == [
        (ROOT.pid, None, "server"),
        (200, ROOT.pid, "engine"),
    ]
    assert (lives[0].start_ns, lives[0].end_ns) == (BEGIN_NS, None)
    assert (lives[1].start_ns, lives[1].end_ns) == (at(20), at(50))


def test_a_process_is_known_by_pid_and_start(tmp_path: Path) -> None:
    story = Story().sample(10, "main wait_for_inspector")
    first, again = ProcessId(300, at(20)), ProcessId(300, at(60))
    assert story.fork(20, 300) == first
    story.run(20, first, "python3", "-m", "toy.inspect").exit(40, first)
    assert story.fork(60, 300) == again
    story.run(60, again, "/bin/true").exit(80, again)
    start = story.start(tmp_path, 100)
    assert start.roles == {1: "server", 2: "inspector", 3: "other"}
