/* Module bodies: PyEval_EvalCode, entered and left once for each.
 *
 * It also runs exec() and eval(); those count as module bodies only if their
 * code is named <module> and comes from a file.
 */

#define BODIES_DEEP 64

struct body_key { u64 id; u64 depth; };
struct body {
  u64 stack;    /* the stack pointer at the entry, to match the return with */
  u64 start_ns; /* of the process */
  u64 ts_ns;
  u64 key;
};
BPF_HASH(bodies, struct body_key, struct body, 65536);
BPF_TABLE("lru_hash", u64, u64, body_depth, 16384); /* pid_tgid -> module bodies under way */
BPF_HASH(file_layouts, u64, struct python_layout, 256); /* attach cookie -> what that file says */

/* The process's layout. Before the reader has proven one, the file's own words
 * serve: the probed instruction's place says where the file lies, so the walk
 * works from the first module body on. */
INLINE struct python_layout *code_layout(struct pt_regs *ctx, u32 pid) {
  struct python_layout *layout = layouts.lookup(&pid);
  if (layout) return layout;
  u64 cookie = GET_COOKIE(ctx);
  struct python_layout *file = file_layouts.lookup(&cookie);
  if (!file) return NULL;
  struct python_layout first = *file;
  first.runtime += ctx->ip;
  first.code_type += ctx->ip;
  layouts.update(&pid, &first);
  return layouts.lookup(&pid);
}

INLINE int is_module_body(struct python_layout *layout, struct code *c) {
  struct text t;
  u32 width = 0;
  char first = 0, name[8] = {};
  u64 data = text_data(layout, c->file, &t, &width);
  bpf_probe_read_user(&first, 1, (void *)data);
  if (first == '<') return 0; /* <string>, <frozen ...>: no file of its own */
  data = text_data(layout, c->name, &t, &width);
  if (t.length != sizeof(name) || width != 1) return 0;
  bpf_probe_read_user(name, sizeof(name), (void *)data);
  return name[0] == '<' && name[1] == 'm' && name[2] == 'o' && name[3] == 'd' && name[7] == '>';
}

INLINE void send_body(struct body *b, u64 end_ns, u32 depth) {
  struct module_event e = {};
  fill_header(&e.h, KIND_MODULE, sizeof(e), b->start_ns);
  e.h.ts_ns = b->ts_ns;
  e.end_ns = end_ns;
  e.key = b->key;
  e.depth = depth;
  send(&e, sizeof(e), KIND_MODULE, QUIETLY);
}

/* Drops the bodies whose return was not seen (the kernel keeps 64 return
 * probes a thread): they stood deeper in the stack, which grows down, than a
 * call that is known to be under way. Returns how many are left. */
INLINE u64 leave_ended(u64 id, u64 depth, u64 stack) {
  struct body_key at = {.id = id};
  for (int i = 0; i < BODIES_DEEP; i++) {
    if (!depth) break;
    at.depth = depth - 1;
    struct body *b = bodies.lookup(&at);
    if (b && b->stack >= stack) break;
    count_lost(KIND_MODULE);
    bodies.delete(&at);
    depth--;
  }
  return depth;
}

int on_body_entry(struct pt_regs *ctx) {
  u64 began_ns = bpf_ktime_get_ns(), id = bpf_get_current_pid_tgid();
  u32 pid = id >> 32;
  u64 *start_ns = tracked.lookup(&pid);
  if (!start_ns) return 0;
  struct python_layout *layout = code_layout(ctx, pid);
  if (!layout) {
    count_lost(KIND_MODULE);
    return 0;
  }
  struct code c = read_code(layout, PT_REGS_PARM1(ctx));
  if (!is_module_body(layout, &c)) return 0;
  struct body b = {.stack = ctx->sp, .start_ns = *start_ns, .ts_ns = began_ns};
  b.key = code_key(&c);
  describe(layout, &c, b.key, *start_ns);
  u64 *known = body_depth.lookup(&id);
  struct body_key at = {.id = id};
  if (known) at.depth = leave_ended(id, *known, ctx->sp + 1);
  bodies.update(&at, &b);
  u64 depth = at.depth + 1;
  if (known)
    *known = depth;
  else
    body_depth.update(&id, &depth);
  count_cost(KIND_MODULE, began_ns);
  return 0;
}

int on_body_return(struct pt_regs *ctx) {
  u64 began_ns = bpf_ktime_get_ns(), id = bpf_get_current_pid_tgid();
  u64 *known = body_depth.lookup(&id);
  if (!known || !*known) return 0;
  u32 pid = id >> 32;
  if (!tracked.lookup(&pid)) return 0;
  /* At the return the return address has just left the stack. */
  u64 stack = ctx->sp - sizeof(u64), depth = leave_ended(id, *known, stack);
  struct body_key at = {.id = id, .depth = depth - 1};
  struct body *b = depth ? bodies.lookup(&at) : NULL;
  if (b && b->stack == stack) { /* else what returns was no module body */
    send_body(b, began_ns, at.depth);
    bodies.delete(&at);
    depth--;
    count_cost(KIND_MODULE, began_ns);
  }
  *known = depth;
  return 0;
}
