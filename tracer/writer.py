"""Writes a trace file: in batches, so that a kill at any moment leaves it whole.

A rollback journal does that; it needs no syncing, only a power cut would.
"""

from __future__ import annotations

import json
import math
import os
import sqlite3
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from probes.events import (
    Connected,
    DeviceTransferred,
    DriverCalled,
    Event,
    FileCached,
    FileUsed,
    FunctionSeen,
    ModuleExecuted,
    NameLookedUp,
    PagesCached,
    ProcessExecuted,
    ProcessExited,
    ProcessForked,
    ProcessFound,
    ProcessId,
    Reading,
    SocketAccepted,
    SocketListening,
    StackSampled,
    ThreadRan,
    ThreadWaited,
)
from probes.source import SourceStats
from tracer import schema
from tracer.errors import TraceError
from tracer.owner import Owner
from tracer.schema import MAX_FRAMES, MAX_INT, TABLES, WITHOUT_IDS, signed


class _ProcessRow:
    """What the writer knows of a process; `row` is its row in the table."""

    __slots__ = ("functions", "id", "row", "stacks")

    def __init__(self, row_id: int, process: ProcessId) -> None:
        self.id = row_id
        self.row: list[int | None] = [row_id, process.pid, process.start_ns, None, None, None, 0]
        self.functions: dict[int, int] = {}
        self.stacks: dict[tuple[tuple[int, ...], bool], int] = {}


_PARENT, _END, _STATUS, _FOUND = 3, 4, 5, 6  # indexes into _ProcessRow.row


class TraceWriter:
    """Writes one new trace file; nothing reaches the disk before `commit`.

    The file is made with mode 0600 and touched with the rights of `owner` alone.
    Raises TraceError where it can't be made (it exists, say) or written (full disk).
    After a failed write it keeps what the last commit left, and takes nothing but
    meta, notes, sources and counts.
    """

    def __init__(self, path: str | Path, owner: Owner | None = None) -> None:
        self.path = Path(path)
        self._owner = owner
        self._rows: dict[str, list[tuple[object, ...]]] = {name: [] for name in TABLES}
        self._written = dict.fromkeys(TABLES, 0)
        self._has_failed = False
        self._processes: dict[ProcessId, _ProcessRow] = {}
        self._changed: dict[int, _ProcessRow] = {}
        self._functions: dict[tuple[str, str, int], int] = {}
        self._stacks: dict[tuple[tuple[int, ...], bool], int] = {}
        self._places: dict[str, int | None] = {"": None}
        self._kernel_stacks: dict[tuple[str, ...], int] = {}
        self._adders: dict[type, Callable[[Any], None]] = {
            ProcessFound: self._add_found,
            ProcessForked: self._add_forked,
            ProcessExecuted: self._add_executed,
            ProcessExited: self._add_exited,
            FunctionSeen: self._add_function,
            StackSampled: self._add_sample,
            ModuleExecuted: self._add_module,
            FileUsed: self._add_file,
            SocketListening: self._add_listening,
            SocketAccepted: self._add_accepted,
            ThreadRan: self._add_ran,
            ThreadWaited: self._add_waited,
            PagesCached: self._add_pages,
            DeviceTransferred: self._add_transfer,
            Connected: self._add_connection,
            NameLookedUp: self._add_lookup,
            DriverCalled: self._add_driver,
            FileCached: self._add_file_cached,
            Reading: self._add_reading,
        }
        with self._writing():
            self._database = self._create()

    def add(self, event: Event) -> None:
        """Take `event` along; it is in the file after the next `commit`."""
        self._adders[type(event)](event)

    def process_id(self, process: ProcessId) -> int:
        """The row id of `process`, a new one where it wasn't known."""
        return self._process(process).id

    def set_meta(self, key: str, value: object) -> None:
        """Set `key` to `value`, anything that JSON can hold."""
        self._rows["meta"].append((key, json.dumps(value)))

    def note(self, ts_ns: int, text: str) -> None:
        """Add a remark of one line; every report shows it."""
        self._rows["note"].append((ts_ns, _text(text)))

    def set_source(self, name: str, state: str, reason: str) -> None:
        """Say how the source `name` fares: `state` is one of SOURCE_STATES."""
        self._rows["source"].append((name, state, _text(reason)))

    def set_counts(self, source: str, stats: SourceStats) -> None:
        """Replace the counts of `source` by `stats`."""
        rows = self._rows["count"]
        for kind in stats.seen.keys() | stats.lost.keys() | stats.costs_ns.keys():
            seen, lost = stats.seen.get(kind, 0), stats.lost.get(kind, 0)
            rows.append((source, kind, seen, lost, stats.costs_ns.get(kind, 0)))

    def commit(self) -> None:
        """Put all that was added into the file; raise TraceError where that fails.

        Waits for no reader: what one holds up goes along with a later commit.
        """
        try:
            with self._writing():
                self._commit()
        except TraceError:
            self._has_failed = True
            raise

    def close(self) -> None:
        """Commit and close; a reader may delay it by some seconds."""
        try:
            self._database.execute("PRAGMA busy_timeout = 5000")
            self.commit()
        finally:
            with self._writing():  # what was begun is undone, by its file's path
                self._database.close()

    def discard(self) -> None:
        """Close without a commit and remove the file: there was nothing to record."""
        with self._writing():
            self._database.close()
            self.path.unlink(missing_ok=True)

    def _commit(self) -> None:
        if self._has_failed and self._database.in_transaction:
            self._database.execute("ROLLBACK")
        if not self._database.in_transaction:
            self._database.execute("BEGIN IMMEDIATE")
        self._flush()
        try:
            self._database.execute("COMMIT")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY:
                raise

    def _create(self) -> sqlite3.Connection:
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        os.close(os.open(self.path, flags, 0o600))
        database = sqlite3.connect(self.path, timeout=0, isolation_level=None)
        try:
            _create_tables(database)
        except sqlite3.Error:
            database.close()
            self.path.unlink(missing_ok=True)
            raise
        return database

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            with self._owner.acting() if self._owner else nullcontext():
                yield
        except FileExistsError:
            raise TraceError(
                f"{self.path} exists and is left alone; choose another file with -o"
            ) from None
        except OSError as error:
            raise TraceError(f"can't write {self.path}: {error.strerror}") from error
        except (sqlite3.Error, OverflowError) as error:
            raise TraceError(f"can't write {self.path}: {error}") from error

    def _flush(self) -> None:
        self._rows["process"] = [tuple(process.row) for process in self._changed.values()]
        self._changed.clear()
        for table, rows in self._rows.items():
            if self._has_failed and table not in WITHOUT_IDS:
                rows.clear()  # they may point to rows that were lost
            if not rows:
                continue
            marks = ",".join("?" * len(rows[0]))
            self._database.executemany(f'INSERT OR REPLACE INTO "{table}" VALUES ({marks})', rows)
            self._written[table] += len(rows)
            rows.clear()
            if self._written[table] > schema.MAX_ROWS:
                raise TraceError(f"{self.path} is full: it holds {schema.MAX_ROWS} rows of {table}")

    def _process(self, process: ProcessId) -> _ProcessRow:
        known = self._processes.get(process)
        if known is None:
            known = _ProcessRow(len(self._processes) + 1, process)
            self._processes[process] = known
            self._changed[known.id] = known
        return known

    def _update(self, process: ProcessId, column: int, value: int | None) -> None:
        known = self._process(process)
        known.row[column] = value
        self._changed[known.id] = known

    def _add_found(self, event: ProcessFound) -> None:
        self._update(event.process, _FOUND, 1)
        if event.parent is not None:
            self._update(event.process, _PARENT, self._process(event.parent).id)
        if event.argv:
            self._add_exec(event.process, event.ts_ns, event.argv[0], event.argv, False)

    def _add_forked(self, event: ProcessForked) -> None:
        self._update(event.child, _PARENT, self._process(event.process).id)

    def _add_executed(self, event: ProcessExecuted) -> None:
        self._add_exec(event.process, event.ts_ns, event.filename, event.argv, event.truncated)

    def _add_exec(
        self, process: ProcessId, ts_ns: int, filename: str, argv: tuple[str, ...], truncated: bool
    ) -> None:
        row = (self._process(process).id, ts_ns, _text(filename), json.dumps(argv), int(truncated))
        self._rows["exec"].append(row)

    def _add_exited(self, event: ProcessExited) -> None:
        self._update(event.process, _END, event.ts_ns)
        self._update(event.process, _STATUS, event.wait_status)

    def _add_function(self, event: FunctionSeen) -> None:
        process = self._process(event.process)
        function_id = self._function(event.file, event.name, event.line)
        if process.functions.get(event.key, function_id) != function_id:
            process.stacks.clear()  # the key stands for something else from now on
        process.functions[event.key] = function_id

    def _function(self, file: str, name: str, line: int) -> int:
        key = (file, name, line)
        function_id = self._functions.get(key)
        if function_id is None:
            function_id = self._functions[key] = len(self._functions) + 1
            self._rows["function"].append((function_id, _text(file), _text(name), line))
        return function_id

    def _function_id(self, process: _ProcessRow, key: int) -> int:
        function_id = process.functions.get(key)
        if function_id is None:  # its FunctionSeen was lost
            function_id = process.functions[key] = self._function("", "<unknown>", 0)
        return function_id

    def _add_sample(self, event: StackSampled) -> None:
        process = self._process(event.process)
        key = (event.frames, event.truncated)
        stack_id = process.stacks.get(key)
        if stack_id is None:
            stack_id = process.stacks[key] = self._stack(process, event)
        place_id = self._places.get(event.place, 0)
        if place_id == 0:
            place_id = self._places[event.place] = len(self._places)
            self._rows["place"].append((place_id, _text(event.place)))
        row = (event.ts_ns, process.id, event.tid, event.cpu, int(event.cause), stack_id, place_id)
        self._rows["sample"].append(row)

    def _stack(self, process: _ProcessRow, event: StackSampled) -> int:
        frames = tuple(self._function_id(process, key) for key in event.frames[:MAX_FRAMES])
        truncated = event.truncated or len(frames) < len(event.frames)
        stack_id = self._stacks.get((frames, truncated))
        if stack_id is None:
            stack_id = self._stacks[frames, truncated] = len(self._stacks) + 1
            blob = struct.pack(f"<{len(frames)}I", *frames)
            self._rows["stack"].append((stack_id, blob, int(truncated)))
        return stack_id

    def _add_module(self, event: ModuleExecuted) -> None:
        process = self._process(event.process)
        function_id = self._function_id(process, event.key)
        row = (process.id, event.tid, event.depth, event.ts_ns, event.end_ns, function_id)
        self._rows["module"].append(row)

    def _add_file(self, event: FileUsed) -> None:
        self._rows["file"].append(
            (
                self._process(event.process).id,
                event.tid,
                event.ts_ns,
                event.closed_ns,
                _text(event.path),
                event.size_bytes,
                min(event.read_bytes, MAX_INT),
                min(event.mapped_bytes, MAX_INT),  # a program may ask mmap for anything
                event.device,
                None if event.inode is None else signed(event.inode),
            )
        )

    def _add_listening(self, event: SocketListening) -> None:
        process = self._process(event.process).id
        row = (process, event.tid, event.ts_ns, "listen", event.family, event.port)
        self._rows["socket"].append(row)

    def _add_accepted(self, event: SocketAccepted) -> None:
        process = self._process(event.process).id
        self._rows["socket"].append((process, event.tid, event.ts_ns, "accept", None, event.port))

    def _add_ran(self, event: ThreadRan) -> None:
        process = self._process(event.process).id
        self._rows["ran"].append((process, event.tid, event.cpu, event.ts_ns, event.ran_ns))

    def _add_waited(self, event: ThreadWaited) -> None:
        end_ns = max(event.end_ns, event.ts_ns)
        self._rows["wait"].append(
            (
                self._process(event.process).id,
                event.tid,
                event.ts_ns,
                end_ns,
                min(max(event.woken_ns, event.ts_ns), end_ns),  # clocks of two cores may differ
                int(event.state),
                self._kernel_stack(event.kernel),
                event.waker_pid,
                event.waker_tid,
            )
        )

    def _kernel_stack(self, frames: tuple[str, ...]) -> int:
        stack_id = self._kernel_stacks.get(frames)
        if stack_id is None:
            stack_id = self._kernel_stacks[frames] = len(self._kernel_stacks) + 1
            self._rows["kernel_stack"].append((stack_id, json.dumps(frames[:MAX_FRAMES])))
        return stack_id

    def _add_pages(self, event: PagesCached) -> None:
        process, inode = self._process(event.process).id, signed(event.inode)
        row = (process, event.ts_ns, event.device, inode, event.added_bytes)
        self._rows["page_cache"].append(row)

    def _add_transfer(self, event: DeviceTransferred) -> None:
        row = (event.ts_ns, event.device, event.requests, event.read_bytes, event.busy_ns)
        self._rows["block"].append(row)

    def _add_connection(self, event: Connected) -> None:
        process, address = self._process(event.process).id, _text(event.address)
        times = (event.ts_ns, event.end_ns)
        row = (process, event.tid, *times, address, event.port, event.error)
        self._rows["connection"].append(row)

    def _add_lookup(self, event: NameLookedUp) -> None:
        process, name = self._process(event.process).id, _text(event.name)
        row = (process, event.tid, event.ts_ns, event.end_ns, name, event.error)
        self._rows["lookup"].append(row)

    def _add_driver(self, event: DriverCalled) -> None:
        process, path = self._process(event.process).id, _text(event.path)
        row = (process, event.tid, event.ts_ns, path, event.calls, event.spent_ns)
        self._rows["driver"].append(row)

    def _add_file_cached(self, event: FileCached) -> None:
        self._rows["file_cached"].append(
            (
                event.ts_ns,
                _text(event.path),
                event.size_bytes,
                event.cached_bytes,
                _text(event.file_system),
                event.device,
                signed(event.inode),
            )
        )

    def _add_reading(self, event: Reading) -> None:
        if math.isfinite(event.value):  # SQLite has nothing else
            row = (event.ts_ns, _text(event.name), _text(event.subject), float(event.value))
            self._rows["reading"].append(row)


def _create_tables(database: sqlite3.Connection) -> None:
    database.execute("PRAGMA journal_mode = DELETE")
    database.execute("PRAGMA synchronous = OFF")
    database.execute("PRAGMA cache_spill = OFF")  # the file is touched by commits only
    database.execute("BEGIN IMMEDIATE")
    database.execute(f"PRAGMA application_id = {schema.APPLICATION_ID}")
    database.execute(f"PRAGMA user_version = {schema.SCHEMA_VERSION}")
    for statement in schema.SCHEMA:
        database.execute(statement)
    database.execute("COMMIT")


def _text(text: str) -> str:
    """`text` as SQLite can hold it: lone surrogates (undecodable bytes) made visible."""
    if text.isascii():
        return text
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
