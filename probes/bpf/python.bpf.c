/* CPython from outside: what a thread's stack is, read where it stands still.
 *
 * The walk: _PyRuntime -> interpreters -> threads -> the thread whose native id
 * is ours -> its current frame -> the chain of previous frames. Offsets come
 * from the process's entry in `layouts`, so one program serves every version.
 */

BPF_HASH(layouts, u32, struct python_layout, 16384);    /* pid -> its CPython */
BPF_TABLE("lru_hash", u64, u8, told, 131072);           /* function keys already described */
struct thread_entry { u64 state; u64 checked_ns; u64 misses; };
BPF_TABLE("lru_hash", u64, struct thread_entry, threads, 16384); /* pid_tgid -> PyThreadState */

/* What the last sample of a thread showed, and how many walks of its waits it
 * may have: they refill with time, up to a burst. */
struct top { u64 frame; u64 code; u64 caller; };
struct last_sample { struct top top; u64 ts_ns; u64 refilled_ns; u64 walks; };
BPF_TABLE("lru_hash", u32, struct last_sample, last_samples, 16384); /* tid -> */

#define THREADS_SEARCHED 512
#define FRAMES_A_CALL 64
#define CALLS_A_WALK (MAX_FRAMES / FRAMES_A_CALL)
#define NOT_PYTHON_FOR_NS 20000000ull /* a native thread is asked again after this, */
#define MISSES_TO_BELIEVE 64 /* once it wasn't found so often: a young thread isn't listed yet */

/* The parts of a frame and of a code object that hold what the walk reads, in
 * every known version, in words of 8 bytes. */
#define FRAME_WORDS 8
#define CODE_WORDS 32

/* One walk under way. The CPU clock interrupts the other programs, so each
 * kind of program has a slot of its own. */
enum slot { SLOT_CLOCK, SLOT_SWITCH, SLOT_EDGE, SLOT_COUNT };
struct walk {
  u64 frame;
  u64 began_ns;
  u64 frame_words[FRAME_WORDS]; /* one read of each object costs less than one a field */
  u64 code_words[CODE_WORDS];
  struct sample_event sample;
};
BPF_PERCPU_ARRAY(walks, struct walk, SLOT_COUNT);
BPF_PROG_ARRAY(clock_walkers, 1);
BPF_PROG_ARRAY(switch_walkers, 1);
BPF_PROG_ARRAY(edge_walkers, 1);

/* The thread's id as its own PID namespace numbers it, which is what CPython
 * wrote down. */
INLINE u32 inner_tid(struct python_layout *layout) {
  if (!layout->pidns_ino) return bpf_get_current_pid_tgid();
  struct bpf_pidns_info inner = {};
  bpf_get_ns_current_pid_tgid(layout->pidns_dev, layout->pidns_ino, &inner, sizeof(inner));
  return inner.pid;
}

INLINE u32 native_id(struct python_layout *layout, u64 state) {
  if (layout->thread_native_id_indirect == NO_OFFSET)
    return read_u32(state + layout->thread_native_id);
  u64 pthread = read_u64(state + layout->thread_native_id);
  return pthread ? read_u32(pthread + layout->thread_native_id_indirect) : 0;
}

INLINE u64 search_threads(struct python_layout *layout, u32 tid) {
  u64 interpreter = read_u64(layout->runtime + layout->runtime_interpreters_head);
  u64 state = interpreter ? read_u64(interpreter + layout->interpreter_threads_head) : 0;
  for (int i = 0; i < THREADS_SEARCHED; i++) {
    if (!state) {
      if (!interpreter) break;
      interpreter = read_u64(interpreter + layout->interpreter_next);
      if (!interpreter) break;
      state = read_u64(interpreter + layout->interpreter_threads_head);
      continue;
    }
    if (native_id(layout, state) == tid) return state;
    state = read_u64(state + layout->thread_next);
  }
  return 0;
}

/* The current thread's PyThreadState, 0 for a thread that runs no Python. */
INLINE u64 thread_state(struct python_layout *layout, u64 now_ns) {
  u64 id = bpf_get_current_pid_tgid();
  u32 tid = inner_tid(layout);
  struct thread_entry *known = threads.lookup(&id);
  u64 misses = 0;
  if (known && known->state) {
    if (native_id(layout, known->state) == tid) return known->state;
  } else if (known) {
    misses = known->misses;
    if (misses >= MISSES_TO_BELIEVE && now_ns - known->checked_ns < NOT_PYTHON_FOR_NS) return 0;
  }
  struct thread_entry found = {.state = search_threads(layout, tid), .checked_ns = now_ns};
  if (!found.state) found.misses = misses + 1;
  threads.update(&id, &found);
  return found.state;
}

/* Code objects are freed and their addresses used again, so the address alone
 * does not name a function; with what it points to it does. */
struct code {
  u64 address;
  u64 name;
  u64 file;
  u32 line;
};

INLINE struct code read_code(struct python_layout *layout, u64 address) {
  struct code c = {.address = address};
  c.name = read_u64(address + layout->code_name);
  c.file = read_u64(address + layout->code_filename);
  c.line = read_u32(address + layout->code_first_line);
  return c;
}

INLINE u64 code_word(struct walk *w, u32 offset) {
  return w->code_words[(offset / sizeof(u64)) & (CODE_WORDS - 1)];
}

INLINE u64 frame_word(struct walk *w, u32 offset) {
  return w->frame_words[(offset / sizeof(u64)) & (FRAME_WORDS - 1)];
}

/* The same as read_code, out of a copy of the object. */
INLINE struct code copied_code(struct walk *w, struct python_layout *layout, u64 address) {
  struct code c = {.address = address};
  c.name = code_word(w, layout->code_name);
  c.file = code_word(w, layout->code_filename);
  c.line = code_word(w, layout->code_first_line) >> (layout->code_first_line & 4) * 8;
  return c;
}

INLINE u64 mix(u64 hash, u64 value) {
  hash = (hash ^ value) * 0x9E3779B97F4A7C15ull;
  return hash ^ (hash >> 29);
}

INLINE u64 code_key(struct code *c) {
  u64 hash = mix(current_pid(), c->address);
  return mix(mix(mix(hash, c->name), c->file), c->line);
}

/* Where a string's characters lie and how wide they are (1, 2 or 4 bytes). */
INLINE u64 text_data(struct python_layout *layout, u64 string, struct text *t, u32 *width) {
  t->state = read_u32(string + layout->string_state);
  t->length = read_u64(string + layout->string_length);
  /* Bit fields: interned (2 bits; 16 in some 3.14, then below 4), kind, compact, ascii. */
  u32 bits = t->state >> 2;
  if (!(bits & 7)) bits = t->state >> 16;
  *width = bits & 7;
  u32 ascii = (bits >> 4) & 1;
  return string + (ascii ? layout->string_ascii_data : layout->string_compact_data);
}

INLINE void read_text(char *to, u32 room, u64 from, u64 bytes) {
  if (bytes > room) bytes = room;
  if (bytes) bpf_probe_read_user(to, bytes, (void *)from);
}

INLINE void describe(struct python_layout *layout, struct code *c, u64 key, u64 start_ns) {
  if (told.lookup(&key)) return;
  struct function_event *e = events.ringbuf_reserve(sizeof(*e));
  if (!e) e = events.ringbuf_reserve(sizeof(*e));
  if (!e) e = events.ringbuf_reserve(sizeof(*e));
  if (!e) {
    count_lost(KIND_FUNCTION);
    return;
  }
  u32 width = 0;
  fill_header(&e->h, KIND_FUNCTION, sizeof(*e), start_ns);
  e->key = key;
  e->line = c->line;
  e->version = layout->version;
  u64 data = text_data(layout, c->file, &e->file, &width);
  u64 bytes = (u64)e->file.length * width;
  u64 skip = bytes > FILE_BYTES ? bytes - FILE_BYTES : 0; /* a path's end tells more */
  read_text(e->file_data, FILE_BYTES, data + skip, bytes);
  data = text_data(layout, c->name, &e->name, &width);
  read_text(e->name_data, NAME_BYTES, data, (u64)e->name.length * width);
  events.ringbuf_submit(e, QUIETLY);
  count_seen(KIND_FUNCTION);
  u8 yes = 1;
  told.update(&key, &yes);
}

/* The next frames of a walk; true when there is nothing left to walk. */
INLINE int walk_some(struct walk *w) {
  u32 pid = w->sample.h.pid;
  struct python_layout *layout = layouts.lookup(&pid);
  if (!layout) return 1;
  u64 frame = w->frame;
  for (int i = 0; i < FRAMES_A_CALL; i++) {
    if (!frame) break;
    if (bpf_probe_read_user(w->frame_words, sizeof(w->frame_words), (void *)frame)) break;
    /* 3.14 tags pointers in their low bits. Entry frames hold no code. */
    u64 address = frame_word(w, layout->frame_code) & ~7ull;
    if (address &&
        !bpf_probe_read_user(w->code_words, sizeof(w->code_words), (void *)address) &&
        code_word(w, layout->object_type) == layout->code_type) {
      struct code c = copied_code(w, layout, address);
      u64 key = code_key(&c);
      describe(layout, &c, key, w->sample.h.start_ns);
      u32 n = w->sample.frames;
      if (n >= MAX_FRAMES) break;
      w->sample.keys[n & (MAX_FRAMES - 1)] = key;
      w->sample.frames = n + 1;
    }
    frame = frame_word(w, layout->frame_previous);
  }
  int is_stuck = frame == w->frame; /* unreadable */
  w->frame = frame;
  return !frame || is_stuck || w->sample.frames >= MAX_FRAMES;
}

INLINE void finish_walk(struct walk *w) {
  u32 n = w->sample.frames;
  w->sample.truncated = w->frame != 0;
  if (n > MAX_FRAMES) n = MAX_FRAMES;
  u32 bytes = offsetof(struct sample_event, keys) + n * sizeof(u64);
  w->sample.h.size = bytes;
  send(&w->sample, bytes, KIND_SAMPLE, QUIETLY);
  count_cost(KIND_SAMPLE, w->began_ns);
}

INLINE u64 first_frame(struct python_layout *layout, u64 state) {
  u64 frame = read_u64(state + layout->thread_frame);
  if (layout->cframe_current_frame == NO_OFFSET || !frame) return frame;
  return read_u64(frame + layout->cframe_current_frame);
}

INLINE struct top read_top(struct python_layout *layout, u64 frame) {
  struct top t = {.frame = frame};
  t.code = read_u64(frame + layout->frame_code);
  t.caller = read_u64(frame + layout->frame_previous);
  return t;
}

/* Remembers what a thread's sample shows. False if the last one showed the
 * same frame called from the same place: the stack is known then. */
INLINE int has_changed(struct python_layout *layout, u64 frame, u64 now_ns) {
  u32 tid = bpf_get_current_pid_tgid();
  struct top now = read_top(layout, frame);
  struct last_sample *last = last_samples.lookup(&tid);
  if (!last) {
    struct last_sample first = {.top = now, .ts_ns = now_ns, .walks = BURST_OF_WALKS};
    last_samples.update(&tid, &first);
    return 1;
  }
  int same = last->top.frame == now.frame && last->top.code == now.code &&
             last->top.caller == now.caller;
  last->top = now;
  last->ts_ns = now_ns;
  return !same;
}

/* A sample without a stack was told of the thread: the next one is new. */
INLINE void forget_top(u32 tid) {
  struct last_sample *last = last_samples.lookup(&tid);
  if (last) last->top.frame = 0;
}

/* Whether the thread may have its wait walked now. A thread that waits all the
 * time, each time elsewhere, must not pay for each. */
INLINE int may_walk(u64 now_ns, u64 refill_ns) {
  u32 tid = bpf_get_current_pid_tgid();
  struct last_sample *last = last_samples.lookup(&tid);
  if (!last) return 1;
  u64 more = (now_ns - last->refilled_ns) / refill_ns;
  if (more) {
    last->walks = last->walks + more > BURST_OF_WALKS ? BURST_OF_WALKS : last->walks + more;
    last->refilled_ns = now_ns;
  }
  if (!last->walks) {
    last->top.frame = 0; /* what it shows now was not told */
    return 0;
  }
  last->walks--;
  return 1;
}

/* Begins a walk of the current thread in a slot. The thread runs Python only
 * if its frame is set. */
INLINE struct walk *begin_walk(int slot, u8 cause, u64 start_ns) {
  struct walk *w = walks.lookup(&slot);
  if (!w) return NULL;
  fill_header(&w->sample.h, KIND_SAMPLE, 0, start_ns);
  w->began_ns = w->sample.h.ts_ns;
  w->sample.cause = cause;
  w->sample.frames = 0;
  w->sample.truncated = 0;
  w->sample.kernel_stack = -1;
  w->sample.ip = 0;
  w->frame = 0;
  u32 pid = w->sample.h.pid;
  struct python_layout *layout = layouts.lookup(&pid);
  if (!layout) return w;
  u64 state = thread_state(layout, w->began_ns);
  if (state) w->frame = first_frame(layout, state);
  return w;
}

/* The next part of the walk in a slot; false when it is done and sent. A
 * walk longer than the verifier lets one program loop goes on in a tail call
 * of the same program; each type of program needs its own. */
INLINE int go_on(int slot) {
  struct walk *w = walks.lookup(&slot);
  if (!w) return 0;
  if (!walk_some(w)) return 1;
  finish_walk(w);
  return 0;
}

INLINE int give_up(int slot) { /* no tail call is left: send what there is */
  struct walk *w = walks.lookup(&slot);
  if (w) finish_walk(w);
  return 0;
}

int walk_on_clock(struct bpf_perf_event_data *ctx) {
  if (!go_on(SLOT_CLOCK)) return 0;
  clock_walkers.call(ctx, 0);
  return give_up(SLOT_CLOCK);
}

int walk_on_switch(void *ctx) {
  if (!go_on(SLOT_SWITCH)) return 0;
  switch_walkers.call(ctx, 0);
  return give_up(SLOT_SWITCH);
}

/* Whether the clock has missed this thread for a period: one that yields all
 * the time is seldom the one that the tick finds. */
INLINE int is_overdue(u32 tid, u64 now_ns) {
  struct last_sample *last = last_samples.lookup(&tid);
  return !last || now_ns - last->ts_ns > PERIOD_NS;
}

/* Begins the walk of a thread that leaves the CPU, if it is wanted: it is still
 * current, and its memory can be read. Main threads, which the steps follow,
 * are walked more often. */
INLINE struct walk *begin_leaving(u32 pid, u32 tid, u64 start_ns, int waits, u64 now_ns) {
  struct python_layout *layout = layouts.lookup(&pid);
  if (!layout || (!waits && (tid != pid || !is_overdue(tid, now_ns)))) return NULL;
  struct walk *w = begin_walk(SLOT_SWITCH, waits ? CAUSE_WAIT : CAUSE_YIELDED, start_ns);
  if (!w || !w->frame) return NULL;
  int changed = has_changed(layout, w->frame, now_ns);
  if (!waits) return w;
  if (!changed || !may_walk(now_ns, tid == pid ? MAIN_REFILL_NS : OTHER_REFILL_NS)) return NULL;
  return w;
}
