"""What is mounted where, by /proc/self/mountinfo."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from probes.proc import PROC

MAX_BYTES = 4 << 20
_ESCAPED = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class Mount:
    """A mounted file system: `root` is the part of it that `folder` shows, `options`
    are those of the file system itself."""

    device: int
    root: str
    folder: str
    file_system: str
    options: frozenset[str]


def mounts(proc: Path = PROC) -> list[Mount]:
    """What is mounted, in the order of mounting; lines that can't be read are left out."""
    try:
        with open(proc / "self" / "mountinfo", "rb") as file:
            lines = os.fsdecode(file.read(MAX_BYTES)).split("\n")
    except OSError:
        return []
    return [mount for line in lines if (mount := _mount(line))]


def file_system(device: int, path: str, mounted: list[Mount]) -> str:
    """The type of the file system of a file: by its device, else (btrfs gives each
    subvolume a device of its own) by where `path`, free of links, lies; "" if neither."""
    for mount in reversed(mounted):
        if mount.device == device:
            return mount.file_system
    above = [each for each in mounted if _is_below(path, each.folder)]
    # of two mounted on one folder, the later covers the other
    return max(reversed(above), key=lambda each: len(each.folder)).file_system if above else ""


def _is_below(path: str, folder: str) -> bool:
    return f"{path}/".startswith(f"{folder.rstrip('/')}/")


def _mount(line: str) -> Mount | None:
    # 36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue
    before, dash, after = line.partition(" - ")
    fields, rest = before.split(" "), after.split(" ")
    if not dash or len(fields) < 6 or len(rest) < 3:
        return None
    major, _, minor = fields[2].partition(":")
    try:
        device = os.makedev(int(major), int(minor))
    except (ValueError, OverflowError):
        return None
    root, folder = map(_plain, fields[3:5])
    return Mount(device, root, folder, rest[0], frozenset(rest[2].split(",")))


def _plain(text: str) -> str:
    return _ESCAPED.sub(lambda match: chr(int(match[1], 8)), text)
