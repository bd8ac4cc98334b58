"""Every CPython from 3.10 on that the machine has, and a program that knows its stacks.

COLDTRACE_TEST_PYTHONS adds others: shell commands, separated by newlines, that
run a Python.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from pathlib import Path

import pytest

STACKS = Path(__file__).parent / "data" / "stacks_program.py"


def pythons() -> dict[str, list[str]]:
    """The commands that run a CPython from 3.10 on, by a short name."""
    folders = [Path("/usr/bin"), Path("/usr/local/bin"), *Path.home().glob(".pyenv/versions/*/bin")]
    folders += Path.home().glob(".local/share/uv/python/*/bin")
    files = {os.path.realpath(sys._base_executable)}
    for folder in folders:
        files |= {os.path.realpath(file) for file in folder.glob("python3.1[0-9]")}
    commands = [[file] for file in sorted(files)]
    extra = os.environ.get("COLDTRACE_TEST_PYTHONS", "").splitlines()
    commands += [shlex.split(line) for line in extra if line.strip()]
    return {command[-1].strip("/").replace("/", "-"): command for command in commands}


every_python = pytest.mark.parametrize("python", pythons().values(), ids=pythons().keys())


def told(line: str) -> dict[int, list[list[object]]]:
    """What the program of `STACKS` said, as text that can be encoded."""
    return {
        int(tid): [[escaped(file), escaped(name), first] for file, name, first in frames]
        for tid, frames in json.loads(line).items()
    }


def escaped(name: str) -> str:
    return name.encode("utf-8", "backslashreplace").decode()
