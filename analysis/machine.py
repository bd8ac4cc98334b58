"""This machine as a start sees it: what it is made of, and what lies in its page cache."""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from analysis.features import Node

_libc = ctypes.CDLL(None, use_errno=True)
_MAP_FAILED = ctypes.c_void_p(-1).value
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]
WINDOW_BYTES = 1 << 30


def this_node(disk_of: Path | None = None) -> Node:
    """This machine; `disk_of` is a path whose file system counts as its disk."""
    return Node(
        name=platform.node() or "this machine",
        cpu=_cpu(),
        cores=os.cpu_count() or 0,
        gpu=_gpus(Path("/proc/driver/nvidia/gpus")),
        disk="" if disk_of is None else _file_system(disk_of, Path("/proc/self/mounts")),
    )


def _cpu() -> str:
    with suppress(OSError), open("/proc/cpuinfo") as file:
        for line in file:
            if line.startswith(("model name", "Model")):
                return line.partition(":")[2].strip()
    return platform.machine()


def _gpus(folder: Path) -> str:
    """As `2x NVIDIA H100`; nothing of the driver is loaded."""
    names: list[str] = []
    with suppress(OSError):
        for information in sorted(folder.glob("*/information")):
            lines = information.read_text(errors="replace").splitlines()
            models = [line for line in lines if line.startswith("Model:")]
            names.extend(line.partition(":")[2].strip() for line in models)
    counts = {name: names.count(name) for name in names}
    return ", ".join(f"{count}x {name}" if count > 1 else name for name, count in counts.items())


def _file_system(path: Path, mounts: Path) -> str:
    """Device and type of the file system that holds `path`."""
    place = str(path.resolve())
    best = ("", "")
    with suppress(OSError):
        for line in mounts.read_text(errors="replace").splitlines():
            device, mount, kind = line.split()[:3]
            inside = place == mount or place.startswith(mount.rstrip("/") + "/")
            if inside and len(mount) >= len(best[0]):
                best = (mount, f"{device} ({kind})")
    return best[1]


def page_cache_share(files: Iterable[Path]) -> float | None:
    """Share of the files' bytes that is in memory, None where it can't be told.

    Asks mincore(2), which reads nothing in.
    """
    pages = resident = 0
    for path in files:
        try:
            with open(path, "rb") as file:
                size = os.fstat(file.fileno()).st_size
                for start in range(0, size, WINDOW_BYTES):
                    length = min(WINDOW_BYTES, size - start)
                    count = _resident(file.fileno(), start, length)
                    if count is None:
                        return None
                    resident += count
                    pages += -(-length // mmap.PAGESIZE)
        except OSError:
            return None
    return resident / pages if pages else None


def _resident(descriptor: int, start: int, length: int) -> int | None:
    address = _libc.mmap(None, length, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, start)
    if address == _MAP_FAILED:
        return None
    try:
        vector = ctypes.create_string_buffer(-(-length // mmap.PAGESIZE))
        if _libc.mincore(address, length, vector) != 0:
            return None
        return vector.raw.count(b"\x01")
    finally:
        _libc.munmap(address, length)
