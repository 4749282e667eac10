/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Kernel functions for device.rs that Linux 6.12 does not offer to Rust: module
 * parameters, memory that can be mapped, a lock's class, atomic words.
 */
#ifndef DEVICE_SHIM_H
#define DEVICE_SHIM_H

#include <linux/mm_types.h>
#include <linux/rwsem.h>
#include <linux/types.h>

/* The module's parameters; they don't change once it is loaded. */
extern unsigned long mymem_rust_size;
extern bool mymem_rust_strict;
extern bool mymem_rust_exclusive;

/* @size bytes of 0, aligned to a page; NULL if the machine has less memory left. */
void *mymem_shim_allocate(size_t size);
void mymem_shim_free(void *memory);
int mymem_shim_map(struct vm_area_struct *area, void *memory);
void mymem_shim_lock_init(struct rw_semaphore *lock);
u64 mymem_shim_fetch_add(void *word, u64 operand);
u64 mymem_shim_compare_exchange(void *word, u64 expected, u64 desired);
void mymem_shim_offer_cpu(void);

#endif /* DEVICE_SHIM_H */
