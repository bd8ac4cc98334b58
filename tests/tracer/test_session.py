"""One start as it happens: the tree, readiness, and how it ended."""

from __future__ import annotations

import pytest

from probes.events import (
    FunctionSeen,
    ProcessExecuted,
    ProcessExited,
    ProcessForked,
    ProcessFound,
    ProcessId,
    SampleCause,
    SocketListening,
    StackSampled,
)
from tracer.session import Frames, Session

SHELL, SERVER, ENGINE = ProcessId(100, 5), ProcessId(101, 20), ProcessId(102, 40)
AF_INET = 2


class OnPort:
    """Readiness is a listen on `port` whose innermost function is `name`, if given."""

    def __init__(self, port: int, name: str | None = None) -> None:
        self.port, self.name = port, name
        self.asked: list[tuple[int, Frames]] = []

    def is_ready(self, session: Session, event: SocketListening, frames: Frames) -> bool:
        self.asked.append((event.port, frames))
        named = self.name is None or (bool(frames) and frames[0][1] == self.name)
        return event.port == self.port and named


def started(rule: OnPort, *, joined: bool = False) -> Session:
    """A shell that made a server that made an engine."""
    session = Session(SHELL, rule, joined=joined)
    session.take(ProcessExecuted(10, SHELL, "/bin/sh", ("sh", "serve.sh"), False))
    session.take(ProcessForked(20, SHELL, SERVER))
    session.take(ProcessExecuted(25, SERVER, "/usr/bin/vllm", ("vllm", "serve"), False))
    session.take(ProcessForked(40, SERVER, ENGINE))
    return session


def test_a_start_begins_with_the_first_exec_of_its_root() -> None:
    session = Session(SHELL, OnPort(8000))
    assert session.begin_ns is None
    session.take(ProcessForked(8, SHELL, SERVER))
    session.take(ProcessExecuted(9, SERVER, "/bin/true", ("true",), False))
    assert session.begin_ns is None
    session.take(ProcessExecuted(10, SHELL, "/usr/bin/env", ("env", "sh"), False))
    session.take(ProcessExecuted(12, SHELL, "/bin/sh", ("sh",), False))
    assert session.begin_ns == 10
    assert session.root_state.argv == ("sh",)


def test_a_start_that_is_joined_began_with_its_root() -> None:
    session = started(OnPort(8000), joined=True)
    assert session.begin_ns == SHELL.start_ns


def test_the_tree_follows_forks_execs_and_exits() -> None:
    session = started(OnPort(8000))
    assert [state.process for state in session.living()] == [SHELL, SERVER, ENGINE]
    assert [state.process for state in session.children(SERVER)] == [ENGINE]
    engine = session.processes[ENGINE]
    assert (engine.parent, engine.argv) == (SERVER, ("vllm", "serve"))
    session.take(ProcessExited(50, SERVER, 9))
    assert [state.process for state in session.living()] == [SHELL, ENGINE]
    assert session.processes[SERVER].wait_status == 9


def test_a_pid_used_again_is_another_process() -> None:
    session = started(OnPort(8000))
    again = ProcessId(SERVER.pid, 90)
    session.take(ProcessExited(50, SERVER, 0))
    session.take(ProcessForked(90, SHELL, again))
    assert not session.processes[SERVER].alive
    assert session.processes[again].alive


def test_a_process_found_running_has_its_parent_and_command_line() -> None:
    session = Session(SHELL, OnPort(8000), joined=True)
    session.take(ProcessFound(60, SERVER, SHELL, ("vllm", "serve")))
    state = session.processes[SERVER]
    assert (state.parent, state.argv, state.is_python) == (SHELL, ("vllm", "serve"), None)


def test_a_python_process_is_known_by_its_functions() -> None:
    session = started(OnPort(8000))
    session.take(FunctionSeen(30, SERVER, 1, "/vllm/main.py", "main", 3))
    assert session.processes[SERVER].is_python is True
    assert session.processes[ENGINE].is_python is None
    session.take(ProcessExecuted(31, SERVER, "/usr/bin/g++", ("g++",), False))
    assert session.processes[SERVER].is_python is None


def test_the_rule_sees_the_stack_of_the_thread_that_listens() -> None:
    rule = OnPort(8000, "serve_http")
    session = started(rule)
    session.take(FunctionSeen(30, SERVER, 1, "/vllm/launcher.py", "serve_http", 3))
    session.take(FunctionSeen(30, SERVER, 2, "/vllm/main.py", "main", 3))
    session.take(FunctionSeen(30, ENGINE, 1, "/other.py", "other", 3))
    session.take(StackSampled(49, SERVER, 101, 0, SampleCause.EDGE, (1, 2, 3), False))
    session.take(StackSampled(49, SERVER, 105, 0, SampleCause.EDGE, (2,), False))
    session.take(StackSampled(50, SERVER, 101, 0, SampleCause.ON_CPU, (2,), False))
    session.take(SocketListening(50, SERVER, 101, AF_INET, 8000))
    expected = (("/vllm/launcher.py", "serve_http"), ("/vllm/main.py", "main"), ("", "<unknown>"))
    assert rule.asked == [(8000, expected)]
    assert (session.ready_ns, session.outcome) == (50, "ready")


def test_a_stack_serves_one_listen_only() -> None:
    rule = OnPort(8000)
    session = started(rule)
    session.take(StackSampled(49, SERVER, 101, 0, SampleCause.EDGE, (1,), False))
    session.take(SocketListening(50, SERVER, 101, AF_INET, 1))
    session.take(SocketListening(51, SERVER, 101, AF_INET, 2))
    assert [len(frames) for _, frames in rule.asked] == [1, 0]
    assert session.ready_ns is None


def test_readiness_comes_once() -> None:
    session = started(OnPort(8000))
    session.take(SocketListening(50, SERVER, 101, AF_INET, 8000))
    session.take(SocketListening(70, SERVER, 101, AF_INET, 8000))
    assert session.ready_ns == 50


@pytest.mark.parametrize(
    ("ready", "interrupted", "exited", "outcome"),
    [
        (False, False, False, "interrupted"),
        (False, False, True, "failed"),
        (False, True, True, "interrupted"),
        (True, False, True, "ready"),
        (True, True, False, "ready"),
    ],
)
def test_the_outcome(ready: bool, interrupted: bool, exited: bool, outcome: str) -> None:
    session = started(OnPort(8000))
    if ready:
        session.take(SocketListening(50, SERVER, 101, AF_INET, 8000))
    if interrupted:
        session.interrupt()
    if exited:
        session.take(ProcessExited(60, SHELL, 256))
    assert session.outcome == outcome


def test_a_child_that_ends_is_no_failure() -> None:
    session = started(OnPort(8000))
    session.take(ProcessExited(60, ENGINE, 256))
    assert session.outcome == "interrupted"
