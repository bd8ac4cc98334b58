"""Folded stacks, as flame graph tools read them: one line a stack, and its weight.

The weight is the time on the critical path in µs: all lines add up to the wall clock.
Outermost are step, sub-step and process.
"""

from __future__ import annotations

from analysis.report.cells import who
from analysis.report.frames import Frames
from analysis.result import Segment
from analysis.start import Start
from tracer.text import escape


def to_folded(start: Start) -> str:
    """One line for each stack that took at least a microsecond."""
    frames = Frames(start)
    lives = {life.id: life for life in start.result.processes}
    times: dict[tuple[str, ...], int] = {}
    for segment in start.segments:
        outer = (*names_of(start, segment), who(start, lives[segment.process_id]))
        inner = (start.stacks.title(frame) for frame in frames.of(segment.stack_id))
        key = tuple(_name(name) for name in (*outer, *inner))
        times[key] = times.get(key, 0) + segment.duration_ns
    lines = [(";".join(key), round(time_ns / 1000)) for key, time_ns in times.items()]
    return "".join(f"{stack} {time_us}\n" for stack, time_us in sorted(lines) if time_us)


def names_of(start: Start, segment: Segment) -> tuple[str, ...]:
    """The step and sub-step of a segment."""
    if segment.substep is None:
        return ("Missed before the tracer came" if segment.missed else "Unattributed",)
    for step in start.result.steps:
        for substep in step.substeps:
            if substep.id == segment.substep:
                return step.title, substep.title
    return (segment.substep,)


def _name(text: str) -> str:
    """A semicolon separates frames."""
    return escape(text).replace(";", ":")
