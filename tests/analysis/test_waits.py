"""What a wait was in, by the kernel's stack: stacks as kernels give them."""

from __future__ import annotations

import pytest

from analysis.result import KINDS
from analysis.waits import PLACES, POLL, WAITS, Doing, ran_in, waited_in
from probes.events import WaitState

ENTRY = "do_syscall_64 entry_SYSCALL_64_after_hwframe"


@pytest.mark.parametrize(
    ("kernel", "kind", "what"),
    [
        (
            "__schedule schedule io_schedule folio_wait_bit_common filemap_fault __do_fault"
            " do_read_fault do_fault handle_mm_fault do_user_addr_fault exc_page_fault",
            "disk",
            "page fault",
        ),
        (
            "schedule io_schedule folio_wait_bit_common filemap_update_page filemap_get_pages"
            " filemap_read ext4_file_read_iter vfs_read ksys_pread64",
            "disk",
            "read",
        ),
        (
            "schedule io_schedule __iomap_dio_rw iomap_dio_rw ext4_file_read_iter",
            "disk",
            "direct I/O",
        ),
        ("schedule request_wait_answer fuse_simple_request fuse_readpages", "disk", "FUSE"),
        ("schedule futex_wait_queue __futex_wait futex_wait do_futex", "lock", "futex"),
        ("schedule futex_wait_queue_me futex_wait do_futex __x64_sys_futex", "lock", "futex"),
        ("schedule rwsem_down_read_slowpath down_read do_user_addr_fault", "lock", "kernel lock"),
        ("schedule anon_pipe_read vfs_read ksys_read", "pipe", "pipe"),
        ("schedule pipe_read new_sync_read vfs_read", "pipe", "pipe"),
        ("schedule unix_stream_data_wait unix_stream_read_generic", "pipe", "unix socket"),
        ("schedule eventfd_read vfs_read ksys_read", "pipe", "eventfd"),
        ("schedule wait_woken sk_wait_data tcp_recvmsg_locked inet_recvmsg", "network", "network"),
        ("schedule nfs_wait_bit_killable nfs4_proc_getattr", "network", "network file system"),
        ("schedule do_epoll_wait __x64_sys_epoll_wait", POLL, "poll"),
        ("schedule poll_schedule_timeout do_poll do_sys_poll __x64_sys_poll", POLL, "poll"),
        ("schedule do_wait kernel_wait4 __do_sys_wait4", "child", "child process"),
        (
            "schedule wait_for_completion_state kernel_clone __do_sys_vfork",
            "child",
            "child process",
        ),
        ("schedule do_nanosleep hrtimer_nanosleep common_nsleep_timens", "sleep", "sleep"),
        (
            "schedule os_wait_semaphore nvidia_unlocked_ioctl __x64_sys_ioctl",
            "gpu",
            "NVIDIA driver",
        ),
        ("schedule rwsem_down_write_slowpath uvm_ioctl", "gpu", "NVIDIA driver"),
        ("schedule io_cqring_wait __do_sys_io_uring_enter", "other_wait", "io_uring"),
        (
            f"schedule sys_of_tomorrow __x64_sys_tomorrow {ENTRY}",
            "other_wait",
            "__x64_sys_tomorrow",
        ),
        ("schedule.isra.0 pipe_read.constprop.0+0x7", "pipe", "pipe"),
    ],
)
def test_a_wait_is_known_by_its_stack(kernel: str, kind: str, what: str) -> None:
    assert waited_in(tuple(kernel.split()), WaitState.SLEEPING) == Doing(kind, what)


def test_a_wait_without_a_stack_is_unknown() -> None:
    assert waited_in((), WaitState.BLOCKED).kind == "unknown"
    assert waited_in((), WaitState.STOPPED) == Doing("other_wait", "stopped")


@pytest.mark.parametrize(
    ("place", "kind", "what"),
    [
        ("python3.12", "python", None),
        ("python3", "python", None),
        ("libpython3.12.so.1.0", "python", None),
        ("libtorch_python.so", "native", "libtorch_python.so"),
        ("libc.so.6", "native", "libc.so.6"),
        ("[jit]", "native", "[jit]"),
        ("kernel:read", "kernel", "read"),
        ("kernel:unknown", "kernel", None),
        ("kernel:nvidia_ioctl", "gpu", "nvidia_ioctl"),
        ("libcuda.so.570.1", "gpu", "libcuda.so.570.1"),
        ("libcudart.so.12", "native", "libcudart.so.12"),
        ("", "cpu", None),
    ],
)
def test_code_on_a_core_is_known_by_its_place(place: str, kind: str, what: str | None) -> None:
    assert ran_in(place) == Doing(kind, what)


def test_the_tables_name_kinds_that_there_are() -> None:
    assert {kind for kind, *_ in (*WAITS, *PLACES)} <= {*KINDS, POLL}
