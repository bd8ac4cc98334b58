"""Which file an inode is, as the page cache names it."""

from __future__ import annotations

from tracer.trace import CachedFile, File, Trace

OTHER_FILES = "other files"
"""Stands for those of which only inodes are known: no process of the start opened them
by a name that matters to one."""


class Inodes:
    """The paths of one trace's files."""

    def __init__(self, trace: Trace) -> None:
        known: list[File | CachedFile] = [*trace.cached_files(), *trace.files()]
        self._paths = {(file.device, file.inode): file.path for file in known}
        by_number: dict[int | None, set[str]] = {}
        for file in known:
            by_number.setdefault(file.inode, set()).add(file.path)
        self._by_number = {
            number: min(paths) for number, paths in by_number.items() if len(paths) == 1
        }

    def path(self, device: int, inode: int) -> str:
        """Its path, or OTHER_FILES."""
        # an overlay shows its layers' inodes as those of a device of its own
        return self._paths.get((device, inode)) or self._by_number.get(inode) or OTHER_FILES
