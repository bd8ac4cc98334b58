"""The trace file: one SQLite database a start, written in batches, read with distrust.

Times are CLOCK_MONOTONIC nanoseconds. A rollback journal keeps the file whole when
the recorder is killed; it needs no syncing for that, only against a power cut.
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import stat
import struct
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

from probes.events import (
    Event,
    FileUsed,
    FunctionSeen,
    ModuleExecuted,
    ProcessExecuted,
    ProcessExited,
    ProcessForked,
    ProcessFound,
    ProcessId,
    SampleCause,
    SocketAccepted,
    SocketListening,
    StackSampled,
)
from probes.source import SourceStats
from tracer.errors import TraceError
from tracer.owner import Owner
from tracer.text import escape

APPLICATION_ID = 0x434F4C44  # "COLD"
SCHEMA_VERSION = 1

OUTCOMES = ("ready", "failed", "interrupted")
SOURCE_STATES = ("open", "skipped", "failed")

MAX_FILE_BYTES = 1 << 30
MAX_ROWS = 4_000_000  # a table; about six hours of two busy cores at 99 Hz
MAX_TEXT_BYTES = 4 << 20  # a command line can take 2 MiB, and JSON makes it longer
MAX_FRAMES = 4096
_MAX_INT = (1 << 63) - 1
_MAX_ID = (1 << 31) - 1

_TABLES = {
    "meta": "key TEXT PRIMARY KEY, value TEXT NOT NULL",
    "process": "id INTEGER PRIMARY KEY, pid INTEGER NOT NULL, start_ns INTEGER NOT NULL,"
    " parent_id INTEGER, end_ns INTEGER, wait_status INTEGER, found INTEGER NOT NULL",
    "exec": "process_id INTEGER NOT NULL, ts_ns INTEGER NOT NULL, filename TEXT NOT NULL,"
    " argv TEXT NOT NULL, truncated INTEGER NOT NULL",
    "function": "id INTEGER PRIMARY KEY, file TEXT NOT NULL, name TEXT NOT NULL,"
    " line INTEGER NOT NULL",
    "stack": "id INTEGER PRIMARY KEY, frames BLOB NOT NULL, truncated INTEGER NOT NULL",
    "sample": "ts_ns INTEGER NOT NULL, process_id INTEGER NOT NULL, tid INTEGER NOT NULL,"
    " cpu INTEGER NOT NULL, cause INTEGER NOT NULL, stack_id INTEGER NOT NULL",
    "module": "process_id INTEGER NOT NULL, tid INTEGER NOT NULL, depth INTEGER NOT NULL,"
    " ts_ns INTEGER NOT NULL, end_ns INTEGER, function_id INTEGER NOT NULL",
    "file": "process_id INTEGER NOT NULL, tid INTEGER NOT NULL, ts_ns INTEGER NOT NULL,"
    " closed_ns INTEGER, path TEXT NOT NULL, size_bytes INTEGER, read_bytes INTEGER NOT NULL,"
    " mapped_bytes INTEGER NOT NULL",
    "socket": "process_id INTEGER NOT NULL, tid INTEGER NOT NULL, ts_ns INTEGER NOT NULL,"
    " kind TEXT NOT NULL, family INTEGER, port INTEGER NOT NULL",
    "source": "name TEXT PRIMARY KEY, state TEXT NOT NULL, reason TEXT NOT NULL",
    "count": "source TEXT NOT NULL, kind TEXT NOT NULL, seen INTEGER NOT NULL,"
    " lost INTEGER NOT NULL, cost_ns INTEGER NOT NULL, PRIMARY KEY (source, kind)",
    "note": "ts_ns INTEGER NOT NULL, text TEXT NOT NULL",
}
_WITHOUT_IDS = frozenset({"meta", "note", "source", "count"})
_SCHEMA = [f'CREATE TABLE "{name}"({columns}) STRICT' for name, columns in _TABLES.items()]


# Writing ---------------------------------------------------------------------


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
        self._rows: dict[str, list[tuple[object, ...]]] = {name: [] for name in _TABLES}
        self._written = dict.fromkeys(_TABLES, 0)
        self._has_failed = False
        self._processes: dict[ProcessId, _ProcessRow] = {}
        self._changed: dict[int, _ProcessRow] = {}
        self._functions: dict[tuple[str, str, int], int] = {}
        self._stacks: dict[tuple[tuple[int, ...], bool], int] = {}
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
            self._database.close()

    def discard(self) -> None:
        """Close without a commit and remove the file: there was nothing to record."""
        self._database.close()
        with self._writing():
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
            if self._has_failed and table not in _WITHOUT_IDS:
                rows.clear()  # they may point to rows that were lost
            if not rows:
                continue
            marks = ",".join("?" * len(rows[0]))
            self._database.executemany(f'INSERT OR REPLACE INTO "{table}" VALUES ({marks})', rows)
            self._written[table] += len(rows)
            rows.clear()
            if self._written[table] > MAX_ROWS:
                raise TraceError(f"{self.path} is full: it holds {MAX_ROWS} rows of {table}")

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
        row = (event.ts_ns, process.id, event.tid, event.cpu, int(event.cause), stack_id)
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
                min(event.read_bytes, _MAX_INT),
                min(event.mapped_bytes, _MAX_INT),  # a program may ask mmap for anything
            )
        )

    def _add_listening(self, event: SocketListening) -> None:
        process = self._process(event.process).id
        row = (process, event.tid, event.ts_ns, "listen", event.family, event.port)
        self._rows["socket"].append(row)

    def _add_accepted(self, event: SocketAccepted) -> None:
        process = self._process(event.process).id
        self._rows["socket"].append((process, event.tid, event.ts_ns, "accept", None, event.port))


def _create_tables(database: sqlite3.Connection) -> None:
    database.execute("PRAGMA journal_mode = DELETE")
    database.execute("PRAGMA synchronous = OFF")
    database.execute("PRAGMA cache_spill = OFF")  # the file is touched by commits only
    database.execute("BEGIN IMMEDIATE")
    database.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    database.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    for statement in _SCHEMA:
        database.execute(statement)
    database.execute("COMMIT")


def _text(text: str) -> str:
    """`text` as SQLite can hold it: lone surrogates (undecodable bytes) made visible."""
    if text.isascii():
        return text
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


# Reading ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Exec:
    """A program a process became; for one found running, what it was then."""

    ts_ns: int
    filename: str
    argv: tuple[str, ...]
    truncated: bool


@dataclass(frozen=True, slots=True)
class Process:
    """A process; `parent_id` and `end_ns` are None where unknown, `execs` by time."""

    id: int
    pid: int
    start_ns: int
    parent_id: int | None
    end_ns: int | None
    wait_status: int | None
    found: bool
    execs: list[Exec]


@dataclass(frozen=True, slots=True)
class Function:
    """A Python function; file and name are empty and `<unknown>` where lost."""

    file: str
    name: str
    line: int


@dataclass(frozen=True, slots=True)
class Stack:
    """Function ids, innermost first; `truncated`: the outermost are missing."""

    frames: tuple[int, ...]
    truncated: bool


@dataclass(frozen=True, slots=True)
class Sample:
    """The stack of one thread at one moment."""

    ts_ns: int
    tid: int
    cpu: int
    cause: SampleCause
    stack_id: int


@dataclass(frozen=True, slots=True)
class Module:
    """A module body that ran; `depth` 0 is the outermost on its thread."""

    process_id: int
    tid: int
    depth: int
    ts_ns: int
    end_ns: int | None
    function_id: int


@dataclass(frozen=True, slots=True)
class File:
    """A file from its open to its close."""

    process_id: int
    tid: int
    ts_ns: int
    closed_ns: int | None
    path: str
    size_bytes: int | None
    read_bytes: int
    mapped_bytes: int


@dataclass(frozen=True, slots=True)
class Socket:
    """A TCP socket that began to listen, or took its first connection."""

    process_id: int
    tid: int
    ts_ns: int
    kind: str
    family: int | None
    port: int


@dataclass(frozen=True, slots=True)
class SourceState:
    """How a source fared: one of SOURCE_STATES, and why."""

    state: str
    reason: str


@dataclass(frozen=True, slots=True)
class Note:
    """A remark of one line that every report shows."""

    ts_ns: int
    text: str


@dataclass(frozen=True, slots=True)
class Trace:
    """A whole trace in memory, checked: every id leads somewhere, every time is one.

    `meta` always holds `root` (a process id), `begin_ns`, `seen_from_ns`, `end_ns`
    and `outcome`; a recorder that was killed leaves "interrupted" and the last
    moment it saw. Lists are by time.
    """

    meta: Mapping[str, Any]
    processes: dict[int, Process]
    functions: dict[int, Function]
    stacks: dict[int, Stack]
    sources: dict[str, SourceState]
    counts: dict[str, SourceStats]
    notes: list[Note]
    _samples: dict[int, list[Sample]] = field(repr=False)
    _modules: list[Module] = field(repr=False)
    _files: list[File] = field(repr=False)
    _sockets: list[Socket] = field(repr=False)

    @classmethod
    def open(cls, path: str | Path) -> Trace:
        """Read `path` whole; raise TraceError, one clear line, where it is no trace."""
        with _database(Path(path)) as database:
            return _Reader(Path(path), database).trace()

    def samples(self, process_id: int) -> list[Sample]:
        """The samples of one process, by time."""
        return self._samples.get(process_id, [])

    def modules(self) -> list[Module]:
        """Every module body that ran, by time."""
        return self._modules

    def files(self) -> list[File]:
        """Every file that mattered, by time of open."""
        return self._files

    def sockets(self) -> list[Socket]:
        """Every listen and first accept, by time."""
        return self._sockets


_MAGIC = b"SQLite format 3\0"
_JOURNAL_MAGIC = bytes.fromhex("d9d505f920a163d7")


@contextmanager
def _database(path: Path) -> Iterator[sqlite3.Connection]:
    """The database in `path`, which is never written to."""
    try:
        _check_header(path)
        with tempfile.TemporaryDirectory(prefix="coldtrace-") as folder:
            database = _connect(path, Path(folder))
            try:
                _check_database(path, database)
                yield database
            finally:
                database.close()
    except FileNotFoundError:
        raise TraceError(f"{path}: no such file") from None
    except OSError as error:
        raise TraceError(f"can't read {path}: {error.strerror}") from error
    except (sqlite3.Error, UnicodeDecodeError) as error:
        raise _damaged(path, str(error)) from error


def _damaged(path: Path, problem: str) -> TraceError:
    """SQLite's own words may quote the file."""
    return TraceError(f"{path} is damaged or cut short: {escape(problem.strip()[:200])}")


def _check_header(path: Path) -> None:
    status, header = _start_of(path)
    if not stat.S_ISREG(status.st_mode):
        raise TraceError(f"{path} is not a file")
    if status.st_size == 0:
        raise TraceError(f"{path} is empty: its recorder was stopped before it began")
    if not header.startswith(_MAGIC[: len(header)]):
        raise TraceError(f"{path} is not a coldtrace trace")
    if len(header) < 100:
        raise TraceError(f"{path} is cut short")
    version, application = struct.unpack_from(">I4xI", header, 60)
    if application != APPLICATION_ID:
        raise TraceError(f"{path} is not a coldtrace trace but another SQLite database")
    if version > SCHEMA_VERSION:
        raise TraceError(
            f"{path} has schema {version}, written by a newer coldtrace; "
            f"this one reads up to {SCHEMA_VERSION}: upgrade it"
        )
    if status.st_size > MAX_FILE_BYTES:
        raise TraceError(f"{path} is too large: over {MAX_FILE_BYTES >> 20} MiB")


def _start_of(path: Path) -> tuple[os.stat_result, bytes]:
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # may be a pipe
    try:
        status = os.fstat(descriptor)
        return status, os.read(descriptor, 100) if stat.S_ISREG(status.st_mode) else b""
    finally:
        os.close(descriptor)


def _connect(path: Path, folder: Path) -> sqlite3.Connection:
    """Open `path`; where a killed recorder left a half-done commit, undo it in a copy."""
    database = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
    try:
        database.execute("SELECT count(*) FROM sqlite_schema")
    except Exception as error:
        database.close()
        if getattr(error, "sqlite_errorname", "") != "SQLITE_READONLY_ROLLBACK":
            raise
    else:
        return database
    copy, journal = folder / "trace", folder / "trace-journal"
    shutil.copyfile(path, copy)
    shutil.copyfile(f"{path}-journal", journal)
    if journal.read_bytes()[-8:] == _JOURNAL_MAGIC:  # it would have SQLite delete a third file
        raise TraceError(f"{path} has a journal that no coldtrace wrote; move the journal away")
    return sqlite3.connect(copy)


def _check_database(path: Path, database: sqlite3.Connection) -> None:
    database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_TEXT_BYTES)
    database.execute("PRAGMA trusted_schema = OFF")
    database.execute("PRAGMA cell_size_check = ON")
    database.execute("BEGIN")  # one state of the file throughout, even of one being written
    query = "SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL ORDER BY rowid LIMIT 100"
    if [sql for (sql,) in database.execute(query)] != _SCHEMA:
        raise TraceError(f"{path} doesn't have the tables of a trace")
    if _is_cut_short(database):
        raise TraceError(f"{path} is cut short")
    (problem,) = database.execute("PRAGMA quick_check(1)").fetchone()
    if problem != "ok":
        raise _damaged(path, problem)


def _is_cut_short(database: sqlite3.Connection) -> bool:
    """Whether the last page misses its end, which SQLite takes for zeros."""
    (pages,) = database.execute("PRAGMA page_count").fetchone()
    (page_bytes,) = database.execute("PRAGMA page_size").fetchone()
    _, _, path = database.execute("PRAGMA database_list").fetchone()
    return os.stat(path).st_size < int(pages) * int(page_bytes)


@dataclass(frozen=True, slots=True)
class _Int:
    """A column of integers in [low, high]."""

    low: int = 0
    high: int = _MAX_INT
    optional: bool = False

    def holds(self, values: tuple[Any, ...]) -> bool:
        present = [value for value in values if value is not None] if self.optional else values
        if not set(map(type, present)) <= {int}:
            return False
        return not present or (min(present) >= self.low and max(present) <= self.high)


@dataclass(frozen=True, slots=True)
class _Kind:
    """A column of `kind`; one of `among` where that is given."""

    kind: type
    among: frozenset[Any] | None = None

    def holds(self, values: tuple[Any, ...]) -> bool:
        if not set(map(type, values)) <= {self.kind}:
            return False
        return self.among is None or self.among.issuperset(values)


_TIME = _Int()
_TIME_OR_NONE = _Int(optional=True)
_BOOL = _Int(high=1)
_ID = _Int(low=1, high=_MAX_ID)
_TEXT = _Kind(str)
_PID = _Int(high=_MAX_ID)
_STATUS_OR_NONE = _Int(high=0xFFFF, optional=True)
_PORT = _Int(high=0xFFFF)

_META: dict[str, Callable[[Any], bool]] = {
    "coldtrace": lambda value: isinstance(value, str),
    "clock": lambda value: _is_map_of(value, int),
    "host": lambda value: _is_map_of(value, str, int),
    "command": lambda value: _is_list_of_text(value),
    "options": lambda value: isinstance(value, dict),
    "begin_ns": lambda value: _TIME.holds((value,)),
    "seen_from_ns": lambda value: _TIME.holds((value,)),
    "ready_ns": lambda value: _TIME.holds((value,)),
    "end_ns": lambda value: _TIME.holds((value,)),
    "outcome": lambda value: value in OUTCOMES,
    "root": lambda value: _ID.holds((value,)),
    "wait_status": lambda value: _STATUS_OR_NONE.holds((value,)),
    "engine": lambda value: _is_map_of(value, str),
    "versions": lambda value: _is_map_of(value, str),
    "recorder": lambda value: _is_map_of(value, int, float),
}


def _is_map_of(value: object, *kinds: type) -> bool:
    return isinstance(value, dict) and all(type(item) in kinds for item in value.values())


def _is_list_of_text(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


Column = _Int | _Kind
_Row = TypeVar("_Row")


class _Reader:
    """Takes a database apart, table by table, checking each column."""

    def __init__(self, path: Path, database: sqlite3.Connection) -> None:
        self._path = path
        self._database = database
        self._last_ns = 0

    def trace(self) -> Trace:
        processes = self._processes()
        known = frozenset(processes)
        functions = self._functions()
        stacks = self._stacks(frozenset(functions))
        samples = self._samples(known, frozenset(stacks))
        modules = self._modules(known, frozenset(functions))
        files, sockets = self._files(known), self._sockets(known)
        sources, counts, notes = self._sources(), self._counts(), self._notes()
        return Trace(
            meta=self._meta(known),
            processes=processes,
            functions=functions,
            stacks=stacks,
            sources=sources,
            counts=counts,
            notes=notes,
            _samples=samples,
            _modules=modules,
            _files=files,
            _sockets=sockets,
        )

    def _columns(self, table: str, order: str = "", **columns: Column) -> list[tuple[Any, ...]]:
        """The table by column, checked; rows by `order` where given."""
        ordered = f" ORDER BY {order}" if order else ""
        query = f'SELECT {", ".join(columns)} FROM "{table}"{ordered} LIMIT {MAX_ROWS + 1}'
        rows = self._database.execute(query).fetchall()
        if len(rows) > MAX_ROWS:
            raise self._error(f"over {MAX_ROWS} rows in {table}")
        if not rows:
            return [() for _ in columns]
        by_column = list(zip(*rows, strict=True))
        for (name, column), values in zip(columns.items(), by_column, strict=True):
            if not column.holds(values):
                raise self._error(f"a wrong value in {table}.{name}")
            if name.endswith("_ns") and name != "cost_ns":
                self._saw(values)
        return by_column

    def _saw(self, times: tuple[int | None, ...]) -> None:
        self._last_ns = max(self._last_ns, max(time or 0 for time in times))

    def _error(self, problem: str) -> TraceError:
        return TraceError(f"{self._path} is damaged: {problem}")

    def _processes(self) -> dict[int, Process]:
        ids, pids, starts, parents, ends, statuses, found = self._columns(
            "process",
            id=_ID,
            pid=_PID,
            start_ns=_TIME,
            parent_id=_Int(low=1, high=_MAX_ID, optional=True),
            end_ns=_TIME_OR_NONE,
            wait_status=_STATUS_OR_NONE,
            found=_BOOL,
        )
        if not frozenset(ids).issuperset(parent for parent in parents if parent is not None):
            raise self._error("a wrong value in process.parent_id")
        self._refuse_cycles(dict(zip(ids, parents, strict=True)))
        execs = self._execs(frozenset(ids))
        commands = (execs.get(row_id, []) for row_id in ids)
        columns = (ids, pids, starts, parents, ends, statuses, map(bool, found), commands)
        return dict(zip(ids, map(Process, *columns), strict=True))

    def _refuse_cycles(self, parents: dict[int, int | None]) -> None:
        sound: set[int] = set()
        for process in parents:
            path: set[int] = set()
            at: int | None = process
            while at is not None and at not in sound:
                if at in path:
                    raise self._error("a process that is its own ancestor")
                path.add(at)
                at = parents[at]
            sound |= path

    def _execs(self, processes: frozenset[int]) -> dict[int, list[Exec]]:
        ids, times, filenames, argvs, truncated = self._columns(
            "exec",
            order="ts_ns, rowid",
            process_id=_Kind(int, processes),
            ts_ns=_TIME,
            filename=_TEXT,
            argv=_TEXT,
            truncated=_BOOL,
        )
        commands = map(self._argv, argvs)
        rows = zip(ids, times, filenames, commands, map(bool, truncated), strict=True)
        return _grouped((row[0], Exec(*row[1:])) for row in rows)

    def _argv(self, text: str) -> tuple[str, ...]:
        argv = self._json(text)
        if not _is_list_of_text(argv):
            raise self._error("a wrong value in exec.argv")
        return tuple(argv)

    def _json(self, text: str) -> Any:
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            raise self._error("a value that is not JSON") from None

    def _functions(self) -> dict[int, Function]:
        ids, *columns = self._columns("function", id=_ID, file=_TEXT, name=_TEXT, line=_Int(low=-1))
        return dict(zip(ids, map(Function, *columns), strict=True))

    def _stacks(self, functions: frozenset[int]) -> dict[int, Stack]:
        ids, blobs, truncated = self._columns("stack", id=_ID, frames=_Kind(bytes), truncated=_BOOL)
        frames = map(self._frames, blobs)
        stacks = dict(zip(ids, map(Stack, frames, map(bool, truncated)), strict=True))
        if not functions.issuperset(chain.from_iterable(stack.frames for stack in stacks.values())):
            raise self._error("a wrong value in stack.frames")
        return stacks

    def _frames(self, blob: bytes) -> tuple[int, ...]:
        count, rest = divmod(len(blob), 4)
        if rest or count > MAX_FRAMES:
            raise self._error("a wrong value in stack.frames")
        return struct.unpack(f"<{count}I", blob)

    def _samples(
        self, processes: frozenset[int], stacks: frozenset[int]
    ) -> dict[int, list[Sample]]:
        ids, times, tids, cpus, causes, stack_ids = self._columns(
            "sample",
            order="ts_ns, rowid",
            process_id=_Kind(int, processes),
            ts_ns=_TIME,
            tid=_PID,
            cpu=_PID,
            cause=_Kind(int, frozenset(SampleCause)),
            stack_id=_Kind(int, stacks),
        )
        kinds = map(tuple(SampleCause).__getitem__, causes)
        samples = map(Sample, times, tids, cpus, kinds, stack_ids)
        return _grouped(zip(ids, samples, strict=True))

    def _modules(self, processes: frozenset[int], functions: frozenset[int]) -> list[Module]:
        columns = self._columns(
            "module",
            order="ts_ns, rowid",
            process_id=_Kind(int, processes),
            tid=_PID,
            depth=_PID,
            ts_ns=_TIME,
            end_ns=_TIME_OR_NONE,
            function_id=_Kind(int, functions),
        )
        return list(map(Module, *columns))

    def _files(self, processes: frozenset[int]) -> list[File]:
        columns = self._columns(
            "file",
            order="ts_ns, rowid",
            process_id=_Kind(int, processes),
            tid=_PID,
            ts_ns=_TIME,
            closed_ns=_TIME_OR_NONE,
            path=_TEXT,
            size_bytes=_Int(optional=True),
            read_bytes=_Int(),
            mapped_bytes=_Int(),
        )
        return list(map(File, *columns))

    def _sockets(self, processes: frozenset[int]) -> list[Socket]:
        columns = self._columns(
            "socket",
            order="ts_ns, rowid",
            process_id=_Kind(int, processes),
            tid=_PID,
            ts_ns=_TIME,
            kind=_Kind(str, frozenset({"listen", "accept"})),
            family=_Int(high=0xFFFF, optional=True),
            port=_PORT,
        )
        return list(map(Socket, *columns))

    def _sources(self) -> dict[str, SourceState]:
        states = _Kind(str, frozenset(SOURCE_STATES))
        names, *columns = self._columns("source", name=_TEXT, state=states, reason=_TEXT)
        return dict(zip(names, map(SourceState, *columns), strict=True))

    def _counts(self) -> dict[str, SourceStats]:
        columns = self._columns(
            "count", source=_TEXT, kind=_TEXT, seen=_Int(), lost=_Int(), cost_ns=_Int()
        )
        counts: dict[str, SourceStats] = {}
        for source, kind, seen, lost, cost_ns in zip(*columns, strict=True):
            stats = counts.setdefault(source, SourceStats())
            for number, of_kind in (
                (seen, stats.seen),
                (lost, stats.lost),
                (cost_ns, stats.costs_ns),
            ):
                if number:
                    of_kind[kind] = number
        return counts

    def _notes(self) -> list[Note]:
        columns = self._columns("note", order="ts_ns, rowid", ts_ns=_TIME, text=_TEXT)
        return list(map(Note, *columns))

    def _meta(self, processes: frozenset[int]) -> Mapping[str, Any]:
        keys, texts = self._columns("meta", key=_TEXT, value=_TEXT)
        meta = dict(zip(keys, map(self._json, texts), strict=True))
        for key, is_sound in _META.items():
            if key in meta and not is_sound(meta[key]):
                raise self._error(f"a wrong value for meta {key}")
        if "begin_ns" not in meta or "root" not in meta:
            raise TraceError(f"{self._path} holds no start: its recorder was stopped too early")
        if meta["root"] not in processes:
            raise self._error("a wrong value for meta root")
        meta.setdefault("seen_from_ns", meta["begin_ns"])
        meta.setdefault("end_ns", max(self._last_ns, meta["begin_ns"]))
        meta.setdefault("outcome", "interrupted")
        return meta


def _grouped(pairs: Iterable[tuple[int, _Row]]) -> dict[int, list[_Row]]:
    groups: dict[int, list[_Row]] = {}
    for key, row in pairs:
        groups.setdefault(key, []).append(row)
    return groups
