/* Shared by all programs: who is traced, the way out, the counts. */
#include <uapi/linux/ptrace.h>
#include <uapi/linux/bpf_perf_event.h>

#define offsetof(type, member) __builtin_offsetof(type, member)
#define INLINE static inline __attribute__((always_inline))

/* bpf_ringbuf_output flags. The reader looks every few milliseconds; it is
 * woken only for what can't wait, since a wake-up costs the traced program a
 * context switch on a small machine. */
#define QUIETLY 1
#define AT_ONCE 2

BPF_HASH(tracked, u32, u64, 16384); /* pid -> start_ns */
struct thread { u64 start_ns; u32 pid; u32 pad; }; /* start_ns: of its process */
BPF_HASH(known_threads, u32, struct thread, 32768); /* tid -> whose it is */
BPF_RINGBUF_OUTPUT(events, RING_PAGES);

/* The kernel's stacks, kept by their hash; those whose place was taken go into
 * the second map, and are numbered behind the first. */
#define KERNEL_STACKS 16384
#define PLACE_IS_TAKEN -17
BPF_TABLE("stacktrace", int, struct bpf_stacktrace, kernel_stacks, KERNEL_STACKS);
BPF_TABLE("stacktrace", int, struct bpf_stacktrace, more_kernel_stacks, 4096);
BPF_PERCPU_ARRAY(seen_count, u64, KIND_COUNT);
BPF_PERCPU_ARRAY(lost_count, u64, KIND_COUNT);
BPF_PERCPU_ARRAY(cost_ns, u64, KIND_COUNT); /* time spent in the traced program */

/* Each CPU adds to its own slot: no atomics needed. */
INLINE void count_seen(int kind) {
  u64 *slot = seen_count.lookup(&kind);
  if (slot) *slot += 1;
}

INLINE void count_lost(int kind) {
  u64 *slot = lost_count.lookup(&kind);
  if (slot) *slot += 1;
}

INLINE void count_cost(int kind, u64 since_ns) {
  u64 *slot = cost_ns.lookup(&kind);
  if (slot) *slot += bpf_ktime_get_ns() - since_ns;
}

INLINE u32 current_pid(void) { return bpf_get_current_pid_tgid() >> 32; }

INLINE void fill_header(struct header *h, u16 kind, u32 size, u64 start_ns) {
  u64 id = bpf_get_current_pid_tgid();
  h->ts_ns = bpf_ktime_get_ns();
  h->start_ns = start_ns;
  h->pid = id >> 32;
  h->tid = id;
  h->kind = kind;
  h->cpu = bpf_get_smp_processor_id();
  h->size = size;
}

/* The ring's lock may be given up on (a virtual CPU that holds it is off its
 * core), so a failure counts only when it repeats. */
#define TRIES 4

INLINE void send(void *record, u32 bytes, int kind, u64 how) {
  for (int i = 0; i < TRIES; i++) {
    if (!events.ringbuf_output(record, bytes, how)) {
      count_seen(kind);
      return;
    }
  }
  count_lost(kind);
}

INLINE u64 read_u64(u64 address) {
  u64 value = 0;
  bpf_probe_read_user(&value, sizeof(value), (void *)address);
  return value;
}

INLINE u32 read_u32(u64 address) {
  u32 value = 0;
  bpf_probe_read_user(&value, sizeof(value), (void *)address);
  return value;
}
