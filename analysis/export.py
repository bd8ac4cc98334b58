"""Writes a start to the files that other tools open."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from importlib import import_module
from pathlib import Path

from analysis.start import Start
from tracer.errors import ColdtraceError, UsageError

FORMATS = ("html", "perfetto", "speedscope", "folded", "csv")
"""Each a module of analysis.report with a function to_FORMAT."""


def export(start: Start, trace: Path, outputs: Mapping[str, Path]) -> Iterator[tuple[Path, int]]:
    """Write `start`, which is in the file `trace`, to `outputs`, by format; yield each
    file as it is written, and its bytes.

    A file that exists is replaced. The output for csv is a folder, made if missing.
    Raises UsageError before anything is written where that would be the trace itself,
    ColdtraceError for what can't be written.
    """
    for output in outputs.values():
        with suppress(OSError):  # most don't exist yet
            if os.path.samefile(output, trace):
                raise UsageError(f"{output} is the trace itself; choose another file")
    for name, output in outputs.items():
        made = getattr(import_module(f"analysis.report.{name}"), f"to_{name}")(start)
        if name != "csv":
            yield output, write(output, made)
            continue
        try:
            output.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ColdtraceError(f"can't make {output}: {error.strerror}") from error
        for file, text in made:
            yield output / file, write(output / file, text)


def write(path: Path, text: str) -> int:
    """Write `text` to `path`, which it replaces; return its bytes. Raises ColdtraceError."""
    data = text.encode()
    try:
        path.write_bytes(data)
    except OSError as error:
        raise ColdtraceError(f"can't write {path}: {error.strerror}") from error
    return len(data)
