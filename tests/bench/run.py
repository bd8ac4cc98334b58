"""What tracing costs: pairs of the same work with and without it, in turn.

    make bench ARGS="--pairs 5 --only warm"

`warm` and `eager` start the demo's real vLLM untraced, under `coldtrace run` and
under `py-spy record`, each from the exec of vLLM to the first 200 of /health.
`syscalls` and `modules` time small known work. Prints ratios or differences as
median (min to max); noise never fails it, only what couldn't be measured does.
Needs root and what `make demo` installs.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from probes import proc
from tracer.errors import ColdtraceError
from tracer.trace import Trace

ROOT = Path(__file__).resolve().parent.parent.parent
VLLM = ROOT / ".demo/vllm/bin/vllm"
MODEL = ROOT / ".demo/model"
COLDTRACE = Path(sys.executable).with_name("coldtrace")
PY_SPY = Path(sys.executable).with_name("py-spy")
WORK = Path(__file__).with_name("work.py")

HZ = 99
POLL_S = 0.02
READY_S = 600.0
STOP_S = 60.0
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    # On CPU the artefact saved ahead of time doesn't load: each start would compile again.
    "VLLM_USE_AOT_COMPILE": "0",
}
MODES: dict[str, list[str]] = {"warm": [], "eager": ["--enforce-eager"]}
MICROS = {"syscalls": ("ns a call", 1.0), "modules": ("us a body", 1000.0)}

Wrap = Callable[[Path], list[str]]
"""The words before a command that have it traced, given a file to write."""


class BenchError(Exception):
    """Something couldn't be measured; one line says what."""


def coldtrace(file: Path, until: str = "ready") -> list[str]:
    return [
        str(COLDTRACE),
        "run",
        "--no-learn",
        "--until",
        until,
        "--hz",
        str(HZ),
        "-o",
        str(file),
        "--",
    ]


def py_spy(file: Path) -> list[str]:
    """As its users have it follow a server, with time in its output."""
    words = [str(PY_SPY), "record", "-f", "chrometrace", "--subprocesses", "--idle"]
    return [*words, "-r", str(HZ), "-o", str(file), "--"]


TRACERS: dict[str, Wrap] = {
    "untraced": lambda file: [],
    "coldtrace": coldtrace,
    "py-spy": py_spy,
}


# Real starts.


@dataclass(frozen=True, slots=True)
class Start:
    """One start: `ready_s` from vLLM's exec, `setup_s` what the tracer took before it.

    `cpu_s` is what vLLM's processes had used by then: other programs that run
    meanwhile disturb it less.
    """

    ready_s: float
    cpu_s: float
    setup_s: float
    file: Path


def serve(tracer: str, mode: str, folder: Path) -> Start:
    """Start vLLM under `tracer`, wait until it answers, stop it as Ctrl-C would."""
    port = free_port()
    file = folder / f"{tracer}-{mode}-{port}"
    command = [*TRACERS[tracer](file), str(VLLM), "serve", str(MODEL), *MODES[mode]]
    command += ["--host", "127.0.0.1", "--port", str(port), "--max-model-len", "1024"]
    began_ns = time.monotonic_ns()
    with running(command, folder / f"{file.name}.log") as child:
        ready_ns = wait_until_ready(child, port)
        server = child.pid if tracer == "untraced" else vllm_under(child.pid)
        cpu_s = used_cpu_s(server)
        executed_ns = began_ns if tracer == "untraced" else started_ns(server)
    if tracer == "coldtrace":  # its own start of the clock is vLLM's exec, to the microsecond
        executed_ns = int(Trace.open(file).meta["begin_ns"])
    setup_s = max(0, executed_ns - began_ns) / 1e9
    return Start((ready_ns - executed_ns) / 1e9, cpu_s, setup_s, file)


@contextmanager
def running(command: Sequence[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run `command` in a process group of its own, which nothing outlives."""
    with log.open("wb") as output:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=os.environ | ENVIRONMENT,
            start_new_session=True,
        )
    try:
        yield child
    except BenchError as error:
        raise BenchError(f"{error}; the last it said: {last_line(log)}") from error
    finally:
        with suppress(ProcessLookupError, subprocess.TimeoutExpired):
            os.killpg(child.pid, signal.SIGINT)
            child.wait(STOP_S)
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def wait_until_ready(child: subprocess.Popen[bytes], port: int) -> int:
    """The moment of the first 200, CLOCK_MONOTONIC ns."""
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline:
        if child.poll() is not None:
            raise BenchError(f"the server ended with status {child.returncode}")
        if is_healthy(port):
            return time.monotonic_ns()
        time.sleep(POLL_S)
    raise BenchError(f"the server wasn't ready after {READY_S:.0f} s")


def is_healthy(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def vllm_under(pid: int) -> int:
    """The pid of the server that the tracer `pid` has started."""
    for child in proc.descendants(pid):
        if str(VLLM) in (proc.argv(child) or ()):
            return child
    raise BenchError("no vLLM is seen under its tracer")


def started_ns(pid: int) -> int:
    """When `pid` came to be, to 10 ms."""
    entry = proc.stat(pid)
    if entry is None:
        raise BenchError("the server has gone")
    return entry.start_ns


def used_cpu_s(pid: int) -> float:
    """CPU seconds of `pid` and all under it, those included that have ended."""
    times = (psutil.Process(one).cpu_times() for one in (pid, *proc.descendants(pid)))
    return sum(t.user + t.system + t.children_user + t.children_system for t in times)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def last_line(log: Path) -> str:
    lines = log.read_text("utf-8", "replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "nothing")


def bench_starts(mode: str, pairs: int, folder: Path) -> None:
    print(
        f"\nvLLM starts, {mode}: one to fill the caches, then {pairs} of each in turn", flush=True
    )
    serve("untraced", mode, folder)
    starts: dict[str, list[Start]] = defaultdict(list)
    names = list(TRACERS)
    for pair in range(pairs):
        turn = pair % len(names)
        for name in names[turn:] + names[:turn]:
            start = serve(name, mode, folder)
            starts[name].append(start)
            said = f"{start.ready_s:7.2f} s, {start.cpu_s:7.2f} s of CPU"
            print(f"  {pair + 1}/{pairs} {name:10}{said}", flush=True)
    for name in names:
        print(f"{name:10} {spread([start.ready_s for start in starts[name]], ' s', 2)}")
    for name in names[1:]:
        both = list(zip(starts[name], starts["untraced"], strict=True))
        wall = spread([traced.ready_s / plain.ready_s for traced, plain in both], "", 3)
        cpu = spread([traced.cpu_s / plain.cpu_s for traced, plain in both], "", 3)
        setup_s = statistics.median(start.setup_s for start in starts[name])
        print(f"{name}/untraced {wall}; CPU {cpu}; {setup_s:.1f} s of set-up before the exec")
    print_recorder([start.file for start in starts["coldtrace"]])


# What the traces say of their own making.


def print_recorder(files: Sequence[Path]) -> None:
    traces = [Trace.open(file) for file in files]
    shares = [recorder_share(trace) for trace in traces]
    peaks = [trace.meta["recorder"]["peak_rss_bytes"] / 1e6 for trace in traces]
    sizes = [file.stat().st_size / 1e6 for file in files]
    lost = [sum(sum(stats.lost.values()) for stats in trace.counts.values()) for trace in traces]
    print(f"recorder: CPU {spread(shares, ' % of a core', 1)}")
    print(f"recorder: memory at most {max(peaks):.0f} MB, trace at most {max(sizes):.1f} MB")
    print(f"lost events: {spread(lost, '', 0)}")
    print_event_costs(traces[-1])


def recorder_share(trace: Trace) -> float:
    """The recorder's CPU time over the recording, in percent of one core."""
    recorded_s: float = (trace.meta["end_ns"] - trace.meta["begin_ns"]) / 1e9
    cpu_s = float(trace.meta["recorder"]["cpu_s"])
    return 100 * cpu_s / recorded_s


def print_event_costs(trace: Trace) -> None:
    """Time spent inside the observed processes, in the last of the traces."""
    wall_ns = trace.meta["end_ns"] - trace.meta["begin_ns"]
    for source, stats in sorted(trace.counts.items()):
        for kind, cost_ns in sorted(stats.costs_ns.items()):
            seen = stats.seen.get(kind, 0)
            each = f"{cost_ns / seen:.0f} ns each" if seen else "none seen"
            share = 100 * cost_ns / wall_ns
            print(f"  {source} {kind}: {seen} events, {each}, {share:.3f} % of the start")


# Small known work.


def bench_micro(name: str, pairs: int, folder: Path) -> None:
    unit, scale = MICROS[name]
    print(f"\n{name}, {unit}: {pairs} runs of each in turn", flush=True)
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for pair in range(pairs):
        order = ["untraced", "coldtrace"]
        for tracer in order if pair % 2 == 0 else reversed(order):
            for kind, ns in micro(name, tracer, folder / f"{name}-{pair}").items():
                found[kind][tracer].append(ns / scale)
    for kind, by in found.items():
        added = [b - a for a, b in zip(by["untraced"], by["coldtrace"], strict=True)]
        print(f"{kind:12} untraced {spread(by['untraced'], '', 2)}, added {spread(added, '', 2)}")


def micro(name: str, tracer: str, file: Path) -> dict[str, float]:
    before = coldtrace(file, until="exit") if tracer == "coldtrace" else []
    command = [*before, sys.executable, str(WORK), name]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode != 0:
        said = done.stderr.strip().splitlines() or ["nothing"]
        raise BenchError(f"{name} {tracer}: status {done.returncode}: {said[-1]}")
    return dict(json.loads(done.stdout))


def spread(values: Sequence[float], unit: str, digits: int) -> str:
    low, middle, high = min(values), statistics.median(values), max(values)
    return f"{middle:.{digits}f}{unit} ({low:.{digits}f} to {high:.{digits}f})"


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--pairs", type=int, default=5, metavar="N", help="default 5")
    parser.add_argument("--only", choices=[*MODES, *MICROS], metavar="NAME", help="%(choices)s")
    options = parser.parse_args()
    if options.pairs < 1:
        parser.error("--pairs: at least 1")
    names = [options.only] if options.only else [*MICROS, *MODES]
    for name in ("SUDO_UID", "SUDO_GID", "SUDO_USER"):  # all starts as the same user, root
        os.environ.pop(name, None)
    print(f"{os.cpu_count()} CPUs, load average {os.getloadavg()[0]:.1f} (what else runs is noise)")
    with tempfile.TemporaryDirectory(prefix="coldtrace-bench-") as folder:
        try:
            for name in names:
                bench = bench_starts if name in MODES else bench_micro
                bench(name, options.pairs, Path(folder))
        except (
            BenchError,
            ColdtraceError,
            OSError,
            psutil.Error,
            subprocess.TimeoutExpired,
        ) as error:
            print(f"bench: {error}", file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
