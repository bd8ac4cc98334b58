"""What each process of a start is: API server, engine, worker, compiler, ..."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from functools import cache
from os.path import basename

from analysis.signature import Mark, Signatures
from analysis.stacks import Stacks
from tracer.trace import Process, Sample, Trace

OTHER = "other"


def assign_roles(
    trace: Trace, signatures: Signatures, stacks: Stacks, root_role: str
) -> dict[int, str]:
    """The role of every process, by process id.

    The functions on a process's own stacks tell, or else its command line. One
    that did not get that far is what its parent was making when it forked. The
    root is `root_role`, unless it or another process is seen to be that.
    """
    main_samples = cache(lambda process_id: _main_samples(trace, process_id))
    roles: dict[int, str] = {}
    for process in trace.processes.values():
        roles[process.id] = (
            _role_by_stacks(main_samples(process.id), process, stacks)
            or _role_by_command(process, signatures)
            or _role_by_maker(process, main_samples, stacks)
            or OTHER
        )
    root = trace.meta["root"]
    if roles[root] == OTHER and root_role not in roles.values():
        roles[root] = root_role
    return roles


def program(process: Process) -> str | None:
    """The name of the program that a process last became, None where none was seen."""
    if not process.execs:
        return None
    last = process.execs[-1]
    return basename(last.argv[0] if last.argv else "") or basename(last.filename)


def _main_samples(trace: Trace, process_id: int) -> list[Sample]:
    pid = trace.processes[process_id].pid
    return [sample for sample in trace.samples(process_id) if sample.tid == pid]


def _role_by_stacks(samples: list[Sample], process: Process, stacks: Stacks) -> str | None:
    """By what its last program ran: until then it was a copy of its parent."""
    begin_ns = process.execs[-1].ts_ns if process.execs and not process.found else 0
    first = bisect_left(samples, begin_ns, key=lambda sample: sample.ts_ns)
    for stack_id in dict.fromkeys(sample.stack_id for sample in samples[first:]):
        role = _first(stacks.marks(stack_id), lambda mark: mark.role)
        if role is not None:
            return role
    return None


def _role_by_command(process: Process, signatures: Signatures) -> str | None:
    for execution in reversed(process.execs):
        role = signatures.role_of_command(execution.filename, execution.argv)
        if role is not None:
            return role
    return None


def _role_by_maker(
    process: Process, main_samples: Callable[[int], list[Sample]], stacks: Stacks
) -> str | None:
    """By what its parent's main thread was making around the fork; what became
    another program than Python is a tool that happened to be called then."""
    if process.parent_id is None or not _may_be_python(process):
        return None
    samples = main_samples(process.parent_id)
    next_one = bisect_right(samples, process.start_ns, key=lambda sample: sample.ts_ns)
    for sample in samples[max(next_one - 1, 0) : next_one + 1]:
        role = _first(stacks.marks(sample.stack_id), lambda mark: mark.makes)
        if role is not None:
            return role
    return None


def _may_be_python(process: Process) -> bool:
    return not process.execs or basename(process.execs[-1].filename).startswith("python")


def _first(marks: list[Mark], value: Callable[[Mark], str | None]) -> str | None:
    return next((found for found in map(value, marks) if found is not None), None)
