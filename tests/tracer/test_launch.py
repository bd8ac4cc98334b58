"""What a launched command finds is what a plain shell would have given it."""

from __future__ import annotations

import os
import pty
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tracer import launch
from tracer.errors import ColdtraceError
from tracer.owner import Owner

ROOT = Path(__file__).resolve().parents[2]
USER = "nobody"

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")

DRIVER = """
import sys
sys.path.insert(0, ROOT)
from tracer import launch, waiter
from tracer.errors import ColdtraceError
from tracer.owner import Owner

mask = waiter.block()
user = Owner.named(sys.argv[1])
try:
    launched = launch.start(sys.argv[3:], user, launch.caller_environment(user), mask)
    launched.release()
except ColdtraceError as error:
    print(error.message, file=sys.stderr)
    sys.exit(error.exit_status)
pid = launched.process.pid
if sys.argv[2] == "become":
    waiter.become_waiter(pid, user.uid, user.gid)
waiter.end_like(waiter.wait(pid))
"""

# dash changes nothing of what it shows here; Python would ignore SIGPIPE
SELF_PORTRAIT = r"""
exec 2>&1
pwd
echo "$0 $@"
grep -E '^(Umask|Uid|Gid|Groups|NSpgid|NSsid|SigBlk|SigIgn|SigCgt|Cap|NoNewPrivs)' /proc/self/status
cat /proc/self/limits
tr '\0' '\n' </proc/$$/environ
exec ls -l /proc/self/fd
"""

COUNTER = """
trap 'echo int; i=$((i+1))' INT
trap 'echo usr1' USR1
trap 'echo term; exit 3' TERM
i=0
echo started
while :; do sleep 0.05; done
"""


@pytest.fixture
def public() -> Iterator[Path]:
    """A folder that every user can reach, unlike pytest's own."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name)
        path.chmod(0o755)
        yield path


def write_script(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}")
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def driver(public: Path) -> list[str]:
    """A program that launches `USER MODE COMMAND...` as `coldtrace run` does."""
    path = public / "driver.py"
    path.write_text(f"ROOT = {str(ROOT)!r}\n{DRIVER}")
    return [sys.executable, str(path)]


@pytest.fixture
def portrait(public: Path) -> str:
    return write_script(public / "portrait", SELF_PORTRAIT)


@pytest.fixture
def counter(public: Path) -> str:
    return write_script(public / "counter", COUNTER)


@pytest.mark.parametrize(
    ("first_line", "expected"),
    [
        ("#!/bin/sh", "/bin/sh"),
        ("#! /usr/bin/env -S A=1 sh -e", "{path}/sh"),
        ("#!{path}/another", "/bin/cat"),
        ("no script at all", "{path}/script"),
        ("#!", "{path}/script"),
        ("#!/usr/bin/env not-there", ""),
        ("#!{path}/script", "{path}/script"),
    ],
)
def test_the_program_behind_a_script_is_known(tmp_path, first_line, expected):
    (tmp_path / "sh").symlink_to("/bin/sh")
    (tmp_path / "another").write_text("#!/bin/cat\n")
    script = tmp_path / "script"
    script.write_text(first_line.format(path=tmp_path) + "\nexit 1\n")
    found = launch.interpreter(os.fsencode(script), os.fsencode(tmp_path))
    assert os.fsdecode(found) == expected.format(path=tmp_path)


def me() -> str:
    return Owner.of_caller({}).name


def portrait_under(command: list[str], **options: Any) -> str:
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=20, check=True, **options
    )
    return str(done.stdout)


def without_times(text: str) -> list[str]:
    """`ls -l` shows pipes by number and the moment it looked."""
    return [
        " ".join(line.split()[8:9]) if " -> " in line else line
        for line in text.splitlines()
        if "/proc/" not in line
    ]


def test_the_command_finds_what_a_shell_gives(driver: list[str], portrait: str) -> None:
    plain = portrait_under([portrait, "a", "b c"])
    launched = portrait_under([*driver, me(), "stay", portrait, "a", "b c"])
    assert without_times(launched) == without_times(plain)
    assert "SigBlk" in plain and "Max open files" in plain and "PATH=" in plain


def test_ignored_and_blocked_signals_stay_so(driver: list[str], portrait: str) -> None:
    def nohup() -> None:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1, signal.SIGALRM})

    plain = portrait_under([portrait], preexec_fn=nohup)
    launched = portrait_under([*driver, me(), "stay", portrait], preexec_fn=nohup)
    assert without_times(launched) == without_times(plain)


def test_an_environment_that_python_would_change(driver: list[str], portrait: str) -> None:
    # in the C locale Python sets LC_CTYPE in its own environment
    odd = {b"LC_ALL": b"", b"LANG": b"C", b"BYTES": b"\xff\n=x", b"EMPTY": b""}
    odd[b"PATH"] = os.environb[b"PATH"]
    plain = subprocess.run([portrait], env=odd, capture_output=True, check=True)
    launched = subprocess.run(
        [*driver, me(), "stay", portrait], env=odd, capture_output=True, check=True
    )
    environment = plain.stdout.split(b"\nLC_ALL=")[1].split(b"\ntotal")[0]
    assert launched.stdout.split(b"\nLC_ALL=")[1].split(b"\ntotal")[0] == environment
    assert b"BYTES=\xff" in environment and b"LC_CTYPE" not in launched.stdout


@needs_root
def test_as_another_user(driver: list[str], portrait: str) -> None:
    user = Owner.named(USER)
    identity = {"HOME": user.home, "USER": USER, "LOGNAME": USER, "SHELL": "/usr/sbin/nologin"}
    ids = [f"--reuid={user.uid}", f"--regid={user.gid}", "--init-groups"]
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        pytest.skip("no setpriv to compare with")
    plain = portrait_under([setpriv, *ids, portrait], env=os.environ | identity)
    launched = portrait_under([*driver, USER, "stay", portrait], env=os.environ | identity)
    assert without_times(launched) == without_times(plain)
    assert f"Uid:\t{user.uid}\t{user.uid}\t{user.uid}\t{user.uid}" in launched
    other = portrait_under([*driver, USER, "stay", portrait], env=os.environ | {"SUDO_X": "1"})
    assert f"HOME={user.home}" in other.splitlines() and "SUDO_X" not in other


@needs_root
def test_sudos_own_environment_is_the_users(driver: list[str], portrait: str) -> None:
    if not shutil.which("sudo") or subprocess.run(["sudo", "-n", "true"]).returncode:
        pytest.skip("no sudo that asks for no password")
    mine = {
        "PATH": f"/nowhere:{os.environ['PATH']}",
        "VLLM_X": "a=b",
        "HOME": "/root",
        "GIVEN": "0",
    }
    command = ["sudo", "-n", "GIVEN=1", *driver, "root", "stay", portrait, "GIVEN=2"]
    done = subprocess.run(command, env=mine, capture_output=True, text=True, check=True)
    environment = [line for line in done.stdout.splitlines() if "=" in line and "/" not in line[0]]
    expected = mine | {"GIVEN": "1"}
    assert sorted(environment) == sorted(f"{k}={v}" for k, v in expected.items())


@pytest.mark.parametrize("mode", ["stay", "become"])
@pytest.mark.parametrize(
    ("script", "status"),
    [("exit 0", 0), ("exit 7", 7), ("kill -TERM $$", -15), ("kill -SEGV $$", -11)],
)
def test_it_ends_as_the_command_ends(
    driver: list[str], tmp_path: Path, mode: str, script: str, status: int
) -> None:
    done = subprocess.run([*driver, me(), mode, "sh", "-c", script], cwd=tmp_path)
    assert done.returncode == status
    assert not list(tmp_path.glob("core*"))


def test_it_waits_before_the_first_instruction(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    launched = launch.start(["touch", str(mark)], Owner.of_caller({}), dict(os.environb), set())
    time.sleep(0.2)
    assert not mark.exists()
    launched.release()
    assert os.waitpid(launched.process.pid, 0)[1] == 0
    assert mark.exists()


def test_what_is_given_up_never_starts(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    launched = launch.start(["touch", str(mark)], Owner.of_caller({}), dict(os.environb), set())
    launched.give_up()
    assert not mark.exists()
    with pytest.raises(ProcessLookupError):
        os.kill(launched.process.pid, 0)


def refusal(
    argv: list[str], path: str = "/bin:/usr/bin", user: str | None = None
) -> ColdtraceError:
    owner = Owner.named(user) if user else Owner.of_caller({})
    before = children()
    with pytest.raises(ColdtraceError) as caught:
        launch.start(argv, owner, {b"PATH": path.encode()}, set()).release()
    assert children() <= before
    return caught.value


def children() -> set[str]:
    """The pids of our children, the dead that nobody waited for among them."""
    tasks = Path("/proc/self/task").iterdir()
    return {pid for task in tasks for pid in (task / "children").read_text().split()}


def test_a_command_that_is_not_there(tmp_path: Path) -> None:
    error = refusal(["no-such-command"])
    assert error.exit_status == 127
    assert f"no-such-command: not found on PATH of {me()} (/bin:/usr/bin)" == error.message
    assert refusal([f"{tmp_path}/none"]).exit_status == 127


def test_a_command_that_is_not_executable(tmp_path: Path) -> None:
    (tmp_path / "tool").write_text("#!/bin/sh\n")
    (tmp_path / "folder").mkdir()
    for argv, path in ([f"{tmp_path}/tool"], "/bin"), (["tool"], f"/bin:{tmp_path}"):
        error = refusal(argv, path)
        assert error.exit_status == 126
        assert error.message == f"{tmp_path}/tool is not executable by {me()}"
    assert refusal([f"{tmp_path}/folder"]).message.endswith("is a directory")
    assert refusal(["folder"], str(tmp_path)).exit_status == 127


@needs_root
def test_a_command_that_only_root_may_execute(public: Path) -> None:
    tool = public / "tool"
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o700)
    error = refusal(["tool"], str(public), USER)
    assert error.exit_status == 126
    assert error.message == f"{tool} is not executable by {USER}"


def test_a_script_whose_interpreter_is_missing(tmp_path: Path) -> None:
    tool = tmp_path / "tool"
    tool.write_text("#!/no/such/interpreter\n")
    tool.chmod(0o755)
    error = refusal([str(tool)])
    assert error.exit_status == 126
    assert error.message == f"{tool}: its interpreter was not found"


def test_a_program_for_another_machine_is_not_the_shells(tmp_path: Path) -> None:
    tool = tmp_path / "tool"
    program = bytearray(Path("/bin/true").read_bytes())
    program[18:20] = b"\xff\xff"  # e_machine
    tool.write_bytes(program)
    tool.chmod(0o755)
    launched = launch.start([str(tool)], Owner.of_caller({}), {}, set())
    with pytest.raises(ColdtraceError, match="for another machine") as caught:
        launched.release()
    assert caught.value.exit_status == launch.NOT_EXECUTABLE


def test_a_script_without_an_interpreter_is_the_shells(driver: list[str], tmp_path: Path) -> None:
    tool = tmp_path / "tool"
    tool.write_text("echo $1\n")
    tool.chmod(0o755)
    assert portrait_under([*driver, me(), "stay", str(tool), "said"]) == "said\n"


@pytest.mark.parametrize("mode", ["stay", "become"])
def test_a_signal_from_a_process_is_forwarded(driver: list[str], counter: str, mode: str) -> None:
    command = [*driver, me(), mode, counter]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        assert run.stdout.readline() == "started\n"
        time.sleep(0.3)
        run.send_signal(signal.SIGUSR1)
        assert run.stdout.readline() == "usr1\n"
        run.send_signal(signal.SIGINT)
        assert run.stdout.readline() == "int\n"
        run.send_signal(signal.SIGTERM)
        assert run.stdout.read() == "term\n"
        assert run.wait(5) == 3


@pytest.mark.parametrize("mode", ["stay", "become"])
def test_killing_coldtrace_leaves_the_command(driver: list[str], mode: str, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    script = f"echo $$; sleep 0.5; echo done >{mark}"
    command = [*driver, me(), mode, "sh", "-c", script]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        run.stdout.readline()
        run.kill()
        run.wait(5)
        run.stdout.read()
    assert mark.read_text() == "done\n"


class Terminal:
    """A shell with job control on a pseudo-terminal."""

    def __init__(self) -> None:
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.execvp("bash", ["bash", "--norc", "--noprofile", "--noediting", "-i"])
        self.text = ""
        self.type("PS1='$ '; stty -echo\n")

    def type(self, keys: str) -> None:
        os.write(self.fd, keys.encode())

    def expect(self, wanted: str, timeout_s: float = 10) -> str:
        """Read until `wanted`; return what stood before it."""
        end = time.monotonic() + timeout_s
        while wanted not in self.text:
            ready, _, _ = select.select([self.fd], [], [], max(0, end - time.monotonic()))
            assert ready, f"{wanted!r} never came: {self.text!r}"
            self.text += os.read(self.fd, 65536).decode(errors="replace")
        before, _, self.text = self.text.partition(wanted)
        return before

    def close(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self.fd)


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    opened = Terminal()
    yield opened
    opened.close()


@pytest.mark.parametrize("mode", ["stay", "become"])
def test_ctrl_c_reaches_the_command_once(
    driver: list[str], counter: str, terminal: Terminal, mode: str
) -> None:
    terminal.type(f"{subprocess.list2cmdline([*driver, me(), mode, counter])}; echo status $?\n")
    terminal.expect("started")
    time.sleep(0.3)
    terminal.type("\x03")
    terminal.expect("int")
    time.sleep(0.5)
    terminal.type("\x03")
    terminal.expect("int")
    time.sleep(0.3)
    terminal.type("\x1c")  # SIGQUIT, which the script leaves to its default
    before = terminal.expect("status 131")
    assert "int" not in before


@pytest.mark.parametrize("mode", ["stay", "become"])
def test_ctrl_z_stops_and_fg_goes_on(
    driver: list[str], public: Path, terminal: Terminal, mode: str
) -> None:
    script = write_script(public / "script", "echo started; sleep 1; echo slept; exit 4")
    terminal.type(f"{subprocess.list2cmdline([*driver, me(), mode, script])}\n")
    terminal.expect("started")
    time.sleep(0.3)
    terminal.type("\x1a")
    terminal.expect("Stopped")
    time.sleep(1)
    assert "slept" not in terminal.text
    terminal.type("fg; echo status $?\n")
    terminal.expect("slept")
    terminal.expect("status 4")


def test_the_shell_takes_an_interrupted_command_for_interrupted(
    driver: list[str], terminal: Terminal
) -> None:
    # a shell ends its own list of commands only if the command died of SIGINT
    command = subprocess.list2cmdline([*driver, me(), "stay", "sleep", "20"])
    terminal.type(f"echo go; {command}; echo never\n")
    terminal.expect("go")
    time.sleep(1)
    terminal.type("\x03")
    terminal.expect("$ ")
    terminal.type("echo status $?\n")
    assert "never" not in terminal.expect("status 130")
