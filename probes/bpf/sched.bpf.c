/* Cores and waits: how long every thread ran on which core, and every wait
 * worth telling with what it was in (the kernel's own stack) and who ended it.
 * The stack samples of on_clock and of threads that leave the CPU start here.
 */

#define STATE_INTERRUPTIBLE 0x1
#define STATE_UNINTERRUPTIBLE 0x2
#define STATE_STOPPED 0xc /* stopped, traced */
#define STATE_DEAD 0x30
#define STATES_OF_LEAVING 0xff /* the bits above mark a preempted task */

#define TELL_WAITS_OF_NS 1000000ull /* of threads other than the main one */
#define MAX_BUCKETS 8               /* that one stretch on the CPU may span between two ticks */

struct off_cpu {
  u64 left_ns;
  u64 woken_ns;
  u32 waker_pid;
  u32 waker_tid;
  s32 kernel_stack;
  u32 state;
};
struct on_cpu { u64 since_ns; u32 cpu; u32 pad; };
BPF_HASH(running, u32, struct on_cpu, 32768);    /* tid -> what is not yet added up */
BPF_HASH(off_cpus, u32, struct off_cpu, 32768);  /* tid -> its wait under way */
BPF_HASH(ran, struct ran_key, struct ran_value, 16384);

INLINE void add_ran(u32 tid, struct thread *t, u64 bucket, u64 ran_ns) {
  struct ran_key k = {.bucket = bucket, .tid = tid, .cpu = bpf_get_smp_processor_id()};
  struct ran_value *sum = ran.lookup(&k);
  if (sum) {
    sum->ran_ns += ran_ns; /* a thread runs on one core at a time */
    return;
  }
  struct ran_value first = {.start_ns = t->start_ns, .ran_ns = ran_ns, .pid = t->pid};
  if (ran.update(&k, &first)) count_lost(KIND_RAN);
}

/* Adds up what a thread ran since `since_ns`, each bucket its part. */
INLINE void add_stretch(u32 tid, struct thread *t, u64 since_ns, u64 now_ns) {
  for (int i = 0; i < MAX_BUCKETS; i++) {
    u64 bucket = since_ns / BUCKET_NS, end_ns = (bucket + 1) * BUCKET_NS;
    if (end_ns > now_ns || i == MAX_BUCKETS - 1) end_ns = now_ns;
    add_ran(tid, t, bucket, end_ns - since_ns);
    since_ns = end_ns;
    if (since_ns >= now_ns) break;
  }
}

INLINE void tell_wait(u32 tid, struct thread *t, struct off_cpu *o, u64 end_ns) {
  struct wait_event e = {};
  fill_header(&e.h, KIND_WAIT, sizeof(e), t->start_ns);
  e.h.ts_ns = o->left_ns;
  e.h.pid = t->pid;
  e.h.tid = tid;
  e.end_ns = end_ns;
  e.woken_ns = o->woken_ns;
  e.waker_pid = o->waker_pid;
  e.waker_tid = o->waker_tid;
  e.kernel_stack = o->kernel_stack;
  e.state = o->state;
  send(&e, sizeof(e), KIND_WAIT, QUIETLY);
}

INLINE void run_from(u32 tid, u64 now_ns) {
  struct on_cpu c = {.since_ns = now_ns, .cpu = bpf_get_smp_processor_id()};
  if (running.update(&tid, &c)) count_lost(KIND_RAN);
}

INLINE void arrive(u32 tid, u64 now_ns) {
  struct thread *t = known_threads.lookup(&tid);
  if (!t) return;
  run_from(tid, now_ns);
  struct off_cpu *o = off_cpus.lookup(&tid);
  if (!o) return;
  if (tid == t->pid || now_ns - o->left_ns >= TELL_WAITS_OF_NS) tell_wait(tid, t, o, now_ns);
  off_cpus.delete(&tid);
}

INLINE u32 state_of(long prev_state) {
  if (prev_state & STATE_INTERRUPTIBLE) return WAIT_SLEEPING;
  if (prev_state & STATE_UNINTERRUPTIBLE) return WAIT_BLOCKED;
  if (prev_state & STATE_STOPPED) return WAIT_STOPPED;
  return prev_state & STATES_OF_LEAVING ? WAIT_BLOCKED : WAIT_PREEMPTED;
}

TRACEPOINT_PROBE(sched, sched_switch) {
  u64 now_ns = bpf_ktime_get_ns(), id = bpf_get_current_pid_tgid();
  u32 pid = id >> 32, tid = id;
  arrive(args->next_pid, now_ns);
  struct thread *t = known_threads.lookup(&tid);
  if (!t) return 0;
  struct on_cpu *c = running.lookup(&tid);
  if (c) add_stretch(tid, t, c->since_ns, now_ns);
  running.delete(&tid);
  if (args->prev_state & STATE_DEAD) {
    known_threads.delete(&tid);
    return 0;
  }
  struct off_cpu o = {.left_ns = now_ns, .state = state_of(args->prev_state), .kernel_stack = -1};
  if (o.state == WAIT_PREEMPTED)
    o.woken_ns = now_ns;
  else
    o.kernel_stack = kernel_stacks.get_stackid(args, 0);
  if (o.kernel_stack == PLACE_IS_TAKEN) {
    o.kernel_stack = more_kernel_stacks.get_stackid(args, 0);
    if (o.kernel_stack >= 0) o.kernel_stack += KERNEL_STACKS;
  }
  if (o.state != WAIT_PREEMPTED && o.kernel_stack < 0) count_lost(KIND_STACK);
  off_cpus.update(&tid, &o);
#ifdef SAMPLING
  struct walk *w = begin_leaving(pid, tid, t->start_ns, o.state != WAIT_PREEMPTED, now_ns);
  if (!w) return 0;
  switch_walkers.call(args, 0);
  finish_walk(w);
#endif
  return 0;
}

/* In the waker; in an interrupt that is whatever it interrupted, which the
 * reader tells by what the wait was in. */
TRACEPOINT_PROBE(sched, sched_waking) {
  u32 tid = args->pid;
  struct off_cpu *o = off_cpus.lookup(&tid);
  if (!o || o->woken_ns) return 0;
  u64 id = bpf_get_current_pid_tgid();
  o->woken_ns = bpf_ktime_get_ns();
  o->waker_pid = id >> 32;
  o->waker_tid = id;
  return 0;
}

int on_clock(struct bpf_perf_event_data *ctx) {
  u64 now_ns = bpf_ktime_get_ns(), id = bpf_get_current_pid_tgid();
  u32 pid = id >> 32, tid = id;
  struct thread *t = known_threads.lookup(&tid);
  if (!t) return 0;
  struct on_cpu *c = running.lookup(&tid);
  if (c) add_stretch(tid, t, c->since_ns, now_ns);
  run_from(tid, now_ns);
  struct walk *w = begin_walk(SLOT_CLOCK, CAUSE_ON_CPU, t->start_ns);
  if (!w) return 0;
  if ((s64)ctx->regs.ip >= 0)
    w->sample.ip = ctx->regs.ip;
  else
    w->sample.kernel_stack = kernel_stacks.get_stackid(ctx, 0);
  if (w->sample.kernel_stack == PLACE_IS_TAKEN) {
    w->sample.kernel_stack = more_kernel_stacks.get_stackid(ctx, 0);
    if (w->sample.kernel_stack >= 0) w->sample.kernel_stack += KERNEL_STACKS;
  }
  if (!w->sample.ip && w->sample.kernel_stack < 0) count_lost(KIND_STACK);
  struct python_layout *layout = layouts.lookup(&pid);
  if (w->frame && layout) {
    has_changed(layout, w->frame, now_ns);
    clock_walkers.call(ctx, 0);
  }
  forget_top(tid);
  finish_walk(w);
  return 0;
}
