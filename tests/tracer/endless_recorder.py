"""Record samples of this very process without an end, to be killed: PATH."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable

from probes.events import Event, ProcessExecuted, ProcessId, SampleCause, StackSampled
from probes.source import SourceStats
from tracer.recorder import Recorder
from tracer.session import Session
from tracer.trace import TraceWriter

ROOT = ProcessId(os.getpid(), 1)


class Endless:
    """A hundred samples a second."""

    name = "endless"
    taken = 0

    def open(self) -> None: ...

    def follow(self, process: ProcessId) -> None: ...

    def poll(self, timeout_s: float) -> Iterable[Event]:
        time.sleep(min(timeout_s, 0.01))
        self.taken += 1
        ts_ns = time.monotonic_ns()
        if self.taken == 1:
            yield ProcessExecuted(ts_ns, ROOT, "/bin/vllm", ("vllm",), False)
        yield StackSampled(ts_ns, ROOT, ROOT.pid, 0, SampleCause.ON_CPU, (), False)

    def stats(self) -> SourceStats:
        return SourceStats({"sample": self.taken})

    def close(self) -> Iterable[Event]:
        return ()


class Never:
    def is_ready(self, *_: object) -> bool:
        return False


if __name__ == "__main__":
    with Recorder([Endless()], TraceWriter(sys.argv[1]), Session(ROOT, Never())) as recorder:
        print("recording", flush=True)
        recorder.run()
