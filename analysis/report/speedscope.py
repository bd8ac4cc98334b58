"""A start as a file for speedscope: the critical path, and every thread by its samples.

The format: https://www.speedscope.app/file-format-schema.json
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from itertools import groupby, pairwise
from typing import Any

from analysis.report.cells import who
from analysis.report.folded import names_of
from analysis.report.frames import Frames
from analysis.report.terminal import headline
from analysis.result import ProcessLife
from analysis.start import Start
from probes.events import SampleCause
from tracer.text import escape

SCHEMA = "https://www.speedscope.app/file-format-schema.json"
MIN_SAMPLES = 2
"""Of a thread that is worth a profile."""

Stretch = tuple[tuple[int, ...], int]
"""A stack, outermost first, and for how many ns it held."""


def to_speedscope(start: Start) -> str:
    """One JSON object; all weights are ns."""
    table = _FrameTable(start)
    profiles = [_path(start, table)]
    for life in start.result.processes:
        profiles += _threads(start, life, table)
    return json.dumps(
        {
            "$schema": SCHEMA,
            "exporter": "coldtrace",
            "name": headline(start.result),
            "activeProfileIndex": 0,
            "shared": {"frames": table.frames},
            "profiles": profiles,
        },
        separators=(",", ":"),
    )


class _FrameTable:
    """The frames that profiles point to by index."""

    def __init__(self, start: Start) -> None:
        self.frames: list[dict[str, Any]] = []
        self._start = start
        self._stacks = Frames(start)
        self._functions: dict[int, int] = {}
        self._names: dict[str, int] = {}

    def stack(self, stack_id: int | None) -> tuple[int, ...]:
        """A stack, outermost first."""
        return tuple(map(self._function, self._stacks.of(stack_id)))

    def name(self, text: str) -> int:
        """A frame that is no function."""
        if text not in self._names:
            self._names[text] = self._added({"name": text})
        return self._names[text]

    def _function(self, function_id: int) -> int:
        known = self._functions.get(function_id)
        if known is None:
            function = self._start.trace.functions[function_id]
            frame: dict[str, Any] = {"name": escape(self._start.stacks.title(function_id))}
            if function.file:
                frame |= {"file": escape(function.file), "line": max(function.line, 0)}
            known = self._functions[function_id] = self._added(frame)
        return known

    def _added(self, frame: dict[str, Any]) -> int:
        self.frames.append(frame)
        return len(self.frames) - 1


def _path(start: Start, table: _FrameTable) -> dict[str, Any]:
    lives = {life.id: life for life in start.result.processes}
    stretches = []
    for segment in start.segments:
        names = (*names_of(start, segment), who(start, lives[segment.process_id]))
        outer = tuple(map(table.name, names))
        stretches.append(((*outer, *table.stack(segment.stack_id)), segment.duration_ns))
    return _profile("Critical path", 0, stretches)


def _threads(start: Start, life: ProcessLife, table: _FrameTable) -> Iterator[dict[str, Any]]:
    """A profile for each thread that ran Python; a stack holds until the next sample."""
    end_ns = start.end_ns if life.end_ns is None else min(life.end_ns, start.end_ns)
    by_thread: dict[int, list[tuple[int, int]]] = {}
    for sample in start.trace.samples(life.id):
        if sample.cause is not SampleCause.EDGE and start.begin_ns <= sample.ts_ns < end_ns:
            by_thread.setdefault(sample.tid, []).append((sample.ts_ns, sample.stack_id))
    for tid, samples in by_thread.items():
        if len(samples) < MIN_SAMPLES or not any(table.stack(stack) for _, stack in samples):
            continue
        thread = "main thread" if tid == life.pid else f"thread {tid}"
        stretches = [
            (table.stack(stack_id), until_ns - ts_ns)
            for (ts_ns, stack_id), (until_ns, _) in pairwise([*samples, (end_ns, 0)])
        ]
        yield _profile(f"{who(start, life)}, {thread}", samples[0][0] - start.begin_ns, stretches)


def _profile(name: str, start_ns: int, stretches: Iterable[Stretch]) -> dict[str, Any]:
    samples, weights = [], []
    for stack, same in groupby(stretches, lambda stretch: stretch[0]):
        samples.append(stack)
        weights.append(sum(duration_ns for _, duration_ns in same))
    return {
        "type": "sampled",
        "name": name,
        "unit": "nanoseconds",
        "startValue": start_ns,
        "endValue": start_ns + sum(weights),
        "samples": samples,
        "weights": weights,
    }
