"""From py-spy's output to stacks.

data/forked.chrometrace.json was written by py-spy 0.4.3 at 40 Hz for a program that
forks, so that both main threads share a pthread id; each process runs `Phase.spin`
for 0.2 s, called by `work`, then `snooze`.
"""

from __future__ import annotations

import io
import json
from itertools import pairwise
from pathlib import Path

import pytest

from probes.chrometrace import ChromeTraceError, Frame, Stack, last_time_us, read_stacks

RECORDED = Path(__file__).parent / "data" / "forked.chrometrace.json"
PARENT, CHILD = 3412, 3414
THREAD = "thread (7): MainThread"


def mark(phase: str, name: str, ts: int = 0, *, pid: int = 5, tid: int = 99) -> dict[str, object]:
    file = "" if name.startswith(("thread ", "process ")) else "a.py"
    args = {"filename": file, "line": 3 if file else 0}
    return {
        "args": args,
        "cat": "py-spy",
        "name": name,
        "ph": phase,
        "pid": pid,
        "tid": tid,
        "ts": ts,
    }


def read(*marks: object) -> list[Stack]:
    return list(read_stacks(io.StringIO(json.dumps(marks) + "\n")))


def names(stack: Stack) -> list[str]:
    return [frame.name for frame in stack.frames]


def test_a_recorded_file_gives_each_process_its_own_stacks() -> None:
    with open(RECORDED, encoding="utf-8") as file:
        stacks = list(read_stacks(file))
    for pid in (PARENT, CHILD):
        mine = [stack for stack in stacks if stack.pid == pid]
        assert {stack.tid for stack in mine} == {pid}
        changes = [
            mine[0],
            *(b for a, b in pairwise(mine) if a.frames != b.frames),
        ]
        assert [names(stack) for stack in changes] == [
            ["Phase.spin", "work", "<module>"],
            ["snooze", "<module>"],
        ]
        assert changes[0].frames[0] == Frame("/srv/forked.py", "Phase.spin", 7)
    assert [stack.ts_us for stack in stacks] == sorted(stack.ts_us for stack in stacks)


def test_the_last_time_of_a_recorded_file(tmp_path: Path) -> None:
    assert last_time_us(str(RECORDED)) == 604090
    cut = tmp_path / "cut.json"
    cut.write_bytes(RECORDED.read_bytes()[:-40])
    assert last_time_us(str(cut)) is None
    cut.write_bytes(b"")
    assert last_time_us(str(cut)) is None


def test_a_stack_changes_where_frames_begin_and_end() -> None:
    stacks = read(
        mark("B", THREAD, 10),
        mark("B", "main", 10),
        mark("B", "load", 10),
        mark("E", "load", 20),
        mark("E", "main", 30),
        mark("B", "serve", 30),
        mark("E", "serve", 40),
        mark("E", THREAD, 50),
    )
    assert [(stack.ts_us, names(stack)) for stack in stacks] == [
        (10, ["load", "main"]),
        (20, ["main"]),
        (30, ["serve"]),
        (40, []),
    ]
    assert {(stack.pid, stack.thread, stack.tid) for stack in stacks} == {(5, 99, 7)}
    assert {stack.thread_name for stack in stacks} == {"MainThread"}


@pytest.mark.parametrize(
    ("name", "tid", "thread_name"),
    [
        ("thread (12)", 12, None),
        ("thread (12): a: b (c)\n", 12, "a: b (c)\n"),
        ("thread (0x7F644071D6C0): MainThread", None, "MainThread"),
    ],
)
def test_thread_frames(name: str, tid: int | None, thread_name: str | None) -> None:
    (stack,) = read(mark("B", 'process 4:"sh"'), mark("B", 'process 5:"x"'), mark("B", name))
    assert (stack.tid, stack.thread_name, stack.frames) == (tid, thread_name, ())


def test_a_function_may_be_called_like_a_thread() -> None:
    odd = mark("B", "thread (1)")
    odd["args"] = {"filename": "a.py", "line": 1}
    (stack,) = read(mark("B", THREAD), odd)
    assert (stack.tid, names(stack)) == (7, ["thread (1)"])


@pytest.mark.parametrize("length", [1, 1000, 300_000, 1_000_000])
def test_long_names_across_pieces(length: int) -> None:
    name = "é" * length
    stacks = read(mark("B", THREAD), mark("B", name), mark("E", name, 1), mark("B", "f", 1))
    assert [names(stack) for stack in stacks] == [[name], ["f"]]


def test_lines_out_of_bounds_read_as_unknown() -> None:
    odd = mark("B", "f")
    odd["args"] = {"filename": "a.py", "line": 4294967295}
    assert read(mark("B", THREAD), odd)[0].frames[0].line == 0


@pytest.mark.parametrize(
    "marks",
    [
        (mark("E", "f"),),
        (mark("B", THREAD), mark("B", "f"), mark("E", "g", 1)),
        (mark("B", "f"),),
        (mark("B", THREAD) | {"ts": "1"},),
        (mark("X", THREAD),),
        (mark("B", THREAD) | {"args": None},),
        ("text",),
        tuple(mark("B", THREAD) for _ in range(9000)),
    ],
)
def test_what_py_spy_does_not_write_is_refused(marks: tuple[object, ...]) -> None:
    with pytest.raises(ChromeTraceError):
        read(*marks)


@pytest.mark.parametrize("text", ["", "{}", "[", '[{"args"', "[1 2", "null"])
def test_broken_json_is_refused(text: str) -> None:
    with pytest.raises(ChromeTraceError):
        list(read_stacks(io.StringIO(text)))


def test_a_file_cut_short_gives_what_it_has_first() -> None:
    text = json.dumps([mark("B", THREAD, 1), mark("B", THREAD, 2, tid=98), mark("B", "f", 3)])
    stacks = read_stacks(io.StringIO(text[:-5]))
    assert next(stacks).ts_us == 1
    with pytest.raises(ChromeTraceError, match="cut short"):
        list(stacks)


def test_an_event_too_long_is_refused() -> None:
    with pytest.raises(ChromeTraceError, match="too long"):
        read(mark("B", THREAD), mark("B", "x" * 9_000_000))


def test_an_empty_array_has_no_stack() -> None:
    assert read() == []
