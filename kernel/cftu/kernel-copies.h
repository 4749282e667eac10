/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The kernel's own copies: a patched kernel (kernel/patches) calls cftu from
 * copy_from_user(), copy_to_user() and the like. Other kernels don't.
 */
#ifndef CFTU_KERNEL_COPIES_H
#define CFTU_KERNEL_COPIES_H

#include "cftu.h"

/* The policy at load, if the module's parameter names none. */
enum cftu_policy_kind cftu_kernel_copies_policy(void);

/* Start and stop doing the kernel's copies of min_bytes and more, if its policy is not off. */
void cftu_kernel_copies_start(void);
void cftu_kernel_copies_stop(void);

/* Call when min_bytes has changed. */
void cftu_kernel_copies_min_bytes(unsigned long min_bytes);

#endif /* CFTU_KERNEL_COPIES_H */
