"""What the tests share: the gate in front of those that really trace, and the real programs.

COLDTRACE_TEST_REAL decides about tests marked `real_kernel` or `real_vllm`. Unset: skipped where
they can't run, with the reason. 1: such a skip is a failure. 0: left out.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import os
import signal
import socket
import sys
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
REAL = os.environ.get("COLDTRACE_TEST_REAL", "")

SYS_BPF = {"x86_64": 321, "aarch64": 280}
BPF_MAP_CREATE = 0
BPF_MAP_TYPE_ARRAY = 2

# `make test` may have come through sudo. The tests' own runs are root's all the same: their files
# lie in folders where the user who called sudo couldn't write.
for name in [name for name in os.environ if name.startswith("SUDO_")]:
    del os.environ[name]


# A test run in the background may have been started with these ignored, and so would all that the
# tests start: they send them.
for number in (signal.SIGHUP, signal.SIGQUIT):
    signal.signal(number, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure() -> None:
    if REAL not in ("", "0", "1"):
        raise pytest.UsageError(f"COLDTRACE_TEST_REAL is {REAL!r}: leave it unset, or 0 or 1")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    if is_real(item) and (reason := obstacle(item)):
        pytest.skip(reason)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if REAL == "1" and report.skipped and is_real(item) and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"COLDTRACE_TEST_REAL=1, yet skipped: {reason}"
    return report


def is_real(item: pytest.Item) -> bool:
    return any(item.get_closest_marker(name) for name in ("real_kernel", "real_vllm"))


def obstacle(item: pytest.Item) -> str | None:
    """Say why `item` can't run here; None if it can."""
    if REAL == "0":
        return "left out by COLDTRACE_TEST_REAL=0"
    if reason := tracing_obstacle():
        return reason
    if item.get_closest_marker("real_vllm") and not (ROOT / ".demo/model").exists():
        return "no vLLM in .demo: `make demo` installs it, where there is a Python 3.11"
    return None


@functools.cache
def tracing_obstacle() -> str | None:
    if os.geteuid() != 0:
        return "tracing needs root"
    if importlib.util.find_spec("bcc") is None:
        return "no bcc: install python3-bpfcc, and make .venv with --system-site-packages"
    if not any(Path(path, "events").exists() for path in TRACEFS):
        return "no tracefs: mount -t tracefs nodev /sys/kernel/tracing"
    return bpf_obstacle()


TRACEFS = ("/sys/kernel/tracing", "/sys/kernel/debug/tracing")


def bpf_obstacle() -> str | None:
    """Ask the kernel for the smallest BPF map."""
    attributes = (ctypes.c_uint32 * 32)(BPF_MAP_TYPE_ARRAY, 4, 4, 1)
    libc = ctypes.CDLL(None, use_errno=True)
    number = SYS_BPF[os.uname().machine]
    descriptor = libc.syscall(
        ctypes.c_long(number), BPF_MAP_CREATE, attributes, ctypes.sizeof(attributes)
    )
    if descriptor < 0:
        return f"no BPF here: {os.strerror(ctypes.get_errno())}"
    os.close(descriptor)
    return None


@pytest.fixture(scope="session")
def coldtrace_bin() -> Path:
    """The installed command, beside the Python that runs the tests."""
    return Path(sys.executable).with_name("coldtrace")


@pytest.fixture(scope="session")
def vllm_bin() -> Path:
    return ROOT / ".demo/vllm/bin/vllm"


@pytest.fixture(scope="session")
def demo_model() -> Path:
    return ROOT / ".demo/model"


@pytest.fixture(scope="session")
def new_port() -> Callable[[], int]:
    """Finds a TCP port on the loopback that nobody listens on."""

    def find() -> int:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            return int(listener.getsockname()[1])

    return find


@pytest.fixture
def free_port(new_port: Callable[[], int]) -> int:
    return new_port()
