"""Stacks as reports show them: outermost first, without the import system's own frames."""

from __future__ import annotations

from functools import cache

from analysis.start import Start

_IMPORT_SYSTEM = "<frozen importlib"


class Frames:
    """The stacks of a start by function id."""

    def __init__(self, start: Start) -> None:
        self._stacks = start.trace.stacks
        self._import_system = frozenset(
            function_id
            for function_id, function in start.trace.functions.items()
            if function.file.startswith(_IMPORT_SYSTEM)
        )
        self.of = cache(self._of)

    def _of(self, stack_id: int | None) -> tuple[int, ...]:
        """The functions of a stack, outermost first; of those that only import what is
        further in none, since there are five a module."""
        if stack_id is None:
            return ()
        frames = self._stacks[stack_id].frames
        inner = 0
        while inner < len(frames) and frames[inner] in self._import_system:
            inner += 1
        outer = (frame for frame in frames[inner:] if frame not in self._import_system)
        return tuple(reversed((*frames[:inner], *outer)))
