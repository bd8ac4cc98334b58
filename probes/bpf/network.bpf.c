/* The network as a start meets it: connections and names looked up. */

#define FAMILY_INET 2
#define FAMILY_INET6 10

BPF_TABLE("lru_hash", u32, struct connect_event, connecting, 1024); /* tid -> connect(2) under way */
BPF_TABLE("lru_hash", u32, struct lookup_event, looking_up, 1024);  /* tid -> getaddrinfo(3) under way */

TRACEPOINT_PROBE(syscalls, sys_enter_connect) {
  u32 pid = current_pid(), tid = bpf_get_current_pid_tgid();
  u64 *start_ns = tracked.lookup(&pid);
  if (!start_ns) return 0;
  u16 family = 0, port = 0;
  u64 address = (u64)args->uservaddr;
  bpf_probe_read_user(&family, sizeof(family), (void *)address);
  if (family != FAMILY_INET && family != FAMILY_INET6) return 0;
  struct connect_event e = {};
  fill_header(&e.h, KIND_CONNECT, sizeof(e), *start_ns);
  bpf_probe_read_user(&port, sizeof(port), (void *)address + 2);
  e.family = family;
  e.port = (port >> 8) | (port << 8);
  if (family == FAMILY_INET)
    bpf_probe_read_user(e.address, 4, (void *)address + 4);
  else
    bpf_probe_read_user(e.address, ADDRESS_BYTES, (void *)address + 8);
  connecting.update(&tid, &e);
  return 0;
}

TRACEPOINT_PROBE(syscalls, sys_exit_connect) {
  u32 tid = bpf_get_current_pid_tgid();
  struct connect_event *e = connecting.lookup(&tid);
  if (!e) return 0;
  e->end_ns = bpf_ktime_get_ns();
  e->error = -args->ret;
  send(e, sizeof(*e), KIND_CONNECT, QUIETLY);
  connecting.delete(&tid);
  return 0;
}

/* getaddrinfo(3) of the C library, its entry and its return. */
int on_lookup_entry(struct pt_regs *ctx) {
  u32 pid = current_pid(), tid = bpf_get_current_pid_tgid();
  u64 *start_ns = tracked.lookup(&pid);
  if (!start_ns || !PT_REGS_PARM1(ctx)) return 0;
  struct lookup_event e = {};
  fill_header(&e.h, KIND_LOOKUP, sizeof(e), *start_ns);
  bpf_probe_read_user_str(e.name, HOST_BYTES, (void *)PT_REGS_PARM1(ctx));
  looking_up.update(&tid, &e);
  return 0;
}

int on_lookup_return(struct pt_regs *ctx) {
  u32 tid = bpf_get_current_pid_tgid();
  struct lookup_event *e = looking_up.lookup(&tid);
  if (!e) return 0;
  e->end_ns = bpf_ktime_get_ns();
  e->error = PT_REGS_RC(ctx);
  send(e, sizeof(*e), KIND_LOOKUP, QUIETLY);
  looking_up.delete(&tid);
  return 0;
}
