"""A traced start of the real vLLM, with every line of its log stamped as it arrives."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
}
TIMEOUT_S = 400

OnLine = Callable[[subprocess.Popen[str], str], None]
"""Called with the traced command and each line, as it arrives."""


@dataclass(frozen=True)
class TracedStart:
    """What is known of a start: coldtrace's result, and what vLLM itself said."""

    trace: Path
    result: dict[str, Any]
    lines: list[tuple[int, str]]
    """CLOCK_MONOTONIC ns of the arrival, and the line; coldtrace's own are among them."""
    status: int

    def seconds(self, *ids: str) -> float:
        """Return the time of steps or sub-steps, added up."""
        parts = [*self.result["steps"], *(s for p in self.result["steps"] for s in p["substeps"])]
        return float(sum(part["seconds"] for part in parts if part["id"] in ids))

    def step(self, step_id: str) -> dict[str, Any]:
        return next(step for step in self.result["steps"] if step["id"] == step_id)

    def logged_seconds(self, pattern: str) -> float:
        """Return the number that the log gives after `pattern`."""
        found = [re.search(pattern + r"\D*?([\d.]+) s", line) for _, line in self.lines]
        return next(float(match[1]) for match in found if match)

    def arrival_ns(self, words: str) -> int:
        return next(ts_ns for ts_ns, line in self.lines if words in line)


def trace_start(
    coldtrace: Path,
    command: list[object],
    folder: Path,
    caches: Path,
    on_line: OnLine,
    options: Sequence[str] = (),
) -> TracedStart:
    """Run vLLM's `command` under `coldtrace run`, to its end, with its caches in `caches`."""
    trace, result = folder / "start.coldtrace", folder / "result.json"
    recording = [coldtrace, "run", "--no-learn", *options, "-o", trace, "--json", result, "--"]
    process = subprocess.Popen(
        [str(word) for word in [*recording, *command]],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
        env=os.environ
        | ENVIRONMENT
        | {"VLLM_CACHE_ROOT": f"{caches}/vllm", "TORCHINDUCTOR_CACHE_DIR": f"{caches}/inductor"},
    )
    assert process.stdout
    lines = []
    watchdog = threading.Timer(TIMEOUT_S, os.killpg, (process.pid, signal.SIGKILL))
    watchdog.start()
    try:
        for line in process.stdout:
            lines.append((time.monotonic_ns(), line.rstrip()))
            on_line(process, line)
        status = process.wait()
    finally:
        watchdog.cancel()
    print(*(line for _, line in lines), sep="\n")
    return TracedStart(trace, json.loads(result.read_text()), lines, status)
