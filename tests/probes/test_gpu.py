"""NVML, by a made-up binding that behaves as the real one does: no GPU is needed."""

# ruff: noqa: N802  (the names are NVML's)
from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from probes import gpu
from probes.events import Reading
from probes.gpu import GpuSource, is_present
from probes.source import SourceUnavailable


class NVMLError(Exception):
    pass


class NotSupported(NVMLError):
    pass


class NotFound(NVMLError):
    pass


class Nvml:
    """Two GPUs; `failing` is raised by the next query, `blocked` holds it up."""

    NVMLError = NVMLError
    NVMLError_NotSupported = NotSupported
    NVMLError_FunctionNotFound = type("FunctionNotFound", (NVMLError,), {})
    NVMLError_NoPermission = type("NoPermission", (NVMLError,), {})
    NVMLError_NotFound = NotFound
    NVML_CLOCK_SM, NVML_CLOCK_MEM = 1, 2
    NVML_FI_DEV_PCIE_COUNT_TX_BYTES, NVML_FI_DEV_PCIE_COUNT_RX_BYTES = 197, 198
    NVML_VALUE_TYPE_UNSIGNED_INT = 1
    NVML_VALUE_TYPE_UNSIGNED_LONG = 2
    NVML_VALUE_TYPE_UNSIGNED_LONG_LONG = 3
    NVML_SUCCESS = 0

    def __init__(self) -> None:
        self.failing: NVMLError | None = None
        self.blocked = threading.Event()
        self.blocked.set()
        self.received = 0
        self.calls: list[str] = []

    def nvmlInit(self) -> None:
        self.calls.append("init")

    def nvmlShutdown(self) -> None:
        self.calls.append("shutdown")

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByIndex(self, number: int) -> int:
        return number

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> Any:
        self.blocked.wait()
        if self.failing:
            raise self.failing
        return SimpleNamespace(gpu=40 + handle, memory=7)

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:
        return SimpleNamespace(used=1000, total=2000)

    def nvmlDeviceGetClockInfo(self, handle: int, kind: int) -> int:
        return {1: 1980, 2: 3201}[kind]

    def nvmlDeviceGetFieldValues(self, handle: int, fields: list[int]) -> list[Any]:
        if handle == 1:  # an older GPU
            return [SimpleNamespace(fieldId=field, nvmlReturn=3) for field in fields]
        value = SimpleNamespace(uiVal=0, ulVal=0, ullVal=self.received)
        return [
            SimpleNamespace(fieldId=field, nvmlReturn=0, valueType=3, value=value)
            for field in fields
        ]

    def nvmlDeviceGetCurrPcieLinkGeneration(self, handle: int) -> int:
        raise NotSupported("Not Supported")

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> list[Any]:
        unknown = SimpleNamespace(pid=43, usedGpuMemory=None)
        return [SimpleNamespace(pid=42, usedGpuMemory=500), unknown] if handle == 0 else []

    def nvmlDeviceGetProcessUtilization(self, handle: int, since_us: int) -> list[Any]:
        if handle == 1:
            raise NotFound("Not Found")
        return [SimpleNamespace(pid=42, smUtil=30, timeStamp=5), SimpleNamespace(pid=0, smUtil=9)]


def gathered(source: GpuSource, until: Callable[[list[Reading]], object]) -> list[Reading]:
    told: list[Reading] = []
    end = time.monotonic() + 5
    while not until(told):
        assert time.monotonic() < end, told
        told += source.poll(0.05)
    return told


def test_every_gpu_and_process_is_asked() -> None:
    nvml = Nvml()
    source = GpuSource(lambda: nvml)
    source.open()
    first = gathered(source, lambda told: any("process_busy" in each.name for each in told))
    told = {(each.name, each.subject): each.value for each in [*first, *source.close()]}
    assert nvml.calls == ["init", "shutdown"]
    for number in (0, 1):
        assert told.pop(("gpu_busy_percent", f"gpu{number}")) == 40 + number
        assert told.pop(("gpu_memory_busy_percent", f"gpu{number}")) == 7
        assert told.pop(("gpu_memory_used_bytes", f"gpu{number}")) == 1000
        assert told.pop(("gpu_memory_total_bytes", f"gpu{number}")) == 2000
        assert told.pop(("gpu_sm_clock_hz", f"gpu{number}")) == 1.98e9
        assert told.pop(("gpu_memory_clock_hz", f"gpu{number}")) == 3.201e9
    assert told.pop(("gpu_process_memory_bytes", "gpu0/42")) == 500
    assert told.pop(("gpu_process_busy_percent", "gpu0/42")) == 30
    assert told.pop(("gpu_pcie_received_bytes", "gpu0")) == 0
    assert told.pop(("gpu_pcie_sent_bytes", "gpu0")) == 0
    assert not told  # nothing of what isn't supported


def test_a_counter_of_32_bits_goes_on_when_it_begins_anew() -> None:
    pcie = gpu._pcie_counters(nvml := Nvml(), 0)
    totals = []
    for nvml.received in (4_000_000_000, 4_200_000_000, 100_000_000, 100_000_001):
        totals.append({name: value for name, _, value in pcie()}["gpu_pcie_received_bytes"])
    assert totals == [0, 200_000_000, 394_967_296, 394_967_297]


def test_without_its_binding_one_line_says_what_to_install(monkeypatch: Any) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pynvml", None)
    with pytest.raises(SourceUnavailable, match=r"^no Python binding of NVML: install nvidia-ml"):
        GpuSource().open()


def test_a_driver_that_does_not_answer_at_first() -> None:
    def init() -> None:
        raise NVMLError("Driver/library version mismatch")

    nvml = Nvml()
    nvml.nvmlInit = init  # type: ignore[method-assign]
    source = GpuSource(lambda: nvml)
    with pytest.raises(SourceUnavailable, match=r"^NVML fails: Driver/library version mismatch$"):
        source.open()
    assert list(source.close()) == []


def test_nvml_that_fails_midway_is_one_line_and_what_it_told_is_kept() -> None:
    nvml = Nvml()
    source = GpuSource(lambda: nvml)
    source.open()
    told = gathered(source, bool)
    nvml.failing = NVMLError("GPU is lost\nreboot")
    with pytest.raises(SourceUnavailable, match=r"^NVML has failed: GPU is lost reboot$"):
        gathered(source, lambda _: False)
    assert told and source.stats().seen["reading"] >= len(told)
    source.close()
    assert nvml.calls == ["init", "shutdown"]


def test_a_driver_that_hangs_holds_nothing_up(monkeypatch: Any) -> None:
    monkeypatch.setattr(gpu, "CLOSE_S", 0.1)
    nvml = Nvml()
    nvml.blocked.clear()
    source = GpuSource(lambda: nvml)
    source.open()
    began = time.monotonic()
    assert list(source.poll(0)) == [] and list(source.close()) == []
    assert time.monotonic() - began < 1
    assert nvml.calls == ["init"]
    nvml.blocked.set()


def test_a_gpu_is_known_by_its_driver(tmp_path: Path) -> None:
    assert not is_present(tmp_path)
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidiactl").touch()
    assert is_present(tmp_path)


def test_the_real_binding_has_all_that_is_asked_of_it() -> None:
    nvml = gpu._load()
    for name in vars(Nvml):
        if not name.startswith("__"):
            assert hasattr(nvml, name), name
