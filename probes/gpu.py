"""What the GPUs do meanwhile, by NVML.

Readings, by subject:
  gpuN      gpu_busy_percent, gpu_memory_busy_percent, gpu_memory_used_bytes,
            gpu_memory_total_bytes, gpu_sm_clock_hz, gpu_memory_clock_hz,
            gpu_pcie_received_bytes and gpu_pcie_sent_bytes (counters of what the
            GPU received and sent), gpu_pcie_generation, gpu_pcie_lanes
  gpuN/PID  gpu_process_memory_bytes, gpu_process_busy_percent

A thread of its own asks, since an answer may take as long as the driver likes. What
a GPU doesn't support is left out.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from probes.events import ProcessId, Reading
from probes.readings import Pace, Readings
from probes.source import SourceStats, SourceUnavailable

OFTEN_NS = 100_000_000
SELDOM_NS = 1_000_000_000
OFTEN_SHARE = 0.03
SELDOM_SHARE = 0.005
"""Of a core, that asking may cost; where it would cost more it asks less often."""
MAX_GPUS = 64
PCIE_WRAP = 1 << 32
MAX_WAITING = 100_000
CLOSE_S = 1.0

_DEVICES = ("dev/nvidiactl", "proc/driver/nvidia/version", "dev/dxg")

Value = tuple[str, str, float]
"""Name, what follows the GPU in its subject, and value of a reading."""
Query = Callable[[], list[Value]]


def is_present(root: Path = Path("/")) -> bool:
    """Whether there is an NVIDIA driver, without loading anything."""
    return any((root / path).exists() for path in _DEVICES)


class GpuSource:
    """Asks every GPU ten times a second, and once a second what is dear or seldom
    changes. `load` gives NVML's binding."""

    name = "gpu"

    def __init__(self, load: Callable[[], Any] | None = None) -> None:
        self._load = load or _load
        self._often: list[tuple[str, Query]] = []
        self._seldom: list[tuple[str, Query]] = []
        self._nvml: Any = None
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._come = threading.Event()
        self._waiting: deque[Reading] = deque(maxlen=MAX_WAITING)
        self._problem: str | None = None
        self._seen = 0

    def open(self) -> None:
        """Raise SourceUnavailable where NVML or its binding is missing or fails."""
        nvml = self._load()
        try:
            nvml.nvmlInit()
            self._nvml = nvml
            for number in range(min(nvml.nvmlDeviceGetCount(), MAX_GPUS)):
                handle = nvml.nvmlDeviceGetHandleByIndex(number)
                self._often += [(f"gpu{number}", query) for query in _often(nvml, handle)]
                self._seldom += [(f"gpu{number}", query) for query in _seldom(nvml, handle)]
        except nvml.NVMLError as error:
            self._shut_down()
            raise SourceUnavailable(f"NVML fails: {error}") from error
        self._thread = threading.Thread(target=self._run, name="coldtrace-nvml", daemon=True)
        self._thread.start()

    def follow(self, process: ProcessId) -> None:
        """Nothing: a GPU tells of all that use it."""

    def poll(self, timeout_s: float) -> Iterable[Reading]:
        """What has come; raises SourceUnavailable once NVML has failed."""
        if timeout_s > 0:
            self._come.wait(timeout_s)
            self._come.clear()
        told = self._take()
        if self._problem is not None and not told:
            raise SourceUnavailable(f"NVML has failed: {self._problem}")
        return told

    def stats(self) -> SourceStats:
        """The number of readings."""
        return SourceStats(seen={"reading": self._seen})

    def close(self) -> Iterable[Reading]:
        """Stop asking; a driver that doesn't answer is left to itself."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(CLOSE_S)
            if not self._thread.is_alive():
                self._shut_down()
            self._thread = None
        return self._take()

    def _take(self) -> list[Reading]:
        told = [self._waiting.popleft() for _ in range(len(self._waiting))]
        self._seen += len(told)
        return told

    def _shut_down(self) -> None:
        if self._nvml is not None:
            with suppress(self._nvml.NVMLError):  # it ends with the process
                self._nvml.nvmlShutdown()
            self._nvml = None

    def _run(self) -> None:
        readings = Readings()
        often, seldom = Pace(OFTEN_NS, OFTEN_SHARE), Pace(SELDOM_NS, SELDOM_SHARE)
        try:
            while not self._stop.wait(max(0, often.next_ns - time.monotonic_ns()) / 1e9):
                for pace, queries in ((often, self._often), (seldom, self._seldom)):
                    began_ns, began_cpu_ns = time.monotonic_ns(), time.thread_time_ns()
                    if pace.is_due(began_ns):
                        self._ask(readings, queries)
                        pace.looked(began_ns, time.thread_time_ns() - began_cpu_ns)
                self._come.set()
            self._waiting.extend(readings.rest())
        except Exception as error:
            self._problem = " ".join(str(error).split()) or repr(error)
            self._waiting.extend(readings.rest())
            self._come.set()

    def _ask(self, readings: Readings, queries: list[tuple[str, Query]]) -> None:
        for gpu, query in list(queries):
            try:
                values = query()
            except (
                self._nvml.NVMLError_NotSupported,
                self._nvml.NVMLError_FunctionNotFound,
                self._nvml.NVMLError_NoPermission,
            ):
                queries.remove((gpu, query))
                continue
            now_ns = time.monotonic_ns()
            for name, of, value in values:
                self._waiting.extend(readings.tell(now_ns, name, gpu + of, value))


def _load() -> Any:
    try:
        import pynvml  # type: ignore[import-untyped]
    except ImportError:
        raise SourceUnavailable(
            "no Python binding of NVML: install nvidia-ml-py beside coldtrace"
        ) from None
    return pynvml


def _often(nvml: Any, handle: Any) -> list[Query]:
    """What to ask a GPU each time: in all 1 ms on an H200."""

    def busy() -> list[Value]:
        rates = nvml.nvmlDeviceGetUtilizationRates(handle)
        return [
            ("gpu_busy_percent", "", rates.gpu),
            ("gpu_memory_busy_percent", "", rates.memory),
        ]

    def memory() -> list[Value]:
        info = nvml.nvmlDeviceGetMemoryInfo(handle)
        return [
            ("gpu_memory_used_bytes", "", info.used),
            ("gpu_memory_total_bytes", "", info.total),
        ]

    def sm_clock() -> list[Value]:
        mhz = nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)
        return [("gpu_sm_clock_hz", "", mhz * 1_000_000)]

    def memory_clock() -> list[Value]:
        mhz = nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM)
        return [("gpu_memory_clock_hz", "", mhz * 1_000_000)]

    def processes_memory() -> list[Value]:
        running = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
        return [
            ("gpu_process_memory_bytes", f"/{each.pid}", each.usedGpuMemory)
            for each in running
            if each.usedGpuMemory is not None
        ]

    return [busy, memory, sm_clock, memory_clock, _pcie_counters(nvml, handle), processes_memory]


def _seldom(nvml: Any, handle: Any) -> list[Query]:
    """What to ask it now and then: the second takes up to 3 ms on an H200."""

    def link() -> list[Value]:
        return [
            ("gpu_pcie_generation", "", nvml.nvmlDeviceGetCurrPcieLinkGeneration(handle)),
            ("gpu_pcie_lanes", "", nvml.nvmlDeviceGetCurrPcieLinkWidth(handle)),
        ]

    return [link, _processes_busy(nvml, handle)]


def _pcie_counters(nvml: Any, handle: Any) -> Query:
    """The counters of bytes; the other call for them measures a rate for 20 ms.

    They are 32 bits wide and begin anew after 4 GiB: what more than that was moved
    between two looks (43 GB/s) can't be told from what was less.
    """
    names = {
        nvml.NVML_FI_DEV_PCIE_COUNT_RX_BYTES: "gpu_pcie_received_bytes",
        nvml.NVML_FI_DEV_PCIE_COUNT_TX_BYTES: "gpu_pcie_sent_bytes",
    }
    counters: dict[str, tuple[int, int]] = {}

    def pcie() -> list[Value]:
        values: list[Value] = []
        for field in nvml.nvmlDeviceGetFieldValues(handle, list(names)):
            if field.nvmlReturn == nvml.NVML_SUCCESS and field.fieldId in names:
                name, now = names[field.fieldId], _number(nvml, field)
                last, total = counters.get(name, (now, 0))
                moved = now - last if now >= last else (now - last) % PCIE_WRAP
                counters[name] = now, total + moved
                values.append((name, "", total + moved))
        if not values:
            raise nvml.NVMLError_NotSupported()
        return values

    return pcie


def _number(nvml: Any, field: Any) -> int:
    kinds = {
        nvml.NVML_VALUE_TYPE_UNSIGNED_INT: "uiVal",
        nvml.NVML_VALUE_TYPE_UNSIGNED_LONG: "ulVal",
        nvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG: "ullVal",
    }
    return int(getattr(field.value, kinds.get(field.valueType, "ullVal")))


def _processes_busy(nvml: Any, handle: Any) -> Query:
    last_us = 0

    def busy() -> list[Value]:
        nonlocal last_us
        try:
            samples = nvml.nvmlDeviceGetProcessUtilization(handle, last_us)
        except nvml.NVMLError_NotFound:  # nothing since
            return []
        # An unused slot of NVML's buffer has pid 0.
        samples = [sample for sample in samples if sample.pid]
        last_us = max((sample.timeStamp for sample in samples), default=last_us)
        return [("gpu_process_busy_percent", f"/{sample.pid}", sample.smUtil) for sample in samples]

    return busy
