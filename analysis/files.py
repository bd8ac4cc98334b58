"""Which files a start used: what they are, how much of them, for how long."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

from analysis.start import Start
from probes.events import BUCKET_NS
from tracer.trace import CachedFile, File

UNCLASSED = "other"

Inode = tuple[int | None, int | None]
"""A device and a number on it."""


@dataclass(frozen=True, slots=True)
class FileUse:
    """One file, all its opens in all processes taken together.

    `open_ns` is the time from open to close, added up over `opens`; one that
    was still open counts until its process ended, or the start. `added_bytes` of it came
    into the page cache, as a rule from its device; `cached_bytes` were there before the start.
    None stands for what nobody saw.
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
    added_bytes: int | None
    cached_bytes: int | None
    file_system: str | None

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
    added = _added(start, spans)
    cached: dict[Inode, CachedFile] = {}
    for each in start.trace.cached_files():
        cached.setdefault((each.device, each.inode), each)
    uses = [_use(start, path, files, added, cached) for path, files in opens.items()]
    return sorted(uses, key=lambda use: (-use.used_bytes, use.first_ns))


def _added(start: Start, spans: list[tuple[int, int]] | None) -> dict[Inode, int] | None:
    """What came into the page cache, by device and inode; None where that wasn't watched."""
    pages = start.trace.page_cache()
    added: dict[Inode, int] = {}
    for each in pages:
        if spans is None or _inside(each.ts_ns + BUCKET_NS // 2, spans):
            inode = (each.device, each.inode)
            added[inode] = added.get(inode, 0) + each.added_bytes
    return added if pages else None


def _use(
    start: Start,
    path: str,
    files: list[File],
    added: dict[Inode, int] | None,
    cached: dict[Inode, CachedFile],
) -> FileUse:
    kind = start.signatures.file_class(path)
    inodes = {(file.device, file.inode) for file in files if file.inode is not None}
    before = next((cached[inode] for inode in inodes if inode in cached), None)
    closed_ns = (_closed_ns(start, file) for file in files)
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
        sum(added.get(inode, 0) for inode in inodes) if added is not None and inodes else None,
        before.cached_bytes if before else None,
        before.file_system if before else None,
    )


def _closed_ns(start: Start, file: File) -> int:
    """When it was closed, or its process ended, which closes without a word."""
    if file.closed_ns is not None:
        return file.closed_ns
    end_ns = start.trace.processes[file.process_id].end_ns
    return start.end_ns if end_ns is None else end_ns


def _inside(moment_ns: int, spans: list[tuple[int, int]]) -> bool:
    index = bisect_right(spans, moment_ns, key=lambda span: span[0]) - 1
    return index >= 0 and moment_ns < spans[index][1]
