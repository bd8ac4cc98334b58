"""The trace file: what is written comes back, and nothing else does any harm."""

from __future__ import annotations

import os
import random
import resource
import signal
import sqlite3
import stat
import struct
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from probes.events import (
    Connected,
    DeviceTransferred,
    DriverCalled,
    Event,
    FileCached,
    FileUsed,
    FunctionSeen,
    ModuleExecuted,
    NameLookedUp,
    PagesCached,
    ProcessExecuted,
    ProcessExited,
    ProcessForked,
    ProcessFound,
    ProcessId,
    Reading,
    SampleCause,
    SocketAccepted,
    SocketListening,
    StackSampled,
    ThreadRan,
    ThreadWaited,
    WaitState,
)
from probes.source import SourceStats
from tracer import schema
from tracer.errors import TraceError
from tracer.owner import Owner
from tracer.text import escape
from tracer.trace import (
    CachedFile,
    Connection,
    DriverCalls,
    Exec,
    File,
    Function,
    Lookup,
    Module,
    Note,
    PagesAdded,
    Ran,
    ReadValue,
    Sample,
    Socket,
    SourceState,
    Trace,
    TraceWriter,
    Transfer,
    Wait,
)

ROOT, CHILD = ProcessId(100, 5), ProcessId(101, 20)
NOBODY = Owner(65534, 65534, "nobody", "/nonexistent", (65534,))
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="taking on another user needs root")

EVENTS: list[Event] = [
    ProcessFound(6, ROOT, ProcessId(1, 0), ("bash", "-l")),
    ProcessExecuted(10, ROOT, "/bin/vllm", ("vllm", "serve", "\udcff"), False),
    ProcessForked(20, ROOT, CHILD),
    FunctionSeen(30, ROOT, 7, "/a.py", "<module>", 1),
    FunctionSeen(31, ROOT, 8, "/a.py", "Größe.run", 12),
    StackSampled(40, ROOT, 100, 1, SampleCause.WAIT, (8, 7), False),
    StackSampled(41, ROOT, 102, 0, SampleCause.ON_CPU, (), True),
    ModuleExecuted(35, 60, ROOT, 100, 0, 7),
    FileUsed(50, None, CHILD, 101, "/m/\udcffx.safetensors", None, 3, 1 << 70),
    SocketListening(70, ROOT, 100, 2, 8000),
    SocketAccepted(80, ROOT, 100, 8000),
    ProcessExited(90, CHILD, 9),
]

DISK = ("io_schedule", "folio_wait_bit_common", "filemap_fault")
HIGHEST_INODE = (1 << 64) - 1
RESOURCES: list[Event] = [
    StackSampled(41, ROOT, 100, 1, SampleCause.ON_CPU, (), False, "libtorch_cpu.so"),
    StackSampled(42, ROOT, 100, 1, SampleCause.ON_CPU, (), False, "kernel:\udcff"),
    StackSampled(43, ROOT, 100, 1, SampleCause.ON_CPU, (), False, "libtorch_cpu.so"),
    StackSampled(44, ROOT, 100, 1, SampleCause.ON_CPU, (), False),
    ThreadRan(0, ROOT, 100, 1, 7),
    ThreadRan(100_000_000, CHILD, 101, 0, 100_000_000),
    ThreadWaited(45, 60, 50, ROOT, 100, WaitState.BLOCKED, DISK, None, None),
    ThreadWaited(61, 70, 61, ROOT, 100, WaitState.PREEMPTED, (), 101, 102),
    ThreadWaited(71, 80, 79, ROOT, 100, WaitState.BLOCKED, DISK, 101, 101),
    PagesCached(0, CHILD, 64, HIGHEST_INODE, 4096),
    DeviceTransferred(0, 64, 3, 12288, 5),
    Connected(46, 48, ROOT, 100, "2001:db8::1", 443, 110),
    NameLookedUp(44, 46, ROOT, 100, "hub.\udcff", -2),
    DriverCalled(0, ROOT, 100, "/dev/nvidia0", 12, 34),
    FileCached(5, "/m/a.safetensors", 100, None, "overlay", 64, HIGHEST_INODE),
    FileCached(6, "/m/b.safetensors", 100, 40, "ext4", 64, 7),
    FileUsed(50, 55, CHILD, 101, "/m/a.safetensors", 100, 3, 0, 64, HIGHEST_INODE),
    Reading(9, "cgroup_throttled_ns", "", 12),
    Reading(8, "gpu_power_w", "gpu0", 70.5),
    Reading(10, "gpu_power_w", "gpu0", float("nan")),
]


def write(path: Path, events: list[Event] | None = None) -> Path:
    """A sound trace at `path`."""
    writer = TraceWriter(path)
    writer.set_meta("begin_ns", 10)
    writer.set_meta("root", writer.process_id(ROOT))
    for event in EVENTS if events is None else events:
        writer.add(event)
    writer.close()
    return path


@pytest.fixture
def reachable() -> Iterator[Path]:
    """A folder that everyone may enter; those of pytest are closed to others."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        yield Path(name)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "start.coldtrace"


def test_what_is_written_comes_back(path: Path) -> None:
    write(path)
    trace = Trace.open(path)
    root, bash_parent, child = trace.processes.values()
    assert (root.pid, root.start_ns, root.found) == (100, 5, True)
    assert root.parent_id == bash_parent.id and child.parent_id == root.id
    assert (child.end_ns, child.wait_status, child.found) == (90, 9, False)
    assert root.execs == [
        Exec(6, "bash", ("bash", "-l"), False),
        Exec(10, "/bin/vllm", ("vllm", "serve", "\udcff"), False),
    ]
    module, method = 1, 2
    assert trace.functions == {
        module: Function("/a.py", "<module>", 1),
        method: Function("/a.py", "Größe.run", 12),
    }
    waiting, idle = trace.samples(root.id)
    assert waiting == Sample(40, 100, 1, SampleCause.WAIT, waiting.stack_id)
    assert trace.stacks[waiting.stack_id].frames == (method, module)
    assert trace.stacks[idle.stack_id].truncated and not trace.stacks[idle.stack_id].frames
    assert trace.samples(child.id) == []
    assert trace.modules() == [Module(root.id, 100, 0, 35, 60, module)]
    (file,) = trace.files()
    assert file == File(child.id, 101, 50, None, "/m/\\udcffx.safetensors", None, 3, (1 << 63) - 1)
    assert trace.sockets() == [
        Socket(root.id, 100, 70, "listen", 2, 8000),
        Socket(root.id, 100, 80, "accept", None, 8000),
    ]


def test_resources_come_back(path: Path) -> None:
    trace = Trace.open(write(path, [ProcessForked(9, ROOT, CHILD), *RESOURCES]))
    root, child = trace.processes
    places = ["libtorch_cpu.so", "kernel:\\udcff", "libtorch_cpu.so", ""]
    assert [sample.place for sample in trace.samples(root)] == places
    assert trace.ran(root) == [Ran(100, 1, 0, 7)]
    assert trace.ran(child) == [Ran(101, 0, 100_000_000, 100_000_000)]
    assert trace.waits(root) == [
        Wait(100, 45, 60, 50, WaitState.BLOCKED, 1, None, None),
        Wait(100, 61, 70, 61, WaitState.PREEMPTED, 2, 101, 102),
        Wait(100, 71, 80, 79, WaitState.BLOCKED, 1, 101, 101),
    ]
    assert trace.waits(child) == []
    assert trace.kernel_stacks == {1: DISK, 2: ()}
    assert trace.page_cache() == [PagesAdded(child, 0, 64, HIGHEST_INODE, 4096)]
    assert trace.transfers() == [Transfer(0, 64, 3, 12288, 5)]
    assert trace.connections() == [Connection(root, 100, 46, 48, "2001:db8::1", 443, 110)]
    assert trace.lookups() == [Lookup(root, 100, 44, 46, "hub.\\udcff", -2)]
    assert trace.driver_calls() == [DriverCalls(root, 100, 0, "/dev/nvidia0", 12, 34)]
    unknown, known = trace.cached_files()
    assert unknown == CachedFile(5, "/m/a.safetensors", 100, None, "overlay", 64, HIGHEST_INODE)
    assert known == CachedFile(6, "/m/b.safetensors", 100, 40, "ext4", 64, 7)
    (file,) = trace.files()
    assert (file.device, file.inode) == (64, HIGHEST_INODE)
    assert trace.readings() == [
        ReadValue(8, "gpu_power_w", "gpu0", 70.5),
        ReadValue(9, "cgroup_throttled_ns", "", 12.0),
    ]
    assert trace.meta["end_ns"] == 100_000_000  # a moment, not how long something took


def test_the_moments_of_a_wait_are_put_in_order(path: Path) -> None:
    """The clocks of two cores may differ by some ns."""
    waits = [(20, 30, 31), (20, 30, 19), (20, 19, 19)]
    write(path, [ThreadWaited(*times, ROOT, 1, WaitState.SLEEPING, (), 1, 1) for times in waits])
    read = [(wait.ts_ns, wait.end_ns, wait.woken_ns) for wait in Trace.open(path).waits(1)]
    assert read == [(20, 30, 30), (20, 30, 20), (20, 20, 20)]


def test_meta_sources_counts_and_notes_come_back_as_last_set(path: Path) -> None:
    writer = TraceWriter(path)
    writer.set_meta("root", writer.process_id(ROOT))
    writer.set_meta("begin_ns", 10)
    writer.set_meta("seen_from_ns", 12)
    writer.set_meta("outcome", "failed")
    writer.set_meta("outcome", "ready")
    writer.set_source("kernel", "open", "")
    writer.set_source("kernel", "failed", "gone")
    writer.set_counts("kernel", SourceStats({"sample": 1}, {}, {}))
    writer.commit()
    writer.set_counts("kernel", SourceStats({"sample": 5}, {"sample": 2}, {"walk": 7}))
    writer.note(11, "a remark")
    writer.close()
    trace = Trace.open(path)
    assert trace.meta["outcome"] == "ready" and trace.meta["seen_from_ns"] == 12
    assert trace.sources == {"kernel": SourceState("failed", "gone")}
    assert trace.counts == {"kernel": SourceStats({"sample": 5}, {"sample": 2}, {"walk": 7})}
    assert trace.notes == [Note(11, "a remark")]


def test_a_recorder_that_was_killed_leaves_an_interrupted_start(path: Path) -> None:
    meta = Trace.open(write(path)).meta
    assert (meta["outcome"], meta["seen_from_ns"], meta["end_ns"]) == ("interrupted", 10, 90)


def test_a_key_told_again_changes_later_samples_only(path: Path) -> None:
    def sample(ts_ns: int) -> Event:
        return StackSampled(ts_ns, ROOT, 100, 0, SampleCause.ON_CPU, (7,), False)

    write(
        path,
        [
            sample(11),
            FunctionSeen(12, ROOT, 7, "/a.py", "first", 1),
            sample(13),
            FunctionSeen(14, ROOT, 7, "/a.py", "second", 2),
            sample(15),
            FunctionSeen(16, CHILD, 7, "/b.py", "elsewhere", 3),
            sample(17),
        ],
    )
    trace = Trace.open(path)
    stacks = [trace.stacks[sample.stack_id] for sample in trace.samples(1)]
    names = [trace.functions[stack.frames[0]].name for stack in stacks]
    assert names == ["<unknown>", "first", "second", "second"]


# The file itself


def test_only_the_owner_may_read_it(path: Path) -> None:
    mask = os.umask(0)
    try:
        write(path)
    finally:
        os.umask(mask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@needs_root
def test_it_is_the_owners_and_root_stays_root(reachable: Path) -> None:
    os.chown(reachable, NOBODY.uid, NOBODY.gid)
    writer = TraceWriter(reachable / "t", NOBODY)
    status = (reachable / "t").stat()
    assert (status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode)) == (65534, 65534, 0o600)
    writer.close()
    own = reachable / "root's"
    own.touch()
    assert own.stat().st_uid == 0


@needs_root
def test_root_writes_nowhere_that_the_owner_may_not(reachable: Path) -> None:
    with pytest.raises(TraceError, match="Permission denied"):
        TraceWriter(reachable / "t", NOBODY)
    assert not (reachable / "t").exists()


def test_a_planted_symlink_is_refused(path: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    path.symlink_to(target)
    with pytest.raises(TraceError, match="exists and is left alone"):
        TraceWriter(path)
    assert not target.exists()


def test_a_file_that_exists_is_left_alone(path: Path) -> None:
    path.write_text("precious")
    with pytest.raises(TraceError, match="exists and is left alone"):
        TraceWriter(path)
    assert path.read_text() == "precious"


def test_a_folder_that_does_not_exist_is_told(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="No such file or directory"):
        TraceWriter(tmp_path / "nowhere" / "t")


def test_a_reader_delays_a_commit_and_loses_nothing(path: Path) -> None:
    writer = TraceWriter(path)
    writer.set_meta("root", writer.process_id(ROOT))
    writer.set_meta("begin_ns", 10)
    writer.commit()
    reader = sqlite3.connect(path, isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT * FROM meta").fetchone()
    began_s = time.monotonic()
    writer.note(1, "during")
    writer.commit()
    assert time.monotonic() - began_s < 1
    assert reader.execute("SELECT count(*) FROM note").fetchone() == (0,)
    reader.execute("COMMIT")
    reader.close()
    writer.note(2, "after")
    writer.close()
    assert [note.text for note in Trace.open(path).notes] == ["during", "after"]


@pytest.mark.parametrize("limit_bytes", [60_000, 80_000, 300_000])
def test_a_full_disk_is_told_and_leaves_a_readable_file(path: Path, limit_bytes: int) -> None:
    writer = TraceWriter(path)
    writer.set_meta("root", writer.process_id(ROOT))
    writer.set_meta("begin_ns", 10)
    writer.commit()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, before[1]))
    try:
        with pytest.raises(TraceError, match=r"can't write .*start\.coldtrace: "):
            for round_ in range(100):
                for number in range(1000):
                    key = round_ * 1000 + number
                    writer.add(FunctionSeen(key, ROOT, key, "/a.py", f"function_{key}", 1))
                    writer.add(StackSampled(key, ROOT, 1, 0, SampleCause.ON_CPU, (key,), False))
                writer.commit()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    writer.add(EVENTS[5])
    writer.note(99, "the disk was full")
    writer.close()
    trace = Trace.open(path)
    assert len(trace.samples(1)) == len(trace.functions)
    assert [note.text for note in trace.notes] == ["the disk was full"]


def test_too_many_rows_end_the_recording(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema, "MAX_ROWS", 5)
    writer = TraceWriter(path)
    for ts_ns in range(6):
        writer.note(ts_ns, "x")
    with pytest.raises(TraceError, match="is full: it holds 5 rows of note"):
        writer.commit()
    writer.discard()
    assert not path.exists()


# A kill at any moment


def record_until_killed(path: Path, ready: int) -> None:
    """Write as fast as can be, so that a kill often lands in a commit."""
    writer = TraceWriter(path)
    writer.set_meta("root", writer.process_id(ROOT))
    writer.set_meta("begin_ns", 10)
    writer.commit()
    os.write(ready, b"x")
    commit_ns = time.monotonic_ns()
    for key in range(100_000_000):
        ts_ns = time.monotonic_ns()
        writer.add(FunctionSeen(ts_ns, ROOT, key, "/a.py", f"f{key}", 1))
        writer.add(StackSampled(ts_ns, ROOT, 1, 0, SampleCause.ON_CPU, (key,), False))
        if ts_ns - commit_ns > 20_000_000:
            writer.commit()
            commit_ns = time.monotonic_ns()


def kill_a_recorder(path: Path, after_s: float) -> int:
    """Return the CLOCK_MONOTONIC moment of the kill."""
    ready, told = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            record_until_killed(path, told)
        finally:
            os._exit(1)
    os.read(ready, 1)
    time.sleep(after_s)
    killed_ns = time.monotonic_ns()
    os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    os.close(ready)
    os.close(told)
    assert os.WTERMSIG(status) == signal.SIGKILL
    return killed_ns


def test_a_kill_at_any_moment_loses_a_second_at_most(tmp_path: Path) -> None:
    chance = random.Random(7)
    for number in range(25):
        path = tmp_path / f"{number}.coldtrace"
        after_s = chance.uniform(0.05, 0.25)
        killed_ns = kill_a_recorder(path, after_s)
        before = path.read_bytes()
        trace = Trace.open(path)
        assert path.read_bytes() == before
        assert trace.meta["outcome"] == "interrupted"
        samples = trace.samples(1)
        assert samples or after_s < 1
        last_ns = samples[-1].ts_ns if samples else killed_ns - int(after_s * 1e9)
        assert killed_ns - last_ns < 1_000_000_000


def interrupted_commit(path: Path) -> Path:
    """A trace as a kill in the middle of a commit leaves it; return its journal."""
    write(path)
    writer = sqlite3.connect(path, isolation_level=None)
    writer.execute("PRAGMA cache_size = 1")
    writer.execute("BEGIN")
    for number in range(3000):  # too much for the cache: it spills into the file
        writer.execute("INSERT INTO note VALUES (?, ?)", (number, "half-done " * 10))
    journal = path.with_name(path.name + "-journal")
    halves = path.read_bytes(), journal.read_bytes()
    writer.execute("ROLLBACK")
    writer.close()
    path.write_bytes(halves[0])
    journal.write_bytes(halves[1])
    return journal


def test_a_half_done_commit_is_undone_in_a_copy(path: Path) -> None:
    journal = interrupted_commit(path)
    before = path.read_bytes(), journal.read_bytes()
    trace = Trace.open(path)
    assert trace.notes == [] and len(trace.sockets()) == 2
    assert (path.read_bytes(), journal.read_bytes()) == before


def test_a_journal_that_names_another_file_is_refused(path: Path, tmp_path: Path) -> None:
    journal = interrupted_commit(path)
    victim = tmp_path / "victim"
    victim.write_text("precious")
    name = os.fsencode(victim)
    tail = struct.pack(">II", len(name), sum(name)) + bytes.fromhex("d9d505f920a163d7")
    lock_page = struct.pack(">I", (1 << 30) // 4096 + 1)
    journal.write_bytes(journal.read_bytes() + lock_page + name + tail)
    with pytest.raises(TraceError, match="a journal that no coldtrace wrote"):
        Trace.open(path)
    assert victim.read_text() == "precious"


# Files that aren't sound


def refused(path: Path) -> str:
    with pytest.raises(TraceError) as caught:
        Trace.open(path)
    message = caught.value.message
    assert "\n" not in message and str(path) in message
    return message


def test_a_missing_file(path: Path) -> None:
    assert refused(path) == f"{path}: no such file"


def test_an_empty_file(path: Path) -> None:
    path.touch()
    assert "is empty" in refused(path)


@pytest.mark.parametrize(
    "content", [b"#!/bin/sh\n", b"\0" * 5000, random.Random(3).randbytes(9999)]
)
def test_a_file_that_is_no_trace(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    assert "is not a coldtrace trace" in refused(path)


def test_another_sqlite_database(path: Path) -> None:
    tamper(path, "CREATE TABLE process(id)")
    assert "another SQLite database" in refused(path)


def test_a_folder_and_a_pipe(path: Path, tmp_path: Path) -> None:
    os.mkfifo(path)
    assert "is not a file" in refused(path)
    assert "is not a file" in refused(tmp_path)


def test_a_newer_schema(path: Path) -> None:
    tamper(write(path), "PRAGMA user_version = 2")
    assert "has schema 2, written by a newer coldtrace; this one reads up to 1" in refused(path)


def test_a_huge_file(path: Path) -> None:
    os.truncate(write(path), schema.MAX_FILE_BYTES + 1)
    assert "is too large" in refused(path)


def test_a_recorder_stopped_before_the_start(path: Path) -> None:
    TraceWriter(path).close()
    assert "holds no start" in refused(path)


def test_a_trace_cut_short_anywhere(path: Path) -> None:
    whole = write(path).read_bytes()
    for length in [*range(1, 120), *range(120, len(whole), 997), len(whole) - 1]:
        path.write_bytes(whole[:length])
        assert "cut short" in refused(path), length


def test_damage_anywhere_is_refused_or_harmless(path: Path) -> None:
    """A changed byte may well make another sound trace; it never makes a traceback."""
    whole = write(path, EVENTS + RESOURCES).read_bytes()
    chance = random.Random(11)
    refusals = 0
    for _ in range(600):
        damaged = bytearray(whole)
        for _ in range(chance.choice([1, 3, 30])):
            damaged[chance.randrange(100, len(whole))] = chance.randrange(256)
        path.write_bytes(damaged)
        try:
            Trace.open(path)
        except TraceError as error:
            refusals += 1
            assert error.message == escape(error.message)
            assert len(error.message) < 1000
    assert refusals > 50


def tamper(path: Path, *statements: str) -> None:
    database = sqlite3.connect(path, isolation_level=None)
    for statement in statements:
        database.execute(statement)
    database.close()


LOOP = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i FROM n) SELECT i, i FROM n"


@pytest.mark.parametrize(
    ("statement", "complaint"),
    [
        ("UPDATE process SET parent_id = 77 WHERE id = 1", "process.parent_id"),
        ("UPDATE process SET parent_id = id", "its own ancestor"),
        ("UPDATE process SET pid = -1", "process.pid"),
        ("UPDATE process SET start_ns = -5", "process.start_ns"),
        ("UPDATE process SET wait_status = 1 << 40", "process.wait_status"),
        ("UPDATE process SET found = 2", "process.found"),
        ("UPDATE exec SET argv = '[1]'", "exec.argv"),
        ("UPDATE exec SET argv = printf('%.100000c', '[')", "not JSON"),
        ("UPDATE exec SET process_id = 77", "exec.process_id"),
        ("UPDATE exec SET filename = printf('%.5000000c', 'a')", "too big"),
        ("UPDATE function SET id = 1 << 40 WHERE id = 1", "function.id"),
        ("DELETE FROM function", "stack.frames"),
        ("UPDATE stack SET frames = x'010203'", "stack.frames"),
        ("UPDATE stack SET frames = zeroblob(4 * 5000)", "stack.frames"),
        ("UPDATE sample SET stack_id = 77", "sample.stack_id"),
        ("UPDATE sample SET cause = 99", "sample.cause"),
        ("UPDATE sample SET process_id = 77", "sample.process_id"),
        ("UPDATE module SET function_id = 77", "module.function_id"),
        ("UPDATE module SET end_ns = -1", "module.end_ns"),
        ("UPDATE file SET read_bytes = -1", "file.read_bytes"),
        ("UPDATE socket SET port = 65536", "socket.port"),
        ("UPDATE socket SET kind = 'bind'", "socket.kind"),
        ("UPDATE sample SET place_id = 77", "sample.place_id"),
        ("UPDATE file SET device = -1", "file.device"),
        ("UPDATE ran SET cpu = -1", "ran.cpu"),
        ("UPDATE ran SET process_id = 77", "ran.process_id"),
        ("UPDATE kernel_stack SET frames = '[1]'", "kernel_stack.frames"),
        ("UPDATE kernel_stack SET frames = '{'", "not JSON"),
        ("UPDATE wait SET kernel_stack_id = 77", "wait.kernel_stack_id"),
        ("UPDATE wait SET state = 4", "wait.state"),
        ("UPDATE wait SET woken_ns = end_ns + 1", "wait.woken_ns"),
        ("UPDATE wait SET waker_pid = -1", "wait.waker_pid"),
        ("UPDATE page_cache SET added_bytes = -1", "page_cache.added_bytes"),
        ("UPDATE block SET busy_ns = -1", "block.busy_ns"),
        ("UPDATE connection SET port = 65536", "connection.port"),
        ("UPDATE lookup SET error = 1 << 40", "lookup.error"),
        ("UPDATE driver SET calls = -1", "driver.calls"),
        ("UPDATE file_cached SET cached_bytes = -1", "file_cached.cached_bytes"),
        ("UPDATE reading SET value = 9e999", "reading.value"),
        ("INSERT INTO source VALUES ('kernel', 'weird', '')", "source.state"),
        ("INSERT INTO count VALUES ('kernel', 'sample', -1, 0, 0)", "count.seen"),
        ("INSERT INTO meta VALUES ('outcome', '\"fine\"')", "meta outcome"),
        ("INSERT INTO meta VALUES ('outcome', '[]')", "meta outcome"),
        ("INSERT INTO meta VALUES ('outcome', 'NaN')", "meta outcome"),
        ("INSERT INTO meta VALUES ('end_ns', '1.5')", "meta end_ns"),
        ("INSERT INTO meta VALUES ('command', '\"vllm\"')", "meta command"),
        ("INSERT INTO meta VALUES ('versions', '{\"vllm\": []}')", "meta versions"),
        ("INSERT INTO meta VALUES ('host', '{')", "not JSON"),
        ("UPDATE meta SET value = '77' WHERE key = 'root'", "meta root"),
        ("DELETE FROM meta WHERE key = 'begin_ns'", "holds no start"),
        ("DROP TABLE note", "doesn't have the tables"),
        ("ALTER TABLE note ADD COLUMN more TEXT", "doesn't have the tables"),
        ("CREATE TRIGGER t AFTER INSERT ON note BEGIN SELECT 1; END", "doesn't have the tables"),
    ],
)
def test_a_wrong_value_is_named(path: Path, statement: str, complaint: str) -> None:
    tamper(write(path, EVENTS + RESOURCES), statement)
    assert complaint in refused(path)


def test_a_view_in_place_of_a_table_is_not_run(path: Path) -> None:
    tamper(write(path), "DROP TABLE note", f"CREATE VIEW note AS {LOOP}")
    assert "doesn't have the tables" in refused(path)


def test_text_that_is_not_unicode_is_refused(path: Path) -> None:
    tamper(write(path), "UPDATE function SET name = CAST(x'ff' AS TEXT)")
    assert "damaged" in refused(path)


# Size and speed


def long_start() -> list[Event]:
    """What a start of 60 s brings: 20,000 samples, 40,000 module bodies, 60,000 times
    that a thread ran or waited."""
    processes = [ProcessId(100 + number, 5 + number) for number in range(4)]
    chance = random.Random(5)
    events: list[Event] = []
    for key in range(40_000):
        process = processes[key % 4]
        name = f"/usr/lib/python3/site-packages/package/sub/module_{key % 10_000}.py"
        events.append(FunctionSeen(key, process, key, name, f"Class.method_{key % 10_000}", key))
        events.append(ModuleExecuted(key, key + 5, process, 100, 3, key))
    for number in range(20_000):
        keys = tuple(chance.randrange(10_000) * 4 + number % 4 for _ in range(40))
        cause = SampleCause.ON_CPU
        place = f"lib{number % 50}.so"
        events.append(StackSampled(number, processes[number % 4], 1, 1, cause, keys, False, place))
    for number in range(30_000):
        process, kernel = processes[number % 4], ("schedule", f"function_{number % 300}")
        events.append(ThreadRan(number, process, number % 40, number % 2, 7))
        times = (number, number + 9, number + 8)
        events.append(ThreadWaited(*times, process, 1, WaitState.SLEEPING, kernel, 100, 1))
    return events


def cpu_s(action: Callable[[], object]) -> float:
    began_s = time.process_time()
    action()
    return time.process_time() - began_s


def test_a_long_start_is_small_and_quick(path: Path) -> None:
    events = long_start()
    assert cpu_s(lambda: write(path, [ProcessForked(9, ROOT, CHILD), *events])) < 0.05 * 60
    assert path.stat().st_size < 33_000_000
    assert cpu_s(lambda: Trace.open(path)) < 1
