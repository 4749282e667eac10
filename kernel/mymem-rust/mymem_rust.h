/* SPDX-License-Identifier: GPL-2.0-only */
/* mymem_rust's interface for other modules, documented in ../mymem/mymem.h for mymem. */
#ifndef MYMEM_RUST_H
#define MYMEM_RUST_H

#include <linux/types.h>

ssize_t mymem_rust_read(void *to, size_t count, loff_t pos);
ssize_t mymem_rust_write(const void *from, size_t count, loff_t pos);
int mymem_rust_fetch_add(loff_t offset, u64 *operand);

#endif /* MYMEM_RUST_H */
