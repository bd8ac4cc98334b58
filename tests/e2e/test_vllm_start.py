"""A start of the real vLLM, held against the log of the same start.

The margins leave room for a busy machine: on a quiet one they are 20 ms for readiness, and
30 ms or 5 % for what the log times.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import urllib.request
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Protocol

import psutil
import pytest

from tests.e2e.start import OnLine, TracedStart, trace_start
from tracer.trace import Trace

pytestmark = pytest.mark.real_vllm

STEPS = [
    "framework_bootstrap",
    "tokenizer_init",
    "model_loading",
    "torch_compile",
    "kv_cache_profiling",
    "cuda_graph_capture",
    "api_readiness",
]
READY_MARGIN_NS = 100_000_000
UNATTRIBUTED_SHARE = 0.02
LOST_SHARE = 1e-4
"""Of the events: on a virtual machine one in some tens of thousands can't be sent."""
UNKNOWN_SHARE = 0.02
ENGINE_BEGINS = "Initializing a V1 LLM engine"
HTTP = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def near(seconds: float) -> object:
    """What the log timed, with its own rounding and a busy machine's delays."""
    return pytest.approx(seconds, rel=0.1, abs=0.1)


def complete(port: int, model: Path) -> str:
    body = json.dumps({"model": str(model), "prompt": "def main():", "max_tokens": 4}).encode()
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/completions", body, {"Content-Type": "application/json"}
    )
    with HTTP.open(request, timeout=60) as answer:
        return str(json.load(answer)["choices"][0]["text"])


class TraceVllm(Protocol):
    def __call__(self, *arguments: object, on_line: OnLine = ...) -> TracedStart: ...


@pytest.fixture(scope="module")
def trace_vllm(
    coldtrace_bin: Path, vllm_bin: Path, tmp_path_factory: pytest.TempPathFactory
) -> TraceVllm:
    """Traces a `vllm serve` to its end; all of them share caches that are empty at first."""
    caches = tmp_path_factory.mktemp("caches")

    def trace(*arguments: object, on_line: OnLine = lambda _process, _line: None) -> TracedStart:
        command = [vllm_bin, "serve", *arguments]
        return trace_start(
            coldtrace_bin, command, tmp_path_factory.mktemp("start"), caches, on_line
        )

    return trace


@pytest.fixture(scope="module", params=["cold", "warm", "eager"])
def start(
    request: pytest.FixtureRequest,
    trace_vllm: TraceVllm,
    demo_model: Path,
    new_port: Callable[[], int],
) -> TracedStart:
    """A start with cold caches, one with what that left behind, and one that compiles nothing.

    The server is asked one thing once coldtrace has let go of it, and stopped.
    """
    port, answers = new_port(), []

    def on_line(process: subprocess.Popen[str], line: str) -> None:
        if line.startswith("coldtrace: the trace is"):
            answers.append(complete(port, demo_model))
            process.send_signal(signal.SIGINT)

    arguments = [demo_model, "--host", "127.0.0.1", "--port", port, "--max-model-len", 1024]
    if request.param == "eager":
        arguments.append("--enforce-eager")
    start = trace_vllm(*arguments, on_line=on_line)
    assert len(answers) == 1
    return start


def test_every_nanosecond_is_in_one_place(start: TracedStart) -> None:
    result = start.result
    assert [step["id"] for step in result["steps"]] == STEPS
    for step in result["steps"]:
        substeps = sum(substep["seconds"] for substep in step["substeps"])
        assert substeps == pytest.approx(step["seconds"], abs=1e-6)
    total = start.seconds(*STEPS) + result["unattributed_s"]
    assert total == pytest.approx(result["wall_s"], abs=1e-6)
    assert result["unattributed_s"] <= UNATTRIBUTED_SHARE * result["wall_s"]


def test_every_nanosecond_went_to_something(start: TracedStart) -> None:
    result = start.result
    for substep in (substep for step in result["steps"] for substep in step["substeps"]):
        shares = sum(share["seconds"] for share in substep["shares"])
        assert shares == pytest.approx(substep["seconds"], abs=1e-6)
    whole = result["attribution"]["shares"]
    assert sum(share["seconds"] for share in whole) == pytest.approx(result["wall_s"], abs=1e-6)
    unknown = sum(share["seconds"] for share in whole if share["kind"] in ("unknown", "cpu"))
    assert unknown <= UNKNOWN_SHARE * result["wall_s"]
    assert result["attribution"]["whys"] == []


def test_the_critical_path_leads_through_the_processes_to_the_exec(start: TracedStart) -> None:
    links = start.result["critical_path"]
    assert links[0]["start_s"] == 0 and links[-1]["end_s"] == start.result["wall_s"]
    assert all(one["end_s"] == other["start_s"] for one, other in pairwise(links))
    roles = {process["pid"]: process["role"] for process in start.result["processes"]}
    assert {roles[link["pid"]] for link in links} >= {"api_server", "engine_core", "worker"}


def test_nothing_is_lost_and_the_server_is_unharmed(start: TracedStart) -> None:
    assert start.result["outcome"] == "ready"
    seen = sum(sum(counts.seen.values()) for counts in Trace.open(start.trace).counts.values())
    assert start.result["lost_events"] <= seen * LOST_SHARE, start.result["lost"]
    assert start.status == 0


def test_ready_when_the_log_says_so(start: TracedStart) -> None:
    meta = Trace.open(start.trace).meta
    ready_ns, begin_ns = meta["ready_ns"], meta["begin_ns"]
    assert abs(ready_ns - start.arrival_ns("Application startup complete")) < READY_MARGIN_NS
    assert start.result["wall_s"] == pytest.approx((ready_ns - begin_ns) / 1e9, abs=1e-6)


def test_steps_take_what_the_log_says(start: TracedStart) -> None:
    assert start.seconds("load_weights") == near(start.logged_seconds("Loading weights took"))
    structure = start.logged_seconds("Initializing model took")
    assert start.seconds("model_structure") == near(structure)
    engine = start.seconds("torch_compile", "kv_cache_profiling", "cuda_graph_capture")
    assert engine == near(start.logged_seconds(r"init engine .* took"))


def test_no_cuda_graphs_on_a_cpu(start: TracedStart) -> None:
    assert not start.step("cuda_graph_capture")["happened"]
    assert start.seconds("cuda_graph_capture") == 0


@pytest.mark.parametrize("start", ["cold"], indirect=True)
def test_a_cold_start_names_its_parts(start: TracedStart) -> None:
    for substep in (
        "imports",
        "model_inspection",
        "api_server_tokenizer",
        "engine_tokenizer",
        "dynamo_transform",
        "graph_compile",
    ):
        assert start.seconds(substep) > 0, substep
    processes = start.result["processes"]
    assert len({process["role"] for process in processes}) >= 4
    assert any("cc1plus" in process["program"] for process in processes)
    roles = {process["pid"]: process["role"] for process in processes}
    compilers = [link for link in start.result["critical_path"] if roles[link["pid"]] == "compiler"]
    assert {link["substep"] for link in compilers} >= {"graph_compile"}


@pytest.mark.parametrize("start", ["eager"], indirect=True)
def test_an_eager_start_compiles_nothing(start: TracedStart) -> None:
    assert not start.step("torch_compile")["happened"]
    assert start.seconds("model_inspection") == pytest.approx(0, abs=0.5)


def test_a_port_that_is_taken(trace_vllm: TraceVllm, demo_model: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        start = trace_vllm(demo_model, "--host", "127.0.0.1", "--port", port)
    assert start.status == 1
    assert start.result["outcome"] == "failed"
    assert start.result["failure"]["step"] == "framework_bootstrap"
    assert start.result["failure"]["root_wait_status"] == 1 << 8


def test_a_broken_config(trace_vllm: TraceVllm, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"architectures": [')
    start = trace_vllm(tmp_path)
    assert start.status == 1
    assert start.result["outcome"] == "failed"
    assert start.result["failure"]["step"] == "framework_bootstrap"


def test_a_server_that_is_killed(trace_vllm: TraceVllm, demo_model: Path, free_port: int) -> None:
    def kill(process: subprocess.Popen[str], line: str) -> None:
        if ENGINE_BEGINS in line:
            (server,) = psutil.Process(process.pid).children()
            server.kill()
        elif line.startswith("coldtrace: the trace is"):
            process.wait()
            os.killpg(process.pid, signal.SIGKILL)  # the engine, which nobody waits for now

    start = trace_vllm(demo_model, "--port", free_port, "--enforce-eager", on_line=kill)
    assert start.status == -signal.SIGKILL
    assert start.result["outcome"] == "failed"
    # the engine goes on to its tokenizer while we take aim
    assert start.result["failure"]["step"] in ("framework_bootstrap", "tokenizer_init")
    assert start.result["failure"]["root_wait_status"] == signal.SIGKILL


def test_ctrl_c_before_it_is_ready(trace_vllm: TraceVllm, demo_model: Path, free_port: int) -> None:
    def interrupt(process: subprocess.Popen[str], line: str) -> None:
        if ENGINE_BEGINS in line:
            os.killpg(process.pid, signal.SIGINT)

    start = trace_vllm(demo_model, "--port", free_port, "--enforce-eager", on_line=interrupt)
    assert start.result["outcome"] == "interrupted"
    assert start.seconds("framework_bootstrap") > 0
    assert start.status != 0
