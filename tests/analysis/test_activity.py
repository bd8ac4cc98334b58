"""What a thread did: exact where it was told, unknown where it wasn't."""

from __future__ import annotations

import random
from itertools import pairwise

from analysis.activity import Activity, State
from probes.events import BUCKET_NS, WaitState
from tracer.trace import Ran, Wait

MS = 1_000_000


def wait(start_ms: float, end_ms: float, woken_ms: float | None = None, **other: object) -> Wait:
    woken_ms = end_ms if woken_ms is None else woken_ms
    times = (round(ms * MS) for ms in (start_ms, end_ms, woken_ms))
    state = other.get("state", WaitState.SLEEPING)
    assert isinstance(state, WaitState)
    return Wait(1, *times, state, 1, None, None)


def ran(bucket: int, ms: float, cpu: int = 0) -> Ran:
    return Ran(1, cpu, bucket * BUCKET_NS, round(ms * MS))


def told(activity: Activity, start_ms: float, end_ms: float) -> list[tuple[str, float, float]]:
    """(state, ms, ms of it on a core) of each span."""
    spans = activity.between(round(start_ms * MS), round(end_ms * MS))
    return [(span.state.value, span.duration_ns / MS, span.ran_ns / MS) for span in spans]


def test_between_its_waits_a_thread_ran() -> None:
    activity = Activity([wait(20, 60, woken_ms=50)], [ran(0, 60)], 0, 100 * MS)
    assert told(activity, 0, 100) == [
        ("ran", 20, 20),
        ("waited", 30, 0),
        ("runnable", 10, 0),
        ("ran", 40, 40),
    ]
    assert told(activity, 10, 30) == [("ran", 10, 10), ("waited", 10, 0)]


def test_a_preempted_thread_waits_for_a_core_only() -> None:
    activity = Activity([wait(20, 60, state=WaitState.PREEMPTED)], [ran(0, 60)], 0, 100 * MS)
    assert told(activity, 0, 100)[1] == ("runnable", 40, 0)


def test_without_its_time_on_the_cores_nothing_is_claimed() -> None:
    activity = Activity([wait(20, 60)], [], 0, 100 * MS)
    assert not activity.is_known
    assert told(activity, 0, 100) == [("ran", 20, 0), ("waited", 40, 0), ("ran", 40, 0)]


def test_a_wait_that_was_lost_is_not_taken_for_running() -> None:
    """It ran 30 ms of 100: that the rest was a wait nobody told."""
    activity = Activity([], [ran(0, 30), ran(1, 60), ran(1, 40, cpu=1)], 0, 200 * MS)
    assert told(activity, 0, 200) == [("ran", 100, 30), ("ran", 100, 100)]
    assert told(activity, 50, 150) == [("ran", 50, 15), ("ran", 50, 50)]


def test_a_thread_never_runs_longer_than_it_had() -> None:
    activity = Activity([wait(10, 100)], [ran(0, 11)], 0, 100 * MS)
    assert told(activity, 0, 100) == [("ran", 10, 10), ("waited", 90, 0)]


def test_before_and_after_its_life_nothing_is_known() -> None:
    activity = Activity([], [ran(0, 50)], 20 * MS, 70 * MS)
    assert told(activity, 0, 100) == [("ran", 20, 0), ("ran", 50, 50), ("ran", 30, 0)]


def test_a_thread_that_was_long_there_costs_nothing() -> None:
    month_ns = 30 * 86_400 * 1_000_000_000
    bucket = month_ns // BUCKET_NS
    activity = Activity([], [Ran(1, 0, bucket * BUCKET_NS, 7)], 0, month_ns + 10 * BUCKET_NS)
    assert len(activity.spans) == 3


def test_the_spans_join_and_the_parts_add_up() -> None:
    """Whatever was told, and wherever it is cut."""
    chance = random.Random(17)
    for _ in range(200):
        waits, at_ns = [], 0
        for _ in range(chance.randrange(20)):
            start_ns = at_ns + chance.randrange(-5_000_000, 40_000_000)
            woken_ns = max(start_ns, 0) + chance.randrange(30_000_000)
            at_ns = woken_ns + chance.randrange(1, 9_000_000)
            state = chance.choice(list(WaitState))
            waits.append(Wait(1, max(start_ns, 0), at_ns, woken_ns, state, 1, None, None))
        waits.sort(key=lambda each: each.ts_ns)
        amounts = [Ran(1, 0, n * BUCKET_NS, chance.randrange(BUCKET_NS)) for n in range(8)]
        end_ns = chance.randrange(1, 900_000_000)
        activity = Activity(waits, amounts, chance.randrange(end_ns), end_ns)
        whole = list(activity.between(0, end_ns))
        assert (whole[0].start_ns, whole[-1].end_ns) == (0, end_ns)
        assert all(one.end_ns == other.start_ns for one, other in pairwise(whole))
        assert all(0 <= span.ran_ns <= span.duration_ns for span in whole)
        cuts = sorted({0, end_ns, *(chance.randrange(end_ns) for _ in range(9))})
        parts = [part for cut in pairwise(cuts) for part in activity.between(*cut)]
        assert sum(part.duration_ns for part in parts) == end_ns
        assert sum(part.ran_ns for part in parts) == sum(span.ran_ns for span in whole)
        for state in State:
            assert sum(part.duration_ns for part in parts if part.state is state) == sum(
                span.duration_ns for span in whole if span.state is state
            )
