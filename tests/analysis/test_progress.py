"""The lines that are printed while a start goes on."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

from analysis.progress import Progress
from analysis.signature import Signatures
from probes.events import Event, ProcessId
from tests.analysis.synthetic import ROOT, SIGNATURES, Story, at

S = 1000
ROOT_FOLDER = Path(__file__).parents[2]


def shown(story: Story, finish: bool = True, batch: int = 1) -> list[str]:
    stream = io.StringIO()
    progress = Progress(stream, Signatures(SIGNATURES))
    events: list[Event] = story.events
    for index in range(0, len(events), batch):
        progress.observe(events[index : index + batch])
    if finish:
        progress.finish()
    return stream.getvalue().splitlines()


def test_a_step_is_told_once_a_later_one_has_gone_on_for_a_second() -> None:
    story = Story().sample(0, "main config")
    for ms in range(100, 6 * S, 100):
        story.sample(ms, "main config" if ms < 3 * S else "main load")
    assert shown(story, finish=False) == ["coldtrace:    3.0 s  Prepare took 3.0 s"]
    assert shown(story) == [
        "coldtrace:    3.0 s  Prepare took 3.0 s",
        "coldtrace:    5.9 s  Load took 2.9 s",
    ]


def test_the_size_of_a_batch_changes_nothing() -> None:
    story = Story().sample(0, "main config")
    for ms in range(100, 6 * S, 100):
        story.sample(ms, "main config" if ms < 3 * S else "main load")
    assert shown(story, batch=1000) == shown(story)


def test_a_step_that_comes_back_is_not_told_early() -> None:
    story = Story()
    for ms in range(0, 6 * S, 100):
        story.sample(ms, "main load" if ms % 1000 < 200 else "main config")
    lines = shown(story, finish=False)
    assert lines == []


def test_a_step_that_comes_back_is_told_again() -> None:
    story = Story()
    for ms in range(0, 9 * S, 100):
        back = 5 * S <= ms < 6 * S
        story.sample(ms, "main config" if ms < 2 * S or back else "main load")
    assert shown(story) == [
        "coldtrace:    2.0 s  Prepare took 2.0 s",
        "coldtrace:    6.0 s  Prepare took 3.0 s in all",
        "coldtrace:    8.9 s  Load took 5.9 s",
    ]


def test_an_early_glimpse_of_a_later_step_ends_nothing() -> None:
    story = Story().sample(0, "main startup")
    for ms in range(100, 9 * S, 100):
        story.sample(ms, "main config" if ms < 2 * S else "main load")
    assert shown(story, finish=False) == ["coldtrace:    2.0 s  Prepare took 1.9 s"]


def test_a_wait_counts_for_the_process_that_is_waited_for() -> None:
    story = Story().sample(0, "main spawn")
    engine = story.fork(1 * S, 200)
    story.wait(1 * S, "main wait_for_engine")
    for ms in range(1 * S, 4 * S, 100):
        story.sample(ms, "engine load", engine)
    story.sample(4 * S, "main startup").sample(6 * S, "main startup")
    assert shown(story) == [
        "coldtrace:    1.0 s  Prepare took 1.0 s",
        "coldtrace:    4.0 s  Load took 3.0 s",
        "coldtrace:    6.0 s  Serve took 2.0 s",
    ]


def test_a_tree_that_was_running_is_told_from_its_root() -> None:
    story = Story()
    story.events.clear()
    engine = ProcessId(200, at(100))
    story.sample(2 * S, "engine load", engine)  # before anyone said whose child it is
    story.found(ROOT, ProcessId(1, 0), 2 * S).found(engine, ROOT, 2 * S)
    story.wait(2 * S + 1, "main wait_for_engine").sample(4 * S, "main startup")
    story.sample(6 * S, "main startup")
    assert shown(story) == [
        "coldtrace:    4.0 s  Load took 2.0 s",
        "coldtrace:    6.0 s  Serve took 2.0 s",
    ]


def test_a_process_of_a_fixed_sub_step_needs_no_signature() -> None:
    story = Story().sample(0, "main wait_for_inspector")
    inspector = story.fork(0, 200)
    story.run(0, inspector, "python3", "-m", "toy.inspect").sample(1, "helper", inspector)
    story.exit(2 * S, inspector)
    assert shown(story) == ["coldtrace:    2.0 s  Prepare took 2.0 s"]


def test_nothing_is_told_of_a_start_in_which_nothing_is_known() -> None:
    assert shown(Story(("ls",)).sample(10, "helper").sample(5 * S, "helper")) == []


def test_it_loads_nothing_heavy() -> None:
    code = (
        "import sys, io; from analysis.progress import Progress; from analysis.ready import"
        " ReadyRule; Progress(io.StringIO()); ReadyRule.load();"
        "print([m for m in ('numpy', 'sklearn', 'rich') if m in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT_FOLDER
    )
    assert result.stdout.strip() == "[]"
