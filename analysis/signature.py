"""Signatures: which function, command or file tells what part of a start it is.

They are data (signatures/*.toml, whose comments explain each table), so that a
new engine version is a change of data. This module turns a file into typed
objects and looks functions up. It needs nothing but the standard library, since
the recording process uses it too.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import translate
from functools import cache
from os.path import basename
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "signatures"
MAX_INTERPRETER_OPTIONS = 16
_IMPORT_SYSTEM = "<frozen importlib"


@dataclass(frozen=True, slots=True)
class Mark:
    """What a function on a stack tells.

    substep: the sub-step that the moment belongs to.
    by_role: (role, sub-step) pairs that go before `substep`.
    outer: module bodies that run inside are imports all the same.
    whole: it is that sub-step whatever runs inside.
    waits_for: the role whose process owns the moment while one lives.
    makes: the role of a process that is forked below this function.
    role: the role of a process whose main thread runs this function.
    idle: the process waits for orders here, and owns nothing.
    ready: a TCP socket that listens below this function makes the server ready.
    importing: it is a part of the interpreter's import system.
    """

    substep: str | None = None
    by_role: tuple[tuple[str, str], ...] = ()
    outer: bool = False
    whole: bool = False
    waits_for: str | None = None
    makes: str | None = None
    role: str | None = None
    idle: bool = False
    ready: bool = False
    importing: bool = False

    def substep_in(self, role: str) -> str | None:
        """The sub-step that the function means in a process of `role`."""
        for name, substep in self.by_role:
            if name == role:
                return substep
        return self.substep


_IMPORTING = Mark(importing=True)


@dataclass(frozen=True, slots=True)
class SubstepSignature:
    """A sub-step's id and its title for people."""

    id: str
    title: str


@dataclass(frozen=True, slots=True)
class StepSignature:
    """A step and its sub-steps in order."""

    id: str
    title: str
    substeps: tuple[SubstepSignature, ...]


@dataclass(frozen=True, slots=True)
class RoleSignature:
    """What tells a process's role, its stacks aside.

    substep: all its time is that, whatever its stacks say.
    before_python: what it is at before its first sign of Python.
    inherits: it is its parent's tool.
    """

    id: str
    title: str
    titles: re.Pattern[str] | None
    arguments: re.Pattern[str] | None
    programs: re.Pattern[str] | None
    substep: str | None
    before_python: str
    inherits: bool

    def fits(self, filename: str, argv: Sequence[str]) -> bool:
        """Whether a process that became `filename` with `argv` has this role."""
        return bool(
            (self.programs and self.programs.match(basename(filename)))
            or (self.titles and argv and self.titles.match(argv[0]))
            or (self.arguments and any(map(self.arguments.match, argv)))
        )


@dataclass(frozen=True, slots=True)
class Absence:
    """Why a step or sub-step, `of`, didn't happen, if one of `arguments` was given or
    a function of one of the files `ran_in` ran; with neither, whatever the reason."""

    of: str
    why: str
    arguments: tuple[str, ...]
    ran_in: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ReadySignature:
    """Which process becomes ready, and by which option it is told its TCP port."""

    role: str
    port_option: str
    default_port: int


@dataclass(frozen=True, slots=True)
class FileSignature:
    """A class of files, by the globs that their paths fit."""

    id: str
    title: str
    globs: re.Pattern[str]


@dataclass(frozen=True, slots=True)
class CacheSignature:
    """A cache of the engine's: the class of its files, the sub-steps that take time
    where it lacks something, or the roles of processes made then, and those where it
    has it. `missed_as` says what is done again."""

    id: str
    title: str
    files: str
    missed_as: str
    missed: tuple[str, ...]
    missed_roles: tuple[str, ...]
    hit: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Group:
    """Sub-steps that a view shows under one title."""

    id: str
    title: str
    substeps: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Command:
    program: str | None
    module: str | None
    arguments: tuple[str, ...]

    def starts(self, argv: Sequence[str]) -> bool:
        """Whether `argv` is this command itself or an interpreter that runs it, and not
        another program that will start it (`timeout 60 vllm serve`)."""
        if not argv:
            return False
        if basename(argv[0]) == self.program:
            return self._fits(argv[1:])
        if not basename(argv[0]).startswith("python"):
            return False
        for index in range(1, min(len(argv), MAX_INTERPRETER_OPTIONS)):
            if self.program is not None and basename(argv[index]) == self.program:
                return self._fits(argv[index + 1 :])
            if self.module is not None and tuple(argv[index : index + 2]) == ("-m", self.module):
                return self._fits(argv[index + 2 :])
        return False

    def _fits(self, arguments: Sequence[str]) -> bool:
        return tuple(arguments[: len(self.arguments)]) == self.arguments


class Signatures:
    """All signatures of one engine, from the contents of its file.

    engine, title: its name, for machines and for people.
    imports, before_python: the sub-step of a module body, and of a process before its
    first sign of Python.
    steps, roles, files, caches, absences: as in the file.
    waited: the roles that others wait for.
    ready: what makes the engine ready.
    """

    def __init__(self, data: Mapping[str, Any]) -> None:
        self.engine: str = data["engine"]
        self.title: str = data["title"]
        self.imports: str = data["module_bodies"]
        self.steps = tuple(_step(step) for step in data["step"])
        self.before_python: str = data["before_python"]
        self.roles = {role["id"]: _role(role, self.before_python) for role in data["role"]}
        self.files = tuple(
            FileSignature(group["class"], group["title"], _globs(group["globs"]))
            for group in data["file"]
        )
        self.caches = tuple(_cache(cache) for cache in data.get("cache", ()))
        self.absences = tuple(
            Absence(
                absence["of"],
                absence["why"],
                tuple(absence.get("arguments", ())),
                tuple(absence.get("ran_in", ())),
            )
            for absence in data["absent"]
        )
        ready = data["ready"]
        self.ready = ReadySignature(ready["role"], ready["port_option"], ready["default_port"])
        self.waited = frozenset(wait["for"] for wait in data["wait"])
        self._views = {view["id"]: tuple(_view(view)) for view in data["view"]}
        self._commands = tuple(
            _Command(each.get("program"), each.get("module"), tuple(each["arguments"]))
            for each in data["command"]
        )
        self._step_by_substep = {sub.id: step.id for step in self.steps for sub in step.substeps}
        self._marks = _marks(data)

    @classmethod
    @cache
    def load(cls, engine: str = "vllm") -> Signatures:
        """The signatures of `engine` that coldtrace comes with, read once a process."""
        with open(FOLDER / f"{engine}.toml", "rb") as file:
            return cls(tomllib.load(file))

    def mark(self, file: str, name: str, qualified: bool = False) -> Mark | None:
        """What a function tells, None for one without a signature.

        `qualified` is False where the interpreter may have plain names only (before
        3.11): `EngineCore.__init__` is `__init__` then, which counts if all that
        share this name and file tell the same.
        """
        if file.startswith(_IMPORT_SYSTEM):
            return _IMPORTING
        named = self._marks.get(basename(file))
        if named is None:
            return None
        here = [(known, mark) for end, known, mark in named if _ends_in(file, end)]
        for known, mark in here:
            if known == name:
                return mark
        if qualified:
            return None
        found = {mark for known, mark in here if known.rpartition(".")[2] == name}
        return found.pop() if len(found) == 1 else None

    def is_command(self, argv: Sequence[str]) -> bool:
        """Whether `argv` starts a server of this engine."""
        return any(command.starts(argv) for command in self._commands)

    def role_of_command(self, filename: str, argv: Sequence[str]) -> str | None:
        """The role of a process that became `filename` with `argv`, None if that says
        nothing."""
        for role in self.roles.values():
            if role.fits(filename, argv):
                return role.id
        return self.ready.role if self.is_command(argv) else None

    def file_class(self, path: str) -> FileSignature | None:
        """What a file is to a start, None for one that fits no class."""
        return next((group for group in self.files if group.globs.match(path)), None)

    def step_of(self, substep: str) -> str:
        """The id of the step that a sub-step belongs to."""
        return self._step_by_substep[substep]

    def view(self, name: str) -> tuple[Group, ...]:
        """How the view `name` groups the sub-steps; KeyError for an unknown one."""
        return self._views[name]


def _ends_in(file: str, end: str) -> bool:
    return file.endswith(end) if end.startswith("/") else file == end


def _globs(globs: Iterable[str]) -> re.Pattern[str]:
    return re.compile("|".join(map(translate, globs)))


def _optional_globs(globs: Sequence[str]) -> re.Pattern[str] | None:
    return _globs(globs) if globs else None


def _step(data: Mapping[str, Any]) -> StepSignature:
    substeps = tuple(SubstepSignature(sub["id"], sub["title"]) for sub in data["substep"])
    return StepSignature(data["id"], data["title"], substeps)


def _role(data: Mapping[str, Any], before_python: str) -> RoleSignature:
    return RoleSignature(
        id=data["id"],
        title=data["title"],
        titles=_optional_globs(data.get("titles", ())),
        arguments=_optional_globs(data.get("arguments", ())),
        programs=_optional_globs(data.get("programs", ())),
        substep=data.get("substep"),
        before_python=data.get("before_python", before_python),
        inherits=data.get("inherits", False),
    )


def _cache(data: Mapping[str, Any]) -> CacheSignature:
    return CacheSignature(
        data["id"],
        data["title"],
        data["files"],
        data["missed_as"],
        tuple(data.get("missed", ())),
        tuple(data.get("missed_roles", ())),
        tuple(data.get("hit", ())),
    )


def _view(data: Mapping[str, Any]) -> Iterator[Group]:
    for group in data["group"]:
        yield Group(group["id"], group["title"], tuple(group["substeps"]))


def _marks(data: Mapping[str, Any]) -> dict[str, list[tuple[str, str, Mark]]]:
    """Base name of a file -> (end of its path, function, mark) of each signature in it."""
    marks: dict[str, Mark] = {}
    for functions, told in _tellings(data):
        for function in functions:
            marks[function] = replace(marks.get(function, Mark()), **told)
    by_file: dict[str, list[tuple[str, str, Mark]]] = {}
    for function, mark in marks.items():
        file, _, name = function.rpartition(":")
        by_file.setdefault(basename(file), []).append((file, name, mark))
    return by_file


def _tellings(data: Mapping[str, Any]) -> Iterator[tuple[list[str], dict[str, Any]]]:
    """Lists of functions, and the fields of Mark that they set."""
    for step in data["step"]:
        for substep in step["substep"]:
            yield from _kinds(substep, {"substep": substep["id"]})
    for group in data["by_role"]:
        by_role = tuple(group["substep"].items())
        yield from _kinds(group, {"substep": group["otherwise"], "by_role": by_role})
    for role in data["role"]:
        yield role.get("functions", []), {"role": role["id"]}
        yield role.get("made_in", []), {"makes": role["id"]}
    for wait in data["wait"]:
        yield wait["functions"], {"waits_for": wait["for"]}
    yield data["idle"]["functions"], {"idle": True}
    yield data["ready"]["functions"], {"ready": True}


def _kinds(
    data: Mapping[str, Any], told: dict[str, Any]
) -> Iterator[tuple[list[str], dict[str, Any]]]:
    yield data.get("functions", []), told
    yield data.get("outer", []), {**told, "outer": True}
    yield data.get("whole", []), {**told, "whole": True}
