/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The kernel's own copies: what copy_from_user(), copy_to_user() and the like of a kernel
 * that asks an engine leave to it (kernel/patches). Other kernels don't ask.
 */
#ifndef CFTU_KERNEL_COPIES_H
#define CFTU_KERNEL_COPIES_H

#include "cftu.h"

/* The policy at load, unless the module's parameter names one. */
enum cftu_policy_kind kernel_copies_policy(void);

/* Where the kernel has a policy: takes its copies from min_bytes on, and lets go of them. */
void kernel_copies_start(void);
void kernel_copies_stop(void);

/* That it has changed. */
void kernel_copies_min_bytes(unsigned long min_bytes);

#endif /* CFTU_KERNEL_COPIES_H */
