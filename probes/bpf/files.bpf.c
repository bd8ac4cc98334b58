/* Files: successful opens, with the bytes read and mapped until they close.
 *
 * Folders, Python's sources, C headers, package metadata and the pseudo file
 * systems are left out here: there are tens of thousands, and imports are told
 * exactly elsewhere. The reader keeps what matters of the rest.
 */

struct opening { u64 path; s32 directory_fd; u32 pad; };
struct file_key { u32 pid; u32 fd; };
struct open_file {
  u64 opened_ns;
  u64 start_ns;
  u64 read_bytes;
  u64 mapped_bytes;
  s32 directory_fd;
  u32 tid;
  char path[PATH_BYTES];
};
BPF_HASH(openings, u32, struct opening, 16384);         /* tid -> open under way */
BPF_HASH(open_files, struct file_key, struct open_file, 16384);
BPF_HASH(reading, u32, struct file_key, 16384);         /* tid -> read under way */
BPF_PERCPU_ARRAY(open_scratch, struct open_file, 1);

struct device_path { char text[32]; };
BPF_HASH(device_files, struct file_key, struct device_path, 4096); /* a GPU's, open */

#define O_DIRECTORY 0200000

INLINE int begin_open(u64 path, s32 directory_fd, u64 flags) {
  u32 pid = current_pid(), tid = bpf_get_current_pid_tgid();
  if ((flags & O_DIRECTORY) || !tracked.lookup(&pid)) return 0;
  struct opening o = {.path = path, .directory_fd = directory_fd};
  openings.update(&tid, &o);
  return 0;
}

#define IS(p, i, c) ((p)[(i) & (PATH_BYTES - 1)] == (c))

INLINE int is_gpu(const char *p) {
  return p[0] == '/' && p[1] == 'd' && p[2] == 'e' && p[3] == 'v' && p[4] == '/' && p[5] == 'n' &&
         p[6] == 'v' && p[7] == 'i' && p[8] == 'd' && p[9] == 'i' && p[10] == 'a';
}

INLINE int left_out(const char *p, int n) {
  if (p[0] == '/') {
    if (p[1] == 'p' && p[2] == 'r' && p[3] == 'o' && p[4] == 'c' && p[5] == '/') return 1;
    if (p[1] == 's' && p[2] == 'y' && p[3] == 's' && p[4] == '/') return 1;
    if (p[1] == 'd' && p[2] == 'e' && p[3] == 'v' && p[4] == '/') return 1;
    if (p[1] == 'u' && p[2] == 's' && p[3] == 'r' && p[4] == '/' && p[5] == 'i' && p[6] == 'n' &&
        p[7] == 'c') return 1;
  }
  if (n < 5) return 0; /* n counts the closing NUL */
  int e = n - 1;
  if (IS(p, e - 2, '.') && IS(p, e - 1, 'h')) return 1;
  if (IS(p, e - 3, '.') && IS(p, e - 2, 'p') && IS(p, e - 1, 'y')) return 1;
  if (IS(p, e - 4, '.') && IS(p, e - 3, 'p') && IS(p, e - 2, 'y') && IS(p, e - 1, 'c')) return 1;
  if (IS(p, e - 4, 'D') && IS(p, e - 3, 'A') && IS(p, e - 2, 'T') && IS(p, e - 1, 'A')) return 1;
  if (IS(p, e - 4, '.') && IS(p, e - 3, 'h') && IS(p, e - 2, 'p') && IS(p, e - 1, 'p')) return 1;
  return 0;
}

INLINE void send_file(struct file_key *k, struct open_file *f) {
  struct file_event *e = events.ringbuf_reserve(sizeof(*e));
  if (!e) e = events.ringbuf_reserve(sizeof(*e));
  if (!e) e = events.ringbuf_reserve(sizeof(*e));
  if (!e) {
    count_lost(KIND_FILE);
    return;
  }
  fill_header(&e->h, KIND_FILE, sizeof(*e), f->start_ns);
  e->closed_ns = e->h.ts_ns;
  e->h.ts_ns = f->opened_ns;
  e->h.pid = k->pid;
  e->h.tid = f->tid;
  e->read_bytes = f->read_bytes;
  e->mapped_bytes = f->mapped_bytes;
  e->directory_fd = f->directory_fd;
  e->fd = k->fd;
  __builtin_memcpy(e->path, f->path, PATH_BYTES);
  events.ringbuf_submit(e, QUIETLY);
  count_seen(KIND_FILE);
}

INLINE int end_open(long fd) {
  u32 pid = current_pid(), tid = bpf_get_current_pid_tgid();
  struct opening *o = openings.lookup(&tid);
  if (!o) return 0;
  u64 path = o->path;
  s32 directory_fd = o->directory_fd;
  openings.delete(&tid);
  u64 *start_ns = tracked.lookup(&pid);
  int zero = 0;
  struct open_file *f = open_scratch.lookup(&zero);
  if (fd < 0 || !start_ns || !f) return 0;
  int n = bpf_probe_read_user_str(f->path, PATH_BYTES, (void *)path);
  struct file_key k = {.pid = pid, .fd = fd};
  if (n > 1 && is_gpu(f->path)) {
    struct device_path device = {};
    __builtin_memcpy(device.text, f->path, sizeof(device.text));
    device_files.update(&k, &device);
  }
  if (n <= 1 || left_out(f->path, n)) return 0;
  f->opened_ns = bpf_ktime_get_ns();
  f->start_ns = *start_ns;
  f->read_bytes = f->mapped_bytes = 0;
  f->directory_fd = directory_fd;
  f->tid = tid;
  struct open_file *stale = open_files.lookup(&k);
  if (stale) send_file(&k, stale); /* closed where we didn't see it (exec, close_range) */
  if (open_files.update(&k, f)) count_lost(KIND_FILE);
  return 0;
}

TRACEPOINT_PROBE(syscalls, sys_enter_openat) { return begin_open((u64)args->filename, args->dfd, args->flags); }
TRACEPOINT_PROBE(syscalls, sys_exit_openat) { return end_open(args->ret); }
TRACEPOINT_PROBE(syscalls, sys_enter_openat2) { return begin_open((u64)args->filename, args->dfd, 0); }
TRACEPOINT_PROBE(syscalls, sys_exit_openat2) { return end_open(args->ret); }
#ifdef HAVE_OPEN
TRACEPOINT_PROBE(syscalls, sys_enter_open) { return begin_open((u64)args->filename, -100, args->flags); }
TRACEPOINT_PROBE(syscalls, sys_exit_open) { return end_open(args->ret); }
#endif

INLINE int begin_read(u32 fd) {
  u32 pid = current_pid(), tid = bpf_get_current_pid_tgid();
  struct file_key k = {.pid = pid, .fd = fd};
  if (open_files.lookup(&k)) reading.update(&tid, &k);
  return 0;
}

INLINE int end_read(long bytes) {
  u32 tid = bpf_get_current_pid_tgid();
  struct file_key *k = reading.lookup(&tid);
  if (!k) return 0;
  struct file_key key = *k;
  reading.delete(&tid);
  struct open_file *f = open_files.lookup(&key);
  if (f && bytes > 0) __sync_fetch_and_add(&f->read_bytes, bytes);
  return 0;
}

TRACEPOINT_PROBE(syscalls, sys_enter_read) { return begin_read(args->fd); }
TRACEPOINT_PROBE(syscalls, sys_exit_read) { return end_read(args->ret); }
TRACEPOINT_PROBE(syscalls, sys_enter_pread64) { return begin_read(args->fd); }
TRACEPOINT_PROBE(syscalls, sys_exit_pread64) { return end_read(args->ret); }
TRACEPOINT_PROBE(syscalls, sys_enter_readv) { return begin_read(args->fd); }
TRACEPOINT_PROBE(syscalls, sys_exit_readv) { return end_read(args->ret); }
TRACEPOINT_PROBE(syscalls, sys_enter_preadv) { return begin_read(args->fd); }
TRACEPOINT_PROBE(syscalls, sys_exit_preadv) { return end_read(args->ret); }

TRACEPOINT_PROBE(syscalls, sys_enter_mmap) {
  struct file_key k = {.pid = current_pid(), .fd = args->fd};
  if ((int)args->fd < 0) return 0;
  struct open_file *f = open_files.lookup(&k);
  if (f) __sync_fetch_and_add(&f->mapped_bytes, args->len);
  return 0;
}

TRACEPOINT_PROBE(syscalls, sys_enter_close) {
  struct file_key k = {.pid = current_pid(), .fd = args->fd};
  struct open_file *f = open_files.lookup(&k);
  device_files.delete(&k);
  if (!f) return 0;
  send_file(&k, f);
  open_files.delete(&k);
  return 0;
}
