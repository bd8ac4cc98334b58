"""The critical path: made-up starts in which it is known who waited for whom."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from analysis.report.attribution import critical_path_report
from analysis.result import Link
from analysis.start import Start
from probes.events import ProcessId
from tests.analysis.synthetic import BEGIN_NS, MS, ROOT, Story
from tests.analysis.test_reports import text

FUTEX = "schedule futex_wait_queue futex_wait do_futex"
UNIX = "schedule unix_stream_data_wait unix_stream_read_generic"
WAIT4 = "schedule do_wait kernel_wait4"
SLEEP = "schedule do_nanosleep hrtimer_nanosleep"


def told(start: Start) -> list[tuple[float, int, int, str | None, str]]:
    """(ms, pid, tid, sub-step, handover) of each link, by time; they tile the start."""
    links = start.critical_path
    result = start.result
    assert (links[0].start_ns, links[-1].end_ns) == (result.start_ns, result.end_ns)
    assert all(one.end_ns == other.start_ns for one, other in pairwise(links))
    assert all(link.times.duration_ns == link.duration_ns for link in links)
    return [_told(start, link) for link in links]


def _told(start: Start, link: Link) -> tuple[float, int, int, str | None, str]:
    pid = start.trace.processes[link.process_id].pid
    return link.duration_ns / MS, pid, link.tid, link.substep, link.handover


def serving(story: Story, end_ms: int) -> Story:
    for ms in range(0, end_ms, 10):
        story.sample(ms, "main load")
    return story


def test_it_goes_through_the_process_that_was_waited_for(tmp_path: Path) -> None:
    story = serving(Story(), 1000).ran(0, 100).ran(700, 1000)
    engine = story.fork(100, 300)
    story.ran(100, 699, engine).off(100, 700, UNIX, woken_ms=699, waker=engine)
    assert told(story.start(tmp_path, 1000)) == [
        (100, 100, 100, "weights", "forked"),
        (599, 300, 300, "weights", "woke"),
        (301, 100, 100, "weights", "ended"),
    ]


def test_it_is_cut_where_the_sub_step_changes(tmp_path: Path) -> None:
    story = Story().ran(0, 1000).off(999, 1000, SLEEP)
    for ms in range(0, 1000, 10):
        story.sample(ms, "main load" if ms < 500 else "main trial")
    story.sample(495, "main load").sample(500, "main trial")
    links = told(story.start(tmp_path, 1000))
    assert [link[3:] for link in links] == [("weights", "went on"), ("trial", "ended")]
    assert abs(links[0][0] - 500) < 11


def test_it_goes_through_a_thread_of_the_same_process(tmp_path: Path) -> None:
    story = serving(Story(), 1000).ran(0, 200).ran(800, 1000)
    story.ran(200, 500, tid=7).off(500, 700, SLEEP, tid=7).ran(700, 800, tid=7)
    story.off(200, 800, FUTEX, waker=ROOT, waker_tid=7)
    start = story.start(tmp_path, 1000)
    (link,) = start.critical_path
    kinds = {share.kind: share.duration_ns / MS for share in link.times.shares}
    assert kinds == {"cpu": 800, "sleep": 200}


def test_it_goes_through_an_exit(tmp_path: Path) -> None:
    story = serving(Story(), 1000).ran(0, 100).ran(900, 1000)
    child = story.fork(100, 300)
    story.ran(100, 400, child).off(400, 800, SLEEP, child).ran(800, 900, child).exit(900, child)
    story.off(100, 900, WAIT4, waker=child)
    start = story.start(tmp_path, 1000)
    assert [link[:2] for link in told(start)] == [(100, 100), (800, 300), (100, 100)]
    assert start.critical_path[1].times.of("sleep") == 400 * MS


def test_a_wait_that_no_thread_ended_is_its_own_time(tmp_path: Path) -> None:
    """Whatever ran when a disk's interrupt came is no waker."""
    story = serving(Story(), 1000).ran(0, 100).ran(900, 1000)
    other = story.fork(50, 300)
    story.ran(50, 1000, other)
    story.off(100, 500, "io_schedule filemap_fault", waker=other).off(500, 900, SLEEP)
    start = story.start(tmp_path, 1000)
    (link,) = told(start)
    assert link == (1000, 100, 100, "weights", "ended")
    (beside,) = start.critical_path[0].beside
    assert (beside.busy_ns, beside.slack_ns) == (950 * MS, 50 * MS)


def test_who_has_a_pid_by_then_is_the_waker(tmp_path: Path) -> None:
    """A pid is used again."""
    story = serving(Story(), 1000).ran(0, 500).ran(900, 1000)
    first = story.fork(100, 300)
    story.exit(200, first)
    second = story.fork(500, 300)
    story.ran(500, 900, second).off(500, 900, UNIX, waker=second)
    start = story.start(tmp_path, 1000)
    assert start.trace.processes[start.critical_path[1].process_id].start_ns == second.start_ns


def test_a_waker_outside_the_start_is_not_followed(tmp_path: Path) -> None:
    stranger = ProcessId(4000, BEGIN_NS)
    story = serving(Story(), 1000).ran(0, 100).off(100, 900, UNIX, waker=stranger).ran(900, 1000)
    assert told(story.start(tmp_path, 1000)) == [(1000, 100, 100, "weights", "ended")]


def test_two_that_wake_each_other_come_to_an_end(tmp_path: Path) -> None:
    story = serving(Story(), 1000)
    peer = story.fork(0, 300)
    for ms in range(0, 1000, 20):
        story.ran(ms, ms + 10).off(ms + 10, ms + 20, UNIX, waker=peer)
        story.ran(ms + 10, ms + 20, peer).off(ms, ms + 10, UNIX, peer, waker=ROOT)
    assert sum(link[0] for link in told(story.start(tmp_path, 1000))) == 1000


def test_waits_that_claim_each_other_at_one_moment_come_to_an_end(tmp_path: Path) -> None:
    story = serving(Story(), 100).ran(0, 50)
    peer = story.fork(0, 300)
    story.off(10, 60, UNIX, waker=peer).off(10, 60, UNIX, peer, waker=ROOT)
    assert sum(link[0] for link in told(story.start(tmp_path, 100))) == 100


def test_short_links_are_a_part_of_their_neighbour(tmp_path: Path) -> None:
    story = serving(Story(), 10_000).ran(0, 5000).ran(5010, 10_000)
    tool = story.fork(5000, 300)
    story.ran(5000, 5010, tool).off(5000, 5010, WAIT4, waker=tool)
    start = story.start(tmp_path, 10_000)
    (link,) = start.critical_path
    assert len(link.process_ids) == 2


def test_without_waits_there_is_none(tmp_path: Path) -> None:
    start = serving(Story(), 100).ran(0, 100).start(tmp_path, 100)
    assert start.critical_path == ()
    assert "It isn't known: waits were not recorded." in text(critical_path_report(start))


def test_it_is_printed_from_the_end(tmp_path: Path) -> None:
    story = serving(Story(), 1000).ran(0, 100).ran(700, 1000)
    engine = story.fork(100, 300)
    story.sample(101, "main engine", engine).ran(100, 400, engine).off(400, 699, SLEEP, engine)
    story.off(100, 700, UNIX, woken_ms=699, waker=engine)
    helper = story.fork(150, 301)
    story.ran(200, 500, helper).run(150, helper, "/bin/\x1b[31mevil")
    lines = text(critical_path_report(story.start(tmp_path, 1000))).splitlines()
    assert "\x1b" not in "".join(lines) and all(len(line) <= 80 for line in lines)
    assert [" ".join(line.split()) for line in lines[3:]] == [
        "1.000 0.301 CPU 100% Server 100: Weights",
        "0.699 0.599 CPU 50% └─Engine 300: Weights woke",
        "│ \\x1b[31mevil 301: 0.300 s, slack 0.299 s",
        "0.100 0.100 CPU 100% └─Server 100: Weights made",
    ]
