"""What tracing needs of this machine: each thing tried, what is lost without it, what mends it.

Features are tried; versions are only shown.
"""

from __future__ import annotations

import ctypes
import os
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from probes import kernel, pyspy, uprobes
from probes.kernel import TRACEFS
from probes.source import SourceUnavailable
from tracer.errors import ColdtraceError
from tracer.text import escape

_CAPABILITIES = {
    "CAP_KILL": 5,
    "CAP_SETGID": 6,
    "CAP_SETUID": 7,
    "CAP_SYS_PTRACE": 19,
    "CAP_SYS_ADMIN": 21,
    "CAP_PERFMON": 38,
    "CAP_BPF": 39,
}
_SUBJECTS = {
    "process.bpf.c": ("process tree", "any trace"),
    "sched.bpf.c": ("cores, waits and stacks", "any trace"),
    "modules.bpf.c": ("module imports", "the exact time of each import"),
    "files.bpf.c": ("files", "which files were read, and how much of them"),
    "sockets.bpf.c": ("sockets", "the moment at which the server is ready"),
    "disk.bpf.c": ("disks", "which bytes came from a device, and which files were waited for"),
    "network.bpf.c": ("the network", "which addresses and names were waited for"),
    "driver.bpf.c": ("GPU drivers", "the calls of a GPU's driver"),
}
_SYS_BPF = {"x86_64": 321, "aarch64": 280}
_SYS_PERF_EVENT_OPEN = {"x86_64": 298, "aarch64": 241}
_BPF_PROG_LOAD = 5
_BPF_PROG_TYPE_TRACEPOINT = 5
_PERF_TYPE_SOFTWARE = 1
_PERF_FLAG_FD_CLOEXEC = 8
_ANYTHING = "any trace"

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class Check:
    """One thing, found or not; what is lost without it, and what mends that.

    `needed`: no trace can be made without it.
    """

    name: str
    found: bool
    detail: str
    lost: str
    mend: str
    needed: bool = True

    def __str__(self) -> str:
        state = "found" if self.found else "MISSING" if self.needed else "missing"
        text = f"{state:<8} {self.name}: {escape(self.detail)}"
        if self.found:
            return text
        return f"{text}\n         lost without it: {self.lost}\n         mend it: {self.mend}"


def examine(show: Callable[[str], None]) -> bool:
    """Make every check and show it as it is made; return whether a trace can be made."""
    able = True
    for check in _checks():
        show(str(check))
        able = able and (check.found or not check.needed)
    if able:
        last = check_programs()
        show(str(last))
        able = last.found
    return able


def _checks() -> Iterator[Check]:
    yield check_root()
    yield check_tracefs()
    for subject in (*kernel.REQUIRED, *kernel.OPTIONAL):
        yield check_tracepoints(subject)
    yield check_bpf()
    yield check_clock()
    yield check_uprobes()
    yield check_bcc()
    yield check_pyspy()
    yield check_nvml()


def check_root(status: Path = Path("/proc/self/status")) -> Check:
    """Root with its capabilities: a container's root may lack some."""
    text = status.read_text()
    effective = int(text.partition("CapEff:")[2].split()[0], 16)
    lacking = [name for name, bit in _CAPABILITIES.items() if not effective >> bit & 1]
    is_root = int(text.partition("Uid:")[2].split()[1]) == 0
    if not is_root:
        detail, mend = "not root", f"sudo {os.path.abspath(sys.argv[0])} doctor"
    else:
        detail = f"root without {', '.join(lacking)}" if lacking else "root, all capabilities"
        mend = f"give the container {' '.join(f'--cap-add={name[4:]}' for name in lacking)}"
    return Check("root", is_root and not lacking, detail, _ANYTHING, mend)


def check_tracefs() -> Check:
    """tracefs, mounted here as `run` would if it isn't."""
    mend = mount_command()
    try:
        mounted = mount_tracefs()
    except ColdtraceError as error:
        return Check("tracefs", False, error.message, _ANYTHING, mend)
    detail = f"mounted at {TRACEFS}" + (" just now" if mounted else "")
    return Check("tracefs", True, detail, _ANYTHING, mend)


def mount_command() -> str:
    return f"mount -t tracefs nodev {TRACEFS}"


def mount_tracefs() -> bool:
    """Mount tracefs if nobody has; return whether that was so.

    Raises ColdtraceError, which says how, where it can't be mounted.
    """
    try:
        if (TRACEFS / "events").is_dir():
            return False
    except PermissionError:
        raise ColdtraceError(f"{TRACEFS} can only be read by root") from None
    if _libc.mount(b"nodev", os.fsencode(TRACEFS), b"tracefs", 0, None) == 0:
        return True
    reason = os.strerror(ctypes.get_errno())
    raise ColdtraceError(f"tracefs isn't mounted ({reason}); as root: {mount_command()}")


def check_tracepoints(subject: str) -> Check:
    """The tracepoints that one subject needs."""
    title, lost = _SUBJECTS[subject]
    wanted = kernel.tracepoints(subject)
    lacking = [name for name in wanted if not _exists(TRACEFS / "events" / name)]
    detail = f"no {', '.join(lacking)}" if lacking else ", ".join(wanted) or "needs none"
    return Check(
        f"tracepoints for {title}",
        not lacking,
        detail,
        lost,
        "a kernel with CONFIG_FTRACE_SYSCALLS, and tracefs readable (as root)",
        needed=subject in kernel.REQUIRED or subject == "sockets.bpf.c",
    )


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except PermissionError:
        return False


def check_bpf() -> Check:
    """Load the smallest program there is."""
    code = ctypes.create_string_buffer(struct.pack("<QQ", 0xB7, 0x95))  # r0 = 0; exit
    licence = ctypes.create_string_buffer(b"GPL")
    attributes = ctypes.create_string_buffer(128)
    addresses = ctypes.addressof(code), ctypes.addressof(licence)
    struct.pack_into("<IIQQ", attributes, 0, _BPF_PROG_TYPE_TRACEPOINT, 2, *addresses)
    problem = _try(_SYS_BPF, _BPF_PROG_LOAD, attributes, 128)
    return Check(
        "BPF",
        problem is None,
        problem or "a program loads",
        _ANYTHING,
        "run as root, on a kernel with CONFIG_BPF_SYSCALL that isn't locked down",
    )


def check_clock() -> Check:
    """Open the clock that samples are taken on."""
    attributes = ctypes.create_string_buffer(128)
    struct.pack_into("<IIQQ", attributes, 0, _PERF_TYPE_SOFTWARE, 128, 0, 1_000_000)
    problem = _try(_SYS_PERF_EVENT_OPEN, attributes, -1, 0, -1, _PERF_FLAG_FD_CLOEXEC)
    return Check(
        "CPU clock for samples",
        problem is None,
        problem or "perf event opens",
        "stacks of what is running",
        "run as root, on a kernel with CONFIG_PERF_EVENTS",
    )


def _try(numbers: dict[str, int], *arguments: object) -> str | None:
    """Make a system call that returns a descriptor; say why it didn't."""
    number = numbers.get(os.uname().machine)
    if number is None:
        return f"not known on {os.uname().machine}"
    descriptor = _libc.syscall(number, *arguments)
    if descriptor < 0:
        return os.strerror(ctypes.get_errno())
    os.close(descriptor)
    return None


def check_uprobes(events: Path = Path("/sys/bus/event_source/devices")) -> Check:
    """Probes in user programs, and whether many can share a link."""
    found = (events / "uprobe").exists()
    many = found and uprobes.multi_supported()
    detail = "uprobe_multi" if many else "perf events only: detaching is slower"
    return Check(
        "uprobes",
        found,
        detail if found else f"no {events / 'uprobe'}",
        _SUBJECTS["modules.bpf.c"][1],
        "a kernel with CONFIG_UPROBES and CONFIG_UPROBE_EVENTS",
        needed=False,
    )


def check_bcc() -> Check:
    """bcc's Python side: the distribution's, not the package of that name on PyPI.
    Tried in a process of its own, as what it loads may end it."""
    done = _run([sys.executable, "-c", "import bcc; print(bcc.__version__, bcc.BPF.__name__)"])
    found = done is not None and done.returncode == 0
    detail = "can't be tried"
    if done is not None:
        last = (done.stdout or done.stderr).strip().splitlines()[-1:]
        detail = "".join(last).removesuffix(" BPF")
    return Check(
        "bcc",
        found,
        detail,
        _ANYTHING,
        "apt-get install python3-bpfcc, and a virtual environment made by"
        " /usr/bin/python3 -m venv --system-site-packages",
    )


def check_pyspy() -> Check:
    """The sampler of last resort."""
    program = pyspy.find_program()
    detail = "not installed"
    if program is not None:
        done = _run([str(program), "--version"])
        detail = (done and done.stdout.strip()) or f"{program} doesn't run"
    return Check(
        "py-spy",
        detail.startswith("py-spy"),
        detail,
        "stacks of a Python whose interpreter the in-kernel walk doesn't know",
        f"{sys.executable} -m pip install py-spy",
        needed=False,
    )


def _run(command: list[str]) -> subprocess.CompletedProcess[str] | None:
    with suppress(OSError, subprocess.SubprocessError):
        return subprocess.run(command, capture_output=True, text=True, timeout=20)
    return None


def check_nvml(library: str = "libnvidia-ml.so.1") -> Check:
    """The NVIDIA driver's own library."""
    try:
        ctypes.CDLL(library)
        found, detail = True, library
    except OSError as error:
        found, detail = False, str(error)
    return Check(
        "NVML",
        found,
        detail,
        "what the GPU says of itself; nothing on a machine without one",
        "install the NVIDIA driver",
        needed=False,
    )


def check_programs() -> Check:
    """Compile, load and attach all programs for a moment, as a recording does."""
    source = kernel.KernelSource()
    try:
        source.open()
        problem = "; ".join(source.skipped.values())
        source.close()
    except SourceUnavailable as error:
        return Check("all programs", False, str(error), _ANYTHING, "see the checks above")
    return Check("all programs", True, problem or "compiled, loaded and attached", "", "")
