"""The partition: made-up starts of which every sub-step's time is known exactly."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from analysis.steps import MAX_HANDOVERS
from probes.events import ProcessId, SampleCause
from tests.analysis.synthetic import BEGIN_NS, MS, ROOT, Story, at, times

# At 100 Hz a period is 10 ms.


def test_samples_on_the_cpu_meet_in_the_middle(tmp_path: Path) -> None:
    story = Story().sample(10, "main config").sample(20, "main config").sample(30, "main load")
    assert times(story.start(tmp_path, 40)) == {"boot": 10, "config": 15, "weights": 15}


def test_a_wait_holds_until_half_a_period_before_the_next_sample(tmp_path: Path) -> None:
    story = Story().sample(10, "main config").wait(20, "main config").sample(500, "main load")
    assert times(story.start(tmp_path, 600)) == {"boot": 10, "config": 485, "weights": 105}


def test_a_wait_shorter_than_a_period_ends_in_the_middle(tmp_path: Path) -> None:
    story = Story().wait(10, "main config").sample(14, "main load")
    assert times(story.start(tmp_path, 20)) == {"boot": 10, "config": 2, "weights": 8}


def test_a_sampler_that_reports_changes_says_when(tmp_path: Path) -> None:
    story = Story()
    story.sample(10, "main config", cause=SampleCause.CHANGE)
    story.sample(500, "main load", cause=SampleCause.CHANGE)
    assert times(story.start(tmp_path, 600)) == {"boot": 10, "config": 490, "weights": 100}


def test_the_innermost_signature_owns_the_moment(tmp_path: Path) -> None:
    story = Story().sample(10, "main config load helper").sample(20, "main load config")
    assert times(story.start(tmp_path, 30)) == {"boot": 10, "weights": 5, "config": 15}


def test_a_whole_signature_owns_what_runs_inside(tmp_path: Path) -> None:
    story = Story().sample(10, "main rehearse load helper").sample(20, "main load")
    assert times(story.start(tmp_path, 30)) == {"boot": 10, "trial": 5, "weights": 15}


def test_a_stack_without_a_signature_is_unattributed(tmp_path: Path) -> None:
    story = Story().sample(10, "main helper").sample(20, "main helper")
    start = story.start(tmp_path, 30)
    assert times(start) == {"boot": 10, "unattributed": 20}
    assert [start.stacks.innermost(s.stack_id) for s in start.result.segments] == [
        None,
        "other:Other.help",
    ]


def test_samples_of_other_threads_say_nothing(tmp_path: Path) -> None:
    story = Story().sample(10, "main config").sample(20, "main load", tid=777)
    assert times(story.start(tmp_path, 30)) == {"boot": 10, "config": 20}


def test_samples_without_python_are_passed_over(tmp_path: Path) -> None:
    story = Story().sample(5, "").sample(10, "main config").sample(20, "")
    assert times(story.start(tmp_path, 30)) == {"boot": 10, "config": 20}


# Module bodies -----------------------------------------------------------------


def test_module_bodies_are_exact(tmp_path: Path) -> None:
    story = Story().body(3, 13).body(14, 18)
    assert times(story.start(tmp_path, 20)) == {"boot": 3, "imports": 14, "unattributed": 3}


def test_a_sample_in_the_import_machinery_ends_with_the_body(tmp_path: Path) -> None:
    story = Story().body(3, 17).sample(10, "main import body").sample(20, "main config")
    assert times(story.start(tmp_path, 30)) == {"boot": 3, "imports": 14, "config": 13}


def test_an_import_begins_with_its_body(tmp_path: Path) -> None:
    story = Story().sample(10, "main config").body(12, 28).sample(20, "main import body")
    assert times(story.start(tmp_path, 28)) == {"boot": 10, "config": 2, "imports": 16}


def test_imports_inside_an_outer_signature_are_imports(tmp_path: Path) -> None:
    story = Story().sample(10, "main config").body(12, 15).sample(20, "main config")
    assert times(story.start(tmp_path, 30)) == {"boot": 10, "config": 17, "imports": 3}


def test_imports_inside_another_signature_are_part_of_it(tmp_path: Path) -> None:
    story = Story().sample(10, "main load").body(12, 15).sample(20, "main load import body")
    assert times(story.start(tmp_path, 30)) == {"boot": 10, "weights": 20}


def test_a_sample_between_bodies_keeps_to_its_gap(tmp_path: Path) -> None:
    story = Story().body(2, 20).sample(22, "main load").body(24, 40).sample(30, "main import")
    assert times(story.start(tmp_path, 40)) == {"boot": 4, "imports": 34, "weights": 2}


def test_the_program_itself_is_no_import(tmp_path: Path) -> None:
    story = Story().body(2, None, "main").body(4, 8, depth=1).body(9, 10, "<string>:<module>")
    assert times(story.start(tmp_path, 12)) == {"boot": 2, "imports": 4, "unattributed": 6}


def test_a_body_that_never_returned_lasts_to_the_end(tmp_path: Path) -> None:
    assert times(Story().body(4, None).start(tmp_path, 12)) == {"boot": 4, "imports": 8}


def test_bodies_on_other_threads_say_nothing(tmp_path: Path) -> None:
    story = Story().sample(10, "main helper").body(12, 15, tid=777)
    assert times(story.start(tmp_path, 20)) == {"boot": 10, "unattributed": 10}


# Other processes ------------------------------------------------------------------


def with_engine(story: Story, until_ms: float = 200) -> ProcessId:
    """A root that forks an engine at 20 ms and waits for it, from then until 195 ms."""
    story.sample(10, "main spawn")
    engine = story.fork(20, 200)
    story.run(21, engine, "python3", "-c", "from multiprocessing.spawn import spawn_main")
    story.wait(30, "main wait_for_engine").sample(until_ms, "main startup")
    return engine


def test_time_is_handed_over_to_the_process_that_is_waited_for(tmp_path: Path) -> None:
    story = Story()
    engine = with_engine(story)
    story.sample(40, "engine config", engine).sample(60, "engine load", engine)
    expected = {"boot": 10, "spawn": 10 + 20, "config": 10, "weights": 145, "listen": 15}
    assert times(story.start(tmp_path, 210)) == expected


def test_the_waiter_owns_what_nobody_lives_for(tmp_path: Path) -> None:
    story = Story()
    engine = with_engine(story)
    story.sample(40, "engine load", engine).exit(100, engine)
    expected = {"boot": 10, "spawn": 30, "weights": 60, "unattributed": 95, "listen": 15}
    assert times(story.start(tmp_path, 210)) == expected


def test_hand_over_goes_on_from_process_to_process(tmp_path: Path) -> None:
    story = Story()
    engine = with_engine(story)
    story.sample(40, "engine load", engine).sample(50, "engine engine_fork", engine)
    worker = story.fork(55, 300, engine)
    story.wait(60, "engine engine_wait", engine)
    story.sample(70, "worker config", worker).sample(80, "worker trial", worker)
    start = story.start(tmp_path, 210)
    assert start.roles == {1: "server", 2: "engine", 3: "worker"}
    owners = [(s.process_id, s.substep, s.duration_ns / MS) for s in start.result.segments]
    assert owners == [
        (1, "boot", 10),
        (1, "spawn", 10),
        (2, "spawn", 20),
        (2, "weights", 5),
        (2, None, 10),
        (3, "boot", 15),
        (3, "config", 5),
        (3, "trial", 120),
        (1, "listen", 15),
    ]


def test_a_silent_thread_leaves_its_time_to_a_process_that_has_work(tmp_path: Path) -> None:
    story = Story().sample(10, "main spawn")
    engine = story.fork(10, 200)
    worker = story.fork(10, 300, engine)
    story.wait(10, "main wait_for_engine")
    story.sample(10, "engine config", engine).sample(110, "engine tokens", engine)
    story.sample(10, "worker idle", worker, SampleCause.CHANGE)
    story.sample(30, "worker load", worker, SampleCause.CHANGE)
    story.sample(90, "worker idle", worker, SampleCause.CHANGE)
    expected = {"boot": 10, "config": 20, "weights": 60, "tokens_engine": 30}
    assert times(story.start(tmp_path, 120)) == expected


def test_a_silent_thread_that_made_nothing_keeps_its_time(tmp_path: Path) -> None:
    story = Story().sample(10, "main config").sample(110, "main load")
    assert times(story.start(tmp_path, 120)) == {"boot": 10, "config": 50, "weights": 60}


def test_of_several_workers_the_slowest_counts(tmp_path: Path) -> None:
    story = Story().sample(10, "main spawn")
    engine = story.fork(20, 200)
    story.wait(20, "main wait_for_engine").wait(20, "engine engine_wait", engine)
    fast, slow = story.fork(20, 301, engine), story.fork(20, 302, engine)
    for worker, done_ms, work in ((fast, 60, "load"), (slow, 100, "trial")):
        story.sample(20, f"worker {work}", worker, SampleCause.CHANGE)
        story.sample(done_ms, "worker idle", worker, SampleCause.CHANGE)
    start = story.start(tmp_path, 120)
    # What is left of the wait when even the slowest has let go is the waiter's own.
    assert times(start) == {"boot": 10, "spawn": 5, "trial": 80, "unattributed": 25}


def test_workers_that_live_one_after_the_other_each_count(tmp_path: Path) -> None:
    story = Story().sample(10, "main wait_for_inspector")
    for begin, end in ((20, 40), (50, 90)):
        inspector = story.fork(begin, 300 + begin)
        story.run(begin, inspector, "python3", "-m", "toy.inspect").exit(end, inspector)
    expected = {"boot": 10, "inspection": 60, "unattributed": 30}
    assert times(story.start(tmp_path, 100)) == expected


def test_a_role_may_fix_what_its_time_is(tmp_path: Path) -> None:
    story = Story().sample(10, "main wait_for_inspector")
    inspector = story.fork(10, 300)
    story.run(11, inspector, "python3", "-m", "toy.inspect").body(15, 60, process=inspector)
    story.sample(20, "main import body", inspector).sample(70, "main load", inspector)
    assert times(story.start(tmp_path, 100)) == {"boot": 10, "inspection": 90}


def test_the_same_function_counts_by_role(tmp_path: Path) -> None:
    story = Story()
    engine = with_engine(story)
    story.sample(30, "engine tokens", engine).sample(190, "main tokens")
    start = story.start(tmp_path, 200)
    assert times(start)["tokens_engine"] > 100
    assert 0 < times(start)["tokens_server"] < 20


def test_an_exec_begins_a_program_anew(tmp_path: Path) -> None:
    story = Story().sample(10, "main config").run(20, ROOT, "toy", "serve")
    story.sample(30, "main load")
    assert times(story.start(tmp_path, 40)) == {"boot": 20, "config": 10, "weights": 10}


def test_a_shell_hands_over_to_the_server_below_it(tmp_path: Path) -> None:
    story = Story(("bash", "start.sh"))
    server = story.fork(30, 150)
    story.run(31, server, "python3", "/bin/toy", "serve").sample(40, "main load", server)
    start = story.start(tmp_path, 100)
    assert start.roles == {1: "other", 2: "server"}
    assert times(start) == {"unattributed": 30, "boot": 10, "weights": 60}


def test_a_program_that_starts_the_server_is_not_the_server(tmp_path: Path) -> None:
    story = Story(("timeout", "60", "toy", "serve"))
    server = story.fork(5, 150)
    story.run(6, server, "/bin/toy", "serve").sample(40, "main load", server)
    start = story.start(tmp_path, 100)
    assert start.roles == {1: "other", 2: "server"}
    assert times(start) == {"unattributed": 5, "boot": 35, "weights": 60}


def test_processes_that_wait_for_one_another_for_ever_come_to_an_end(tmp_path: Path) -> None:
    story = Story().sample(1, "main wait_for_engine")
    parent = ROOT
    for depth in range(3 * MAX_HANDOVERS):
        parent = story.fork(2, 200 + depth, parent)
        story.sample(3, "engine wait_for_engine", parent)
    start = story.start(tmp_path, 10)
    assert sum(times(start).values()) == pytest.approx(10)


# A part of a start --------------------------------------------------------------------


def test_what_was_before_the_tracer_came_is_missed(tmp_path: Path) -> None:
    story = Story()
    story.events.clear()
    story.found(ROOT, None, 50).sample(60, "main config").sample(70, "main load")
    start = story.start(tmp_path, 100, begin_ns=BEGIN_NS, seen_from_ns=at(50))
    assert times(start) == {"missed": 50, "config": 15, "weights": 35}
    assert start.result.steps[2].why_not is not None
    assert "before the tracer came" in start.result.steps[2].why_not


def test_one_that_waited_when_the_tracer_came_gives_no_sign(tmp_path: Path) -> None:
    story = Story()
    story.events.clear()
    engine = ProcessId(200, at(10))
    story.found(ROOT, None, 50).found(engine, ROOT, 50)
    story.sample(55, "engine load", engine).sample(90, "main startup")
    start = story.start(tmp_path, 100, begin_ns=BEGIN_NS, seen_from_ns=at(50))
    assert times(start) == {"missed": 50, "weights": 35, "listen": 15}


def test_no_stack_at_all_leaves_the_time_unattributed(tmp_path: Path) -> None:
    assert times(Story().start(tmp_path, 100)) == {"boot": 100}
    tmp_path.joinpath("start.coldtrace").unlink()
    story = Story().body(10, 20)
    assert times(story.start(tmp_path, 100)) == {"boot": 10, "imports": 10, "unattributed": 80}


def test_a_stack_of_something_exact_holds_only_among_others(tmp_path: Path) -> None:
    story = Story().sample(10, "main config").sample(15, "main load", cause=SampleCause.EDGE)
    story.sample(20, "main load").sample(300, "main startup", cause=SampleCause.EDGE)
    assert times(story.start(tmp_path, 400)) == {"boot": 10, "config": 2.5, "weights": 387.5}


def test_a_stack_holds_for_no_more_than_a_period_back(tmp_path: Path) -> None:
    story = Story().body(5, None, "main").body(20, 30, depth=1).sample(100, "main load")
    expected = {"boot": 5, "imports": 10, "unattributed": 15 + 60, "weights": 20}
    assert times(story.start(tmp_path, 110)) == expected


def test_a_start_without_any_time(tmp_path: Path) -> None:
    assert times(Story().start(tmp_path, 0)) == {}


def test_plain_names_of_old_interpreters(tmp_path: Path) -> None:
    story = Story()
    story.sample(10, "/lib/toy/config.py:make").sample(20, "/lib/toy/model.py:load")
    story.sample(30, "/lib/elsewhere.py:load")
    expected = {"boot": 10, "config": 5, "weights": 10, "unattributed": 15}
    assert times(story.start(tmp_path, 40)) == expected


def test_plain_names_mean_nothing_where_qualified_ones_are_known(tmp_path: Path) -> None:
    story = Story().sample(10, "main config").sample(20, "/lib/toy/model.py:load")
    assert times(story.start(tmp_path, 30)) == {"boot": 10, "config": 5, "unattributed": 15}


# Any trace ------------------------------------------------------------------------------

STACKS = (
    "main",
    "main config",
    "main spawn",
    "main wait_for_engine",
    "main wait_for_inspector",
    "main import body",
    "main config import body",
    "engine engine_wait",
    "engine engine_fork",
    "engine load",
    "worker idle",
    "worker rehearse load",
    "tokens",
    "",
)


def anything(seed: int) -> Story:
    """A start of which nothing is sure but that its events are events."""
    chance = random.Random(seed)
    story = Story()
    processes = [ROOT]
    for _ in range(chance.randrange(8)):
        child = story.fork(chance.uniform(-5, 90), 200 + len(processes), chance.choice(processes))
        processes.append(child)
    for _ in range(chance.randrange(300)):
        process, ms = chance.choice(processes), chance.uniform(-10, 120)
        match chance.randrange(12):
            case 0:
                story.run(ms, process, chance.choice(("python3", "toy", "g++")), "toy.inspect")
            case 1:
                story.exit(ms, process, chance.choice((0, 9, 256)))
            case 2 | 3 | 4:
                end_ms = chance.choice((None, ms + chance.expovariate(0.1)))
                story.body(ms, end_ms, chance.choice(("body", "main")), process)
            case _:
                cause = chance.choice(list(SampleCause))
                story.sample(ms, chance.choice(STACKS), process, cause)
    return story


@pytest.mark.parametrize("seed", range(150))
def test_the_sum_is_the_wall_clock_whatever_the_trace(seed: int, tmp_path: Path) -> None:
    outcome = random.Random(seed).choice(("ready", "failed", "interrupted"))
    seen_from_ns = at(random.Random(seed).choice((0, 0, 40, 150)))
    start = anything(seed).start(tmp_path, 100, outcome, seen_from_ns=seen_from_ns)
    result = start.result
    steps_ns = sum(step.duration_ns for step in result.steps)
    assert steps_ns + result.unattributed_ns + result.missed_ns == result.wall_ns
    edges = [result.start_ns]
    for segment in result.segments:
        assert segment.start_ns == edges[-1]
        assert segment.duration_ns > 0
        edges.append(segment.end_ns)
    assert edges[-1] == result.end_ns
