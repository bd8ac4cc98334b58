"""Which start a pid belongs to, on real processes and on made /proc trees."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from probes import proc as procs
from probes.events import ProcessId
from tracer import target
from tracer.errors import ColdtraceError, NotPermitted
from tracer.owner import Owner

ME = Owner.of_caller({})
OTHER = Owner(ME.uid + 1, ME.gid + 1, "other", "/", ())

PARENT = """
import multiprocessing, os, sys, time

def engine(pipe):
    inner = multiprocessing.get_context(sys.argv[1]).Process(target=worker, args=(pipe,))
    inner.start()
    inner.join()

def worker(pipe):
    try:
        buffer = open("/proc/self/stat").read()
        if sys.argv[1:] and sys.argv[2] == "renamed":
            rename(b"ENGINE::Worker")
    finally:
        pipe.send(os.getpid())
    time.sleep(60)

def rename(title):
    # as setproctitle does: write over the command line where it lies
    fields = open("/proc/self/stat").read().rpartition(")")[2].split()
    start, end = int(fields[45]), int(fields[46])
    with open("/proc/self/mem", "r+b", buffering=0) as memory:
        memory.seek(start)
        memory.write(title.ljust(end - start, b"\\0"))

if __name__ == "__main__":
    ours, theirs = multiprocessing.Pipe()
    child = multiprocessing.get_context(sys.argv[1]).Process(target=engine, args=(theirs,))
    child.start()
    print(ours.recv(), flush=True)
    time.sleep(60)
"""


@contextmanager
def running(*command: str, ready: bool = True) -> Iterator[tuple[int, str]]:
    """A process, once it has printed its first line."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.pid, process.stdout.readline() if ready else ""
        finally:
            for pid in (*procs.descendants(process.pid), process.pid):
                os.kill(pid, 9)


def refusal(pid: int, owner: Owner = ME, anyones: bool = False) -> ColdtraceError:
    with pytest.raises(ColdtraceError) as caught:
        target.check(pid, owner, anyones)
    assert "\n" not in caught.value.message and caught.value.exit_status != 0
    return caught.value


def test_a_pid_that_does_not_exist() -> None:
    assert "there is no process 4194304" in refusal(4_194_304).message


def test_a_zombie_and_a_thread_are_no_processes() -> None:
    with subprocess.Popen(["true"]) as process:
        time.sleep(0.2)
        assert "there is no process" in refusal(process.pid).message
    many = "import threading, time; t = threading.Thread(target=time.sleep, args=(60,)); t.start()"
    with running(sys.executable, "-c", f"{many}; print(t.native_id, flush=True)") as (_, line):
        assert "there is no process" in refusal(int(line)).message


def test_what_is_not_python() -> None:
    with running("sh", "-c", "echo; sleep 60") as (pid, _):
        assert refusal(pid).message == (
            f"process {pid} (sh) isn't Python, nor is any process that it made"
        )


def test_ones_own_shell_is_not_python_because_coldtrace_is(tmp_path: Path) -> None:
    check = f"""
import os, sys
sys.path.insert(0, {str(Path.cwd())!r})
from tracer import target
from tracer.owner import Owner
target.check(os.getppid(), Owner.of_caller({{}}), False)
"""
    (tmp_path / "check.py").write_text(check)
    script = f"{sys.executable} {tmp_path}/check.py; true"
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True)
    assert "(sh) isn't Python" in done.stderr


def test_what_another_user_runs() -> None:
    with running(sys.executable, "-c", "import time; print(flush=True); time.sleep(60)") as (
        pid,
        _,
    ):
        error = refusal(pid, OTHER)
        assert isinstance(error, NotPermitted)
        assert "is another user's, not other's" in error.message and "--user" in error.message
        assert target.check(pid, OTHER, anyones=True).pid == pid
        assert target.check(pid, ME, anyones=False).pid == pid


def test_what_serves_already() -> None:
    serve = """
import socket, time
s = socket.create_server(("127.0.0.1", 0))
print(s.getsockname()[1], flush=True)
time.sleep(60)
"""
    with running(sys.executable, "-c", serve) as (pid, port):
        assert f"process {pid} listens on TCP port {int(port)} already" in refusal(pid).message
        assert target.listening_ports(pid) == [int(port)]
    bound = serve.replace("create_server((", "socket(); s.bind((").replace(", 0))", ", 0))", 1)
    with running(sys.executable, "-c", bound) as (pid, _):  # vLLM binds long before
        assert target.check(pid, ME, False).pid == pid


@pytest.mark.parametrize("title", ["plain", "renamed"])
@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
def test_from_a_worker_to_the_server(tmp_path: Path, method: str, title: str) -> None:
    script = tmp_path / "server"
    script.write_text(PARENT)
    with running("sh", "-c", f"{sys.executable} {script} {method} {title}; true") as (shell, line):
        server = procs.descendants(shell)[0]
        worker = int(line)
        if title == "renamed":
            assert procs.argv(worker)[0] == "ENGINE::Worker"  # type: ignore[index]
        assert target.check(worker, ME, False).pid == server
        assert target.program_name(server) == "server"
        assert worker in target.tree(server)
        # given the shell, the tree is the shell's
        assert target.check(shell, ME, False).pid == shell


def test_a_python_that_starts_a_server_is_no_part_of_it() -> None:
    starter = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; print(flush=True); time.sleep(60)"])
child.wait()
"""
    with running(sys.executable, "-c", starter) as (pid, _):
        (child,) = procs.descendants(pid)
        assert target.check(child, ME, False).pid == child


def test_a_module_of_the_same_package_is_part_of_it(tmp_path: Path) -> None:
    package = tmp_path / "engine"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "inspect_model.py").write_text("import time; print(flush=True); time.sleep(60)")
    script = tmp_path / "bin" / "engine"
    script.parent.mkdir()
    script.write_text(
        "import subprocess, sys\n"
        "command = [sys.executable, '-m', 'engine.inspect_model']\n"
        f"subprocess.run(command, cwd={str(tmp_path)!r})\n"
    )
    with running(sys.executable, str(script), "serve") as (pid, _):
        (child,) = procs.descendants(pid)
        assert target.find_root(child) == pid


def make_process(proc: Path, pid: int, parent: int, start_ticks: int) -> None:
    folder = proc / str(pid)
    folder.mkdir(parents=True)
    rest = " ".join(["0"] * 17)
    (folder / "stat").write_text(f"{pid} (a b) c) S {parent} {rest} {start_ticks} 0 0")
    (folder / "cmdline").write_bytes(b"program\0%d\0" % pid)


@pytest.fixture
def made(tmp_path: Path) -> Callable[[int, int, int], None]:
    def make(pid: int, parent: int, start_ticks: int) -> None:
        make_process(tmp_path, pid, parent, start_ticks)

    return make


def test_what_runs_is_followed_once_and_told_parents_first(
    tmp_path: Path, made: Callable[[int, int, int], None]
) -> None:
    for pid, parent in ((10, 1), (12, 10), (11, 12), (13, 1)):
        made(pid, parent, pid)
    root = procs.process_id(10, tmp_path)
    assert root is not None
    followed: list[ProcessId] = []

    def follow(process: ProcessId) -> None:
        followed.append(process)
        if process.pid == 12:  # a child that is made while we look
            made(14, 10, 14)

    source = target.RunningProcesses(follow, tmp_path)
    source.open()
    source.follow(root)
    assert [process.pid for process in followed] == [12, 11, 14]
    events = source.poll(0)
    parents = [(event.process.pid, event.parent and event.parent.pid) for event in events]
    assert parents == [(10, None), (12, 10), (11, 12), (14, 10)]
    assert events[1].argv == ("program", "12")
    assert source.poll(0) == [] and source.close() == []
    assert source.stats().seen == {"process": 4}


def test_what_is_made_after_its_parent_was_followed_is_left_to_others(
    tmp_path: Path, made: Callable[[int, int, int], None]
) -> None:
    made(10, 1, 10)
    root = procs.process_id(10, tmp_path)
    assert root is not None
    late = (time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000_000 + 60) * os.sysconf(
        "SC_CLK_TCK"
    )
    made(11, 10, late)
    made(12, 11, late)
    followed: list[ProcessId] = []
    source = target.RunningProcesses(followed.append, tmp_path)
    source.follow(root)
    assert not followed
    assert [event.process.pid for event in source.poll(0)] == [10]


def test_starts_are_monotonic_time() -> None:
    before_ns = time.monotonic_ns()
    with running("sh", "-c", "echo; sleep 60") as (pid, _):
        process = procs.process_id(pid)
        assert process is not None
        assert -20_000_000 < process.start_ns - before_ns < time.monotonic_ns() - before_ns
