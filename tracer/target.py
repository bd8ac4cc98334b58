"""A start that is under way already: whether it can be joined, and what belongs to it.

Like probes/proc.py, each reader takes the root of the /proc tree.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from probes import proc as procs
from probes.events import ProcessFound, ProcessId
from probes.proc import PROC
from probes.source import SourceStats
from tracer.errors import ColdtraceError, NotPermitted
from tracer.owner import Owner

MAX_TABLE_BYTES = 16 << 20
"""A bound on what another process can make us read."""

_MAX_DEPTH = 1024
_LISTEN = b"0A"
_PIPE = re.compile(r"pipe:\[(\d+)\]")
_SOCKET = re.compile(r"socket:\[(\d+)\]")
_INTERPRETER = re.compile(
    rb"/(python(3(\.\d+)?)?[a-z]*|libpython3[.\da-z]*\.so[.\d]*)( \(deleted\))?$"
)


def check(pid: int, owner: Owner, anyones: bool, proc: Path = PROC) -> ProcessId:
    """The root process of the start that `pid` is part of.

    Raises ColdtraceError for a pid that doesn't exist, isn't Python or serves
    already, and NotPermitted for one that isn't `owner`'s, unless `anyones`.
    """
    if procs.process_id(pid, proc) is None or name(pid, proc) == "":
        raise ColdtraceError(f"there is no process {pid}; see `pgrep -af vllm`")
    if not anyones and procs.uid(pid, proc) != owner.uid:
        raise NotPermitted(
            f"process {pid} is another user's, not {owner.name}'s;"
            " name its user with --user to trace it all the same"
        )
    root = procs.process_id(find_root(pid, proc), proc)
    pythons = [each for each in tree(root.pid, proc) if runs_python(each, proc)] if root else []
    if root is None or not pythons:
        raise ColdtraceError(
            f"process {pid} ({name(pid, proc)}) isn't Python, nor is any process that it made"
        )
    ports = listening_ports(pythons[0], proc)
    if ports:
        raise ColdtraceError(
            f"process {pythons[0]} listens on TCP port {ports[0]} already: its start is over;"
            " trace the next one with `coldtrace run -- COMMAND...`"
        )
    return root


def find_root(pid: int, proc: Path = PROC) -> int:
    """The topmost ancestor of `pid`, itself included, that is part of the same program.

    From an engine process this leads to the server that made it.
    """
    for parent in ancestors(pid, proc):
        if not _made_as_part(pid, parent, proc):
            break
        pid = parent
    return pid


def tree(root: int, proc: Path = PROC) -> list[int]:
    """`root` and its descendants, parents first, without coldtrace that one of them runs."""
    found = (root, *procs.descendants(root, proc))
    if os.getpid() not in found:
        return list(found)
    own = {os.getpid(), *procs.descendants(os.getpid(), proc)}
    return [pid for pid in found if pid not in own]


class RunningProcesses:
    """The source of what ran before the tracer came: the tree below the process followed.

    `follow_too` makes the other sources, which follow whatever is made from then on,
    take in what is there already. What they see being made is left to them.
    """

    name = "proc"

    def __init__(self, follow_too: Callable[[ProcessId], None], proc: Path = PROC) -> None:
        self._follow_too = follow_too
        self._proc = proc
        self._found: dict[int, ProcessId] = {}
        self._followed_ns: dict[int, int] = {}
        self._events: list[ProcessFound] = []

    def open(self) -> None:
        """Nothing: /proc is there."""

    def follow(self, process: ProcessId) -> None:
        """Take in `process` and its descendants. One that is made meanwhile may escape
        one scan, not the next: the scans go on until one shows nothing new."""
        self._take(process, None)
        while new := [pid for pid in tree(process.pid, self._proc) if pid not in self._followed_ns]:
            for pid in new:
                self._take_in(pid)

    def poll(self, timeout_s: float) -> list[ProcessFound]:
        """The processes found, once."""
        events, self._events = self._events, []
        return events

    def stats(self) -> SourceStats:
        """The number of processes found."""
        return SourceStats(seen={"process": len(self._found)})

    def close(self) -> list[ProcessFound]:
        """Nothing is under way."""
        return self.poll(0)

    def _take_in(self, pid: int) -> None:
        now = procs.stat(pid, self._proc)
        if now is None or now.ended or self._is_told(now):
            self._followed_ns[pid] = 0  # so are its children, if it has any
            return
        process = ProcessId(pid, now.start_ns)
        self._follow_too(process)
        self._take(process, now.parent_pid)

    def _is_told(self, now: procs.Stat) -> bool:
        """Whether its parent was followed by the time it was made."""
        followed_ns = self._followed_ns.get(now.parent_pid)
        return followed_ns is not None and now.start_ns > followed_ns

    def _take(self, process: ProcessId, parent_pid: int | None) -> None:
        self._followed_ns[process.pid] = time.monotonic_ns()
        parent = None if parent_pid is None else self._found.get(parent_pid)
        self._found[process.pid] = process
        argv = procs.argv(process.pid, self._proc) or ()
        self._events.append(ProcessFound(time.monotonic_ns(), process, parent, argv))


def ancestors(pid: int, proc: Path = PROC) -> Iterator[int]:
    """The parent of `pid`, its parent and so on."""
    for _ in range(_MAX_DEPTH):
        now = procs.stat(pid, proc)
        if now is None or now.parent_pid == 0:
            return
        yield now.parent_pid
        pid = now.parent_pid


def name(pid: int, proc: Path = PROC) -> str:
    """The short name; empty for a process that has gone, and for a bare thread,
    which /proc shows under its id as well."""
    lines = _read(proc / str(pid) / "status").split(b"\n")
    fields = {key: value.strip() for key, _, value in (line.partition(b":") for line in lines)}
    if fields.get(b"Tgid") != str(pid).encode():
        return ""
    return fields.get(b"Name", b"").decode("utf-8", "backslashreplace")


def program_name(pid: int, proc: Path = PROC) -> str:
    """`vllm` for a server, whatever runs it; else the process's short name."""
    program = _package(procs.argv(pid, proc) or ()) if runs_python(pid, proc) else None
    return program or name(pid, proc) or str(pid)


def environment(pid: int | str, proc: Path = PROC) -> dict[bytes, bytes]:
    """The environment that the program was started with, byte for byte."""
    block = _read(proc / str(pid) / "environ")
    parts = (entry.partition(b"=") for entry in block.split(b"\0"))
    return {name: value for name, equals, value in parts if equals}


def runs_python(pid: int, proc: Path = PROC) -> bool:
    """Whether an interpreter, or its library, is mapped into the process."""
    lines = _read(proc / str(pid) / "maps").splitlines()
    return any(_INTERPRETER.search(path) for path in {line[line.find(b"/") :] for line in lines})


def listening_ports(pid: int, proc: Path = PROC) -> list[int]:
    """The TCP ports that the process listens on, ascending."""
    own = set(_open(pid, _SOCKET, proc))
    ports = set()
    for table in ("net/tcp", "net/tcp6"):
        for row in _read(proc / str(pid) / table).splitlines()[1:]:
            fields = row.split()
            if len(fields) > 9 and fields[3] == _LISTEN and int(fields[9]) in own:
                ports.add(int(fields[1].rpartition(b":")[2], 16))
    return sorted(ports)


def _made_as_part(pid: int, parent: int, proc: Path) -> bool:
    """Whether `parent` made `pid` as a part of itself: by a fork, as a module of the
    same package, or by multiprocessing, whose children keep a pipe to their parent
    whatever they call themselves by then."""
    program = _program(pid, proc)
    if program is None or program != _program(parent, proc) or not runs_python(pid, proc):
        return False
    argv, parent_argv = procs.argv(pid, proc) or (), procs.argv(parent, proc) or ()
    if argv == parent_argv or _pipes(pid, proc) & _pipes(parent, proc):
        return True
    return _package(argv) is not None and _package(argv) == _package(parent_argv)


def _program(pid: int, proc: Path) -> tuple[int, int, int | None] | None:
    """Device and inode of the executable, and who runs it."""
    try:
        found = (proc / str(pid) / "exe").stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, procs.uid(pid, proc)


def _package(argv: tuple[str, ...]) -> str | None:
    """`vllm` for both `python /venv/bin/vllm serve` and `python -m vllm.x.y`."""
    for position, argument in enumerate(argv[1:], start=1):
        if argument == "-m" and len(argv) > position + 1:
            return argv[position + 1].partition(".")[0]
        if argument == "-c":
            return None
        if not argument.startswith("-"):
            return os.path.basename(argument)
    return None


def _pipes(pid: int, proc: Path) -> frozenset[int]:
    """Inodes of the pipes open beyond the standard streams."""
    return frozenset(_open(pid, _PIPE, proc, first=3))


def _open(pid: int, kind: re.Pattern[str], proc: Path, first: int = 0) -> Iterator[int]:
    folder = proc / str(pid) / "fd"
    try:
        numbers = os.listdir(folder)
    except OSError:
        return
    for number in numbers:
        try:
            match = kind.fullmatch(os.readlink(folder / number))
        except OSError:
            continue
        if match and int(number) >= first:
            yield int(match[1])


def _read(path: Path) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(MAX_TABLE_BYTES)
    except OSError:
        return b""
