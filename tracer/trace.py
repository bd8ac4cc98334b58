"""The trace file: one SQLite database a start, written in batches, read with distrust.

`TraceWriter` makes one, `Trace` is one in memory, made of the rows named here.
"""

from tracer.reader import Trace
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
from tracer.writer import TraceWriter

__all__ = [
    "CachedFile",
    "Connection",
    "DriverCalls",
    "Exec",
    "File",
    "Function",
    "Lookup",
    "Module",
    "Note",
    "PagesAdded",
    "Process",
    "Ran",
    "ReadValue",
    "Sample",
    "Socket",
    "SourceState",
    "Stack",
    "Trace",
    "TraceWriter",
    "Transfer",
    "Wait",
]
