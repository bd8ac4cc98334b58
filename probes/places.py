"""What addresses stand for: the file that a process's code lies in, and the
functions of the kernel's stacks."""

from __future__ import annotations

import os
import re
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final

from probes.events import ProcessId

MAX_MAPPINGS: Final = 1 << 16
REREAD_S: Final = 0.05
"""A process's mappings are read again at most this often."""
JIT: Final = "[jit]"

_C_LIBRARY: Final = re.compile(r" r-xp .*/(libc\.so\.6|libc-2[.\d]+so|ld-musl-\S+)$")
_ENTRY: Final = frozenset(
    ("entry_SYSCALL_64_after_hwframe", "entry_SYSCALL_64", "do_syscall_64", "x64_sys_call")
)
_FAULT: Final = "page_fault"
_SYSCALL: Final = ("__x64_sys_", "__do_sys_", "__se_sys_", "ksys_", "do_sys_")


class MappedCode:
    """The files that hold a process's code, by address."""

    def __init__(self) -> None:
        self._known: dict[ProcessId, tuple[float, list[int], list[tuple[int, str]]]] = {}

    def name(self, process: ProcessId, address: int) -> str:
        """The base name of the file mapped at `address`, "[jit]" for code that
        lies in none, "" where it can't be told (any more)."""
        read_s, starts, ranges = self._known.get(process, (0.0, [], []))
        found = _covering(starts, ranges, address)
        now_s = time.monotonic()
        if found is None and now_s - read_s >= REREAD_S:
            mapped = list(_executable_ranges(process.pid))
            starts, ranges = [start for start, _, _ in mapped], [each[1:] for each in mapped]
            self._known[process] = (now_s, starts, ranges)
            found = _covering(starts, ranges, address)
        return found or ""

    def forget(self, process: ProcessId) -> None:
        """The process has ended, or has become another program."""
        self._known.pop(process, None)


def _covering(starts: list[int], ranges: list[tuple[int, str]], address: int) -> str | None:
    at = bisect_right(starts, address) - 1
    if at < 0 or address >= ranges[at][0]:
        return None
    return ranges[at][1]


def _executable_ranges(pid: int) -> Iterable[tuple[int, int, str]]:
    try:
        # newline: a mapped file's name may hold "\r"
        with open(f"/proc/{pid}/maps", errors="surrogateescape", newline="\n") as lines:
            for _, line in zip(range(MAX_MAPPINGS), lines, strict=False):
                parts = line.rstrip("\n").split(maxsplit=5)
                if "x" in parts[1]:
                    start, end = (int(part, 16) for part in parts[0].split("-"))
                    path = parts[5].removesuffix(" (deleted)") if len(parts) > 5 else ""
                    yield start, end, os.path.basename(path) or JIT
    except OSError:
        return


def c_library(pid: int) -> str | None:
    """A path that leads to exactly the C library that a process maps; None where
    none is found."""
    path = f"/proc/{pid}/maps"
    with suppress(OSError), open(path, errors="replace", newline="\n") as lines:
        for _, line in zip(range(MAX_MAPPINGS), lines, strict=False):
            if _C_LIBRARY.search(line):
                start, end = (int(part, 16) for part in line.split()[0].split("-"))
                return f"/proc/{pid}/map_files/{start:x}-{end:x}"
    return None


class KernelStacks:
    """The kernel's stacks as names; `walk` gives the addresses of one by its
    number, `symbol` the name at an address."""

    def __init__(self, walk: Callable[[int], Iterable[int]], symbol: Callable[[int], str]) -> None:
        self._walk = walk
        self._symbol = symbol
        self._symbols: dict[int, str] = {}
        self._stacks: dict[int, tuple[str, ...]] = {}

    def frames(self, stack: int) -> tuple[str, ...]:
        """The functions, innermost first; empty where the stack is unknown."""
        known = self._stacks.get(stack)
        if known is None and stack >= 0:
            known = self._stacks[stack] = tuple(map(self._name, self._walk(stack)))
        return known or ()

    def place(self, stack: int) -> str:
        """What the kernel was asked for: "kernel:read", "kernel:page_fault"."""
        for name in reversed(self.frames(stack)):
            if name in _ENTRY:
                continue
            if _FAULT in name:
                return f"kernel:{_FAULT}"
            prefix = next((p for p in _SYSCALL if name.startswith(p)), "")
            return f"kernel:{name.removeprefix(prefix).removeprefix('asm_')}"
        return "kernel:unknown"

    def _name(self, address: int) -> str:
        name = self._symbols.get(address)
        if name is None:
            name = self._symbols[address] = self._symbol(address)
        return name
