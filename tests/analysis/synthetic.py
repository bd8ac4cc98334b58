"""Made-up starts: events written to a real trace file, and a small set of signatures.

Times are milliseconds from the exec of the root, which is at BEGIN_NS.
"""

from __future__ import annotations

from pathlib import Path

from analysis.signature import Signatures
from analysis.start import Start
from probes.events import (
    BUCKET_NS,
    Event,
    FunctionSeen,
    ModuleExecuted,
    ProcessExecuted,
    ProcessExited,
    ProcessForked,
    ProcessFound,
    ProcessId,
    SampleCause,
    StackSampled,
    ThreadRan,
    ThreadWaited,
    WaitState,
)
from tracer.trace import TraceWriter

BEGIN_NS = 5_000_000_000
MS = 1_000_000
ROOT = ProcessId(100, BEGIN_NS - MS)
IMPORTLIB = ("<frozen importlib._bootstrap>", "_call_with_frames_removed")
MAIN = ("/venv/bin/serve", "<module>")

SIGNATURES = {
    "engine": "toy",
    "title": "Toy",
    "before_python": "boot",
    "module_bodies": "imports",
    "step": [
        {
            "id": "prepare",
            "title": "Prepare",
            "substep": [
                {"id": "boot", "title": "Boot"},
                {"id": "imports", "title": "Imports"},
                {"id": "config", "title": "Config", "outer": ["/toy/config.py:Config.make"]},
                {"id": "spawn", "title": "Spawn", "functions": ["/toy/server.py:spawn"]},
                {"id": "inspection", "title": "Inspection"},
            ],
        },
        {
            "id": "load",
            "title": "Load",
            "substep": [
                {"id": "weights", "title": "Weights", "functions": ["/toy/model.py:Model.load"]},
                {
                    "id": "trial",
                    "title": "Trial",
                    "functions": ["/toy/model.py:Model.trial"],
                    "whole": ["/toy/model.py:Model.rehearse"],
                },
                {"id": "tokens_server", "title": "Tokens of the server"},
                {"id": "tokens_engine", "title": "Tokens of the engine"},
            ],
        },
        {
            "id": "serve",
            "title": "Serve",
            "substep": [
                {"id": "listen", "title": "Listen", "functions": ["/http/server.py:Server.startup"]}
            ],
        },
    ],
    "by_role": [
        {
            "substep": {"server": "tokens_server"},
            "otherwise": "tokens_engine",
            "functions": ["/toy/tokens.py:tokens"],
        }
    ],
    "role": [
        {"id": "server", "title": "Server", "functions": ["/toy/server.py:serve"]},
        {
            "id": "engine",
            "title": "Engine",
            "functions": ["/toy/engine.py:Engine.run"],
            "made_in": ["/toy/server.py:spawn"],
            "before_python": "spawn",
        },
        {
            "id": "worker",
            "title": "Worker",
            "functions": ["/toy/worker.py:Worker.run"],
            "made_in": ["/toy/engine.py:Engine.fork"],
        },
        {
            "id": "inspector",
            "title": "Inspector",
            "arguments": ["toy.inspect"],
            "substep": "inspection",
        },
        {"id": "compiler", "title": "Compiler", "programs": ["g++*"], "inherits": True},
    ],
    "wait": [
        {"for": "engine", "functions": ["/toy/server.py:wait_for_engine"]},
        {"for": "worker", "functions": ["/toy/engine.py:Engine.wait"]},
        {"for": "inspector", "functions": ["/toy/server.py:wait_for_inspector"]},
    ],
    "idle": {"functions": ["/toy/worker.py:Worker.idle"]},
    "ready": {
        "role": "server",
        "functions": ["/http/server.py:Server.startup"],
        "port_option": "--port",
        "default_port": 8000,
    },
    "command": [{"program": "toy", "arguments": ["serve"]}],
    "file": [
        {"class": "weights", "title": "Weights", "globs": ["*.safetensors"]},
        {"class": "tokens", "title": "Tokens", "globs": ["*/tokenizer.json"]},
    ],
    "absent": [
        {"of": "load", "arguments": ["--dry"], "why": "--dry loads nothing"},
        {"of": "load", "ran_in": ["/toy/stub.py"], "why": "the stub has no model"},
        {"of": "trial", "why": "no trial was held"},
    ],
    "view": [
        {
            "id": "pipeline",
            "group": [
                {"id": "one", "title": "One", "substeps": ["boot", "imports", "config", "spawn"]},
                {
                    "id": "rest",
                    "title": "Rest",
                    "substeps": [
                        "inspection",
                        "weights",
                        "trial",
                        "tokens_server",
                        "tokens_engine",
                        "listen",
                    ],
                },
            ],
        }
    ],
}

NAMES = {
    "config": ("/lib/toy/config.py", "Config.make"),
    "spawn": ("/lib/toy/server.py", "spawn"),
    "wait_for_engine": ("/lib/toy/server.py", "wait_for_engine"),
    "wait_for_inspector": ("/lib/toy/server.py", "wait_for_inspector"),
    "serve": ("/lib/toy/server.py", "serve"),
    "engine": ("/lib/toy/engine.py", "Engine.run"),
    "engine_fork": ("/lib/toy/engine.py", "Engine.fork"),
    "engine_wait": ("/lib/toy/engine.py", "Engine.wait"),
    "worker": ("/lib/toy/worker.py", "Worker.run"),
    "idle": ("/lib/toy/worker.py", "Worker.idle"),
    "load": ("/lib/toy/model.py", "Model.load"),
    "trial": ("/lib/toy/model.py", "Model.trial"),
    "rehearse": ("/lib/toy/model.py", "Model.rehearse"),
    "tokens": ("/lib/toy/tokens.py", "tokens"),
    "startup": ("/lib/http/server.py", "Server.startup"),
    "helper": ("/lib/other.py", "Other.help"),
    "import": IMPORTLIB,
    "body": ("/venv/lib/python3.12/site-packages/big/__init__.py", "<module>"),
    "main": MAIN,
    "wild": ("/lib/\x1b]0;owned\x07.py", "\x1b[31mred"),
}
"""Short names of functions, as (file, qualified name)."""


def at(ms: float) -> int:
    """A moment, in ns."""
    return BEGIN_NS + round(ms * MS)


class Story:
    """Gathers the events of a start; stacks are written outermost first: "main config"."""

    def __init__(self, argv: tuple[str, ...] = ("toy", "serve")) -> None:
        self.events: list[Event] = [ProcessExecuted(BEGIN_NS, ROOT, argv[0], argv, False)]
        self._keys: dict[str, int] = {}

    def sample(
        self,
        ms: float,
        stack: str,
        process: ProcessId = ROOT,
        cause: SampleCause = SampleCause.ON_CPU,
        tid: int | None = None,
    ) -> Story:
        frames = tuple(self.key(name, process) for name in reversed(stack.split()))
        tid = process.pid if tid is None else tid
        self.events.append(StackSampled(at(ms), process, tid, 0, cause, frames, False))
        return self

    def wait(self, ms: float, stack: str, process: ProcessId = ROOT) -> Story:
        return self.sample(ms, stack, process, SampleCause.WAIT)

    def ran(self, ms: float, end_ms: float, process: ProcessId = ROOT, tid: int = 0) -> Story:
        """A thread, the main one by default, was on a core, in the trace's buckets."""
        at_ns, tid = at(ms), tid or process.pid
        while at_ns < at(end_ms):
            bucket_ns = at_ns // BUCKET_NS * BUCKET_NS
            end_ns = min(bucket_ns + BUCKET_NS, at(end_ms))
            self.events.append(ThreadRan(bucket_ns, process, tid, 0, end_ns - at_ns))
            at_ns = end_ns
        return self

    def off(
        self,
        ms: float,
        end_ms: float,
        kernel: str = "",
        process: ProcessId = ROOT,
        tid: int = 0,
        woken_ms: float | None = None,
        waker: ProcessId | None = None,
        waker_tid: int = 0,
        state: WaitState = WaitState.SLEEPING,
    ) -> Story:
        """A thread was off the cores; `kernel` is written innermost first."""
        woken_ns = at(end_ms if woken_ms is None else woken_ms)
        waker_pid = waker.pid if waker else None
        thread = (process, tid or process.pid, state, tuple(kernel.split()))
        by = (waker_pid, waker_tid or waker_pid)
        self.events.append(ThreadWaited(at(ms), at(end_ms), woken_ns, *thread, *by))
        return self

    def place(
        self, ms: float, place: str, process: ProcessId = ROOT, tid: int = 0, stack: str = ""
    ) -> Story:
        """A sample on a core found a thread at `place`."""
        frames = tuple(self.key(name, process) for name in reversed(stack.split()))
        cause, tid = SampleCause.ON_CPU, tid or process.pid
        self.events.append(StackSampled(at(ms), process, tid, 0, cause, frames, False, place))
        return self

    def body(
        self,
        ms: float,
        end_ms: float | None,
        name: str = "body",
        process: ProcessId = ROOT,
        depth: int = 0,
        tid: int | None = None,
    ) -> Story:
        end_ns = None if end_ms is None else at(end_ms)
        tid = process.pid if tid is None else tid
        key = self.key(name, process)
        self.events.append(ModuleExecuted(at(ms), end_ns, process, tid, depth, key))
        return self

    def fork(self, ms: float, pid: int, parent: ProcessId = ROOT) -> ProcessId:
        child = ProcessId(pid, at(ms))
        self.events.append(ProcessForked(at(ms), parent, child))
        return child

    def run(self, ms: float, process: ProcessId, *argv: str) -> Story:
        self.events.append(ProcessExecuted(at(ms), process, argv[0], argv, False))
        return self

    def exit(self, ms: float, process: ProcessId, wait_status: int = 0) -> Story:
        self.events.append(ProcessExited(at(ms), process, wait_status))
        return self

    def found(self, process: ProcessId, parent: ProcessId | None, ms: float) -> Story:
        self.events.append(ProcessFound(at(ms), process, parent, ("toy", "serve")))
        return self

    def key(self, name: str, process: ProcessId) -> int:
        """The key of a function named in NAMES, or FILE:NAME."""
        if name not in self._keys:
            self._keys[name] = len(self._keys) + 1
        key = self._keys[name]
        file, function = NAMES.get(name) or tuple(name.split(":", 1))
        self.events.append(FunctionSeen(BEGIN_NS, process, key, file, function, 1))
        return key

    def start(
        self,
        folder: Path,
        end_ms: float,
        outcome: str = "ready",
        hz: int = 100,
        signatures: Signatures | None = None,
        **meta: object,
    ) -> Start:
        """Write the events to a trace file, and take that apart."""
        path = self.write(folder, end_ms, outcome, hz, **meta)
        start = Start.open(path)
        return Start(start.trace, signatures or Signatures(SIGNATURES))

    def write(
        self, folder: Path, end_ms: float, outcome: str = "ready", hz: int = 100, **meta: object
    ) -> Path:
        """Write the events to a trace file."""
        path = folder / "start.coldtrace"
        writer = TraceWriter(path)
        for event in self.events:
            writer.add(event)
        known: dict[str, object] = {
            "root": writer.process_id(ROOT),
            "begin_ns": BEGIN_NS,
            "end_ns": at(end_ms),
            "outcome": outcome,
            "options": {"hz": hz},
        }
        if outcome == "ready":
            known["ready_ns"] = at(end_ms)
        for key, value in (known | meta).items():
            writer.set_meta(key, value)
        writer.close()
        return path


def times(start: Start) -> dict[str, float]:
    """What each sub-step took, in ms; only those that took any time."""
    result = start.result
    taken = {
        substep.id: substep.duration_ns / MS
        for step in result.steps
        for substep in step.substeps
        if substep.duration_ns
    }
    if result.unattributed_ns:
        taken["unattributed"] = result.unattributed_ns / MS
    if result.missed_ns:
        taken["missed"] = result.missed_ns / MS
    return taken
