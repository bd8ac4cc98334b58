"""Versions come from the metadata beside the code that was seen running."""

from __future__ import annotations

import json
import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from probes.events import Event, FunctionSeen, ProcessId
from tracer.trace import TraceWriter
from tracer.versions import Versions

SELF = ProcessId(os.getpid(), 1)


def seen(file: str) -> Event:
    return FunctionSeen(5, SELF, 1, file, "f", 1)


def versions_of(folder: Path, *files: str) -> dict[str, object]:
    writer = TraceWriter(folder / "t.coldtrace")
    versions = Versions(writer)
    versions.observe([seen(file) for file in files])
    writer.close()
    with closing(sqlite3.connect(folder / "t.coldtrace")) as database:
        return {key: json.loads(value) for key, value in database.execute("SELECT * FROM meta")}


@pytest.fixture
def packages(tmp_path: Path) -> str:
    packages = tmp_path / "venv/lib/python3.12/site-packages"
    for name in ("vllm-0.32.0+cpu", "torch-2.13.0+cpu", "vllm_extra-1.0", "numpy-2.0"):
        (packages / f"{name}.dist-info").mkdir(parents=True)
    return str(packages)


def test_engine_and_libraries(tmp_path: Path, packages: str) -> None:
    files = [f"{packages}/{name}/a.py" for name in ("vllm", "vllm", "numpy", "torch/nn")]
    assert versions_of(tmp_path, *files) == {
        "versions": {"python": "3.12", "vllm": "0.32.0+cpu", "torch": "2.13.0+cpu"},
        "engine": {"name": "vllm", "version": "0.32.0+cpu"},
    }


def test_a_process_that_has_ended_leaves_it_to_another(tmp_path: Path, packages: str) -> None:
    writer = TraceWriter(tmp_path / "t.coldtrace")
    versions = Versions(writer)
    ended = ProcessId(1 << 22, 1)  # no pid is that high
    file = f"{packages}/vllm/a.py"
    versions.observe([FunctionSeen(5, ended, 1, file, "f", 1), seen(file)])
    assert writer._rows["meta"][-1] == ("engine", '{"name": "vllm", "version": "0.32.0+cpu"}')
    writer.discard()


def test_what_lies_elsewhere_or_has_gone_tells_nothing(tmp_path: Path) -> None:
    assert versions_of(tmp_path, "/src/vllm/a.py", "<frozen os>", "x/site-packages/vllm/a.py") == {}


def test_a_package_without_metadata(tmp_path: Path) -> None:
    gone = "/no/such/lib/python3.12/site-packages/vllm/a.py"
    assert versions_of(tmp_path, gone) == {"versions": {"python": "3.12"}}
