"""Why a step or sub-step that took no time didn't happen."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property

from analysis.signature import Absence
from analysis.stacks import Stacks
from probes.events import SampleCause
from tracer.trace import Trace


class Reasons:
    """What a trace shows of the reasons in `absences`."""

    def __init__(self, trace: Trace, stacks: Stacks, absences: Iterable[Absence]) -> None:
        self._trace = trace
        self._stacks = stacks
        self._absences = tuple(absences)

    def of_step(self, step_id: str) -> str:
        """Why a step took no time; what the command or the code shows comes first."""
        reason = self.known(step_id)
        if reason is not None:
            return reason
        if not self._has_stacks:
            return "not seen, since no stacks were taken"
        if self._is_missed:
            return "not seen; it may have been over before the tracer came"
        return "the start ended before it" if self._is_cut else "none of its functions was seen"

    def known(self, of: str) -> str | None:
        """Why a step or sub-step took no time, None where that isn't known."""
        for absence in self._absences:
            if absence.of == of and self._explains(absence):
                return absence.why
        return None

    def _explains(self, absence: Absence) -> bool:
        if not absence.arguments and not absence.ran_in:
            # That it wasn't seen is all there is: it says so much if all was seen.
            return self._has_stacks and not self._is_missed and not self._is_cut
        given = not self._arguments.isdisjoint(absence.arguments)
        return given or any(map(self._stacks.ran_in, absence.ran_in))

    @property
    def _is_cut(self) -> bool:
        return bool(self._trace.meta["outcome"] != "ready")

    @property
    def _is_missed(self) -> bool:
        return bool(self._trace.meta["seen_from_ns"] > self._trace.meta["begin_ns"])

    @cached_property
    def _has_stacks(self) -> bool:
        trace = self._trace
        samples = (each for process in trace.processes for each in trace.samples(process))
        return any(sample.cause is not SampleCause.EDGE for sample in samples)

    @cached_property
    def _arguments(self) -> frozenset[str]:
        """The options that the command was given, without their values."""
        root = self._trace.processes[self._trace.meta["root"]]
        given = {*self._trace.meta.get("command", ())}
        given.update(argument for execution in root.execs for argument in execution.argv)
        return frozenset(argument.partition("=")[0] for argument in given)
