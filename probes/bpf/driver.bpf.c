/* Calls of the GPU's driver: ioctl(2) on its device files. */

struct driver_call { u64 began_ns; u64 start_ns; u32 fd; u32 pad; };
BPF_TABLE("lru_hash", u32, struct driver_call, calling, 4096); /* tid -> ioctl under way */
BPF_HASH(drivers, struct driver_key, struct driver_value, 4096);

TRACEPOINT_PROBE(syscalls, sys_enter_ioctl) {
  struct file_key k = {.pid = current_pid(), .fd = args->fd};
  if (!device_files.lookup(&k)) return 0;
  u64 *start_ns = tracked.lookup(&k.pid);
  if (!start_ns) return 0;
  u32 tid = bpf_get_current_pid_tgid();
  struct driver_call c = {.began_ns = bpf_ktime_get_ns(), .start_ns = *start_ns, .fd = k.fd};
  calling.update(&tid, &c);
  return 0;
}

TRACEPOINT_PROBE(syscalls, sys_exit_ioctl) {
  u32 pid = current_pid(), tid = bpf_get_current_pid_tgid();
  struct driver_call *c = calling.lookup(&tid);
  if (!c) return 0;
  u64 now_ns = bpf_ktime_get_ns(), spent_ns = now_ns - c->began_ns;
  struct driver_key k = {.bucket = c->began_ns / BUCKET_NS, .pid = pid, .tid = tid, .fd = c->fd};
  struct driver_value one = {.start_ns = c->start_ns, .calls = 1, .spent_ns = spent_ns};
  calling.delete(&tid);
  struct driver_value *sum = drivers.lookup(&k);
  if (!sum) {
    if (drivers.update(&k, &one)) count_lost(KIND_DRIVER);
    return 0;
  }
  sum->calls++; /* by one thread alone */
  sum->spent_ns += spent_ns;
  return 0;
}
