"""Start the command stopped, as the user who asked, with all that a shell would have given it.

The child is forked before anything else is opened, becomes the user, finds the
command and then waits on a pipe; released, it executes the command. So the
first instruction is seen, without ptrace and without a signal, no descriptor
of coldtrace reaches the command, and nothing has started if it can't be found.
"""

from __future__ import annotations

import errno
import os
import pwd
import shutil
import signal
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from probes import proc as procs
from probes.events import ProcessId
from probes.proc import PROC
from tracer import target
from tracer.errors import ColdtraceError
from tracer.owner import Owner

NOT_EXECUTABLE, NOT_FOUND = 126, 127
"""Exit statuses, as shells have them."""

_READY = b"+"
_GO = b"!"
_MAX_TOLD_BYTES = 1 << 16
MAX_INTERPRETERS = 4
"""As the kernel: a script's interpreter may be a script."""
MAX_LINE_BYTES = 256


def caller_environment(owner: Owner, proc: Path = PROC) -> dict[bytes, bytes]:
    """The environment that `owner` would have given the command, byte for byte.

    sudo strips it, but its own process still has it: the nearest ancestor named
    sudo is asked, and what was set on its command line (`sudo A=1 coldtrace`) is
    added. Without sudo it is our own as we were started (Python adds to os.environ).
    For a user who didn't call, it is that without what names the caller.
    """
    own = target.environment("self", proc)
    if own.get(b"SUDO_UID", b"").decode("ascii", "replace") == str(owner.uid):
        for ancestor in target.ancestors(os.getpid(), proc):
            if target.name(ancestor, proc) == "sudo":
                by_hand = _set_by_hand(own, procs.argv(ancestor, proc) or ())
                return target.environment(ancestor, proc) | by_hand
    if owner.uid == os.getuid():
        return own
    return _without_sudo(own) | _identity(owner)


def _set_by_hand(own: dict[bytes, bytes], sudo: tuple[str, ...]) -> dict[bytes, bytes]:
    words = {os.fsencode(word) for word in sudo}
    return {name: value for name, value in own.items() if name + b"=" + value in words}


def _without_sudo(environment: dict[bytes, bytes]) -> dict[bytes, bytes]:
    return {name: value for name, value in environment.items() if not name.startswith(b"SUDO_")}


def _identity(owner: Owner) -> dict[bytes, bytes]:
    shell = pwd.getpwuid(owner.uid).pw_shell
    values = {"HOME": owner.home, "USER": owner.name, "LOGNAME": owner.name, "SHELL": shell}
    return {os.fsencode(name): os.fsencode(value) for name, value in values.items()}


def find_command(name: str, search_path: bytes, user: str) -> bytes:
    """The file that execvp(3) would execute for the user we run as.

    Raises ColdtraceError with exit status 127 (not found) or 126 (not executable).
    """
    given = os.fsencode(name)
    folders = [b""] if b"/" in given else search_path.split(b":")
    refused = None
    for path in (os.path.join(folder, given) for folder in folders):
        if os.path.isfile(path) and os.access(path, os.X_OK):
            # an empty entry of PATH is the working directory
            return path if b"/" in path else b"./" + path
        if refused is None and os.path.exists(path) and (b"/" in given or os.path.isfile(path)):
            refused = os.fsdecode(path)
    if refused is not None:
        kind = "is a directory" if os.path.isdir(refused) else f"is not executable by {user}"
        raise ColdtraceError(f"{refused} {kind}", NOT_EXECUTABLE)
    if b"/" in given:
        raise ColdtraceError(f"{name}: no such file that {user} can reach", NOT_FOUND)
    raise ColdtraceError(
        f"{name}: not found on PATH of {user} ({os.fsdecode(search_path)})", NOT_FOUND
    )


def interpreter(path: bytes, search_path: bytes) -> bytes:
    """The program that runs a file: itself, or what its #! lines lead to (also
    through env); where that can't be told, as far as it can."""
    for _ in range(MAX_INTERPRETERS):
        with suppress(OSError), open(path, "rb") as file:
            line = file.read(MAX_LINE_BYTES).partition(b"\n")[0]
            words = line.removeprefix(b"#!").split()
            if line.startswith(b"#!") and words:
                path = words[0]
                if os.path.basename(path) == b"env":
                    path = _env_runs(words[1:], search_path)
                continue
        break
    return path


def _env_runs(words: list[bytes], search_path: bytes) -> bytes:
    names = [word for word in words if not word.startswith(b"-") and b"=" not in word]
    found = shutil.which(names[0], path=os.fsdecode(search_path)) if names else None
    return os.fsencode(found or "")


@dataclass(slots=True)
class Launched:
    """The command, waiting before its first instruction. `program` is the file
    that will run it: its interpreter, for a script."""

    process: ProcessId
    go: int
    told: int
    """Pipe ends: to let it go, and to be told why it couldn't."""
    program: str = ""
    waits: bool = True

    def release(self) -> None:
        """Let it run; raise ColdtraceError, with a shell's exit status, if it can't."""
        with suppress(BrokenPipeError):  # killed while it waited: its wait status tells
            os.write(self.go, _GO)
        self._hear()
        self.waits = False
        os.close(self.go)
        os.close(self.told)

    def give_up(self) -> None:
        """End it if it hasn't begun."""
        if self.waits:
            self.waits = False
            os.close(self.go)
            os.close(self.told)
            os.waitpid(self.process.pid, 0)

    def _hear(self) -> None:
        """What the child says: it waits, nothing (it has become the command),
        or why it can't."""
        told = os.read(self.told, _MAX_TOLD_BYTES)
        if self.program and not told:
            return
        if told.startswith(_READY):
            self.program = os.fsdecode(told.removeprefix(_READY))
        else:
            self.give_up()
            status, _, message = told.partition(b" ")
            if not message:
                raise ColdtraceError("the command was killed before it had begun")
            raise ColdtraceError(os.fsdecode(message), int(status))


def start(
    argv: Sequence[str],
    owner: Owner,
    variables: dict[bytes, bytes],
    mask: set[signal.Signals],
) -> Launched:
    """Make the process of the command `argv` and return once it waits.

    `mask` is the signal mask that the command shall have; the caller blocks the
    signals that it forwards before, so that none is lost. Raises ColdtraceError
    for a command that can't be found or executed.
    """
    go_read, go = os.pipe()
    told, told_write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(go)
        os.close(told)
        _be_the_command(argv, owner, variables, mask, go_read, told_write)
    os.close(go_read)
    os.close(told_write)
    launched = Launched(procs.process_id(pid) or ProcessId(pid, 0), go, told)
    launched._hear()
    return launched


def _be_the_command(
    argv: Sequence[str],
    owner: Owner,
    variables: dict[bytes, bytes],
    mask: set[signal.Signals],
    go: int,
    told: int,
) -> NoReturn:
    """In the child: wait, execute, and never return into the parent's code."""
    try:
        become(owner)
        search_path = variables.get(b"PATH", os.fsencode(os.defpath))
        path = find_command(argv[0], search_path, owner.name)
        os.write(told, _READY + interpreter(path, search_path))
        if os.read(go, 1) == _GO:
            _restore_signals(mask)
            _execute(path, argv, variables)
    except ColdtraceError as error:
        _tell(told, error.message, error.exit_status)
    except OSError as error:
        _tell(told, f"{argv[0]}: {error.strerror}", NOT_EXECUTABLE)
    except BaseException as error:
        _tell(told, f"can't start {argv[0]}: {error!r}", 1)
    finally:
        os._exit(1)


def _tell(told: int, message: str, status: int) -> None:
    os.write(told, b"%d %s" % (status, os.fsencode(message)[: _MAX_TOLD_BYTES - 8]))


def become(owner: Owner) -> None:
    """Give up root for good and be `owner`; nothing changes for who is that already."""
    if os.getuid() == owner.uid:
        return
    os.setgroups(owner.groups)
    os.setresgid(owner.gid, owner.gid, owner.gid)
    os.setresuid(owner.uid, owner.uid, owner.uid)


def _restore_signals(mask: set[signal.Signals]) -> None:
    """Undo what Python and the tracer changed; what was ignored before stays ignored."""
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _execute(path: bytes, argv: Sequence[str], variables: dict[bytes, bytes]) -> None:
    try:
        os.execve(path, list(argv), variables)
    except OSError as error:
        if error.errno == errno.ENOEXEC and _is_binary(path):
            raise ColdtraceError(
                f"{os.fsdecode(path)} can't be executed: it is damaged or for another machine",
                NOT_EXECUTABLE,
            ) from None
        if error.errno == errno.ENOEXEC:  # a script without #! is the shell's, as in execvp(3)
            os.execve("/bin/sh", ["sh", os.fsdecode(path), *argv[1:]], variables)
        if error.errno == errno.ENOENT:
            raise ColdtraceError(
                f"{os.fsdecode(path)}: its interpreter was not found", NOT_EXECUTABLE
            ) from None
        raise


def _is_binary(path: bytes) -> bool:
    """Whether it is no script, as shells tell: by a zero byte in its first line."""
    try:
        with open(path, "rb") as file:
            return b"\0" in file.read(MAX_LINE_BYTES).partition(b"\n")[0]
    except OSError:  # it may be executed, but not read: nor could a shell read it
        return True
