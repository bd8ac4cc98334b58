#pragma once
#define KERNEL_VERSION(a, b, c) (((a) << 16) + ((b) << 8) + (c))
/* bcc's helpers.h asks for a version; we test for features instead. */
#define LINUX_VERSION_CODE KERNEL_VERSION(5, 8, 0)
