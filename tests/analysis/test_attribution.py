"""Where the time of a sub-step went: made-up starts whose truth is known to the ns."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from errno import EINPROGRESS
from pathlib import Path

import pytest

from analysis.report.json import to_json
from analysis.result import BOUNDS, KINDS, UNATTRIBUTED, TimeShares
from analysis.start import Start
from probes.events import (
    Connected,
    DriverCalled,
    FileCached,
    FileUsed,
    NameLookedUp,
    PagesCached,
    ProcessForked,
    ProcessId,
    Reading,
    ThreadRan,
    WaitState,
)
from probes.kernel import KernelSource
from tests.analysis.synthetic import BEGIN_NS, MS, ROOT, Story, at

FAULT = "io_schedule folio_wait_bit_common filemap_fault handle_mm_fault exc_page_fault"
POLL = "schedule poll_schedule_timeout do_sys_poll"
TCP = "schedule sk_wait_data tcp_recvmsg_locked inet_recvmsg"
OTHER = ProcessId(200, BEGIN_NS + 1)


def in_ms(shares: TimeShares) -> dict[str, float]:
    """Shares in ms, as "kind" or "kind what"."""
    return {
        " ".join(filter(None, (share.kind, share.what))): share.duration_ns / MS
        for share in shares.shares
    }


def weights(story: Story, end_ms: float = 100) -> Story:
    """A start that loads weights throughout."""
    for ms in range(0, int(end_ms), 10):
        story.sample(ms, "main load")
    return story


def spent(start: Start) -> dict[str, float]:
    return in_ms(start.attribution.substeps["weights"])


def test_each_share_is_exact(tmp_path: Path) -> None:
    story = weights(Story())
    story.ran(0, 10).ran(25, 55).ran(65, 70).ran(80, 100)
    story.off(10, 25, FAULT, woken_ms=20)
    story.off(55, 65, state=WaitState.PREEMPTED)
    story.off(70, 80, "futex_wait_queue futex_wait do_futex")
    for ms, place in (
        (1, "python3"),
        (30, "libtorch_cpu.so"),
        (40, "kernel:read"),
        (50, "python3"),
    ):
        story.place(ms, place, stack="main load")
    start = story.start(tmp_path, 100)
    assert spent(start) == {
        "python": 32.5,
        "native libtorch_cpu.so": 16.25,
        "kernel read": 16.25,
        "runnable": 15,
        "disk page fault": 10,
        "lock futex": 10,
    }
    shares = start.attribution.substeps["weights"]
    assert (shares.bound, shares.bound_ns) == ("cpu", 80 * MS)
    assert start.attribution.whole == shares and start.attribution.whys == ()


def test_time_on_a_core_without_a_place_stays_what_it_is(tmp_path: Path) -> None:
    start = weights(Story()).ran(0, 60).off(60, 100, FAULT).start(tmp_path, 100)
    assert spent(start) == {"cpu": 60, "disk page fault": 40}
    assert start.attribution.whys == (
        "In which code the cores were was not recorded: Python isn't told from libraries.",
    )


def test_a_trace_without_cores_and_waits_says_so(tmp_path: Path) -> None:
    start = weights(Story()).start(tmp_path, 100)
    assert spent(start) == {"unknown": 100}
    assert start.attribution.substeps["weights"].bound == "unknown"
    assert start.attribution.cores is None and start.critical_path == ()
    (why,) = start.attribution.whys
    assert why == "Who had the cores was not recorded: where the time went is unknown."


def test_a_source_that_failed_is_named(tmp_path: Path) -> None:
    from tracer.trace import Trace, TraceWriter

    path = tmp_path / "t"
    writer = TraceWriter(path)
    for event in weights(Story()).events:
        writer.add(event)
    for key, value in (("root", writer.process_id(ROOT)), ("begin_ns", BEGIN_NS)):
        writer.set_meta(key, value)
    writer.set_source(KernelSource.name, "failed", "no BPF any more")
    writer.close()
    start = Start(Trace.open(path), Story().start(tmp_path, 1).signatures)
    assert "(bpf was failed: no BPF any more)" in start.attribution.whys[0]


def test_without_waits_the_rest_is_unknown(tmp_path: Path) -> None:
    start = weights(Story()).ran(0, 30).start(tmp_path, 100)
    assert spent(start) == {"unknown": 70, "cpu": 30}
    assert any("Waits were not recorded" in why for why in start.attribution.whys)


def test_a_wait_that_was_lost_is_unknown_and_no_other_share_grows(tmp_path: Path) -> None:
    story = weights(Story()).ran(0, 40).off(60, 100, FAULT)
    assert spent(story.start(tmp_path, 100)) == {"cpu": 40, "disk page fault": 40, "unknown": 20}


def test_what_was_before_the_tracer_is_unknown(tmp_path: Path) -> None:
    story = weights(Story()).ran(50, 100).off(49, 50, FAULT)
    start = story.start(tmp_path, 100, seen_from_ns=at(50))
    assert in_ms(start.attribution.whole) == {"unknown": 50, "cpu": 50}
    assert "missed" not in start.attribution.substeps


def test_a_disk_wait_is_for_the_file_of_which_most_came(tmp_path: Path) -> None:
    story = weights(Story(), 300).ran(0, 10).ran(90, 110).ran(190, 210).ran(290, 300)
    for ms in (10, 110, 210):
        story.off(ms, ms + 80, FAULT)
    story.events += [
        FileUsed(at(1), None, ROOT, 100, "/m/a.safetensors", 9, 0, 9, 64, 5),
        FileCached(at(0), "/m/b.safetensors", 9, 0, "ext4", 64, 6),
        PagesCached(at(0), ROOT, 64, 5, 4096),
        PagesCached(at(0), ROOT, 64, 6, 8192),
        PagesCached(at(100), ROOT, 64, 5, 4096),
        PagesCached(at(200), ROOT, 64, 77, 4096),
        PagesCached(at(200), OTHER, 64, 5, 1 << 30),
        ProcessForked(BEGIN_NS + 1, ROOT, OTHER),
    ]
    assert spent(story.start(tmp_path, 300)) == {
        "disk /m/b.safetensors": 80,
        "disk /m/a.safetensors": 80,
        "disk other files": 80,
        "cpu": 60,
    }


def test_a_file_of_an_overlay_is_known_by_its_inode(tmp_path: Path) -> None:
    story = weights(Story()).ran(0, 10).off(10, 100, FAULT)
    story.events += [
        FileUsed(at(1), None, ROOT, 100, "/m/a.safetensors", 9, 0, 9, 99, 5),
        PagesCached(at(0), ROOT, 64, 5, 4096),
    ]
    assert spent(story.start(tmp_path, 100))["disk /m/a.safetensors"] == 90


def test_a_stalled_hub_is_named(tmp_path: Path) -> None:
    story = weights(Story()).ran(0, 10).ran(95, 100)
    story.off(10, 30, POLL).off(30, 60, POLL).off(60, 95, TCP)
    story.events += [
        NameLookedUp(at(9), at(30), ROOT, 100, "hub.example", 0),
        Connected(at(30), at(30) + 9, ROOT, 100, "192.0.2.7", 443, EINPROGRESS),
    ]
    assert spent(story.start(tmp_path, 100)) == {
        "network hub.example:443": 65,
        "network hub.example": 20,
        "cpu": 15,
    }


def test_an_address_without_a_name_is_told(tmp_path: Path) -> None:
    story = weights(Story()).ran(0, 10).off(10, 100, TCP)
    story.events.append(Connected(at(9), at(10), ROOT, 100, "2001:db8::1", 80, 0))
    assert spent(story.start(tmp_path, 100))["network [2001:db8::1]:80"] == 90


def test_a_poll_is_for_the_peer_that_ended_it(tmp_path: Path) -> None:
    story = weights(Story()).ran(0, 10)
    peer = story.fork(1, 300)
    story.events.append(Connected(at(9), at(10), ROOT, 100, "192.0.2.7", 80, 0))
    story.off(10, 50, POLL, waker=peer).off(50, 100, POLL)
    assert spent(story.start(tmp_path, 100)) == {"other_wait poll": 50, "pipe poll": 40, "cpu": 10}


def test_a_socket_on_this_machine_is_a_pipe(tmp_path: Path) -> None:
    story = weights(Story()).ran(0, 10).off(10, 100, TCP)
    story.events.append(Connected(at(9), at(10), ROOT, 100, "127.0.0.1", 29500, 0))
    assert spent(story.start(tmp_path, 100))["pipe 127.0.0.1:29500"] == 90


def test_a_quota_takes_no_more_than_was_throttled(tmp_path: Path) -> None:
    story = weights(Story()).ran(0, 20).ran(60, 70)
    story.off(20, 60, state=WaitState.PREEMPTED).off(70, 100, state=WaitState.PREEMPTED)
    for ms, throttled_ms in ((0, 7), (50, 7 + 15), (100, 7 + 15 + 400)):
        story.events.append(Reading(at(ms), "cgroup_throttled_ns", "/a", throttled_ms * MS))
    assert spent(story.start(tmp_path, 100)) == {"throttled": 55, "cpu": 30, "runnable": 15}


def test_a_driver_s_calls_are_the_gpu_s(tmp_path: Path) -> None:
    story = weights(Story()).ran(0, 60).off(60, 100, "schedule nvidia_unlocked_ioctl do_syscall_64")
    for ms, place in ((1, "kernel:ioctl"), (2, "libcuda.so.570"), (3, "python3")):
        story.place(ms, place, stack="main load")
    story.events.append(DriverCalled(at(0), ROOT, 100, "/dev/nvidia0", 9, 9))
    start = story.start(tmp_path, 100)
    assert start.attribution.substeps["weights"].of("gpu") == 80 * MS
    assert start.attribution.substeps["weights"].bound == "gpu"


def test_how_many_cores_were_busy(tmp_path: Path) -> None:
    story = weights(Story(), 400).ran(0, 10).ran(100, 149).ran(200, 300).ran(300, 350)
    story.events.append(ThreadRan(at(400), ROOT, 100, 0, 1300 * MS))  # it went on after the end
    story.ran(200, 300, tid=7).ran(300, 349, tid=7).off(10, 100, FAULT)
    cores = story.start(tmp_path, 450).attribution.cores
    assert cores is not None
    parts = (cores.none_ns, cores.one_ns, cores.several_ns, cores.busy_ns)
    assert parts == (200 * MS, 150 * MS, 100 * MS, 408 * MS)


@pytest.mark.parametrize("seed", range(20))
def test_shares_sum_to_the_wall_clock_whatever_was_told(tmp_path: Path, seed: int) -> None:
    """Lost waits, buckets that are wrong, gaps, several processes: to the nanosecond."""
    chance = random.Random(seed)
    story = Story()
    child = story.fork(100, 300)
    end_ms = chance.randrange(300, 900)
    for process in (ROOT, child):
        ms = 100.0 if process is child else 0.0
        while ms < end_ms:
            names = (
                "main load",
                "main trial",
                "main helper",
                "main wait_for_engine",
                "main engine",
            )
            story.sample(ms, chance.choice(names), process)
            if chance.random() < 0.5:
                kernel = chance.choice(("", FAULT, POLL, TCP, "do_wait", "nobody_knows"))
                state = chance.choice(list(WaitState))
                length = chance.uniform(0, 30)
                woken = ms + chance.uniform(0, length)
                waker = chance.choice((None, ROOT, child))
                story.off(ms, ms + length, kernel, process, 0, woken, waker, 0, state)
            if chance.random() < 0.5:
                story.ran(ms, ms + chance.uniform(0, 40), process)
            if chance.random() < 0.5:
                place = chance.choice(("python3", "kernel:read", "", "libc.so.6"))
                story.place(ms, place, process, stack="main load")
            ms += chance.uniform(0.1, 15)
    for ms in range(0, end_ms, 37):
        story.events.append(Reading(at(ms), "cgroup_throttled_ns", "/a", ms * chance.random() * MS))
    start = story.start(tmp_path, end_ms)
    result = start.result
    durations = {sub.id: sub.duration_ns for step in result.steps for sub in step.substeps}
    durations[UNATTRIBUTED] = result.unattributed_ns
    attribution = result.attribution
    assert {id_: times.duration_ns for id_, times in attribution.substeps.items()} == {
        id_: duration_ns for id_, duration_ns in durations.items() if duration_ns
    }
    assert attribution.whole.duration_ns == result.wall_ns
    assert all(
        share.duration_ns > 0 and share.kind in KINDS
        for times in (*attribution.substeps.values(), attribution.whole)
        for share in times.shares
    )
    path = result.critical_path
    assert sum(link.times.duration_ns for link in path) == (result.wall_ns if path else 0)


def test_the_json_has_the_shares_and_the_critical_path(tmp_path: Path) -> None:
    story = weights(Story()).ran(0, 60).off(60, 100, FAULT)
    result = json.loads(to_json(story.start(tmp_path, 100).result))
    (substep,) = (sub for sub in result["steps"][1]["substeps"] if sub["id"] == "weights")
    assert substep["bound"] == "cpu" and substep["shares"] == [
        {"kind": "cpu", "what": None, "seconds": 0.06},
        {"kind": "disk", "what": "page fault", "seconds": 0.04},
    ]
    assert result["attribution"]["cores"]["one_s"] == 0.1
    (link,) = result["critical_path"]
    assert (link["start_s"], link["end_s"], link["pid"], link["bound"]) == (0, 0.1, 100, "cpu")


def test_every_kind_has_one_verdict() -> None:
    assert len(set(KINDS)) == len(KINDS) == sum(map(len, BOUNDS.values()))


# Size and speed


def busy_start(folder: Path, events: int) -> Path:
    """A start with so many of each event that comes often."""
    story = Story()
    children = [story.fork(1 + number, 300 + number) for number in range(4)]
    for number in range(events):
        process, ms = children[number % 4], 10 + number
        story.sample(ms, "main engine load", process)
        story.place(ms + 0.1, f"lib{number % 40}.so", process, stack="main engine trial")
        story.off(ms + 0.2, ms + 1.4, (FAULT, POLL, "do_futex")[number % 3], process, waker=ROOT)
        story.ran(ms, ms + 0.2, process).ran(ms + 1.4, ms + 2, process, tid=9)
        story.sample(ms, "main wait_for_engine")
        story.events.append(PagesCached(at(number // 100 * 100), process, 64, number % 50, 4096))
    folder.mkdir()
    return story.write(folder, events + 100)


def seconds_of(path: Path) -> float:
    from analysis.signature import Signatures
    from tests.analysis.synthetic import SIGNATURES

    began_s = time.process_time()
    start = Start(Start.open(path).trace, Signatures(SIGNATURES))
    result = start.result
    assert result.attribution.whole.duration_ns == result.wall_ns
    return time.process_time() - began_s


def test_the_time_of_an_analysis_grows_with_its_events(tmp_path: Path) -> None:
    few, many = busy_start(tmp_path / "few", 1_500), busy_start(tmp_path / "many", 15_000)
    few_s = min(seconds_of(few) for _ in range(3))
    assert seconds_of(many) < 13 * few_s


def test_a_long_start_is_analysed_in_no_time(tmp_path: Path) -> None:
    """With 75,000 samples, 25,000 waits and twice as many times that a thread ran."""
    path = busy_start(tmp_path / "long", 25_000)
    program = (
        "import resource, sys, time\n"
        "from analysis.start import Start\n"
        "Start.open(sys.argv[1]).result\n"
        "print(time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    )
    run = [sys.executable, "-c", program, path]
    cpu_s, peak_kib = subprocess.check_output(run, text=True).split()
    assert float(cpu_s) < 3 and int(peak_kib) < 400_000
