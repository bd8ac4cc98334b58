"""Opens the database of a trace, which anyone may have written, without harm."""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
import struct
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tracer.errors import TraceError
from tracer.schema import APPLICATION_ID, MAX_FILE_BYTES, MAX_TEXT_BYTES, SCHEMA, SCHEMA_VERSION
from tracer.text import escape

_MAGIC = b"SQLite format 3\0"
_JOURNAL_MAGIC = bytes.fromhex("d9d505f920a163d7")


@contextmanager
def opened(path: Path) -> Iterator[sqlite3.Connection]:
    """The database in `path`, which is never written to; raises TraceError, one clear
    line, where it is none."""
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
    if os.stat(f"{path}-journal").st_size > MAX_FILE_BYTES:
        raise TraceError(f"{path} has a journal that is too large: over {MAX_FILE_BYTES >> 20} MiB")
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
    if [sql for (sql,) in database.execute(query)] != SCHEMA:
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
