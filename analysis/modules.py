"""Which module bodies ran, inside which, for how long: the import tree of each process.

Every time is exact: a body's entry and return were seen, not sampled. A body's
own time is its total less the totals of the bodies that ran inside it, so the
own times of a tree add up to the totals of its outermost bodies.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from os.path import basename

from tracer.trace import Function, Module, Process

_LIBRARY_ROOT = re.compile(r".*/(?:site|dist)-packages/|.*/lib/python3\.\d+/(?:lib-dynload/)?")
STANDARD_LIBRARY = "(standard library)"
ELSEWHERE = "(elsewhere)"
"""Files outside of every library folder: scripts, checked-out sources."""


@dataclass(slots=True)
class ModuleNode:
    """One module's body: where it ran, and the bodies that it imported."""

    name: str
    package: str
    file: str
    tid: int
    start_ns: int
    end_ns: int
    children: list[ModuleNode] = field(default_factory=list)

    @property
    def total_ns(self) -> int:
        return self.end_ns - self.start_ns

    @property
    def self_ns(self) -> int:
        return self.total_ns - sum(child.total_ns for child in self.children)

    def walk(self) -> Iterator[ModuleNode]:
        """This node and all beneath it."""
        pending = [self]
        while pending:
            node = pending.pop()
            yield node
            pending.extend(node.children)


def programs_of(process: Process) -> frozenset[str]:
    """What the command lines of a process may run: names of modules and of files."""
    arguments = [argument for each in process.execs for argument in each.argv[1:]]
    return frozenset(
        name
        for argument in arguments
        for name in (argument, f"{argument}.__main__", basename(argument))
    )


def is_import(function: Function, programs: frozenset[str]) -> bool:
    """Whether a body was imported, or else is one of `programs` or an evaluated
    string; all enter through the same door.

    The interpreter's own frozen modules are imported.
    """
    file = function.file
    if function.name != "<module>":
        return False
    if file.startswith("<frozen "):
        return True
    if file.endswith("/__init__.py"):
        return True
    if not file.endswith(".py"):
        return False
    return basename(file) not in programs and module_name(file) not in programs


def module_name(file: str) -> str:
    """The dotted name that a file in a library folder is imported by; of another
    file, the name without its folder."""
    if file.startswith("<frozen "):
        return file[len("<frozen ") :].rstrip(">")
    match = _LIBRARY_ROOT.match(file)
    path = file[match.end() :] if match else basename(file)
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def package_name(file: str) -> str:
    """The top package of a file in a library folder, else STANDARD_LIBRARY or ELSEWHERE."""
    if file.startswith("<frozen "):
        return STANDARD_LIBRARY
    match = _LIBRARY_ROOT.match(file)
    if match is None:
        return ELSEWHERE
    return module_name(file).split(".", 1)[0] if "-packages/" in match[0] else STANDARD_LIBRARY


def imports_of(
    process: Process, modules: Iterable[Module], functions: Mapping[int, Function], end_ns: int
) -> list[ModuleNode]:
    """The outermost imports of a process, by time, each with those that it made.

    `modules` are its own; a body that never returned lasts until `end_ns`. The
    program itself and evaluated strings enter as module bodies do, but aren't
    imports: what they imported stands in their place, and so it does for bodies
    whose function isn't in `functions`.
    """
    programs = programs_of(process)
    roots: list[ModuleNode] = []
    under_way: dict[int, list[ModuleNode]] = {}
    for module in sorted(modules, key=lambda module: (module.ts_ns, module.depth)):
        function = functions.get(module.function_id)
        if function is None or not is_import(function, programs):
            continue
        nested = under_way.setdefault(module.tid, [])
        while nested and nested[-1].end_ns <= module.ts_ns:
            nested.pop()
        limit_ns = nested[-1].end_ns if nested else end_ns
        node = _node(function, module, limit_ns)
        if node.total_ns <= 0:
            continue
        (nested[-1].children if nested else roots).append(node)
        nested.append(node)
    return roots


def _node(function: Function, module: Module, limit_ns: int) -> ModuleNode:
    file = function.file
    end_ns = limit_ns if module.end_ns is None else min(module.end_ns, limit_ns)
    return ModuleNode(module_name(file), package_name(file), file, module.tid, module.ts_ns, end_ns)


def time_by_package(roots: Iterable[ModuleNode]) -> dict[str, int]:
    """Own time in ns of each top package, the largest first."""
    totals: dict[str, int] = {}
    for root in roots:
        for node in root.walk():
            totals[node.package] = totals.get(node.package, 0) + node.self_ns
    return dict(sorted(totals.items(), key=lambda item: -item[1]))
