"""List the functions that each version of a package has in the files that signatures name.

    python tests/analysis/list_functions.py FOLDER

FOLDER/PACKAGE/VERSION/ is an unpacked wheel of that version; packages whose
import name is another are written PACKAGE=NAME below. Writes functions.json.gz
beside this file, which test_signatures.py reads: for each package its versions,
and for each file and function the runs of versions (first and last index) that
have it. It holds names only, no source.
"""

from __future__ import annotations

import ast
import gzip
import json
import sys
import tomllib
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

HERE = Path(__file__).parent
SIGNATURES = HERE.parents[1] / "analysis" / "signatures" / "vllm.toml"
OUTPUT = HERE / "functions.json.gz"
IMPORT_NAMES = {"pyzmq": "zmq"}


def named_functions(data: object) -> Iterator[str]:
    """Every "FILE:QUALNAME" anywhere in a parsed signature file."""
    if isinstance(data, dict):
        for value in data.values():
            yield from named_functions(value)
    elif isinstance(data, list):
        for value in data:
            yield from named_functions(value)
    elif isinstance(data, str) and ".py:" in data:
        yield data


def functions_of(source: str) -> set[str]:
    """The qualified names of the functions that a source file defines."""
    found: set[str] = set()
    _collect(ast.parse(source), "", found)
    return found


def _collect(node: ast.AST, prefix: str, found: set[str]) -> None:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(prefix + child.name)
            _collect(child, f"{prefix}{child.name}.<locals>.", found)
        elif isinstance(child, ast.ClassDef):
            _collect(child, f"{prefix}{child.name}.", found)
        else:
            _collect(child, prefix, found)


def _release(folder: Path) -> tuple[int, ...]:
    return tuple(int(part) for part in folder.name.split("."))


def _runs(indices: list[int]) -> list[list[int]]:
    """[0, 1, 2, 5] -> [[0, 2], [5, 5]]"""
    runs = []
    for _, group in groupby(enumerate(indices), key=lambda pair: pair[1] - pair[0]):
        members = [index for _, index in group]
        runs.append([members[0], members[-1]])
    return runs


def _package(folder: Path, files: list[str]) -> dict[str, object]:
    versions = sorted((path for path in folder.iterdir() if path.is_dir()), key=_release)
    table: dict[str, dict[str, list[list[int]]]] = {}
    for file in files:
        found: dict[str, list[int]] = {}
        for index, version in enumerate(versions):
            path = version / file.removeprefix("/")
            if path.exists():
                for name in functions_of(path.read_text(encoding="utf-8")):
                    found.setdefault(name, []).append(index)
        table[file] = {name: _runs(found[name]) for name in sorted(found)}
    return {"versions": [version.name for version in versions], "files": table}


def main(root: Path) -> None:
    """Write the table of all packages below `root`."""
    named = tomllib.loads(SIGNATURES.read_text())
    files = sorted({function.rpartition(":")[0] for function in named_functions(named)})
    packages = {}
    for folder in sorted(path for path in root.iterdir() if path.is_dir()):
        name = IMPORT_NAMES.get(folder.name, folder.name)
        own = [file for file in files if file.startswith(f"/{name}/")]
        packages[name] = _package(folder, own)
    text = json.dumps(packages, separators=(",", ":")).encode()
    OUTPUT.write_bytes(gzip.compress(text, mtime=0))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
