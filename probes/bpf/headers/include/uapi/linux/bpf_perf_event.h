#pragma once
#include <uapi/linux/ptrace.h>
typedef struct pt_regs bpf_user_pt_regs_t;
struct bpf_perf_event_data {
  bpf_user_pt_regs_t regs;
  __u64 sample_period;
  __u64 addr;
};
