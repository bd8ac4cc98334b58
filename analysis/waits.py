"""What a thread waited in, and where one that ran was: from names to kinds.

The tables are data. A wait's kind is that of the first row of WAITS with a name that
is anywhere on the kernel's stack; a place's that of the first row of PLACES.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fnmatch import translate

from probes.events import WaitState
from tracer.trace import Wait

POLL = "poll"
"""A wait for one of several things: what it was for its waker has to tell."""

WAITS = (
    ("gpu", "NVIDIA driver", "nvidia_* nv_* uvm_* nvkms_* _nv[0-9]*rm rm_ioctl"),
    ("gpu", "GPU driver", "amdgpu_* kfd_* i915_* xe_*"),
    ("throttled", "", "throttle_cfs_rq_work"),
    ("child", "child process", "do_wait kernel_wait4 kernel_waitid wait_for_vfork_done"),
    ("sleep", "sleep", "hrtimer_nanosleep do_nanosleep"),
    ("lock", "futex", "futex_wait* do_futex futex_lock_pi"),
    ("pipe", "pipe", "pipe_read pipe_write anon_pipe_* pipe_wait_* fifo_open"),
    ("pipe", "unix socket", "unix_stream_* unix_dgram_* unix_seqpacket_* unix_wait_*"),
    ("pipe", "eventfd", "eventfd_read eventfd_write"),
    (
        "network",
        "network file system",
        "nfs_* nfs4_* rpc_wait_* __rpc_execute cifs_* smb2_* ceph_*",
    ),
    ("network", "network", "tcp_* udp_* udpv6_* inet_* inet6_* raw_recvmsg sk_wait_data"),
    (POLL, "poll", "ep_poll do_epoll_wait do_poll do_sys_poll do_select core_sys_select"),
    ("lock", "file lock", "flock_lock_* locks_lock_* fcntl_setlk* posix_lock_*"),
    ("disk", "FUSE", "request_wait_answer fuse_* virtio_fs_*"),
    ("disk", "9p", "p9_client_* v9fs_*"),
    ("disk", "page fault", "filemap_fault"),
    ("disk", "swap", "do_swap_page swap_readpage swap_read_folio swapin_*"),
    ("disk", "read", "filemap_read filemap_get_pages filemap_update_page generic_file_read_iter"),
    ("disk", "direct I/O", "*iomap_dio_* *blkdev_direct_IO* do_direct_IO *blockdev_direct_IO"),
    ("disk", "write-out", "*fsync *fdatawait* balance_dirty_* jbd2_* wait_on_page_writeback"),
    (
        "disk",
        "disk",
        "io_schedule* folio_wait_bit* wait_on_page_bit* __lock_page* bit_wait_io blk_mq_get_tag"
        " submit_bio_wait __wait_on_buffer wbt_wait rq_qos_wait read_events",
    ),
    ("other_wait", "memory", "try_to_free_* mem_cgroup_handle_over_high shrink_* kswapd*"),
    ("lock", "kernel lock", "rwsem_down_* __mutex_lock* mutex_lock* __down* rt_mutex_*"),
    ("child", "child process", "kernel_clone *_sys_vfork"),
    ("other_wait", "page fault", "handle_mm_fault exc_page_fault do_page_fault do_user_addr_fault"),
    ("other_wait", "io_uring", "io_cqring_wait io_run_task_work*"),
    ("other_wait", "terminal", "n_tty_* tty_*"),
    ("other_wait", "signal", "do_sigtimedwait sigsuspend *_sys_pause *_sys_rt_sigtimedwait"),
    ("other_wait", "stopped", "do_signal_stop ptrace_stop do_freezer_trap"),
    ("other_wait", "exit", "do_exit do_group_exit"),
)

PLACES = (
    ("gpu", "kernel:nvidia_* kernel:nv_* kernel:uvm_* kernel:amdgpu_* kernel:kfd_*"),
    ("gpu", "libcuda.so* libnvidia-* libcudadebugger.so*"),
    ("kernel", "kernel:*"),
    ("python", "python python[0-9]* libpython[0-9]*"),
    ("native", "?*"),
)

ON_CPU = "cpu"
"""On a core, in what isn't known."""


@dataclass(frozen=True, slots=True)
class Doing:
    """What a time went to: its kind and, where it is known, in what or for what."""

    kind: str
    what: str | None = None


UNKNOWN = Doing("unknown")
STOPPED = Doing("other_wait", "stopped")


def _globs(patterns: str) -> re.Pattern[str]:
    return re.compile("|".join(map(translate, patterns.split())))


_WAITS = tuple((Doing(kind, what), _globs(names)) for kind, what, names in WAITS)
_ENTRY = _globs("entry_SYSCALL_64* do_syscall_64 x64_sys_call el0* invoke_syscall do_el0_svc")
_SUFFIX = re.compile(r"[.+]")  # of a compiler (.isra.0) or an address (+0x10)
_PLACES = tuple((kind, _globs(names)) for kind, names in PLACES)


def waited_in(kernel: tuple[str, ...], state: WaitState) -> Doing:
    """What a wait with the stack `kernel` was in; unknown where there is no stack."""
    if state is WaitState.STOPPED:
        return STOPPED
    names = [_SUFFIX.split(name, 1)[0] for name in kernel]
    for doing, pattern in _WAITS:
        if any(map(pattern.match, names)):
            return doing
    return Doing("other_wait", _asked(names)) if names else UNKNOWN


def _asked(names: list[str]) -> str:
    """The outermost function that isn't on every stack: what the kernel was asked for."""
    told = (name for name in reversed(names) if not _ENTRY.match(name))
    return next(told, names[-1])


def ran_in(place: str) -> Doing:
    """What a thread that was on a core at `place` did."""
    kind = next((kind for kind, pattern in _PLACES if pattern.match(place)), ON_CPU)
    if kind in ("python", ON_CPU):
        return Doing(kind)
    what = place.removeprefix("kernel:")
    return Doing(kind, None if what == "unknown" else what)


def is_woken_by_thread(wait: Wait) -> bool:
    """Whether another thread, no interrupt, ended the wait."""
    return wait.waker_tid is not None and wait.waker_tid not in (0, wait.tid)
