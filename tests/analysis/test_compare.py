"""What differs between starts: by made-up ones, and by the terminal, the page and the door."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from analysis.commands import compare as compare_command
from analysis.compare import Cause, Comparison, Difference, Spread, compare
from analysis.report.comparison import report, to_html
from analysis.sides import Measured, Side, paths_of
from analysis.signature import Signatures
from probes.events import (
    BUCKET_NS,
    FileCached,
    FileUsed,
    PagesCached,
    Reading,
    ThreadRan,
    ThreadWaited,
    WaitState,
)
from tests.analysis.chromium import chromium
from tests.analysis.synthetic import BEGIN_NS, MS, ROOT, SIGNATURES, Story, at
from tests.analysis.test_html import Browser
from tracer.errors import TraceError, UsageError

CACHE = {
    "id": "graphs",
    "title": "Graphs",
    "files": "tokens",
    "missed_as": "made",
    "missed": ["trial"],
    "hit": ["config"],
}
BEYOND = "section:nth-of-type(2) tr.beyond"
PERIOD_NS = 10 * MS
"""Of the samples: a sub-step is known to that."""
TOY = Signatures(SIGNATURES | {"cache": [CACHE]})
MODEL = "/models/<b>m\x1b[31m/model.safetensors"


class Starts:
    """Makes starts: how long each step took in ms, in order."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.count = 0

    def __call__(
        self, change: Callable[[Story], object] = lambda story: None, **steps_ms: int
    ) -> Measured:
        story, end_ms = Story(), 0
        for name, length_ms in steps_ms.items():
            for ms in range(end_ms, end_ms + length_ms, 10):
                story.sample(ms, f"main {name}")
            end_ms += length_ms
        change(story)
        self.count += 1
        folder = self.folder / str(self.count)
        folder.mkdir()
        start = story.start(folder, end_ms, signatures=TOY, host={"cpus": 2})
        return Measured.of(folder / "start.coldtrace", start)


@pytest.fixture
def start(tmp_path: Path) -> Starts:
    return Starts(tmp_path)


def compared(a: Iterable[Measured], b: Iterable[Measured]) -> Comparison:
    return compare(Side("a", tuple(a), ()), Side("b", tuple(b), ()), TOY)


def printed(comparison: Comparison, width: int = 80) -> str:
    from rich.console import Console

    stream = io.StringIO()
    Console(file=stream, width=width, markup=False, highlight=False).print(report(comparison))
    return stream.getvalue()


def test_the_largest_difference_comes_first_with_what_moved(start: Starts) -> None:
    a = [start(config=1000, load=ms, trial=500) for ms in (1000, 1010, 1020)]
    b = [start(config=1300, load=ms, trial=500) for ms in (3000, 3010, 3020)]
    comparison = compared(a, b)
    assert [(each.id, each.difference_ns // MS) for each in comparison.beyond] == [
        ("weights", 2000),
        ("config", 300),
    ]
    assert comparison.substeps[0].a.median_ns == 1010 * MS
    assert comparison.wall.difference_ns == 2300 * MS and comparison.wall.is_beyond


def test_a_sub_step_that_only_one_side_has(start: Starts) -> None:
    comparison = compared([start(config=500)], [start(config=500, trial=800)])
    [trial] = comparison.beyond
    assert trial.id == "trial" and trial.difference_ns == pytest.approx(800 * MS, abs=PERIOD_NS)
    assert comparison.substeps[0].a.values_ns == (0,)


def test_equal_starts_show_no_difference(start: Starts) -> None:
    a = [start(config=ms, load=2000) for ms in (1000, 1300, 1100)]
    b = [start(config=ms, load=2050) for ms in (1250, 1080, 1200)]
    comparison = compared(a, b)
    assert comparison.beyond == () and not comparison.wall.is_beyond
    assert "No difference beyond the spread.\n" in printed(comparison)
    assert compared(a[:1], a[:1]).beyond == ()


@pytest.mark.parametrize(
    ("a", "b", "beyond"),
    [
        ((1000,), (1140,), False),  # one start each: 15 %, at least 150 ms
        ((1000,), (1300,), True),
        ((100,), (240,), False),
        ((1000, 1000, 1000), (1030, 1030, 1030), False),  # three of each: 3 %, 30 ms
        ((1000, 1000, 1000), (1040, 1040, 1040), True),
        ((900, 1000, 1200), (1250, 1250, 1250), False),  # the wider range
        ((900, 1000, 1200), (1350, 1350, 1350), True),
        ((1000, 1000, 1000), (1100,), False),  # one side has too few
        ((1000, 1000), (700, 700), True),
    ],
)
def test_what_is_beyond_the_spread(a: tuple[int, ...], b: tuple[int, ...], beyond: bool) -> None:
    spreads = [Spread(tuple(ms * MS for ms in side)) for side in (a, b)]
    assert Difference("x", "X", *spreads).is_beyond is beyond
    assert Difference("x", "X", *reversed(spreads)).is_beyond is beyond


def wait_for_disk(story: Story) -> None:
    """The whole of `load`, from 200 to 1000 ms, waits for one file's pages."""
    bucket_ns = (at(200) // BUCKET_NS) * BUCKET_NS
    kernel = ("folio_wait_bit_common", "filemap_fault", "handle_mm_fault")
    story.events += [
        ThreadRan(bucket_ns - BUCKET_NS, ROOT, ROOT.pid, 0, BUCKET_NS),
        FileUsed(at(210), None, ROOT, ROOT.pid, MODEL, 400_000_000, 0, 400_000_000, 7, 8),
        FileCached(BEGIN_NS - MS, MODEL, 400_000_000, 0, "ext4", 7, 8),
        ThreadWaited(
            at(200), at(1000), at(1000), ROOT, ROOT.pid, WaitState.BLOCKED, kernel, None, None
        ),
        *(PagesCached(bucket_ns + index * BUCKET_NS, ROOT, 7, 8, 50_000_000) for index in range(8)),
    ]


def hold_warm(story: Story) -> None:
    story.events += [
        FileUsed(at(210), None, ROOT, ROOT.pid, MODEL, 400_000_000, 0, 400_000_000, 7, 8),
        FileCached(BEGIN_NS - MS, MODEL, 400_000_000, 400_000_000, "ext4", 7, 8),
    ]


def test_the_shares_files_and_caches_behind_a_difference(start: Starts) -> None:
    warm = start(hold_warm, config=200, load=100, trial=100)
    cold = start(wait_for_disk, config=200, load=800, trial=100)
    [difference] = compared([warm], [cold]).beyond
    assert difference.id == "weights"
    disk = difference.moved[0]
    assert (disk.kind, disk.what, disk.a_ns) == ("disk", MODEL, 0)
    assert disk.difference_ns == pytest.approx(800 * MS, abs=PERIOD_NS)
    assert difference.causes == (
        Cause("page cache: weights", "text", "warm", "cold"),
        Cause(f"read from disk: {MODEL}", "bytes", 0, 400_000_000),
    )


def test_the_caches_behind_a_difference_are_those_of_the_sub_step(start: Starts) -> None:
    hit, missed = start(config=400, load=400), start(config=10, load=400, trial=900)
    by_id = {each.id: each.causes for each in compared([hit], [missed]).beyond}
    told = (Cause("graphs", "text", "warm", "cold"),)
    assert by_id == {"trial": told, "config": told}


def test_imports_are_told_by_package(start: Starts) -> None:
    def imports(end_ms: int) -> Callable[[Story], object]:
        return lambda story: story.body(0, end_ms, "body")

    a, b = start(imports(100), **{"import": 100}), start(imports(900), **{"import": 900})
    [difference] = compared([a], [b]).beyond
    assert difference.id == "imports"
    assert Cause("import of big", "ns", 100 * MS, 900 * MS) in difference.causes


def test_files_that_only_one_side_opened_are_counted_by_class(start: Starts) -> None:
    def open_tokens(story: Story) -> None:
        story.events += [
            FileUsed(at(ms), at(ms + 1), ROOT, ROOT.pid, "/m/tokenizer.json", 5, 5, 0)
            for ms in (20, 30)
        ]

    [difference] = compared([start(config=500)], [start(open_tokens, config=50)]).beyond
    assert difference.causes == (Cause("files opened: tokens", "count", 0, 2),)


def test_circumstances_are_told(start: Starts) -> None:
    def others(cores: float) -> Callable[[Story], object]:
        return lambda story: story.events.extend(
            [
                Reading(at(0), "machine_busy_ns", "", 0),
                Reading(at(1000), "machine_busy_ns", "", (cores + 1) * 1e9),
                Reading(at(1000), "process_cpu_ns", str(ROOT.pid), 1e9),
            ]
        )

    alike = compared([start(others(0.5), config=1000)], [start(others(0.6), config=1000)])
    assert alike.circumstances == ()
    [cause] = compared(
        [start(others(0.0), config=1000)], [start(others(1.5), config=1000)]
    ).circumstances
    assert (cause.subject, cause.a, cause.b) == ("cores used by other programs", 0, 1.5)


@pytest.mark.parametrize(("others_cores", "beyond"), [(0.1, True), (1.0, False)])
def test_waiting_for_cores_that_others_used_is_no_difference(
    start: Starts, others_cores: float, beyond: bool
) -> None:
    def wait(until_ms: int) -> Callable[[Story], object]:
        def add(story: Story) -> None:
            story.events += [
                ThreadRan(at(0) // BUCKET_NS * BUCKET_NS, ROOT, ROOT.pid, 0, 1),
                ThreadWaited(
                    at(100),
                    at(until_ms),
                    at(100),
                    ROOT,
                    ROOT.pid,
                    WaitState.PREEMPTED,
                    (),
                    None,
                    None,
                ),
                Reading(at(0), "machine_busy_ns", "", 0),
                Reading(at(until_ms), "machine_busy_ns", "", others_cores * until_ms * MS),
            ]

        return add

    comparison = compared([start(wait(300), config=300)], [start(wait(1500), config=1500)])
    assert bool(comparison.beyond) is comparison.wall.is_beyond is beyond
    assert ("Other programs used up to 1.0 cores" in printed(comparison)) is not beyond


# Reports


def test_the_terminal_tells_all_within_80_columns_and_escapes(start: Starts) -> None:
    comparison = compared(
        [start(hold_warm, config=200, load=100)], [start(wait_for_disk, config=200, load=800)]
    )
    text = printed(comparison)
    assert max(map(len, text.splitlines())) <= 80
    assert "\x1b" not in text
    plain = " ".join(text.split())
    assert "1 of 2 sub-steps differ beyond the spread, most of all Weights: +0.700 s in B." in plain
    assert "With fewer than three starts on a side the spread is a guess" in plain
    assert "page cache: weights: warm in A, cold in B" in plain
    assert "/models/<b>m\\x1b[31m/model.safetensors: nothing in A, 400.0 MB in B" in plain


def test_the_page_holds_the_same_and_nothing_that_runs(start: Starts) -> None:
    comparison = compared(
        [start(hold_warm, config=200, load=100)], [start(wait_for_disk, config=200, load=800)]
    )
    page = to_html(comparison)
    assert "<b>m" not in page and "\x1b" not in page
    assert not re.search(r"(src|href)\s*=\s*[\"']?(http|//)", page)
    match = re.search(r'<script id="data" type="application/json">(.*?)</script>', page, re.DOTALL)
    assert match is not None
    data: dict[str, Any] = json.loads(match[1])
    weights, config = data["substeps"]
    assert (weights["title"], weights["beyond"], config["beyond"]) == ("Weights", True, False)
    assert weights["medians"] == pytest.approx([100_000, 800_000], abs=PERIOD_NS / 1000)
    assert data["wall"]["b"] == [1_000_000]
    assert any("400.0 MB in B" in line for line in weights["behind"])


def test_the_page_is_drawn_and_asks_for_nothing(start: Starts, tmp_path: Path) -> None:
    warm = [start(hold_warm, config=200, load=ms) for ms in (100, 110)]
    file = tmp_path / "comparison.html"
    file.write_text(to_html(compared(warm, [start(wait_for_disk, config=200, load=800)])))
    with chromium(tmp_path) as driver:
        browser = Browser(driver, file.as_uri())
        assert len(browser.all("section")) == 3
        [row] = browser.all(f"{BEYOND} th")
        assert row.text == "Weights"
        behind = [line.text for line in browser.all("tr.behind li")]
        assert "page cache: weights: warm in A, cold in B" in behind
        assert any("<b>m\\x1b[31m" in line for line in behind)
        bars = browser.all(f"{BEYOND} .side i")
        assert 0 < bars[0].size["width"] < bars[1].size["width"]
        assert len(browser.all(f"{BEYOND} .side b")) == 2  # a tick for each of several starts
        assert "A: 0.110 s (median)" in browser.press(browser.all(f"{BEYOND} .side")[0])
        assert browser.requests() == [browser.url]
        assert driver.get_log("browser") == []


# Sides, and the door


def write(folder: Path, name: str, outcome: str = "ready") -> Path:
    folder.mkdir(exist_ok=True)
    path = Story().sample(10, "main").write(folder, 100, outcome)
    return path.rename(folder / name)


def test_what_a_side_may_be(tmp_path: Path) -> None:
    paths = [write(tmp_path, f"{name}.coldtrace") for name in ("b", "a", "c,d")]
    (tmp_path / "notes.txt").touch()
    assert paths_of(str(tmp_path)) == sorted(paths)
    assert paths_of(str(paths[2])) == [paths[2]]
    assert paths_of(f"{paths[0]},{paths[1]}") == paths[:2]
    assert len(Side.open(str(tmp_path)).starts) == 3


def test_a_start_that_did_not_become_ready_is_left_out(tmp_path: Path) -> None:
    write(tmp_path, "a.coldtrace")
    failed = write(tmp_path, "b.coldtrace", "failed")
    side = Side.open(str(tmp_path))
    assert len(side.starts) == 1 and side.left_out == (f"{failed} is left out: its start failed",)
    with pytest.raises(UsageError, match="holds no start that became ready"):
        Side.open(str(failed))


def test_sides_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="holds no trace"):
        Side.open(str(tmp_path))
    for nothing in ("", ","):
        with pytest.raises(UsageError, match="a side has no name"):
            Side.open(nothing)
    with pytest.raises(TraceError, match="no such file"):
        Side.open(str(tmp_path / "none"))
    (tmp_path / "x.coldtrace").write_text("no trace at all, but long enough to be one" * 9)
    with pytest.raises(TraceError, match="is not a coldtrace trace"):
        Side.open(str(tmp_path))


def test_a_page_never_replaces_a_trace(tmp_path: Path) -> None:
    trace = write(tmp_path, "a.coldtrace")
    before = trace.read_bytes()
    link = tmp_path / "link"
    link.symlink_to(trace)
    with pytest.raises(UsageError, match="is one of the traces"):
        compare_command(str(trace), str(trace), link)
    assert trace.read_bytes() == before


def test_the_door_compares(tmp_path: Path, coldtrace_bin: Path) -> None:
    write(tmp_path, "a.coldtrace")
    command = [coldtrace_bin, "compare", "a.coldtrace", "a.coldtrace", "--html", "c.html"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0 and "No difference beyond the spread." in done.stdout
    assert "comparison" in (tmp_path / "c.html").read_text()
    command = [coldtrace_bin, "compare", "a.coldtrace", "none"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1 and done.stderr == "coldtrace: none: no such file\n"
    command = [coldtrace_bin, "compare", "a.coldtrace", "a.coldtrace", "--html", "no/c.html"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1 and done.stderr.startswith("coldtrace: can't write no/c.html: ")
    assert sorted(os.listdir(tmp_path)) == ["a.coldtrace", "c.html"]
