"""A program whose time is known: each function does one thing, and what it took is told.

    python known.py BIG_FILE OTHER_FILE TRUTH_FILE

When all is done it listens on a TCP port, which ends a recording. TRUTH_FILE is JSON:
for each function when it began and ended (CLOCK_MONOTONIC ns), of that the time of the
main thread on a core and waiting for one, and the bytes that it had read from devices,
all as the kernel has it.
"""

from __future__ import annotations

import json
import mmap
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable

CHUNK_BYTES = 1 << 20
WARM_PASSES = 16
EVERY = 8
"""Of the pages of the other file, one in so many is read."""


def burn_cpu() -> None:
    """2.0 s of CPU, in Python itself."""
    end = time.thread_time() + 2.0
    count = 0
    while time.thread_time() < end:
        for number in range(1000):
            count += number


def read_cold_by_mmap(path: str) -> None:
    """Every page of a file that the page cache doesn't hold, one after the other."""
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        for offset in range(0, len(mapped), mmap.PAGESIZE):
            mapped[offset]


def read_cold_at_random(path: str) -> None:
    """Some pages of another such file, each of which has to be waited for."""
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        mapped.madvise(mmap.MADV_RANDOM)
        for offset in range(0, len(mapped), EVERY * mmap.PAGESIZE):
            mapped[offset]


def read_warm(path: str) -> None:
    """The same file by read, which the page cache holds by now, several times."""
    buffer = bytearray(CHUNK_BYTES)
    for _ in range(WARM_PASSES):
        with open(path, "rb", buffering=0) as file:
            while file.readinto(buffer):
                pass


def sleep() -> None:
    time.sleep(1.0)


def wait_for_child(child: subprocess.Popen[bytes]) -> None:
    child.wait()


def wait_for_lock(lock: threading.Lock) -> None:
    lock.acquire()


def share_one_core() -> None:
    """1.0 s of CPU on a core that another process wants as well."""
    end = time.thread_time() + 1.0
    while time.thread_time() < end:
        pass


class Truth:
    """What each function took."""

    def __init__(self) -> None:
        self.told: dict[str, dict[str, int]] = {}

    def of(self, function: Callable[..., None], *arguments: object) -> None:
        bytes_before = device_bytes()
        begin_ns, cpu_ns, runnable_ns = measured()
        function(*arguments)
        end_ns, cpu_end_ns, runnable_end_ns = measured()
        self.told[function.__name__] = {
            "begin_ns": begin_ns,
            "end_ns": end_ns,
            "cpu_ns": cpu_end_ns - cpu_ns,
            "runnable_ns": runnable_end_ns - runnable_ns,
            "device_bytes": device_bytes() - bytes_before,
        }


def measured() -> tuple[int, int, int]:
    """The moment, and this thread's time on a core and waiting for one."""
    with open("/proc/thread-self/schedstat") as file:
        runnable_ns = int(file.read().split()[1])
    return time.monotonic_ns(), time.thread_time_ns(), runnable_ns


def device_bytes() -> int:
    """What this process had read from devices so far."""
    with open("/proc/self/io") as file:
        return int(file.read().partition("\nread_bytes: ")[2].split()[0])


def hold(lock: threading.Lock, seconds: float) -> None:
    """Have another thread hold the lock for so long."""
    held = threading.Event()

    def holder() -> None:
        with lock:
            held.set()
            time.sleep(seconds)

    threading.Thread(target=holder).start()
    held.wait()


def drop_from_cache(path: str) -> None:
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)


def main(path: str, other_path: str, truth_path: str) -> None:
    truth = Truth()
    drop_from_cache(path)
    drop_from_cache(other_path)
    truth.of(burn_cpu)
    truth.of(read_cold_by_mmap, path)
    truth.of(sleep)
    truth.of(read_cold_at_random, other_path)
    truth.of(read_warm, path)
    truth.of(wait_for_child, subprocess.Popen(["sleep", "1"]))
    lock = threading.Lock()
    hold(lock, 1.0)
    truth.of(wait_for_lock, lock)
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # its child's as well
    rival = os.fork()
    if rival == 0:
        while True:
            pass
    truth.of(share_one_core)
    os.kill(rival, signal.SIGKILL)
    os.waitpid(rival, 0)
    with open(truth_path, "w") as file:
        json.dump(truth.told, file)
    server = socket.create_server(("127.0.0.1", 0))
    time.sleep(1)
    server.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
