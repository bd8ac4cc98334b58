"""Flame graphs for the page: where the critical path's time went, and the cores'."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator

from analysis.report.frames import Frames
from analysis.result import Segment
from analysis.start import Start
from analysis.waits import ran_in
from probes.events import SampleCause
from tracer.text import escape
from tracer.trace import Sample

ROOT = 0


class _Tree:
    """Stacks that share their outer frames; node ROOT has no function."""

    def __init__(self) -> None:
        self.parents = [-1]
        self.functions = [-1]
        self._children: dict[tuple[int, int], int] = {}
        self._numbers: dict[int, int] = {}

    def node(self, frames: tuple[int, ...]) -> int:
        """The node of a stack, given outermost first."""
        at = ROOT
        for frame in frames:
            child = self._children.get((at, frame))
            if child is None:
                child = self._children[at, frame] = len(self.parents)
                self.parents.append(at)
                self.functions.append(self._numbers.setdefault(frame, len(self._numbers)))
            at = child
        return at

    @property
    def used(self) -> list[int]:
        """The function ids, in the order that `functions` counts them by."""
        return list(self._numbers)


def flames(start: Start, substeps: dict[str, int], processes: dict[int, int]) -> dict[str, object]:
    """What the page draws flame graphs from; sub-steps and processes are told by number.

    `path` rows: sub-step, process, node, µs. `cpu` rows: sub-step of the moment, process,
    node, samples, and of `places` the one in which the Python function was, -1 for Python
    or where unknown; there are none where nothing was sampled on the CPU.
    """
    tree, frames = _Tree(), Frames(start)
    path: dict[tuple[int, int, int], int] = {}
    for segment in start.segments:
        node = tree.node(frames.of(segment.stack_id))
        key = (_substep(segment, substeps), processes[segment.process_id], node)
        path[key] = path.get(key, 0) + segment.duration_ns
    cpu: dict[tuple[int, int, int, int], int] = {}
    places: dict[str, int] = {}
    for process_id, number in processes.items():
        for segment, sample in _on_cpu(start, process_id):
            node = tree.node(frames.of(sample.stack_id))
            place = -1
            if sample.place and ran_in(sample.place).kind != "python":
                place = places.setdefault(sample.place, len(places))
            at = (_substep(segment, substeps), number, node, place)
            cpu[at] = cpu.get(at, 0) + 1
    files: dict[str, int] = {}
    functions = []
    for function_id in tree.used:
        function = start.trace.functions[function_id]
        file = files.setdefault(function.file, len(files))
        functions.append([escape(start.stacks.title(function_id)), file, function.line])
    return {
        "functions": functions,
        "files": list(map(escape, files)),
        "parents": tree.parents,
        "nodes": tree.functions,
        "path": [[*key, round(time_ns / 1000)] for key, time_ns in path.items()],
        "cpu": [[*key[:3], count, key[3]] for key, count in cpu.items()],
        "places": list(map(escape, places)),
    }


def _substep(segment: Segment, substeps: dict[str, int]) -> int:
    return -1 if segment.substep is None else substeps[segment.substep]


def _on_cpu(start: Start, process_id: int) -> Iterator[tuple[Segment, Sample]]:
    """The samples on the CPU of all threads, with the segment of their moment."""
    segments = start.segments
    begins = [segment.start_ns for segment in segments]
    for sample in start.trace.samples(process_id):
        if sample.cause is SampleCause.ON_CPU and start.begin_ns <= sample.ts_ns < start.end_ns:
            yield segments[bisect_right(begins, sample.ts_ns) - 1], sample
