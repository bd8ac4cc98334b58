"""Which versions of which packages a start ran, told by where its functions lie."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress

from probes.events import Event, FunctionSeen
from probes.rootfs import list_in_root
from tracer.trace import TraceWriter

ENGINE = "vllm"
PACKAGES = (ENGINE, "torch", "transformers")

_PLACE = re.compile(r"(/.*/python(\d\.\d+)/(?:site|dist)-packages)/(\w+)/")
_METADATA = re.compile(r"(\w+)-([\w.+!]+)\.dist-info")


class Versions:
    """Observes a recording and puts `versions` and `engine` into its trace."""

    def __init__(self, writer: TraceWriter) -> None:
        self._writer = writer
        self._versions: dict[str, str] = {}
        self._wanted = set(PACKAGES)

    def observe(self, events: Sequence[Event]) -> None:
        """Learn from the first function of each package that is seen."""
        if self._wanted:
            for event in events:
                if isinstance(event, FunctionSeen):
                    self._look(event)

    def _look(self, event: FunctionSeen) -> None:
        place = _PLACE.match(event.file)
        if place is None or place[3] not in self._wanted:
            return
        self._versions["python"] = place[2]
        with suppress(OSError):  # it has ended: another process may tell
            for name in list_in_root(event.process.pid, place[1]):
                found = _METADATA.fullmatch(name)
                if found and found[1] == place[3]:
                    self._versions[found[1]] = found[2]
            self._wanted.discard(place[3])
        self._writer.set_meta("versions", self._versions)
        if ENGINE in self._versions:
            self._writer.set_meta("engine", {"name": ENGINE, "version": self._versions[ENGINE]})
