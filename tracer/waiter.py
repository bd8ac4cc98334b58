"""Standing between the caller and the command: signals go in, the exit status comes out.

Also a program of its own (`python -I -S waiter.py PID UID GID`), which the
recorder becomes once it has detached: same process, a tenth of the memory, and
no root. So it imports the standard library only, and little of that.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
from contextlib import suppress
from typing import NoReturn

FORWARDED = frozenset(
    {
        signal.SIGHUP,
        signal.SIGINT,
        signal.SIGQUIT,
        signal.SIGTERM,
        signal.SIGUSR1,
        signal.SIGUSR2,
        signal.SIGWINCH,
    }
)
"""Stopping signals stay out: a terminal stops the whole group, coldtrace with it."""

ENDING = frozenset({signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM})
"""Those that ask a program to end."""


def block() -> set[signal.Signals]:
    """Take the forwarded signals by `take` from now on; return the mask before."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED | {signal.SIGCHLD})
    return {signal.Signals(number) for number in mask}


def take(pid: int | None) -> frozenset[signal.Signals]:
    """Forward what has come to `pid` (None: to nobody); return which signals came."""
    taken = set()
    while info := signal.sigtimedwait(FORWARDED, 0):
        _forward(pid, info)
        taken.add(signal.Signals(info.si_signo))
    return frozenset(taken)


def wait(pid: int) -> int:
    """Forward signals to the child `pid` until it ends; return its wait status."""
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return status
        info = signal.sigwaitinfo(FORWARDED | {signal.SIGCHLD})
        if info.si_signo != signal.SIGCHLD:
            _forward(pid, info)


def _forward(pid: int | None, info: signal.struct_siginfo) -> None:
    """What a process sent goes on; what the kernel sent (si_code > 0) came from
    the terminal to the whole foreground group, so the command has it already."""
    if pid is not None and info.si_code <= 0:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, info.si_signo)


def end_like(status: int) -> NoReturn:
    """End this process as wait status `status` says another ended, without a core dump."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()
    if os.WIFSIGNALED(status):
        _end_by(os.WTERMSIG(status))
    os._exit(os.waitstatus_to_exitcode(status))


def _end_by(number: int) -> NoReturn:
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    _forbid_core_dump()
    if number not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    os.kill(os.getpid(), number)
    os._exit(128 + number)  # a signal whose default isn't to end


def _forbid_core_dump() -> None:
    """A core pattern that is a pipe ignores the limit, but not this."""
    import ctypes

    pr_set_dumpable = 4
    ctypes.CDLL(None).prctl(pr_set_dumpable, 0, 0, 0, 0)


def become_waiter(pid: int, uid: int, gid: int) -> NoReturn:
    """Replace this program by the waiter for its child `pid`, running as `uid`."""
    with suppress(OSError):  # its interpreter is gone: wait as what we are
        program = [sys.executable, "-I", "-S", os.path.abspath(__file__)]
        os.execv(program[0], [*program, *map(str, (pid, uid, gid))])
    end_like(wait(pid))


def _main() -> NoReturn:
    pid, uid, gid = (int(argument) for argument in sys.argv[1:])
    if os.getuid() == 0 and uid != 0:
        os.setgroups([gid])
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)
    end_like(wait(pid))


if __name__ == "__main__":
    _main()
