"""`coldtrace run` and `attach` on small real servers: what the user sees, and what is left."""

from __future__ import annotations

import json
import os
import pwd
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tracer.commands import _new_name
from tracer.errors import TraceError
from tracer.trace import Trace

pytestmark = pytest.mark.real_kernel

COLDTRACE = str(Path(sys.executable).with_name("coldtrace"))
NOBODY = pwd.getpwnam("nobody")

SERVER = """
import os, signal, socket, sys, time

def on_term(*_):
    sys.exit(9)

signal.signal(signal.SIGTERM, on_term)
print("starting", flush=True)
while sys.argv[1:] and not os.path.exists(sys.argv[1]):
    time.sleep(0.05)
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
time.sleep(60)
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that every user can reach and write, unlike pytest's own."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name)
        path.chmod(0o777)
        (path / "server").write_text(SERVER)
        yield path


@contextmanager
def coldtrace(folder: Path, *arguments: str, **options: object) -> Iterator[subprocess.Popen[str]]:
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    started = subprocess.Popen(
        [COLDTRACE, *arguments],
        cwd=folder,
        text=True,
        **pipes,
        **options,  # type: ignore[call-overload]
    )
    with started as process:
        try:
            yield process
        finally:
            process.terminate()


def traced(folder: Path, *command: str, status: int) -> str:
    """Run `command` to its end under coldtrace; return what coldtrace said."""
    with coldtrace(folder, "run", "-o", "t.coldtrace", "--", *command) as process:
        said, errors = process.communicate(timeout=30)
        assert process.returncode == status, errors
        assert not said
    return errors


def server(folder: Path, wait_for: str = "") -> list[str]:
    """A server that gets ready at once, or when a file has appeared."""
    return [sys.executable, str(folder / "server"), *([str(folder / wait_for)] if wait_for else [])]


def trace_with(path: Path, holds: Callable[[Trace], object], timeout_s: float = 30) -> Trace:
    """The trace in `path`, which is being written, once something is in it."""
    end = time.monotonic() + timeout_s
    while time.monotonic() < end:
        with suppress(TraceError):
            trace = Trace.open(path)
            if holds(trace):
                return trace
        time.sleep(0.1)
    raise AssertionError("it never came")


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def wait_for(text: str, process: subprocess.Popen[str]) -> str:
    """What coldtrace says up to the line that holds `text`."""
    assert process.stderr is not None
    said = ""
    for line in process.stderr:
        said += line
        if text in line:
            return said
    raise AssertionError(f"{text!r} was never said: {said}")


def test_a_server_is_traced_until_it_is_ready_and_goes_on(folder: Path) -> None:
    arguments = ["run", "-o", "t.coldtrace", "--json", "r.json", "--", *server(folder, "go")]
    with coldtrace(folder, *arguments) as process:
        assert line_of(process) == "starting"
        time.sleep(0.3)
        (folder / "go").touch()
        port = int(line_of(process))
        said = wait_for("the trace is t.coldtrace", process)
        assert "ready after " in said
        socket.create_connection(("127.0.0.1", port), 5).close()
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 9
    result = json.loads((folder / "r.json").read_text())
    assert result["outcome"] == "ready" and 0.3 < result["wall_s"] < 20
    assert result["lost_events"] == 0
    trace = Trace.open(folder / "t.coldtrace")
    assert trace.meta["command"] == server(folder, "go")
    assert trace.meta["begin_ns"] == trace.meta["seen_from_ns"]


def test_after_readiness_a_small_process_without_root_waits(folder: Path) -> None:
    with coldtrace(folder, "run", "--user", "nobody", "--", *server(folder)) as process:
        wait_for("the trace is ", process)
        status = Path(f"/proc/{process.pid}/status")
        end = time.monotonic() + 5
        while (text := status.read_text()) and f"Uid:\t{NOBODY.pw_uid}" not in text:
            assert time.monotonic() < end, text
            time.sleep(0.05)
        peak_kib = int(text.partition("VmRSS:")[2].split()[0])
        assert peak_kib < 25_000
        assert sorted(os.listdir(f"/proc/{process.pid}/fd")) == ["0", "1", "2"]
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 9


def test_the_command_is_the_users_and_so_are_the_files(folder: Path) -> None:
    called = os.environ | {"SUDO_UID": str(NOBODY.pw_uid), "SUDO_GID": str(NOBODY.pw_gid)}
    arguments = ["run", "-o", "t.coldtrace", "--json", "r.json", "--until", "exit", "--"]
    with coldtrace(folder, *arguments, "sh", "-c", "id -un; touch mine", env=called) as process:
        assert line_of(process) == "nobody"
        process.communicate(timeout=30)
    for name in ("mine", "t.coldtrace", "r.json"):
        status = (folder / name).stat()
        assert (status.st_uid, status.st_gid) == (NOBODY.pw_uid, NOBODY.pw_gid), name
    assert (folder / "t.coldtrace").stat().st_mode & 0o777 == 0o600


def test_a_command_that_dies_is_told_of_and_its_status_passed_on(folder: Path) -> None:
    (folder / "dies").write_text("def load_model():\n  1 / 0\nload_model()\n")
    with coldtrace(folder, "run", "-o", "t.coldtrace", "--", sys.executable, "dies") as process:
        _, errors = process.communicate(timeout=30)
    assert process.returncode == 1
    assert "ZeroDivisionError" in errors and "failed" in errors
    assert Trace.open(folder / "t.coldtrace").meta["outcome"] == "failed"


def test_a_command_that_is_killed_is_died_like(folder: Path) -> None:
    assert "failed" in traced(folder, "sh", "-c", "kill -KILL $$", status=-9)
    assert Trace.open(folder / "t.coldtrace").meta["wait_status"] == 9


def test_ctrl_c_before_readiness_ends_both(folder: Path) -> None:
    arguments = ["run", "-o", "t.coldtrace", "--", *server(folder, "never")]
    with coldtrace(folder, *arguments, start_new_session=True) as process:
        assert line_of(process) == "starting"
        process.send_signal(signal.SIGINT)  # by a process: it is forwarded
        _, errors = process.communicate(timeout=30)
    assert process.returncode == -signal.SIGINT
    assert errors.count("KeyboardInterrupt") == 1 and "interrupted" in errors
    assert Trace.open(folder / "t.coldtrace").meta["outcome"] == "interrupted"


def test_ctrl_c_before_anything_has_begun_leaves_nothing(folder: Path) -> None:
    arguments = ["run", "-o", "t.coldtrace", "--", "touch", "begun"]
    with coldtrace(folder, *arguments) as process:
        while not (folder / "t.coldtrace").exists():  # made before the programs are loaded
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
    assert process.returncode == -signal.SIGINT and not errors
    assert os.listdir(folder) == ["server"]


@pytest.mark.parametrize("command", ["no-such-command", "./server"])
def test_a_command_that_cannot_run_leaves_no_trace(folder: Path, command: str) -> None:
    before = sorted(os.listdir(folder))
    said = traced(folder, command, status=127 if command == "no-such-command" else 126)
    assert said.startswith(f"coldtrace: {command}") and said.count("\n") == 1
    assert sorted(os.listdir(folder)) == before


def test_a_file_that_exists_is_left_alone(folder: Path) -> None:
    (folder / "t.coldtrace").write_text("precious")
    said = traced(folder, "touch", "started", status=1)
    assert "t.coldtrace exists and is left alone" in said and said.count("\n") == 1
    assert (folder / "t.coldtrace").read_text() == "precious"
    assert not (folder / "started").exists()


@pytest.mark.parametrize(
    ("json", "status", "said"),
    [("t.coldtrace", 2, "is the trace itself"), ("none/r.json", 1, "No such file or directory")],
)
def test_nothing_starts_whose_json_cannot_be_written(
    folder: Path, json: str, status: int, said: str
) -> None:
    arguments = ["run", "-o", "t.coldtrace", "--json", json, "--", "touch", "started"]
    with coldtrace(folder, *arguments) as process:
        _, errors = process.communicate(timeout=30)
    assert process.returncode == status and said in errors and errors.count("\n") == 1
    assert [path.name for path in folder.iterdir()] == ["server"]


@pytest.mark.parametrize(
    ("program", "name"), [("/bin/a b\x1b", "a_b_"), ("-bash", "bash"), ("/..", "start")]
)
def test_a_trace_has_a_name_that_can_be_typed(program: str, name: str) -> None:
    assert re.fullmatch(rf"{name}-\d{{8}}-\d{{6}}\.coldtrace", str(_new_name(program)))


def test_a_working_directory_that_was_deleted(folder: Path) -> None:
    (folder / "gone").mkdir()
    shell = f"cd gone; rmdir ../gone; exec {COLDTRACE} run -o {folder}/t.coldtrace -- true"
    done = subprocess.run(["sh", "-c", shell], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr == "coldtrace: the working directory was deleted; change to another\n"


def test_an_unknown_user(folder: Path) -> None:
    with coldtrace(folder, "run", "--user", "no-such-user", "--", "true") as process:
        _, errors = process.communicate(timeout=30)
    assert process.returncode == 2
    assert errors.startswith("coldtrace: there is no user named no-such-user")


def test_a_killed_recorder_leaves_the_command_and_a_readable_trace(folder: Path) -> None:
    with coldtrace(folder, "run", "-o", "t.coldtrace", "--", *server(folder, "go")) as process:
        trace_with(folder / "t.coldtrace", lambda trace: trace.processes[1].execs)
        process.kill()
        assert line_of(process) == "starting"
        (folder / "go").touch()
        port = int(line_of(process))
        socket.create_connection(("127.0.0.1", port), 5).close()
        trace = Trace.open(folder / "t.coldtrace")
        os.kill(trace.processes[1].pid, signal.SIGKILL)
    assert trace.meta["outcome"] == "interrupted" and "recorder" not in trace.meta
    assert trace.processes[1].execs


def test_a_closed_standard_error_is_no_reason_to_use_standard_output(folder: Path) -> None:
    script = f"exec 2>&-; {COLDTRACE} run -o t.coldtrace -- sh -c 'echo said; echo lost >&2'"
    done = subprocess.run(["sh", "-c", script], cwd=folder, stdout=subprocess.PIPE, text=True)
    assert done.stdout == "said\n"
    assert Trace.open(folder / "t.coldtrace").meta["outcome"] == "failed"


def test_a_hang_up_that_nohup_ignores_stops_nothing(folder: Path) -> None:
    arguments = ["run", "-o", "t.coldtrace", "--", *server(folder, "go")]
    with coldtrace(folder, *arguments, preexec_fn=_ignore_hang_up) as process:
        trace_with(folder / "t.coldtrace", lambda trace: trace.processes[1].execs)
        process.send_signal(signal.SIGHUP)
        time.sleep(0.3)
        (folder / "go").touch()
        assert "ready after" in wait_for("the trace is ", process)


def _ignore_hang_up() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)


def test_until_seconds_lets_go_and_the_command_ends_in_its_own_time(folder: Path) -> None:
    began_s = time.monotonic()
    with coldtrace(folder, "run", "--until", "0.3", "--", "sh", "-c", "sleep 4; exit 6") as process:
        wait_for("the trace is ", process)
        assert process.wait(20) == 6
    assert time.monotonic() - began_s > 4


def test_a_start_under_way_is_joined(folder: Path) -> None:
    with subprocess.Popen(server(folder, "go"), stdout=subprocess.PIPE, text=True) as running:
        assert line_of(running) == "starting"
        time.sleep(0.3)
        arguments = ["attach", "--pid", str(running.pid), "-o", "t.coldtrace", "--json", "r.json"]
        with coldtrace(folder, *arguments) as process:
            trace_with(folder / "t.coldtrace", lambda trace: "seen_from_ns" in trace.meta)
            (folder / "go").touch()
            _, errors = process.communicate(timeout=30)
        assert process.returncode == 0, errors
        assert running.poll() is None
        running.terminate()
    result = json.loads((folder / "r.json").read_text())
    assert result["outcome"] == "ready" and result["wall_s"] > result["missed_s"] > 0.3
    trace = Trace.open(folder / "t.coldtrace")
    assert trace.meta["seen_from_ns"] > trace.meta["begin_ns"]
    assert "command" not in trace.meta and trace.processes[trace.meta["root"]].found


def test_ctrl_c_ends_a_joined_trace_and_nothing_else(folder: Path) -> None:
    with subprocess.Popen(server(folder, "never"), stdout=subprocess.PIPE, text=True) as running:
        assert line_of(running) == "starting"
        arguments = ["attach", "--pid", str(running.pid), "-o", "t.coldtrace"]
        with coldtrace(folder, *arguments) as process:
            trace_with(folder / "t.coldtrace", lambda trace: "seen_from_ns" in trace.meta)
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=30)
        assert process.returncode == -signal.SIGINT, errors
        assert "interrupted" in errors
        assert running.poll() is None
        running.kill()


def test_what_cannot_be_joined(folder: Path) -> None:
    def refused(pid: int, **options: object) -> str:
        with coldtrace(folder, "attach", "--pid", str(pid), **options) as process:
            _, errors = process.communicate(timeout=30)
        assert process.returncode == 1 and errors.count("\n") == 1
        return errors

    assert "there is no process 4194304" in refused(4_194_304)
    with subprocess.Popen(["sleep", "60"]) as sleeping:
        assert "isn't Python" in refused(sleeping.pid)
        others = os.environ | {"SUDO_UID": str(NOBODY.pw_uid)}
        assert "is another user's, not nobody's" in refused(sleeping.pid, env=others)
        sleeping.kill()
    with subprocess.Popen(server(folder), stdout=subprocess.PIPE, text=True) as serving:
        assert line_of(serving) == "starting" and line_of(serving)
        assert "its start is over" in refused(serving.pid)
        serving.kill()
    assert not list(folder.glob("*.coldtrace"))


def test_the_other_sampler(folder: Path) -> None:
    (folder / "spins").write_text(
        "import time\n"
        "def spin():\n"
        "    end = time.monotonic() + 2\n"
        "    while time.monotonic() < end: pass\n"
        "spin()\n"
    )
    arguments = ["run", "--sampler", "py-spy", "--until", "exit", "-o", "t.coldtrace", "--"]
    with coldtrace(folder, *arguments, sys.executable, "spins") as process:
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    trace = Trace.open(folder / "t.coldtrace")
    assert trace.sources["py-spy"].state == "open"
    assert trace.counts["py-spy"].seen["sample"] > 50
    stacks = [trace.stacks[s.stack_id] for s in trace.samples(trace.meta["root"])]
    names = {trace.functions[key].name for stack in stacks for key in stack.frames}
    assert "spin" in names
