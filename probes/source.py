"""The seam between what observes and what records."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from probes.events import Event, ProcessId


class SourceUnavailable(Exception):
    """A source can't open here; the message says why and what would mend it."""


@dataclass(frozen=True, slots=True)
class SourceStats:
    """What a source saw and lost so far, by kind of event."""

    seen: dict[str, int] = field(default_factory=dict)
    lost: dict[str, int] = field(default_factory=dict)
    costs_ns: dict[str, int] = field(default_factory=dict)
    """Time spent inside the observed processes, by kind of probe."""


class Source(Protocol):
    """One way of observing processes."""

    name: str

    def open(self) -> None:
        """Make ready to observe; raise SourceUnavailable where that can't be."""

    def follow(self, process: ProcessId) -> None:
        """Observe `process` and, from now on, all its descendants."""

    def poll(self, timeout_s: float) -> Iterable[Event]:
        """Wait up to `timeout_s` for events; return what has come, in order."""

    def stats(self) -> SourceStats:
        """Counts so far."""

    def close(self) -> Iterable[Event]:
        """Stop observing; return the events that were still under way."""
