"""Imports point one way, and the heavy ones stay where they belong."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
LAYERS = ["probes", "tracer", "analysis", "coldtrace"]  # each may import itself and those before it
HOMES = {
    "bcc": "probes/kernel.py",
    "pynvml": "probes/gpu.py",
    "numpy": "analysis/",
    "sklearn": "analysis/",
}
SOURCES = [
    path.relative_to(ROOT).as_posix()
    for layer in LAYERS
    for path in [*(ROOT / layer).rglob("*.py"), ROOT / f"{layer}.py"]
    if path.is_file()
]


def imported(source: str) -> Iterator[str]:
    """Yield the top-level name of everything that a module imports, at any depth of its code."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield str(node.module).split(".")[0]


def violations(path: str, source: str) -> list[str]:
    layer = LAYERS.index(path.removesuffix(".py").split("/")[0])
    names = set(imported(source))
    upward = names & set(LAYERS[layer + 1 :])
    astray = {name for name in names & HOMES.keys() if not path.startswith(HOMES[name])}
    return sorted(upward | astray)


def modules_loaded_by(*imports: str) -> set[str]:
    """Return the top-level modules of a fresh interpreter after it has imported `imports`."""
    code = f"import sys, {', '.join(imports)}; print(*sys.modules)"
    python = [sys.executable, "-c", code]
    listing = subprocess.run(python, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
    return {name.split(".")[0] for name in listing.split()}


def modules_of(layer: str) -> list[str]:
    """Return a layer's modules, but for those whose one library may be missing here."""
    optional = {"probes/kernel.py", "probes/gpu.py"}
    paths = [path for path in SOURCES if path.startswith(f"{layer}/") and path not in optional]
    return [path.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for path in paths]


def test_every_layer_has_sources() -> None:
    assert {path.removesuffix(".py").split("/")[0] for path in SOURCES} == set(LAYERS)


@pytest.mark.parametrize("path", SOURCES)
def test_imports_point_down_and_libraries_stay_home(path: str) -> None:
    assert violations(path, (ROOT / path).read_text()) == []


@pytest.mark.parametrize(
    ("path", "source", "expected"),
    [
        ("probes/a.py", "import tracer.trace", ["tracer"]),
        ("tracer/a.py", "def f():\n    from analysis import steps", ["analysis"]),
        ("analysis/a.py", "import coldtrace", ["coldtrace"]),
        ("analysis/a.py", "from tracer.trace import Trace\nimport numpy as np", []),
        ("tracer/a.py", "import os, numpy.linalg", ["numpy"]),
        ("probes/proc.py", "from bcc import BPF", ["bcc"]),
        ("probes/kernel.py", "from bcc import BPF\nfrom . import wire", []),
    ],
)
def test_a_wrong_import_is_told(path: str, source: str, expected: list[str]) -> None:
    assert violations(path, source) == expected


def test_recording_loads_nothing_heavy() -> None:
    loaded = modules_loaded_by(*modules_of("probes"), *modules_of("tracer"))
    assert loaded.isdisjoint({"numpy", "sklearn", "rich", "analysis"})


def test_the_door_loads_nothing_heavy() -> None:
    loaded = modules_loaded_by("coldtrace")
    assert loaded.isdisjoint({"numpy", "sklearn", "rich", "bcc", "sqlite3"})
