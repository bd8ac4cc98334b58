"""This machine as a start sees it: what it is made of, and what lies in its page cache."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from analysis.features import Node
from probes.cache import look, open_files


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
    """Share of the files' bytes that is in memory, None where it can't be told."""
    opened = open_files(map(str, files))
    try:
        looked = look(opened)
    finally:
        for file in opened:
            os.close(file.fd)
    held = [each.cached_bytes for each in looked if each.cached_bytes is not None]
    size = sum(each.size_bytes for each in looked)
    return sum(held) / size if size and len(held) == len(looked) else None
