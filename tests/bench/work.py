"""Small known work that run.py times with and without a tracer; prints one JSON object."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable

SETTLE_S = 1.0
"""A tracer takes a moment to find a process's interpreter."""
CALLS = 40_000
MODULES = 1000
ROUNDS = 5


def ns_each(action: Callable[[], object], count: int) -> float:
    """CPU nanoseconds of one `action` in the round least disturbed, the loop included."""
    return min(round_ns(action, count) for _ in range(ROUNDS)) / count


def round_ns(action: Callable[[], object], count: int) -> int:
    start_ns = time.thread_time_ns()
    for _ in range(count):
        action()
    return time.thread_time_ns() - start_ns


def syscalls() -> dict[str, float]:
    """Calls that no start depends on, and those that a tracer may look at."""
    zero = os.open("/dev/zero", os.O_RDONLY)
    return {
        "getppid": ns_each(os.getppid, CALLS),
        "fstat": ns_each(lambda: os.fstat(zero), CALLS),
        "pread": ns_each(lambda: os.pread(zero, 1, 0), CALLS),
        "open+close": ns_each(lambda: os.close(os.open("/dev/null", os.O_RDONLY)), CALLS // 4),
    }


def modules() -> dict[str, float]:
    """The bodies of tiny modules."""
    body = compile("value = 1", "tiny.py", "exec")
    return {"module body": ns_each(lambda: exec(body, {}), MODULES)}


def main() -> None:
    time.sleep(SETTLE_S)
    print(json.dumps({"syscalls": syscalls, "modules": modules}[sys.argv[1]]()), flush=True)


if __name__ == "__main__":
    main()
