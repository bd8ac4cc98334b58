"""Which listening socket means that the server is up."""

from __future__ import annotations

import socket

import pytest

from analysis.ready import ReadyRule
from analysis.signature import Signatures
from probes.events import (
    FunctionSeen,
    ProcessExecuted,
    ProcessForked,
    ProcessId,
    SampleCause,
    SocketListening,
    StackSampled,
)
from tests.analysis.synthetic import SIGNATURES
from tracer.session import Session

ROOT, CHILD = ProcessId(10, 1), ProcessId(11, 5)
STARTUP = ("/lib/http/server.py", "Server.startup")
OLD_STARTUP = ("/lib/http/server.py", "startup")
OTHER = ("/lib/other.py", "listen")
WORKER = ("/lib/toy/worker.py", "Worker.run")
SERVE = ("/lib/toy/server.py", "serve")


def ready_ns(
    argv: tuple[str, ...],
    stack: tuple[tuple[str, str], ...],
    port: int = 8000,
    process: ProcessId = ROOT,
    child_argv: tuple[str, ...] | None = None,
) -> int | None:
    """When the session became ready of the one socket that listens at 100, if it did."""
    session = Session(ROOT, ReadyRule(Signatures(SIGNATURES)))
    session.take(ProcessExecuted(2, ROOT, argv[0], argv, False))
    session.take(ProcessForked(5, ROOT, CHILD))
    if child_argv is not None:
        session.take(ProcessExecuted(6, CHILD, child_argv[0], child_argv, False))
    for key, (file, name) in enumerate(stack):
        session.take(FunctionSeen(90, process, key, file, name, 1))
    frames = tuple(range(len(stack)))
    if frames:
        session.take(StackSampled(100, process, process.pid, 0, SampleCause.EDGE, frames, False))
    session.take(SocketListening(100, process, process.pid, socket.AF_INET, port))
    return session.ready_ns


TOY = ("/bin/toy", "serve", "model", "--port", "8011")


@pytest.mark.parametrize("startup", [STARTUP, OLD_STARTUP])
def test_the_server_listens_below_its_readiness_function(startup: tuple[str, str]) -> None:
    assert ready_ns(TOY, (OTHER, startup, SERVE), port=1) == 100


def test_another_listener_of_the_server_is_not_ready() -> None:
    assert ready_ns(TOY, (OTHER, SERVE), port=8011) is None


def test_a_child_that_listens_is_not_ready() -> None:
    python = ("python3", "-c", "spawn_main()")
    assert ready_ns(TOY, (OTHER, WORKER), process=CHILD, child_argv=python) is None
    assert ready_ns(TOY, (STARTUP, WORKER), process=CHILD, child_argv=python) is None


def test_a_server_below_a_shell_is_ready() -> None:
    shell = ("bash", "start.sh")
    server = ("python3", *TOY)
    assert ready_ns(shell, (STARTUP,), process=CHILD, child_argv=server) == 100
    assert ready_ns(shell, (OTHER,), process=CHILD, child_argv=server) is None


def test_a_process_that_runs_the_servers_function_is_ready() -> None:
    python = ("python3", "-c", "spawn_main()")
    assert ready_ns(TOY, (STARTUP, SERVE), process=CHILD, child_argv=python) == 100


@pytest.mark.parametrize(
    ("argv", "port", "ready"),
    [
        (TOY, 8011, True),
        (TOY, 8000, False),
        (("toy", "serve", "--port=8011"), 8011, True),
        (("toy", "serve"), 8000, True),
        (("toy", "serve", "--port", "none"), 8000, True),
        (("toy", "serve", "--port"), 8000, True),
    ],
)
def test_without_a_stack_the_port_decides(argv: tuple[str, ...], port: int, ready: bool) -> None:
    assert (ready_ns(argv, (), port) is not None) is ready


def test_without_a_stack_only_the_server_counts() -> None:
    python = ("python3", "-c", "spawn_main()")
    assert ready_ns(TOY, (), 8011, process=CHILD, child_argv=python) is None


def test_a_command_of_another_kind_is_ready_with_its_first_port() -> None:
    assert ready_ns(("python3", "app.py"), (OTHER,), 5000) == 100
    assert ready_ns(("python3", "app.py"), (), 5000, process=CHILD) == 100


def test_the_engines_own_sockets_do_not_make_a_script_ready() -> None:
    assert ready_ns(("python3", "app.py"), (OTHER, WORKER), 5000) is None
