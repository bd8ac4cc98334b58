"""What the kernel side adds up in maps, fetched as events.

Only buckets that are over are taken: the kernel side may hold an entry of the
present one while it is removed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, Final, Protocol

from probes.events import (
    BUCKET_NS,
    DeviceTransferred,
    DriverCalled,
    Event,
    PagesCached,
    ProcessId,
    ThreadRan,
)


class Tables(Protocol):
    """The maps by name, as bcc gives them."""

    def __getitem__(self, name: str) -> Any:
        """The map."""


def fetch(tables: Tables, names: frozenset[str], before_ns: int) -> Iterator[Event]:
    """Take the buckets that began before `before_ns` out of the maps among
    `names`, as events."""
    for name, make in _EVENTS.items():
        if name in names:
            table = tables[name]
            for key, value in _entries(table):
                if key.bucket * BUCKET_NS < before_ns:
                    yield make(tables, key, value)
                    del table[key]


def _entries(table: Any) -> list[tuple[Any, Any]]:
    try:
        return list(table.items_lookup_batch())
    except Exception:  # before Linux 5.6; bcc raises bare Exceptions
        return list(table.items())


def _ran(_tables: Tables, key: Any, value: Any) -> Event:
    process = ProcessId(value.pid, value.start_ns)
    return ThreadRan(key.bucket * BUCKET_NS, process, key.tid, key.cpu, value.ran_ns)


def _pages(_tables: Tables, key: Any, value: Any) -> Event:
    process = ProcessId(key.pid, key.start_ns)
    return PagesCached(
        key.bucket * BUCKET_NS, process, _device(key.device), key.inode, value.added_bytes
    )


def _block(_tables: Tables, key: Any, value: Any) -> Event:
    return DeviceTransferred(
        key.bucket * BUCKET_NS,
        _device(key.device),
        value.requests,
        value.read_bytes,
        value.busy_ns,
    )


def _driver(tables: Tables, key: Any, value: Any) -> Event:
    files = tables["device_files"]
    try:
        path = files[files.Key(key.pid, key.fd)].text.decode("utf-8", "backslashreplace")
    except KeyError:
        path = "/dev/nvidia"  # closed since
    process = ProcessId(key.pid, value.start_ns)
    return DriverCalled(key.bucket * BUCKET_NS, process, key.tid, path, value.calls, value.spent_ns)


def _device(number: int) -> int:
    """The kernel's dev_t (12 bits of major, 20 of minor) as stat(2) has it."""
    return os.makedev(number >> 20, number & 0xFFFFF)


_EVENTS: Final = {"ran": _ran, "pages": _pages, "blocks": _block, "drivers": _driver}
