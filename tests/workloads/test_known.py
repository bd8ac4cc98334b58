"""Where the time went, held against a program that knows it: to 3 %, bytes to the page."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from analysis.result import BOUNDS, TimeShares
from analysis.signature import Signatures
from analysis.start import Start
from tests.workloads.known import EVERY

pytestmark = pytest.mark.real_kernel

KNOWN = Path(__file__).with_name("known.py")
PYTHON = os.path.realpath(sys._base_executable)
BIG, OTHER = "big.safetensors", "other.safetensors"
"""Files are recorded that matter to a start, by their names."""
FILE_BYTES = 400 << 20
OTHER_BYTES = 100 << 20
HZ = 499
SHARE = 0.03

WAITS_FOR = {
    "burn_cpu": None,
    "read_cold_by_mmap": "disk",
    "read_warm": None,
    "sleep": "sleep",
    "wait_for_child": "child",
    "wait_for_lock": "lock",
    "share_one_core": None,
}
"""What each function waits for, apart from a core."""

AT_RANDOM = "read_cold_at_random"
"""It waits thousands of times for some microseconds: as long as watching a wait takes,
which the kernel's own counts leave out. So its shares are no truth to hold others to."""

SIGNATURES = Signatures(
    {
        "engine": "known",
        "title": "Known",
        "before_python": "rest",
        "module_bodies": "rest",
        "step": [
            {
                "id": "all",
                "title": "All",
                "substep": [
                    {"id": "rest", "title": "Rest"},
                    *(
                        {"id": name, "title": name, "functions": [f"/known.py:{name}"]}
                        for name in (*WAITS_FOR, AT_RANDOM)
                    ),
                ],
            }
        ],
        "by_role": [],
        "role": [{"id": "program", "title": "Program", "functions": ["/known.py:main"]}],
        "wait": [],
        "idle": {"functions": []},
        "ready": {
            "role": "program",
            "functions": [],
            "port_option": "--port",
            "default_port": 8000,
        },
        "command": [],
        "file": [{"class": "big", "title": "Big", "globs": ["*.safetensors"]}],
        "absent": [],
        "view": [],
    }
)


@dataclass(frozen=True)
class Known:
    """A recorded run: what coldtrace says, and what the program and the kernel say."""

    start: Start
    truth: dict[str, dict[str, int]]

    def shares(self, function: str) -> TimeShares:
        return self.start.result.attribution.substeps[function]

    def wall_ns(self, function: str) -> int:
        return self.truth[function]["end_ns"] - self.truth[function]["begin_ns"]


@pytest.fixture(scope="module")
def known(coldtrace_bin: Path) -> Iterator[Known]:
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:  # on a disk
        yield record(Path(name), coldtrace_bin)


def record(folder: Path, coldtrace: Path) -> Known:
    for name, size in ((BIG, FILE_BYTES), (OTHER, OTHER_BYTES)):
        with open(folder / name, "wb") as file:
            for _ in range(size >> 20):
                file.write(os.urandom(1 << 20))
            os.fsync(file.fileno())
    files = [str(folder / name) for name in (BIG, OTHER, "truth")]
    command = [coldtrace, "run", "--hz", str(HZ), "-o", folder / "trace.coldtrace", "--"]
    done = subprocess.run([*command, PYTHON, KNOWN, *files], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    start = Start.open(folder / "trace.coldtrace")
    truth = json.loads((folder / "truth").read_text())
    return Known(Start(start.trace, SIGNATURES), truth)


@pytest.mark.parametrize("function", WAITS_FOR)
def test_every_share_is_the_truth(known: Known, function: str) -> None:
    truth, shares, wall_ns = known.truth[function], known.shares(function), known.wall_ns(function)
    margin_ns = SHARE * wall_ns
    assert shares.duration_ns == pytest.approx(wall_ns, abs=margin_ns)
    cpu_ns = shares.of("python", "native", "kernel", "cpu")
    assert cpu_ns == pytest.approx(truth["cpu_ns"], abs=margin_ns)
    runnable_ns, kind = shares.of("runnable", "throttled"), WAITS_FOR[function]
    assert runnable_ns == pytest.approx(truth["runnable_ns"], abs=margin_ns)
    waited_ns = wall_ns - truth["cpu_ns"] - truth["runnable_ns"]
    assert kind is None or shares.of(kind) == pytest.approx(waited_ns, abs=margin_ns)
    others = [
        each for each in (*BOUNDS["disk"], *BOUNDS["wait"], *BOUNDS["network"]) if each != kind
    ]
    assert shares.of(*others) <= margin_ns
    assert shares.of("unknown") <= margin_ns


def test_the_code_on_the_core_is_told(known: Known) -> None:
    burnt = known.shares("burn_cpu")
    assert burnt.of("python") >= 0.9 * burnt.of("python", "native", "kernel", "cpu")
    read = known.shares("read_warm")
    assert read.of("kernel") >= 0.8 * read.of("python", "native", "kernel", "cpu")


@pytest.mark.parametrize(
    ("function", "bound"),
    [("sleep", "wait"), ("wait_for_child", "wait"), ("wait_for_lock", "wait"), ("burn_cpu", "cpu")],
)
def test_the_verdict(known: Known, function: str, bound: str) -> None:
    assert known.shares(function).bound == bound


def test_bytes_from_disk_are_exact_to_the_page(known: Known) -> None:
    added: dict[str, int] = {}
    paths = {(file.device, file.inode): file.path for file in known.start.trace.files()}
    for pages in known.start.trace.page_cache():
        name = os.path.basename(paths.get((pages.device, pages.inode), ""))
        added[name] = added.get(name, 0) + pages.added_bytes
    # A busy kernel may let go of pages that are then read again: then it has counted them twice.
    truth = {name: told["device_bytes"] for name, told in known.truth.items()}
    assert added[BIG] == truth["read_cold_by_mmap"] + truth["read_warm"] >= FILE_BYTES
    assert added[OTHER] == truth[AT_RANDOM] >= OTHER_BYTES // EVERY


def test_disk_waits_name_their_file(known: Known) -> None:
    shares = known.shares(AT_RANDOM)
    named = [share for share in shares.shares if share.kind == "disk" and share.what]
    told = sum(share.duration_ns for share in named if str(share.what).endswith(f"/{OTHER}"))
    assert told >= 0.95 * shares.of("disk")


def test_the_pinned_core_is_seen(known: Known) -> None:
    truth, start = known.truth["share_one_core"], known.start
    root = start.trace.processes[start.trace.meta["root"]]
    cpus = {
        ran.cpu
        for ran in start.trace.ran(root.id)
        if ran.tid == root.pid
        and truth["begin_ns"] < ran.ts_ns
        and ran.ts_ns + 100_000_000 < truth["end_ns"]
    }
    assert len(cpus) == 1
    allowed = [
        reading.value
        for reading in start.trace.readings()
        if reading.name == "affinity_cpus" and reading.subject == str(root.pid)
    ]
    assert allowed[-1] == 1
