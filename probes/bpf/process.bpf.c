/* The process tree: fork, exec with its command line, exit with its status. */

#define CLONE_THREAD 0x10000

BPF_TABLE("lru_hash", u32, struct exec_event, pending_exec, 256); /* tid -> what it asked for */
BPF_PERCPU_ARRAY(exec_scratch, struct exec_event, 1);
BPF_HASH(wait_status, u32, s32, 16384); /* pid -> how it is about to end */
BPF_HASH(last_signal, u32, s32, 16384); /* pid -> the last signal sent to it */

INLINE void forget(u32 pid) {
  tracked.delete(&pid);
  layouts.delete(&pid);
  wait_status.delete(&pid);
  last_signal.delete(&pid);
}

/* In the parent, before the child's first instruction; threads pass here too. */
TRACEPOINT_PROBE(task, task_newtask) {
  u32 parent = current_pid(), child = args->pid;
  u64 *start_ns = tracked.lookup(&parent);
  if (!start_ns) return 0;
  struct thread t = {.start_ns = *start_ns, .pid = parent};
  if (args->clone_flags & CLONE_THREAD) {
    if (known_threads.update(&child, &t)) count_lost(KIND_RAN);
    return 0;
  }
  struct fork_event e = {};
  fill_header(&e.h, KIND_FORK, sizeof(e), *start_ns);
  e.child_start_ns = t.start_ns = e.h.ts_ns;
  e.child_pid = t.pid = child;
  if (tracked.update(&child, &e.child_start_ns) || known_threads.update(&child, &t)) {
    count_lost(KIND_FORK);
    return 0;
  }
  struct python_layout *layout = layouts.lookup(&parent);
  if (layout) layouts.update(&child, layout);
  send(&e, sizeof(e), KIND_FORK, AT_ONCE);
  return 0;
}

TRACEPOINT_PROBE(syscalls, sys_enter_execve) {
  const char *const *argv = args->argv;
  u32 pid = current_pid(), tid = bpf_get_current_pid_tgid();
  int zero = 0;
  if (!tracked.lookup(&pid)) return 0;
  struct exec_event *e = exec_scratch.lookup(&zero);
  if (!e) return 0;
  e->truncated = 0;
  u32 used = 0;
  int i;
  for (i = 0; i < MAX_ARGS; i++) {
    const char *arg = NULL;
    bpf_probe_read_user(&arg, sizeof(arg), &argv[i]);
    if (!arg) break;
    if (used >= ARGV_BYTES) {
      e->truncated = 1;
      break;
    }
    int n = bpf_probe_read_user_str(&e->argv[used & (ARGV_BYTES - 1)], ARG_BYTES, arg);
    if (n <= 0) {
      e->truncated = 1;
      break;
    }
    if (n == ARG_BYTES) e->truncated = 1;
    used += n;
  }
  if (i == MAX_ARGS) e->truncated = 1;
  e->argv_bytes = used;
  pending_exec.update(&tid, e);
  return 0;
}

/* The exec has succeeded. A thread that execs takes its process's pid over,
 * so what it asked for lies under its old tid. */
TRACEPOINT_PROBE(sched, sched_process_exec) {
  u32 pid = current_pid(), tid = args->old_pid;
  int zero = 0;
  u64 *start_ns = tracked.lookup(&pid);
  if (!start_ns) return 0;
  layouts.delete(&pid);
  struct exec_event *e = pending_exec.lookup(&tid);
  if (!e) { /* asked for before we came, or by execveat: the reader looks in /proc */
    e = exec_scratch.lookup(&zero);
    if (!e) return 0;
    e->argv_bytes = 0;
    e->truncated = 1;
  }
  fill_header(&e->h, KIND_EXEC, sizeof(*e), *start_ns);
  TP_DATA_LOC_READ_STR(e->filename, filename, FILENAME_BYTES);
  send(e, sizeof(*e), KIND_EXEC, AT_ONCE);
  pending_exec.delete(&tid);
  return 0;
}

/* How a process ends is told before it does: by itself, or by a signal that it
 * leaves to its default. The first word stands: exit_group kills the other
 * threads by SIGKILL, which is not how the process ended. */
TRACEPOINT_PROBE(syscalls, sys_enter_exit_group) {
  u32 pid = current_pid();
  if (!tracked.lookup(&pid)) return 0;
  s32 status = (args->error_code & 0xff) << 8;
  wait_status.insert(&pid, &status);
  return 0;
}

#define SIGNAL_KILL 9
#define ENDS_NOTHING ((1ull << 17) | (1ull << 18) | (1ull << 19) | (1ull << 20) | \
                      (1ull << 21) | (1ull << 22) | (1ull << 23) | (1ull << 28))

/* A fatal signal that dumps no core reaches its target as SIGKILL. */
TRACEPOINT_PROBE(signal, signal_generate) {
  u32 pid = args->pid;
  s32 number = args->sig & 0x7f;
  if (!tracked.lookup(&pid) || (number < 32 && (ENDS_NOTHING & (1ull << number)))) return 0;
  last_signal.update(&pid, &number);
  return 0;
}

TRACEPOINT_PROBE(signal, signal_deliver) {
  u32 pid = current_pid();
  if (args->sa_handler || !tracked.lookup(&pid)) return 0;
  s32 number = args->sig & 0x7f;
  if (number < 32 && (ENDS_NOTHING & (1ull << number))) return 0;
  s32 *sent = number == SIGNAL_KILL ? last_signal.lookup(&pid) : NULL;
  if (sent) number = *sent;
  wait_status.insert(&pid, &number);
  return 0;
}

TRACEPOINT_PROBE(sched, sched_process_exit) {
  u64 id = bpf_get_current_pid_tgid();
  u32 pid = id >> 32;
  u64 *start_ns = tracked.lookup(&pid);
  if (!start_ns) return 0;
#ifdef HAVE_GROUP_DEAD
  if (!args->group_dead) return 0;
#else
  if ((u32)id != pid) return 0; /* the main thread stands for the process */
#endif
  struct exit_event e = {};
  fill_header(&e.h, KIND_EXIT, sizeof(e), *start_ns);
  s32 *status = wait_status.lookup(&pid);
  e.wait_status = status ? *status : -1;
  send(&e, sizeof(e), KIND_EXIT, AT_ONCE);
  forget(pid);
  return 0;
}
