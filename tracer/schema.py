"""The tables of a trace file and the bounds of what it may hold.

Times are CLOCK_MONOTONIC nanoseconds; an inode is kept as the signed 64-bit number
with its bits, since file systems use the highest one and SQLite has no unsigned ones.
"""

from __future__ import annotations

APPLICATION_ID = 0x434F4C44  # "COLD"
SCHEMA_VERSION = 1

OUTCOMES = ("ready", "failed", "interrupted")
SOURCE_STATES = ("open", "skipped", "failed")

MAX_FILE_BYTES = 1 << 30
MAX_ROWS = 4_000_000  # a table; over an hour of two busy cores
MAX_TEXT_BYTES = 4 << 20  # a command line can take 2 MiB, and JSON makes it longer
MAX_FRAMES = 4096
MAX_INT = (1 << 63) - 1
MAX_ID = (1 << 31) - 1

TABLES = {
    "meta": "key TEXT PRIMARY KEY, value TEXT NOT NULL",
    "process": "id INTEGER PRIMARY KEY, pid INTEGER NOT NULL, start_ns INTEGER NOT NULL,"
    " parent_id INTEGER, end_ns INTEGER, wait_status INTEGER, found INTEGER NOT NULL",
    "exec": "process_id INTEGER NOT NULL, ts_ns INTEGER NOT NULL, filename TEXT NOT NULL,"
    " argv TEXT NOT NULL, truncated INTEGER NOT NULL",
    "function": "id INTEGER PRIMARY KEY, file TEXT NOT NULL, name TEXT NOT NULL,"
    " line INTEGER NOT NULL",
    "stack": "id INTEGER PRIMARY KEY, frames BLOB NOT NULL, truncated INTEGER NOT NULL",
    "sample": "ts_ns INTEGER NOT NULL, process_id INTEGER NOT NULL, tid INTEGER NOT NULL,"
    " cpu INTEGER NOT NULL, cause INTEGER NOT NULL, stack_id INTEGER NOT NULL, place_id INTEGER",
    "place": "id INTEGER PRIMARY KEY, name TEXT NOT NULL",
    "module": "process_id INTEGER NOT NULL, tid INTEGER NOT NULL, depth INTEGER NOT NULL,"
    " ts_ns INTEGER NOT NULL, end_ns INTEGER, function_id INTEGER NOT NULL",
    "file": "process_id INTEGER NOT NULL, tid INTEGER NOT NULL, ts_ns INTEGER NOT NULL,"
    " closed_ns INTEGER, path TEXT NOT NULL, size_bytes INTEGER, read_bytes INTEGER NOT NULL,"
    " mapped_bytes INTEGER NOT NULL, device INTEGER, inode INTEGER",
    "socket": "process_id INTEGER NOT NULL, tid INTEGER NOT NULL, ts_ns INTEGER NOT NULL,"
    " kind TEXT NOT NULL, family INTEGER, port INTEGER NOT NULL",
    "ran": "process_id INTEGER NOT NULL, tid INTEGER NOT NULL, cpu INTEGER NOT NULL,"
    " ts_ns INTEGER NOT NULL, ran_ns INTEGER NOT NULL",
    "kernel_stack": "id INTEGER PRIMARY KEY, frames TEXT NOT NULL",
    "wait": "process_id INTEGER NOT NULL, tid INTEGER NOT NULL, ts_ns INTEGER NOT NULL,"
    " end_ns INTEGER NOT NULL, woken_ns INTEGER NOT NULL, state INTEGER NOT NULL,"
    " kernel_stack_id INTEGER NOT NULL, waker_pid INTEGER, waker_tid INTEGER",
    "page_cache": "process_id INTEGER NOT NULL, ts_ns INTEGER NOT NULL, device INTEGER NOT NULL,"
    " inode INTEGER NOT NULL, added_bytes INTEGER NOT NULL",
    "block": "ts_ns INTEGER NOT NULL, device INTEGER NOT NULL, requests INTEGER NOT NULL,"
    " read_bytes INTEGER NOT NULL, busy_ns INTEGER NOT NULL",
    "connection": "process_id INTEGER NOT NULL, tid INTEGER NOT NULL, ts_ns INTEGER NOT NULL,"
    " end_ns INTEGER NOT NULL, address TEXT NOT NULL, port INTEGER NOT NULL,"
    " error INTEGER NOT NULL",
    "lookup": "process_id INTEGER NOT NULL, tid INTEGER NOT NULL, ts_ns INTEGER NOT NULL,"
    " end_ns INTEGER NOT NULL, name TEXT NOT NULL, error INTEGER NOT NULL",
    "driver": "process_id INTEGER NOT NULL, tid INTEGER NOT NULL, ts_ns INTEGER NOT NULL,"
    " path TEXT NOT NULL, calls INTEGER NOT NULL, spent_ns INTEGER NOT NULL",
    "file_cached": "ts_ns INTEGER NOT NULL, path TEXT NOT NULL, size_bytes INTEGER NOT NULL,"
    " cached_bytes INTEGER, file_system TEXT NOT NULL, device INTEGER NOT NULL,"
    " inode INTEGER NOT NULL",
    "reading": "ts_ns INTEGER NOT NULL, name TEXT NOT NULL, subject TEXT NOT NULL,"
    " value REAL NOT NULL",
    "source": "name TEXT PRIMARY KEY, state TEXT NOT NULL, reason TEXT NOT NULL",
    "count": "source TEXT NOT NULL, kind TEXT NOT NULL, seen INTEGER NOT NULL,"
    " lost INTEGER NOT NULL, cost_ns INTEGER NOT NULL, PRIMARY KEY (source, kind)",
    "note": "ts_ns INTEGER NOT NULL, text TEXT NOT NULL",
}
WITHOUT_IDS = frozenset({"meta", "note", "source", "count"})
"""The tables whose rows point to no other row."""
SCHEMA = [f'CREATE TABLE "{name}"({columns}) STRICT' for name, columns in TABLES.items()]


def signed(number: int) -> int:
    """An unsigned 64-bit number as SQLite can hold it."""
    return number - (1 << 64) if number > MAX_INT else number


def unsigned(number: int) -> int:
    """The inverse of `signed`."""
    return number & ((1 << 64) - 1)
