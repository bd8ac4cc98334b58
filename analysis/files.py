"""Which files a start used: what they are, how much of them, for how long."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

from analysis.start import Start
from tracer.trace import File

UNCLASSED = "other"


@dataclass(frozen=True, slots=True)
class FileUse:
    """One file, all its opens in all processes taken together.

    `open_ns` is the time from open to close, added up over `opens`; one that
    was still open counts until the end of the start.
    """

    path: str
    kind: str
    pids: frozenset[int]
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
    opens: dict[str, list[File]] = {}
    for file in start.trace.files():
        if file.ts_ns < start.end_ns and (spans is None or _inside(file.ts_ns, spans)):
            opens.setdefault(file.path, []).append(file)
    uses = [_use(start, path, files) for path, files in opens.items()]
    return sorted(uses, key=lambda use: (-use.used_bytes, use.first_ns))


def _use(start: Start, path: str, files: list[File]) -> FileUse:
    kind = start.signatures.file_class(path)
    closed_ns = (start.end_ns if file.closed_ns is None else file.closed_ns for file in files)
    return FileUse(
        path,
        kind.id if kind else UNCLASSED,
        frozenset(start.trace.processes[file.process_id].pid for file in files),
        files[0].ts_ns,
        len(files),
        sum(
            min(end, start.end_ns) - file.ts_ns for file, end in zip(files, closed_ns, strict=True)
        ),
        max((file.size_bytes for file in files if file.size_bytes is not None), default=None),
        sum(file.read_bytes for file in files),
        sum(file.mapped_bytes for file in files),
    )


def _inside(moment_ns: int, spans: list[tuple[int, int]]) -> bool:
    index = bisect_right(spans, moment_ns, key=lambda span: span[0]) - 1
    return index >= 0 and moment_ns < spans[index][1]
