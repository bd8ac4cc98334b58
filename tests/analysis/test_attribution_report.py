"""What the terminal says of where the time went."""

from __future__ import annotations

from pathlib import Path

from analysis.report import terminal
from analysis.report.attribution import attribution_lines, verdict
from analysis.report.details import step_report
from analysis.result import Share, TimeShares
from analysis.start import Start
from probes.events import Connected
from tests.analysis.synthetic import ROOT, Story, at
from tests.analysis.test_reports import text

FAULT = "io_schedule folio_wait_bit_common filemap_fault"
TCP = "schedule sk_wait_data tcp_recvmsg"


def loading(folder: Path) -> Start:
    story = Story().ran(0, 30).off(30, 35, woken_ms=30).off(35, 95, FAULT).ran(95, 100)
    for ms in range(0, 100, 10):
        story.sample(ms, "main load")
    story.place(1, "python3", stack="main load").place(2, "lib\x1b.so", stack="main load")
    return story.start(folder, 100)


def test_the_table_has_the_verdicts(tmp_path: Path) -> None:
    lines = [
        " ".join(line.split()) for line in text(terminal.report(loading(tmp_path))).splitlines()
    ]
    assert any(line.startswith("Weights 0.100 100.0% disk 60%") for line in lines)
    assert any(line.startswith("wall clock 0.100 100.0% disk 60%") for line in lines)


def test_the_whole_is_told_by_kind_and_nothing_escapes(tmp_path: Path) -> None:
    where, cores = attribution_lines(loading(tmp_path).attribution)
    assert where == (
        "Where the time went: disk 60.0% (page fault); Python 17.5%;"
        " native code 17.5% (lib\\x1b.so); waiting for a core 5.0%."
    )
    assert cores == (
        "Exactly one core was busy for 0.0% of the start, none for 100.0%, several for 0.0%;"
        " 0.35 on average."
    )


def test_a_network_s_name_is_told(tmp_path: Path) -> None:
    story = Story().ran(0, 10).off(10, 100, TCP)
    story.events.append(Connected(at(1), at(2), ROOT, 100, "192.0.2.7", 443, 0))
    where = next(attribution_lines(story.start(tmp_path, 100).attribution))
    assert "network 90.0% (192.0.2.7:443)" in where


def test_a_step_is_told_share_by_share(tmp_path: Path) -> None:
    lines = [
        " ".join(line.split()) for line in text(step_report(loading(tmp_path), "load")).splitlines()
    ]
    assert "disk: page fault 0.060 60.0%" in lines
    assert "native code: lib\\x1b.so 0.018 17.5%" in lines


def test_a_start_that_nobody_looked_at_is_unknown_not_zero(tmp_path: Path) -> None:
    start = Story().sample(1, "main load").start(tmp_path, 100)
    report = text(terminal.report(start))
    assert not any(f"{bound} " in report for bound in ("CPU", "disk", "wait"))
    assert report.count("unknown") >= 4 and "core was busy" not in report
    assert "Who had the cores was not recorded: where the time went is unknown." in report


def test_the_verdict_is_what_took_most() -> None:
    shares = (Share("disk", "/m", 30), Share("python", None, 25), Share("native", "a", 20))
    assert verdict(TimeShares(shares)) == "CPU 60%"
    assert verdict(TimeShares((Share("gpu", None, 9), Share("lock", None, 1)))) == "GPU 90%"
    assert verdict(TimeShares((Share("lock", None, 9), Share("network", None, 1)))) == "wait 90%"
    assert verdict(TimeShares((Share("unknown", None, 9),))) == "unknown"
    assert verdict(None) == ""
