"""Real starts of vLLM held against each other: cold compile cache, cold weights, equal ones."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from analysis.compare import Comparison, compare
from analysis.sides import Side
from analysis.signature import Signatures
from tests.e2e.start import trace_start
from tests.tracer.test_observers import make_cgroup, remove_cgroup

pytestmark = pytest.mark.real_vllm

WEIGHTS_SHARE = 0.01
"""Bytes from disk are those of the file to this."""
REREAD_SHARE = 0.1
"""Of a file that was cached a kernel short of memory may let go of some, which is read again."""

Record = Callable[..., Side]


@pytest.fixture(scope="module")
def record(
    coldtrace_bin: Path,
    vllm_bin: Path,
    demo_model: Path,
    new_port: Callable[[], int],
    tmp_path_factory: pytest.TempPathFactory,
) -> Record:
    """Records one start, until it is ready, with the given options of vLLM, dropped from the
    page cache before or not, and started by a launcher or not."""
    caches = tmp_path_factory.mktemp("caches")

    def stop_when_ready(process: subprocess.Popen[str], line: str) -> None:
        if line.startswith("coldtrace: the trace is"):
            process.send_signal(signal.SIGINT)

    def one(*vllm_options: str, cold: bool = False, launcher: Sequence[str] = ()) -> Side:
        arguments = [demo_model, "--host", "127.0.0.1", "--port", new_port()]
        serve = [vllm_bin, "serve", *arguments, "--max-model-len", 1024, *vllm_options]
        command = [*launcher, *serve]
        folder = tmp_path_factory.mktemp("start")
        options = ["--cold"] if cold else []
        # vLLM 0.32 can't load the artefact that it compiled ahead of time for a CPU
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("VLLM_USE_AOT_COMPILE", "0")
            start = trace_start(coldtrace_bin, command, folder, caches, stop_when_ready, options)
        return Side.open(str(start.trace))

    return one


@pytest.fixture(scope="module")
def compiled(record: Record) -> tuple[Side, Side]:
    """A start with empty compile caches, and one with what that left behind."""
    return record(), record()


@pytest.fixture(scope="module")
def eager(record: Record, compiled: tuple[Side, Side]) -> tuple[Side, Side, Side]:
    """Two equal starts, and one with the model dropped from the page cache."""
    return (
        record("--enforce-eager"),
        record("--enforce-eager"),
        record("--enforce-eager", cold=True),
    )


def compared(a: Side, b: Side) -> Comparison:
    return compare(a, b, Signatures.load())


def test_a_cold_compile_cache_puts_its_compilation_first(compiled: tuple[Side, Side]) -> None:
    cold, warm = compiled
    first = compared(warm, cold).beyond[0]
    assert first.id == "graph_compile"
    [cause] = [cause for cause in first.causes if cause.subject == "compile cache"]
    assert (cause.a, cause.b) == ("warm", "cold")


def test_equal_starts_show_no_difference(eager: tuple[Side, Side, Side]) -> None:
    comparison = compared(eager[0], eager[1])
    assert [each.id for each in comparison.beyond] == []
    assert not comparison.wall.is_beyond


def test_cold_weights_show_in_their_bytes_and_in_nothing_else(
    eager: tuple[Side, Side, Side], demo_model: Path
) -> None:
    _, warm, cold = eager
    weights = (demo_model / "model.safetensors").resolve()
    read = [
        sum(
            count
            for files in side.starts[0].disk_bytes.values()
            for path, count in files.items()
            if Path(path).resolve() == weights
        )
        for side in (warm, cold)
    ]
    size = weights.stat().st_size
    assert read[0] < REREAD_SHARE * size
    assert read[1] == pytest.approx(size, rel=WEIGHTS_SHARE)
    states = [{c.id: c.state for c in side.starts[0].result.caches} for side in (warm, cold)]
    assert [of["page_cache.weights"] for of in states] == ["warm", "cold"]
    others = {each.id for each in compared(warm, cold).beyond} - {
        "load_weights",
        "weight_postprocess",
    }
    assert not others


def test_a_core_that_has_to_be_shared_shows_as_waiting_for_it(record: Record) -> None:
    rival = "import os\nos.sched_setaffinity(0, {0})\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-c", rival]) as process:
        try:
            [start] = record("--enforce-eager", launcher=["taskset", "-c", "0"]).starts
        finally:
            process.kill()
    result = start.result
    assert result.limits is not None and result.limits.allowed_cpus == 1
    imports = result.attribution.substeps["imports"]  # what comes later vLLM binds itself
    assert imports.of("runnable") > 0.3 * imports.duration_ns


def test_a_quota_shows_as_throttling(record: Record) -> None:
    group = make_cgroup(quota_cpus=0.6)
    if group is None:
        pytest.skip("no cgroup with a CPU quota can be made here")
    enter = f'echo $$ > {group}/cgroup.procs; exec "$@"'
    try:
        [start] = record("--enforce-eager", launcher=["sh", "-c", enter, "sh"]).starts
    finally:
        remove_cgroup(group)
    limits = start.result.limits
    assert limits is not None and (limits.quota_cpus, limits.cgroup) == (0.6, str(group))
    assert next(iter(limits.throttled_ns)) == "imports"
    for substep in ("imports", "weight_postprocess"):
        shares = start.result.attribution.substeps[substep]
        assert shares.of("throttled") > 0.15 * shares.duration_ns, substep
