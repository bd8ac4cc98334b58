"""Readers of /proc, on a tree of plain files and on the real one."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from probes import proc
from probes.events import ProcessId

TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")


def add_process(
    root: Path,
    pid: int,
    parent: int = 1,
    *,
    name: str = "python3",
    state: str = "S",
    ticks: int = 5000,
    cmdline: bytes = b"python3\0-m\0server\0",
    status: str = "",
) -> None:
    folder = root / str(pid)
    (folder / "task" / str(pid)).mkdir(parents=True)
    zeros = " ".join("0" * 17)
    (folder / "stat").write_text(f"{pid} ({name}) {state} {parent} {zeros} {ticks} 0 0\n")
    (folder / "cmdline").write_bytes(cmdline)
    (folder / "status").write_text(f"Name:\t{name}\n{status}")


def suspended_ns() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) - time.monotonic_ns()


def test_stat_reads_parent_and_start(tmp_path: Path) -> None:
    add_process(tmp_path, 40, 7, ticks=12345)
    found = proc.stat(40, tmp_path)
    assert found is not None
    assert (found.pid, found.parent_pid, found.ended) == (40, 7, False)
    assert found.start_ns == pytest.approx(12345 * TICK_NS - suspended_ns(), abs=1_000_000)


@pytest.mark.parametrize("name", ["a) S 9 (b", "two words", ")))", "é\x1b[2J"])
def test_stat_is_not_misled_by_the_name(tmp_path: Path, name: str) -> None:
    add_process(tmp_path, 40, 7, name=name)
    found = proc.stat(40, tmp_path)
    assert found is not None
    assert found.parent_pid == 7


@pytest.mark.parametrize("text", ["", "40", "40 (x) S", "40 (x) S one " + "0 " * 30])
def test_stat_that_makes_no_sense_reads_as_gone(tmp_path: Path, text: str) -> None:
    add_process(tmp_path, 40)
    (tmp_path / "40" / "stat").write_text(text)
    assert proc.stat(40, tmp_path) is None


def test_a_process_that_is_gone_reads_as_none(tmp_path: Path) -> None:
    assert proc.stat(40, tmp_path) is None
    assert proc.process_id(40, tmp_path) is None
    assert proc.argv(40, tmp_path) is None
    assert proc.uid(40, tmp_path) is None
    assert proc.namespace_pid(40, tmp_path) is None
    assert proc.threads(40, tmp_path) == ()
    assert proc.descendants(40, tmp_path) == ()
    assert not proc.is_running(ProcessId(40, 0), tmp_path)


def test_a_zombie_has_ended(tmp_path: Path) -> None:
    add_process(tmp_path, 40, state="Z", cmdline=b"")
    found = proc.stat(40, tmp_path)
    assert found is not None and found.ended
    assert proc.process_id(40, tmp_path) is None
    assert not proc.is_running(ProcessId(40, found.start_ns), tmp_path)
    assert proc.argv(40, tmp_path) == ()


def test_a_reused_pid_is_another_process(tmp_path: Path) -> None:
    add_process(tmp_path, 40, ticks=5000)
    found = proc.process_id(40, tmp_path)
    assert found is not None
    assert proc.is_running(ProcessId(40, found.start_ns + TICK_NS), tmp_path)
    assert not proc.is_running(ProcessId(40, found.start_ns - 10 * TICK_NS), tmp_path)


@pytest.mark.parametrize(
    ("cmdline", "words"),
    [
        (b"vllm\0serve\0\0", ("vllm", "serve", "")),
        (b"VLLM::EngineCore", ("VLLM::EngineCore",)),
        (b"caf\xc3\xa9\0\xff\0", ("café", "\\xff")),
        (b"", ()),
    ],
)
def test_argv(tmp_path: Path, cmdline: bytes, words: tuple[str, ...]) -> None:
    add_process(tmp_path, 40, cmdline=cmdline)
    assert proc.argv(40, tmp_path) == words


def test_argv_is_bounded(tmp_path: Path) -> None:
    add_process(tmp_path, 40, cmdline=b"x" * 1_000_000)
    words = proc.argv(40, tmp_path)
    assert words is not None
    assert len(words[0]) == 128 * 1024


def test_status_numbers(tmp_path: Path) -> None:
    add_process(tmp_path, 40, status="Uid:\t1000\t0\t0\t0\nNSpid:\t40\t9\t1\n")
    assert proc.uid(40, tmp_path) == 1000
    assert proc.namespace_pid(40, tmp_path) == 1


def test_a_name_is_no_line_of_the_status(tmp_path: Path) -> None:
    add_process(tmp_path, 40, name="a\rUid: 7\x0bUid: 8", status="Uid:\t1000\t0\t0\t0\n")
    assert proc.uid(40, tmp_path) == 1000


def test_status_without_the_line(tmp_path: Path) -> None:
    add_process(tmp_path, 40, status="Uid:\n")
    assert proc.uid(40, tmp_path) is None
    assert proc.namespace_pid(40, tmp_path) is None


def test_descendants_come_after_their_parents(tmp_path: Path) -> None:
    for pid, parent in ((10, 1), (50, 10), (20, 50), (30, 20), (31, 20), (60, 1)):
        add_process(tmp_path, pid, parent)
    (tmp_path / "self").mkdir()
    assert proc.descendants(10, tmp_path) == (50, 20, 30, 31)
    assert proc.descendants(60, tmp_path) == ()


def test_descendants_end_even_where_parents_go_round(tmp_path: Path) -> None:
    add_process(tmp_path, 10, 11)
    add_process(tmp_path, 11, 10)
    assert proc.descendants(10, tmp_path) == (11,)


def test_threads_are_numbers_only(tmp_path: Path) -> None:
    add_process(tmp_path, 40)
    (tmp_path / "40" / "task" / "7").mkdir()
    (tmp_path / "40" / "task" / "x").mkdir()
    assert proc.threads(40, tmp_path) == (7, 40)


def test_a_real_child() -> None:
    before_ns = time.monotonic_ns()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        after_ns = time.monotonic_ns()
        found = proc.stat(child.pid)
        assert found is not None
        assert found.parent_pid == os.getpid()
        assert before_ns - 2 * TICK_NS <= found.start_ns <= after_ns + TICK_NS
        assert child.pid in proc.descendants(os.getpid())
        assert proc.uid(child.pid) == os.getuid()
        assert proc.argv(child.pid) == (sys.executable, "-c", "input()")
        assert proc.is_running(ProcessId(child.pid, found.start_ns))
        child.communicate(b"\n")
    assert not proc.is_running(ProcessId(child.pid, found.start_ns))


def test_own_threads() -> None:
    done = threading.Event()
    other = threading.Thread(target=done.wait)
    other.start()
    try:
        assert {os.getpid(), other.native_id} <= set(proc.threads(os.getpid()))
        assert proc.namespace_pid(os.getpid()) is not None
    finally:
        done.set()
        other.join()
