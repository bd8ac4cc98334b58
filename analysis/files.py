"""Which files a start used: what they are, how much of them, for how long."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

from analysis.start import Start

UNCLASSED = "other"


@dataclass(frozen=True, slots=True)
class FileUse:
    """One file in one process, all its opens taken together.

    `open_ns` is the time from open to close, added up over `opens`; one that
    was still open counts until the end of the start.
    """

    path: str
    kind: str
    pid: int
    role: str
    first_ns: int
    opens: int
    open_ns: int
    size_bytes: int | None
    read_bytes: int
    mapped_bytes: int

    @property
    def used_bytes(self) -> int:
        return self.read_bytes + self.mapped_bytes


def files_of(start: Start, spans: list[tuple[int, int]] | None = None) -> list[FileUse]:
    """The files of a start, the most used first.

    `spans`, if given, are stretches of time (ns, by time, apart from one
    another): then only what was opened in one of them counts.
    """
    uses: dict[tuple[int, str], FileUse] = {}
    for file in start.trace.files():
        if file.ts_ns >= start.end_ns or (spans is not None and not _inside(file.ts_ns, spans)):
            continue
        closed_ns = start.end_ns if file.closed_ns is None else min(file.closed_ns, start.end_ns)
        process = start.trace.processes[file.process_id]
        key = (file.process_id, file.path)
        known = uses.get(key)
        kind = start.signatures.file_class(file.path)
        size_bytes = known.size_bytes if known and file.size_bytes is None else file.size_bytes
        uses[key] = FileUse(
            file.path,
            kind.id if kind else UNCLASSED,
            process.pid,
            start.roles[process.id],
            known.first_ns if known else file.ts_ns,
            known.opens + 1 if known else 1,
            closed_ns - file.ts_ns + (known.open_ns if known else 0),
            size_bytes,
            file.read_bytes + (known.read_bytes if known else 0),
            file.mapped_bytes + (known.mapped_bytes if known else 0),
        )
    return sorted(uses.values(), key=lambda use: (-use.used_bytes, use.first_ns))


def _inside(moment_ns: int, spans: list[tuple[int, int]]) -> bool:
    index = bisect_right(spans, moment_ns, key=lambda span: span[0]) - 1
    return index >= 0 and moment_ns < spans[index][1]
