"""From py-spy's `chrometrace` output to the stacks it sampled; pure.

The file is one JSON array of events that begin (`B`) or end (`E`) a frame.
py-spy writes a thread's events only when its stack differs from the one that it
saw before, and keeps that one by pthread id alone: processes forked from one
another share pthread ids, so there each sample ends the frames of one process
and begins those of the other. Replaying the events with the same key gives back
every stack, and an event's pid says whose it is.

Run with `--threads --function`: the outermost frames then name the process
(with `--subprocesses`) and the thread, in frames whose file is empty, as no
Python frame's is, and a frame's line is its function's first.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple, TextIO

_CHUNK_CHARS = 256 * 1024
_EVENT_CHARS = 8 << 20  # a process frame holds a command line, 2 MiB at most before escapes
_DEPTH = 8192  # py-spy's own limit is 4,096 Python frames
_MAX_LINE = (1 << 31) - 1

_THREAD = re.compile(r"thread \((?:(\d{1,10})|0x[0-9A-F]{1,16})\)(?:: (.*))?", re.DOTALL)
_LAST_TIME = re.compile(r'"ts":(\d{1,16})\}\]\s*$')


class ChromeTraceError(ValueError):
    """The file isn't what py-spy writes, or is cut short."""


class Frame(NamedTuple):
    """One function of a stack; `line` is its first, 0 if unknown."""

    file: str
    name: str
    line: int


@dataclass(frozen=True, slots=True)
class Stack:
    """What one thread ran from `ts_us` on, innermost frame first.

    `ts_us` counts from py-spy's start. `thread` is the pthread id, unique in
    its process only; `tid` the OS thread id in the innermost PID namespace,
    None where the interpreter doesn't keep it (before 3.11).
    """

    ts_us: int
    pid: int
    thread: int
    tid: int | None
    thread_name: str | None
    frames: tuple[Frame, ...]


class _Mark(NamedTuple):
    ts_us: int
    pid: int
    thread: int
    begins: bool
    frame: Frame


def read_stacks(file: TextIO) -> Iterator[Stack]:
    """The stacks of `file`, in its order of time, one for each change of a thread.

    Reads piece by piece. The ends that py-spy adds when it stops change nothing.
    """
    stacks: dict[int, list[Frame]] = {}
    marks = map(_mark, _objects(file))
    for (ts_us, pid, thread), group in groupby(marks, key=lambda mark: mark[:3]):
        frames = stacks.setdefault(thread, [])
        _replay(frames, group)
        if frames:
            yield _stack(ts_us, pid, thread, frames)


def last_time_us(path: str) -> int | None:
    """When py-spy stopped, by its own clock; None if the file is cut short."""
    with open(path, "rb") as file:
        file.seek(0, 2)
        file.seek(max(0, file.tell() - 256))
        found = _LAST_TIME.search(file.read().decode("utf-8", "replace"))
    return int(found[1]) if found else None


def _replay(frames: list[Frame], marks: Iterable[_Mark]) -> None:
    for mark in marks:
        if mark.begins:
            frames.append(mark.frame)
        elif not frames or frames.pop() != mark.frame:
            raise ChromeTraceError(f"a frame ends at {mark.ts_us} us that didn't begin last")
        if len(frames) > _DEPTH:
            raise ChromeTraceError(f"over {_DEPTH} frames in one stack")


def _stack(ts_us: int, pid: int, thread: int, frames: list[Frame]) -> Stack:
    """`frames` outermost first: those of processes, then the thread's, then Python's."""
    at = 0
    while at < len(frames) and not frames[at].file and frames[at].name.startswith("process "):
        at += 1
    found = None
    if at < len(frames) and not frames[at].file:
        found = _THREAD.fullmatch(frames[at].name)
    if found is None:
        raise ChromeTraceError(f"a stack at {ts_us} us doesn't name its thread")
    tid = int(found[1]) if found[1] else None
    return Stack(ts_us, pid, thread, tid, found[2], tuple(frames[:at:-1]))


def _mark(event: object) -> _Mark:
    match event:
        case {
            "args": {"filename": str(file), "line": int(line)},
            "name": str(name),
            "ph": "B" | "E" as phase,
            "pid": int(pid),
            "tid": int(thread),
            "ts": int(ts_us),
        }:
            frame = Frame(file, name, line if 0 <= line <= _MAX_LINE else 0)
            return _Mark(ts_us, pid, thread, phase == "B", frame)
    raise ChromeTraceError("an event lacks what py-spy writes")


def _objects(file: TextIO) -> Iterator[object]:
    """The elements of one JSON array, never holding more than a few of them."""
    decode = json.JSONDecoder().raw_decode
    text, at = file.read(_CHUNK_CHARS).lstrip(), 1
    if not text.startswith("["):
        raise ChromeTraceError("not a JSON array")
    while True:
        while text[at : at + 1] in (",", " ", "\n"):
            at += 1
        if text[at : at + 1] == "]":
            return
        try:
            element, at = decode(text, at)
        except json.JSONDecodeError:
            more = file.read(_CHUNK_CHARS)
            if not more or len(text) - at > _EVENT_CHARS:
                raise ChromeTraceError("cut short, or an event is too long") from None
            text, at = text[at:] + more, 0
        else:
            yield element
