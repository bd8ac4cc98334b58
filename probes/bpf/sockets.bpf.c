/* The moment a TCP socket listens, and the first connection it accepts.
 *
 * inet_sock_set_state fires inside listen(2), in the caller, for TCP alone:
 * Unix sockets (ZMQ's) never pass here.
 */

#define TCP_LISTEN 10

struct listening { u64 start_ns; u32 fd; u16 family; u16 port; };
struct socket_key { u32 pid; u32 fd; };
BPF_TABLE("lru_hash", u32, struct listening, listening, 1024); /* tid -> listen(2) under way */
BPF_TABLE("lru_hash", struct socket_key, u16, listeners, 1024); /* awaiting their first accept -> port */
BPF_TABLE("lru_hash", u32, u32, accepting_fd, 1024);           /* tid -> accept(2) under way */

INLINE void send_socket(u16 kind, u64 start_ns, u16 family, u16 port, u32 fd) {
  struct socket_event e = {};
  fill_header(&e.h, kind, sizeof(e), start_ns);
  e.family = family;
  e.port = port;
  e.fd = fd;
  send(&e, sizeof(e), kind, AT_ONCE);
}

/* The stack goes first, so that whoever sees the event knows who listens. */
INLINE int send_listen(void) {
  u32 tid = bpf_get_current_pid_tgid();
  struct listening *l = listening.lookup(&tid);
  if (l) send_socket(KIND_LISTEN, l->start_ns, l->family, l->port, l->fd);
  return 0;
}

TRACEPOINT_PROBE(syscalls, sys_enter_listen) {
  u32 pid = current_pid(), tid = bpf_get_current_pid_tgid();
  u64 *start_ns = tracked.lookup(&pid);
  if (!start_ns) return 0;
  struct listening l = {.start_ns = *start_ns, .fd = args->fd};
  listening.update(&tid, &l);
  return 0;
}

TRACEPOINT_PROBE(sock, inet_sock_set_state) {
  u32 pid = current_pid(), tid = bpf_get_current_pid_tgid();
  if (args->newstate != TCP_LISTEN || !tracked.lookup(&pid)) return 0;
  struct listening *l = listening.lookup(&tid);
  if (!l) return 0;
  l->family = args->family;
  u16 port = args->sport;
  l->port = port;
  struct socket_key k = {.pid = pid, .fd = l->fd};
  listeners.update(&k, &port);
  struct walk *w = begin_walk(SLOT_EDGE, CAUSE_EDGE, l->start_ns);
  if (w && w->frame) edge_walkers.call(args, 0);
  return send_listen();
}

int walk_on_edge(void *ctx) {
  if (go_on(SLOT_EDGE)) {
    edge_walkers.call(ctx, 0);
    give_up(SLOT_EDGE);
  }
  return send_listen();
}

INLINE int begin_accept(u32 fd) {
  u32 pid = current_pid(), tid = bpf_get_current_pid_tgid();
  struct socket_key k = {.pid = pid, .fd = fd};
  if (listeners.lookup(&k)) accepting_fd.update(&tid, &fd);
  return 0;
}

INLINE int end_accept(long ret) {
  u32 pid = current_pid(), tid = bpf_get_current_pid_tgid();
  u32 *fd = accepting_fd.lookup(&tid);
  if (!fd) return 0;
  struct socket_key k = {.pid = pid, .fd = *fd};
  accepting_fd.delete(&tid);
  u64 *start_ns = tracked.lookup(&pid);
  u16 *port = listeners.lookup(&k);
  if (ret < 0 || !start_ns || !port) return 0;
  send_socket(KIND_ACCEPT, *start_ns, 0, *port, k.fd);
  listeners.delete(&k);
  return 0;
}

TRACEPOINT_PROBE(syscalls, sys_enter_accept4) { return begin_accept(args->fd); }
TRACEPOINT_PROBE(syscalls, sys_exit_accept4) { return end_accept(args->ret); }
TRACEPOINT_PROBE(syscalls, sys_enter_accept) { return begin_accept(args->fd); }
TRACEPOINT_PROBE(syscalls, sys_exit_accept) { return end_accept(args->ret); }
