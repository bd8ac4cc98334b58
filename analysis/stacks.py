"""What a stack tells by its signatures: the sub-step, who is waited for, the role."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from analysis.modules import module_name
from analysis.signature import Mark, Signatures
from tracer.trace import Trace


@dataclass(frozen=True, slots=True)
class Label:
    """What one thread was doing.

    substep: the sub-step; None where no signature is on the stack.
    outer: a module body that ran meanwhile was an import all the same.
    waits_for: the role that is waited for; `substep` then holds while none lives.
    idle: the process has nothing to do but to wait for orders.
    """

    substep: str | None = None
    outer: bool = False
    waits_for: str | None = None
    idle: bool = False


UNKNOWN = Label(None, outer=True)
"""A moment that only a module body may name."""


def read_marks(marks: Iterable[Mark], role: str, imports: str) -> Label:
    """What `marks`, a stack's from the innermost on, say in a process of `role`.

    The innermost decides, unless a whole one lies around it.
    """
    decided: Label | None = None
    importing, waits_for = False, None
    for mark in marks:
        if mark.whole:
            return Label(mark.substep_in(role))
        if decided is not None:
            continue
        if mark.idle and waits_for is None:
            decided = Label(idle=True)
            continue
        importing = importing or mark.importing
        waits_for = waits_for or mark.waits_for
        substep = mark.substep_in(role)
        if substep is None:
            continue
        if waits_for is None and mark.outer and importing:
            decided = Label(imports)
        else:
            decided = Label(substep, mark.outer and waits_for is None, waits_for)
    if decided is not None:
        return decided
    if waits_for is not None:
        return Label(None, waits_for=waits_for)
    return Label(imports) if importing else UNKNOWN


class Stacks:
    """The stacks of one trace, each read once a role."""

    def __init__(self, trace: Trace, signatures: Signatures) -> None:
        self._stacks = trace.stacks
        self._functions = trace.functions
        self._imports = signatures.imports
        # Interpreters before 3.11 have plain names only: no name has a dot then.
        qualified = any("." in function.name for function in trace.functions.values())
        self._marks: dict[int, Mark] = {}
        for function_id, function in trace.functions.items():
            mark = signatures.mark(function.file, function.name, qualified)
            if mark is not None:
                self._marks[function_id] = mark
        self._labels: dict[tuple[int, str], Label] = {}

    def label(self, stack_id: int, role: str) -> Label:
        """What the stack says in a process of `role`."""
        label = self._labels.get((stack_id, role))
        if label is None:
            label = read_marks(self.marks(stack_id), role, self._imports)
            self._labels[stack_id, role] = label
        return label

    def marks(self, stack_id: int) -> list[Mark]:
        """The signatures on the stack, innermost first."""
        marks = self._marks
        return [marks[frame] for frame in self._stacks[stack_id].frames if frame in marks]

    def is_python(self, stack_id: int) -> bool:
        """Whether the thread ran any Python."""
        return bool(self._stacks[stack_id].frames)

    def ran_in(self, part: str) -> bool:
        """Whether a function was seen of a file with `part` in its path."""
        return any(part in function.file for function in self._functions.values())

    def title(self, function_id: int) -> str:
        """A function for people: `package.module:name`."""
        function = self._functions[function_id]
        return f"{module_name(function.file)}:{function.name}" if function.file else function.name

    def innermost(self, stack_id: int | None, folder: str = "") -> str | None:
        """The title of the innermost function, of those whose path has `folder` in it;
        None where there is none."""
        frames = self._stacks[stack_id].frames if stack_id is not None else ()
        here = (frame for frame in frames if folder in self._functions[frame].file)
        frame = next(here, None)
        return None if frame is None else self.title(frame)
