"""Reads a trace file with distrust: every value is checked, every id leads somewhere."""

from __future__ import annotations

import json
import math
import sqlite3
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

from probes.events import SampleCause, WaitState
from probes.source import SourceStats
from tracer import database, schema
from tracer.errors import TraceError
from tracer.memory import without_collection
from tracer.rows import (
    CachedFile,
    Connection,
    DriverCalls,
    Exec,
    File,
    Function,
    Lookup,
    Module,
    Note,
    PagesAdded,
    Process,
    Ran,
    ReadValue,
    Sample,
    Socket,
    SourceState,
    Stack,
    Transfer,
    Wait,
)
from tracer.schema import MAX_FRAMES, MAX_ID, MAX_INT, OUTCOMES, SOURCE_STATES, unsigned

DURATIONS = frozenset({"cost_ns", "ran_ns", "busy_ns", "spent_ns"})
"""The columns of nanoseconds that are no moments."""


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
    kernel_stacks: dict[int, tuple[str, ...]]
    """Function names, innermost first."""
    _samples: dict[int, list[Sample]] = field(repr=False)
    _modules: list[Module] = field(repr=False)
    _files: list[File] = field(repr=False)
    _sockets: list[Socket] = field(repr=False)
    _ran: dict[int, list[Ran]] = field(repr=False)
    _waits: dict[int, list[Wait]] = field(repr=False)
    _page_cache: list[PagesAdded] = field(repr=False)
    _transfers: list[Transfer] = field(repr=False)
    _connections: list[Connection] = field(repr=False)
    _lookups: list[Lookup] = field(repr=False)
    _driver_calls: list[DriverCalls] = field(repr=False)
    _cached_files: list[CachedFile] = field(repr=False)
    _readings: list[ReadValue] = field(repr=False)

    @classmethod
    def open(cls, path: str | Path) -> Trace:
        """Read `path` whole; raise TraceError, one clear line, where it is no trace."""
        with database.opened(Path(path)) as connection, without_collection():
            return _Reader(Path(path), connection).trace()

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

    def ran(self, process_id: int) -> list[Ran]:
        """When the threads of one process were on the CPU, by time."""
        return self._ran.get(process_id, [])

    def waits(self, process_id: int) -> list[Wait]:
        """When the threads of one process were off the CPU, by begin."""
        return self._waits.get(process_id, [])

    def page_cache(self) -> list[PagesAdded]:
        """What came into the page cache, by time."""
        return self._page_cache

    def transfers(self) -> list[Transfer]:
        """What block devices read, by time."""
        return self._transfers

    def connections(self) -> list[Connection]:
        """Every connect to an internet address, by begin."""
        return self._connections

    def lookups(self) -> list[Lookup]:
        """Every look-up of a name, by begin."""
        return self._lookups

    def driver_calls(self) -> list[DriverCalls]:
        """The calls of device drivers, by time."""
        return self._driver_calls

    def cached_files(self) -> list[CachedFile]:
        """Which files the page cache held before they were read, by time."""
        return self._cached_files

    def readings(self) -> list[ReadValue]:
        """Every value that was read now and then, by time."""
        return self._readings


@dataclass(frozen=True, slots=True)
class _Int:
    """A column of integers in [low, high]."""

    low: int = 0
    high: int = MAX_INT
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


@dataclass(frozen=True, slots=True)
class _Real:
    """A column of finite numbers; SQLite has no others."""

    def holds(self, values: tuple[Any, ...]) -> bool:
        return set(map(type, values)) <= {float} and all(map(math.isfinite, values))


_TIME = _Int()
_TIME_OR_NONE = _Int(optional=True)
_BOOL = _Int(high=1)
_ID = _Int(low=1, high=MAX_ID)
_TEXT = _Kind(str)
_PID = _Int(high=MAX_ID)
_PID_OR_NONE = _Int(high=MAX_ID, optional=True)
_STATUS_OR_NONE = _Int(high=0xFFFF, optional=True)
_PORT = _Int(high=0xFFFF)
_ERROR = _Int(low=-MAX_ID, high=MAX_ID)
_INODE = _Int(low=-MAX_INT - 1)

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


Column = _Int | _Kind | _Real
_Row = TypeVar("_Row")


class _Reader:
    """Takes a database apart, table by table, checking each column."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self._path = path
        self._database = connection
        self._last_ns = 0

    def trace(self) -> Trace:
        processes = self._processes()
        known = frozenset(processes)
        functions = self._functions()
        stacks = self._stacks(frozenset(functions))
        kernel_stacks = self._kernel_stacks()
        return Trace(
            processes=processes,
            functions=functions,
            stacks=stacks,
            kernel_stacks=kernel_stacks,
            sources=self._sources(),
            counts=self._counts(),
            notes=self._notes(),
            _samples=self._samples(known, frozenset(stacks)),
            _modules=self._modules(known, frozenset(functions)),
            _files=self._files(known),
            _sockets=self._sockets(known),
            _ran=self._ran(known),
            _waits=self._waits(known, frozenset(kernel_stacks)),
            _page_cache=self._page_cache(known),
            _transfers=self._transfers(),
            _connections=self._connections(known),
            _lookups=self._lookups(known),
            _driver_calls=self._driver_calls(known),
            _cached_files=self._cached_files(),
            _readings=self._readings(),
            meta=self._meta(known),  # last: the recording's end is the last moment seen
        )

    def _columns(self, table: str, order: str = "", **columns: Column) -> list[tuple[Any, ...]]:
        """The table by column, checked; rows by `order` where given."""
        ordered = f" ORDER BY {order}" if order else ""
        query = f'SELECT {", ".join(columns)} FROM "{table}"{ordered} LIMIT {schema.MAX_ROWS + 1}'
        rows = self._database.execute(query).fetchall()
        if len(rows) > schema.MAX_ROWS:
            raise self._error(f"over {schema.MAX_ROWS} rows in {table}")
        if not rows:
            return [() for _ in columns]
        by_column = list(zip(*rows, strict=True))
        for (name, column), values in zip(columns.items(), by_column, strict=True):
            if not column.holds(values):
                raise self._error(f"a wrong value in {table}.{name}")
            if name.endswith("_ns") and name not in DURATIONS:
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
            parent_id=_Int(low=1, high=MAX_ID, optional=True),
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
        places = self._places()
        ids, times, tids, cpus, causes, stack_ids, place_ids = self._columns(
            "sample",
            order="ts_ns, rowid",
            process_id=_Kind(int, processes),
            ts_ns=_TIME,
            tid=_PID,
            cpu=_PID,
            cause=_Kind(int, frozenset(SampleCause)),
            stack_id=_Kind(int, stacks),
            place_id=_Int(low=1, high=MAX_ID, optional=True),
        )
        if not places.keys() >= set(place_ids):
            raise self._error("a wrong value in sample.place_id")
        kinds = map(tuple(SampleCause).__getitem__, causes)
        names = map(places.__getitem__, place_ids)
        samples = map(Sample, times, tids, cpus, kinds, stack_ids, names)
        return _grouped(zip(ids, samples, strict=True))

    def _places(self) -> dict[int | None, str]:
        ids, names = self._columns("place", id=_ID, name=_TEXT)
        return {None: "", **dict(zip(ids, names, strict=True))}

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
            device=_Int(optional=True),
            inode=_Int(low=-MAX_INT - 1, optional=True),
        )
        inodes = [None if inode is None else unsigned(inode) for inode in columns[-1]]
        return list(map(File, *columns[:-1], inodes))

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

    def _ran(self, processes: frozenset[int]) -> dict[int, list[Ran]]:
        ids, *columns = self._columns(
            "ran",
            order="ts_ns, rowid",
            process_id=_Kind(int, processes),
            tid=_PID,
            cpu=_PID,
            ts_ns=_TIME,
            ran_ns=_Int(),
        )
        return _grouped(zip(ids, map(Ran, *columns), strict=True))

    def _kernel_stacks(self) -> dict[int, tuple[str, ...]]:
        ids, texts = self._columns("kernel_stack", id=_ID, frames=_TEXT)
        return dict(zip(ids, map(self._names, texts), strict=True))

    def _names(self, text: str) -> tuple[str, ...]:
        names = self._json(text)
        if not _is_list_of_text(names) or len(names) > MAX_FRAMES:
            raise self._error("a wrong value in kernel_stack.frames")
        return tuple(names)

    def _waits(
        self, processes: frozenset[int], kernel_stacks: frozenset[int]
    ) -> dict[int, list[Wait]]:
        ids, tids, begins, ends, woken, states, *columns = self._columns(
            "wait",
            order="ts_ns, rowid",
            process_id=_Kind(int, processes),
            tid=_PID,
            ts_ns=_TIME,
            end_ns=_TIME,
            woken_ns=_TIME,
            state=_Kind(int, frozenset(WaitState)),
            kernel_stack_id=_Kind(int, kernel_stacks),
            waker_pid=_PID_OR_NONE,
            waker_tid=_PID_OR_NONE,
        )
        if not all(map(_in_order, begins, woken, ends)):
            raise self._error("a wrong value in wait.woken_ns")
        kinds = map(tuple(WaitState).__getitem__, states)
        waits = map(Wait, tids, begins, ends, woken, kinds, *columns)
        return _grouped(zip(ids, waits, strict=True))

    def _page_cache(self, processes: frozenset[int]) -> list[PagesAdded]:
        *columns, inodes, sizes = self._columns(
            "page_cache",
            order="ts_ns, rowid",
            process_id=_Kind(int, processes),
            ts_ns=_TIME,
            device=_Int(),
            inode=_INODE,
            added_bytes=_Int(),
        )
        return list(map(PagesAdded, *columns, map(unsigned, inodes), sizes))

    def _transfers(self) -> list[Transfer]:
        columns = self._columns(
            "block",
            order="ts_ns, rowid",
            ts_ns=_TIME,
            device=_Int(),
            requests=_Int(),
            read_bytes=_Int(),
            busy_ns=_Int(),
        )
        return list(map(Transfer, *columns))

    def _connections(self, processes: frozenset[int]) -> list[Connection]:
        columns = self._columns(
            "connection",
            order="ts_ns, rowid",
            process_id=_Kind(int, processes),
            tid=_PID,
            ts_ns=_TIME,
            end_ns=_TIME,
            address=_TEXT,
            port=_PORT,
            error=_ERROR,
        )
        return list(map(Connection, *columns))

    def _lookups(self, processes: frozenset[int]) -> list[Lookup]:
        columns = self._columns(
            "lookup",
            order="ts_ns, rowid",
            process_id=_Kind(int, processes),
            tid=_PID,
            ts_ns=_TIME,
            end_ns=_TIME,
            name=_TEXT,
            error=_ERROR,
        )
        return list(map(Lookup, *columns))

    def _driver_calls(self, processes: frozenset[int]) -> list[DriverCalls]:
        columns = self._columns(
            "driver",
            order="ts_ns, rowid",
            process_id=_Kind(int, processes),
            tid=_PID,
            ts_ns=_TIME,
            path=_TEXT,
            calls=_Int(),
            spent_ns=_Int(),
        )
        return list(map(DriverCalls, *columns))

    def _cached_files(self) -> list[CachedFile]:
        *columns, inodes = self._columns(
            "file_cached",
            order="ts_ns, rowid",
            ts_ns=_TIME,
            path=_TEXT,
            size_bytes=_Int(),
            cached_bytes=_Int(optional=True),
            file_system=_TEXT,
            device=_Int(),
            inode=_INODE,
        )
        return list(map(CachedFile, *columns, map(unsigned, inodes)))

    def _readings(self) -> list[ReadValue]:
        columns = self._columns(
            "reading", order="ts_ns, rowid", ts_ns=_TIME, name=_TEXT, subject=_TEXT, value=_Real()
        )
        return list(map(ReadValue, *columns))

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


def _in_order(begin_ns: int, woken_ns: int, end_ns: int) -> bool:
    return begin_ns <= woken_ns <= end_ns


def _grouped(pairs: Iterable[tuple[int, _Row]]) -> dict[int, list[_Row]]:
    groups: dict[int, list[_Row]] = {}
    for key, row in pairs:
        groups.setdefault(key, []).append(row)
    return groups
