"""What the observers of values have in common: how often they look, and what they tell."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from probes.events import Reading


@dataclass(slots=True)
class Pace:
    """When to look next: every `period_ns`, and less often where looking costs more
    than `share` of a core."""

    period_ns: int
    share: float
    next_ns: int = 0

    def is_due(self, now_ns: int) -> bool:
        return now_ns >= self.next_ns

    def looked(self, now_ns: int, cost_ns: int) -> None:
        """It was looked at `now_ns`, which took `cost_ns` of CPU."""
        self.next_ns = now_ns + max(self.period_ns, round(cost_ns / self.share))


class Readings:
    """Turns values into readings, and leaves out those that tell nothing new.

    A value that stays is told twice, when it came and when it was last so: between
    two readings that are told, a straight line is the truth as it was seen.
    """

    def __init__(self) -> None:
        self._last: dict[tuple[str, str], tuple[int, int, float]] = {}

    def tell(self, ts_ns: int, name: str, subject: str, value: float) -> Iterator[Reading]:
        """The readings that `value`, read at `ts_ns`, calls for: none, one or two."""
        key = (name, subject)
        known = self._last.get(key)
        if known is not None:
            told_ns, seen_ns, before = known
            if before == value:
                self._last[key] = (told_ns, ts_ns, value)
                return
            if seen_ns != told_ns:
                yield Reading(seen_ns, name, subject, before)
        self._last[key] = (ts_ns, ts_ns, value)
        yield Reading(ts_ns, name, subject, value)

    def rest(self) -> Iterator[Reading]:
        """Until when each value stayed as it was told last."""
        for (name, subject), (told_ns, seen_ns, value) in self._last.items():
            if seen_ns != told_ns:
                yield Reading(seen_ns, name, subject, value)
        self._last.clear()

    def forget(self, subject: str) -> Iterator[Reading]:
        """As `rest`, of a subject that is no more."""
        for name, of in [key for key in self._last if key[1] == subject]:
            told_ns, seen_ns, value = self._last.pop((name, of))
            if seen_ns != told_ns:
                yield Reading(seen_ns, name, of, value)
