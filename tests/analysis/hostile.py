"""A made-up start with every kind of thing to show, in which all names are hostile."""

from __future__ import annotations

import os
from dataclasses import replace

from probes.events import (
    BUCKET_NS,
    Connected,
    DeviceTransferred,
    Event,
    FileCached,
    FileUsed,
    NameLookedUp,
    PagesCached,
    ProcessId,
    Reading,
    SocketListening,
    StackSampled,
    ThreadRan,
    ThreadWaited,
    WaitState,
)
from tests.analysis.synthetic import ROOT, Story, at

MARKUP = "</script><script>document.title='owned'</script><img src=x onerror=alert(1)>&amp;"
HOSTILE = f"{MARKUP}\x1b[2J\u2028\u2029\u202e;'"
NAME = "".join(HOSTILE.split())
"""Without spaces, as stacks are told by words."""
DEVICE, INODE = os.makedev(8, 1), 77
END_MS = 3000


def hostile_story() -> Story:
    """Three seconds of a server, its engine and two compilers, on two cores."""
    story = Story(("toy", "serve", HOSTILE))
    story.body(2, 400, f"/lib/python3.11/site-packages/{HOSTILE}/a.py:<module>")
    story.body(10, 300, "/lib/python3.11/site-packages/big/__init__.py:<module>", depth=1)
    story.sample(500, "main config").sample(600, "main spawn")
    engine = story.fork(600, 200)
    story.wait(620, "main wait_for_engine")
    for number in range(200):
        name = f"/lib/{NAME}.py:{NAME}" if number % 2 else "helper"
        story.sample(630 + 10 * number, f"engine load {name}", engine)
        _place_last(story, (HOSTILE, "python3.11", "kernel:read", "")[number % 4])
    for number, pid in enumerate((401, 402)):
        compiler = story.fork(900 + 100 * number, pid, engine)
        story.run(901 + 100 * number, compiler, "/usr/bin/g++", HOSTILE).exit(1300, compiler)
    story.sample(2900, "main startup")
    story.events += _resources(engine)
    return story


def _place_last(story: Story, place: str) -> None:
    """Say where the last sample was."""
    sample = story.events[-1]
    assert isinstance(sample, StackSampled)
    story.events[-1] = replace(sample, place=place)


def _resources(engine: ProcessId) -> list[Event]:
    events: list[Event] = []
    for bucket in range(30):
        ts_ns = at(0) // BUCKET_NS * BUCKET_NS + bucket * BUCKET_NS
        process, cpu = (ROOT, 0) if bucket < 6 else (engine, 1)
        events.append(ThreadRan(ts_ns, process, process.pid, cpu, BUCKET_NS * 3 // 4))
        events.append(DeviceTransferred(ts_ns, DEVICE, 9, 4_000_000 * (bucket % 3), 1000))
        events.append(Reading(ts_ns, "machine_busy_ns", "", bucket * 9e7))
        events.append(Reading(ts_ns, "cgroup_throttled_ns", HOSTILE, bucket * 1e6))
    events += [
        PagesCached(at(700), engine, DEVICE, INODE, 1_000_000),
        FileUsed(at(650), at(900), engine, 200, HOSTILE, 2_000_000, 500, 10, DEVICE, INODE),
        FileCached(at(0), "./elsewhere", 2_000_000, 1_000_000, HOSTILE, DEVICE, INODE),
        _waited(620, 2800, ROOT, (HOSTILE, "futex_wait"), engine.pid),
        _waited(700, 720, engine, ("folio_wait_bit_common", "filemap_fault"), None),
        Connected(at(640), at(660), engine, 200, "192.0.2.1", 443, 111),
        NameLookedUp(at(630), at(640), engine, 200, HOSTILE, 0),
        SocketListening(at(END_MS), ROOT, 100, 2, 8000),
    ]
    return events


def _waited(
    ms: float, end_ms: float, process: ProcessId, kernel: tuple[str, ...], waker: int | None
) -> ThreadWaited:
    end_ns = at(end_ms)
    state = WaitState.SLEEPING
    woken_ns = end_ns - 1_000_000
    return ThreadWaited(at(ms), end_ns, woken_ns, process, process.pid, state, kernel, waker, waker)
