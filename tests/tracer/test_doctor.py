"""The doctor finds what is there, and says what is lost where something isn't."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from probes import kernel, pyspy
from tracer import doctor
from tracer.errors import ColdtraceError

COLDTRACE = Path(sys.executable).with_name("coldtrace")

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can change what is found")


@pytest.mark.real_kernel
def test_all_is_found_where_a_trace_can_be_made() -> None:
    shown: list[str] = []
    assert doctor.examine(shown.append)
    assert not any(text.startswith("MISSING") for text in shown)
    names = [re.split(" +", text, maxsplit=1)[1].partition(":")[0] for text in shown]
    assert names[:2] == ["root", "tracefs"] and names[-1] == "all programs"
    assert {"BPF", "uprobes", "bcc", "py-spy", "NVML"} <= set(names)


@needs_root
def test_without_root_each_thing_says_what_mends_it() -> None:
    done = subprocess.run(
        [COLDTRACE, "doctor"], capture_output=True, text=True, user=65534, group=65534, cwd="/"
    )
    assert done.returncode == 1
    assert "MISSING  root: not root\n         lost without it: any trace" in done.stdout
    assert f"mend it: sudo {COLDTRACE} doctor" in done.stdout
    assert "MISSING  BPF: Operation not permitted" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr
    missing = done.stdout.lower().count("\nmissing") + done.stdout.startswith("MISSING")
    assert missing == done.stdout.count("mend it: ") == done.stdout.count("lost without it: ")
    assert done.stderr == "no trace can be made here: see MISSING above\n"


def in_own_mounts(script: str) -> subprocess.CompletedProcess[str]:
    if not shutil.which("unshare"):
        pytest.skip("no unshare")
    # Only /sys is made private: in a chroot the root is no mount that could be.
    unmount = f"mount --make-rprivate /sys && umount -l {kernel.TRACEFS}"
    command = ["unshare", "--mount", "--propagation", "unchanged"]
    command += ["sh", "-c", f"{unmount}; {script}"]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


@pytest.mark.real_kernel
def test_tracefs_is_mounted_where_nobody_has() -> None:
    done = in_own_mounts(f"{COLDTRACE} doctor; mount -t tracefs")
    assert f"found    tracefs: mounted at {kernel.TRACEFS} just now" in done.stdout
    assert f" on {kernel.TRACEFS} type tracefs" in done.stdout


@pytest.mark.real_kernel
def test_run_mounts_tracefs_too(tmp_path: Path) -> None:
    done = in_own_mounts(f"{COLDTRACE} run -o {tmp_path}/t --until exit -- sh -c 'exit 5'")
    assert done.returncode == 5, done.stderr


def test_tracefs_that_cannot_be_mounted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(doctor, "TRACEFS", tmp_path / "none")
    with pytest.raises(ColdtraceError) as caught:
        doctor.mount_tracefs()
    assert f"as root: mount -t tracefs nodev {tmp_path}/none" in caught.value.message
    check = doctor.check_tracefs()
    assert not check.found and check.needed
    assert check.mend == f"mount -t tracefs nodev {tmp_path}/none"


def test_tracepoints_that_the_kernel_lacks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(doctor, "TRACEFS", tmp_path)
    for name in kernel.tracepoints("disk.bpf.c"):
        (tmp_path / "events" / name).mkdir(parents=True)
    assert doctor.check_tracepoints("disk.bpf.c").found
    files = doctor.check_tracepoints("files.bpf.c")
    assert not files.found and not files.needed and "syscalls/sys_enter_openat" in files.detail
    process = doctor.check_tracepoints("process.bpf.c")
    assert not process.found and process.needed and "sched/sched_process_exec" in process.detail


@pytest.mark.parametrize("subject", [*kernel.REQUIRED, *kernel.OPTIONAL])
def test_every_subject_is_told_in_words(subject: str) -> None:
    check = doctor.check_tracepoints(subject)
    assert ".bpf.c" not in check.name + check.lost


@pytest.mark.parametrize(
    ("uid", "capabilities", "detail"),
    [
        (0, (1 << 41) - 1, "root, all capabilities"),
        (0, (1 << 41) - 1 - (1 << 39) - (1 << 38), "root without CAP_PERFMON, CAP_BPF"),
        (1000, 0, "not root"),
    ],
)
def test_root_and_its_capabilities(
    tmp_path: Path, uid: int, capabilities: int, detail: str
) -> None:
    status = tmp_path / "status"
    status.write_text(f"Name:\tx\nUid:\t0\t{uid}\t{uid}\t{uid}\nCapEff:\t{capabilities:016x}\n")
    check = doctor.check_root(status)
    assert check.detail == detail
    assert check.found == (detail == "root, all capabilities")
    if "BPF" in detail:
        assert check.mend == "give the container --cap-add=PERFMON --cap-add=BPF"


def test_the_other_bcc_is_told_apart(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "bcc.py").write_text("__version__ = '2'\nlattice = 'body-centred cubic'\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    check = doctor.check_bcc()
    assert not check.found and check.needed
    assert check.detail == "AttributeError: module 'bcc' has no attribute 'BPF'"
    assert "python3-bpfcc" in check.mend


def test_no_bcc(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "bcc.py").write_text("raise ImportError('no libbcc.so.0')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    check = doctor.check_bcc()
    assert not check.found and check.detail == "ImportError: no libbcc.so.0"


def test_no_pyspy_costs_only_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(pyspy, "find_program", lambda: None)
    check = doctor.check_pyspy()
    assert not check.found and not check.needed and check.detail == "not installed"
    broken = tmp_path / "py-spy"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setattr(pyspy, "find_program", lambda: broken)
    assert doctor.check_pyspy().detail == f"{broken} doesn't run"


def test_uprobes_that_the_kernel_lacks(tmp_path: Path) -> None:
    check = doctor.check_uprobes(tmp_path)
    assert not check.found and check.detail == f"no {tmp_path}/uprobe"


def test_nvml_by_its_library() -> None:
    assert doctor.check_nvml("libc.so.6").found
    check = doctor.check_nvml("libnothing-of-that-name.so")
    assert not check.found and not check.needed


def test_names_in_a_check_cannot_act_on_the_terminal() -> None:
    check = doctor.Check("thing", True, "a\x1b[31mb\nc", "", "")
    assert str(check) == "found    thing: a\\x1b[31mb\\x0ac"
