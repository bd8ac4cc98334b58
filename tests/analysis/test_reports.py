"""What `coldtrace analyze` prints: tables, JSON, details, and nothing that a terminal obeys."""

from __future__ import annotations

import io
import json
import time
from pathlib import Path

import pytest
from rich.console import Console, RenderableType

from analysis.commands import analyze
from analysis.files import files_of
from analysis.report import details, terminal
from analysis.report.json import to_json
from analysis.start import Start
from probes.events import FileUsed
from tests.analysis.synthetic import MS, ROOT, Story, at
from tracer.errors import TraceError, UsageError

WEIGHTS = "/models/a/model.safetensors"


def full_story() -> Story:
    """A start with every kind of thing to report."""
    story = Story(("toy", "serve", "--dry"))
    story.body(2, 8).sample(10, "main config").sample(20, "main spawn")
    engine = story.fork(21, 200)
    story.wait(30, "main wait_for_engine").sample(30, "engine load wild", engine)
    for number, pid in enumerate((401, 402)):
        compiler = story.fork(40 + number, pid, engine)
        story.run(41 + number, compiler, "/usr/bin/g++", "-c")
        part = story.fork(42 + number, pid + 10, compiler)
        story.run(43 + number, part, "/usr/lib/cc1plus").exit(50, part)
        story.exit(60, compiler)
    story.sample(90, "main startup")
    for ms, closed_ms, process, read in ((35, 80, engine, 500), (85, None, engine, 700)):
        closed_ns = None if closed_ms is None else at(closed_ms)
        story.events.append(
            FileUsed(at(ms), closed_ns, process, process.pid, WEIGHTS, 2_000_000, read, 1_500_000)
        )
    story.events.append(FileUsed(at(3), at(4), ROOT, ROOT.pid, "/etc/\x1b[2Jodd", None, 10, 0))
    return story


def text(part: RenderableType) -> str:
    stream = io.StringIO()
    Console(file=stream, width=80, highlight=False).print(part)
    return stream.getvalue()


@pytest.fixture
def start(tmp_path: Path) -> Start:
    return full_story().start(tmp_path, 100)


def test_the_table_has_every_step_and_adds_up(start: Start) -> None:
    table = text(terminal.report(start))
    for row in (
        "1 Prepare                             0.030   30.0%",
        "    Imports                           0.006    6.0%",
        "    Inspection                            -",
        "2 Load                                0.055   55.0%",
        "+ Serve                               0.015   15.0%",
        "unattributed                          0.000    0.0%",
        "wall clock                            0.100  100.0%",
        "Trial didn't happen: no trial was held.",
        "External compilers: g++ 2 times, 0.039 s.",
        "Other processes: cc1plus 2, g++ 2.",
        "Lost events: 0.",
    ):
        assert row in table


def test_a_step_that_did_not_happen_is_no_zero(tmp_path: Path) -> None:
    story = Story(("toy", "serve", "--dry")).sample(10, "main config")
    table = text(terminal.report(story.start(tmp_path, 20)))
    (row,) = [line for line in table.splitlines() if line.startswith("2 Load")]
    assert row.split() == ["2", "Load", "-"]
    assert "Load didn't happen: --dry loads nothing." in table


def test_every_line_fits_into_80_columns(start: Start) -> None:
    parts = [terminal.report(start), details.imports_report(start), details.files_report(start)]
    parts += [details.step_report(start, name) for name in details.step_ids(start)]
    for part in parts:
        assert max(len(line) for line in text(part).splitlines()) <= 80


def test_a_view_regroups_the_same_time(start: Start) -> None:
    table = text(terminal.report(start, "pipeline"))
    assert "Rest                                  0.070   70.0%" in table
    assert "wall clock                            0.100  100.0%" in table


def test_what_is_missed_has_a_row_of_its_own(tmp_path: Path) -> None:
    story = Story().sample(60, "main load")
    start = story.start(tmp_path, 100, seen_from_ns=at(50))
    assert "missed before the tracer came         0.050   50.0%" in text(terminal.report(start))


def test_what_is_unattributed_is_explained(tmp_path: Path) -> None:
    start = Story().sample(10, "main helper").start(tmp_path, 100)
    expected = "Unattributed is mostly: other:Other.help 0.090 s."
    assert expected in text(terminal.report(start))


def test_a_failure_says_where_and_how(tmp_path: Path) -> None:
    story = Story().sample(10, "main spawn")
    engine = story.fork(20, 200)
    story.wait(30, "main wait_for_engine").sample(40, "engine load wild", engine)
    story.exit(70, engine, 9).exit(90, ROOT, 256)
    table = text(terminal.report(story.start(tmp_path, 100, "failed")))
    assert "failed after 0.090 s" in table
    flat = " ".join(table.split())
    assert "It died in Load: Engine (pid 200) was killed by signal 9 (Killed)" in flat
    assert "last seen in \\x1b]0;owned\\x07:\\x1b[31mred, below model:Model.load." in flat


def test_an_interruption_says_what_was_going_on(tmp_path: Path) -> None:
    story = Story().sample(10, "main load helper")
    table = text(terminal.report(story.start(tmp_path, 100, "interrupted")))
    assert "At its end Server (pid 100) was at Weights, in other:Other.help." in table


def test_nothing_that_a_terminal_obeys_is_printed(start: Start) -> None:
    parts = [terminal.report(start), details.imports_report(start), details.files_report(start)]
    parts += [details.step_report(start, name) for name in details.step_ids(start)]
    for part in parts:
        assert not [
            character for character in text(part) if ord(character) < 32 and character != "\n"
        ]


def test_names_in_brackets_are_no_markup(tmp_path: Path) -> None:
    story = Story().sample(10, "/lib/[red]x.py:[bold]f")
    start = story.start(tmp_path, 100)
    assert "[red]x:[bold]f" in text(terminal.report(start))
    assert "[red]x:[bold]f" in text(details.step_report(start, "unattributed"))


def test_a_file_that_was_left_open_is_closed_by_its_process_end(tmp_path: Path) -> None:
    story = Story()
    compiler = story.fork(10, 200)
    story.events += [
        FileUsed(at(20), None, compiler, 200, "/a.so", 5, 5, 0),
        FileUsed(at(20), None, ROOT, ROOT.pid, "/b.so", 5, 4, 0),
    ]
    uses = files_of(story.exit(50, compiler).start(tmp_path, 100))
    assert [(use.path, use.open_ns) for use in uses] == [("/a.so", 30 * MS), ("/b.so", 80 * MS)]


def test_files_are_taken_together_by_path(start: Start) -> None:
    weights, odd = files_of(start)
    assert (weights.path, weights.kind, weights.pids) == (WEIGHTS, "weights", {200})
    assert (weights.opens, weights.open_ns) == (2, 60_000_000)
    assert (weights.read_bytes, weights.mapped_bytes) == (1200, 3_000_000)
    assert (odd.kind, odd.size_bytes) == ("other", None)
    report = text(details.files_report(start))
    assert "Weights: 1 files" in report
    assert "\\x1b[2Jodd" in report


def test_files_of_some_stretches_of_time(start: Start) -> None:
    uses = files_of(start, [(at(0), at(3)), (at(30), at(36)), (at(85), at(86))])
    assert [(use.path, use.opens) for use in uses] == [(WEIGHTS, 2)]


def test_one_step_by_process_function_and_file(start: Start) -> None:
    report = text(details.step_report(start, "load"))
    assert "load: 0.055 s" in report
    assert "Engine: weights" in report
    assert "\\x1b[31mred" in report
    assert "model.safetensors" in report
    assert "It didn't happen: no trial was held." in text(details.step_report(start, "trial"))
    assert "It took no time." in text(details.step_report(start, "tokens_server"))


def test_a_step_that_did_not_happen_says_so_when_asked_for(tmp_path: Path) -> None:
    story = Story(("toy", "serve", "--dry")).sample(10, "main config")
    report = text(details.step_report(story.start(tmp_path, 20), "load"))
    assert "It didn't happen: --dry loads nothing." in report


def test_imports_by_package_module_and_nesting(start: Start) -> None:
    report = text(details.imports_report(start))
    assert "Server (pid 100): 1 module bodies, 0.006 s" in report
    assert report.count("big ") == 3


def test_no_imports_and_no_files_are_said(tmp_path: Path) -> None:
    start = Story().sample(10, "main").start(tmp_path, 20)
    assert "No module body was seen" in text(details.imports_report(start))
    assert "No file was seen" in text(details.files_report(start))


# JSON ---------------------------------------------------------------------------


def test_the_json_keeps_its_shape(start: Start) -> None:
    result = json.loads(to_json(start.result))
    assert result["schema"] == 1
    assert result["outcome"] == "ready"
    assert result["wall_s"] == 0.1
    assert result["lost_events"] == 0
    assert [step["id"] for step in result["steps"]] == ["prepare", "load", "serve"]
    load = result["steps"][1]
    assert (load["happened"], load["seconds"]) == (True, 0.055)
    assert load["substeps"][0].items() >= {"id": "weights", "seconds": 0.055}.items()
    assert result["processes"][1] == {
        "pid": 200,
        "parent_pid": 100,
        "role": "engine",
        "program": "toy",
        "start_s": 0.021,
        "end_s": None,
        "wait_status": None,
    }


def test_the_seconds_add_up_to_the_microsecond(tmp_path: Path) -> None:
    story = Story()
    for number in range(1, 2000):
        stack = ("main config", "main load", "main helper", "main startup")[number % 4]
        story.sample(number * 1.000_137, stack)
    result = json.loads(to_json(story.start(tmp_path, 2010.000_001).result))
    parts = [step["seconds"] for step in result["steps"]]
    total = sum(parts) + result["unattributed_s"] + result["missed_s"]
    assert abs(total - result["wall_s"]) < 1e-6
    for step in result["steps"]:
        assert abs(sum(sub["seconds"] for sub in step["substeps"]) - step["seconds"]) < 1e-6


# The command ----------------------------------------------------------------------


def run(path: Path, **options: object) -> str:
    stream = io.StringIO()
    assert analyze(path, stream=stream, **options) == 0  # type: ignore[arg-type]
    return stream.getvalue()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return full_story().write(tmp_path, 100)


def test_analyze_prints_the_table_or_what_is_asked_for(path: Path) -> None:
    assert run(path).startswith("Cold start of ")
    assert json.loads(run(path, json=True))["schema"] == 1
    assert "Memory allocation" in run(path, view="pipeline")
    details = run(path, imports=True, files=True, step="unattributed")
    assert "module bodies" in details
    assert "open for" in details
    assert "unattributed:" in details
    assert "Cold start of" not in details


def test_a_stream_that_lacks_characters_gets_others(tmp_path: Path) -> None:
    path = Story().sample(10, "/lib/π.py:größe").write(tmp_path, 100)
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    assert analyze(path, step="unattributed", stream=stream) == 0
    assert analyze(path, stream=stream) == 0
    stream.seek(0)
    assert "?:gr??e" in stream.read()


def test_an_unknown_step_is_told_with_those_that_there_are(path: Path) -> None:
    with pytest.raises(UsageError) as error:
        run(path, step="nonsense")
    assert "nonsense" in error.value.message
    for name in ("framework_bootstrap", "load_weights", "unattributed"):
        assert name in error.value.message
    assert error.value.exit_status == 2


def test_what_is_no_trace_is_told(tmp_path: Path) -> None:
    with pytest.raises(TraceError):
        run(tmp_path / "nothing.coldtrace")


def test_a_long_start_is_taken_apart_within_a_second(tmp_path: Path) -> None:
    """60 s of three processes at 99 Hz, 40,000 module bodies."""
    story = Story().sample(1, "main wait_for_engine")
    engine = story.fork(2, 200)
    story.sample(3, "engine engine_wait", engine)
    worker = story.fork(4, 300, engine)
    stacks = [f"worker {' '.join(['helper'] * 40)} load", "worker trial", "worker import body"]
    for index in range(6000):
        story.sample(10 + 10 * index, stacks[index // 50 % 3], worker)
        story.sample(10 + 10 * index, "engine engine_wait", engine)
        story.sample(10 + 10 * index, "main wait_for_engine")
    for index in range(40_000):
        story.body(5 + 1.4 * index, 6 + 1.4 * index, process=worker)
    start = story.start(tmp_path, 60_100)
    began_s = time.process_time()
    assert start.result.wall_ns == 60_100_000_000
    assert time.process_time() - began_s < 1
