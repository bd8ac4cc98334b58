#pragma once
#include <linux/types.h>
/* x86-64, as the kernel lays it out inside itself. */
struct pt_regs {
  unsigned long r15, r14, r13, r12, bp, bx;
  unsigned long r11, r10, r9, r8, ax, cx, dx, si, di;
  unsigned long orig_ax, ip, cs, flags, sp, ss;
};
