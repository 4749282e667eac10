// SPDX-License-Identifier: GPL-2.0-only
/* The C half of memory.rs and device.rs. */
#include <linux/export.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/moduleparam.h>
#include <linux/sched.h>
#include <linux/sizes.h>
#include <linux/vmalloc.h>

#include "../include/memwarden/version.h"
#include "device-shim.h"
#include "misc-shim.c"
#include "mymem_rust.h"

unsigned long mymem_rust_size = SZ_512K;
module_param_named(size, mymem_rust_size, ulong, 0444);
MODULE_PARM_DESC(size, "bytes of memory (default 524288, 1 to 1073741824)");

bool mymem_rust_strict = true;
module_param_named(strict, mymem_rust_strict, bool, 0444);
MODULE_PARM_DESC(strict, "refuse a range that passes the end (default), or shorten it (0)");

bool mymem_rust_exclusive;
module_param_named(exclusive, mymem_rust_exclusive, bool, 0444);
MODULE_PARM_DESC(exclusive, "let one open the device at a time (default 0)");

void *mymem_shim_allocate(size_t size)
{
	/* Unchecked, the OOM killer would end other programs before the allocation fails. */
	if (si_mem_available() < (long)(size >> PAGE_SHIFT))
		return NULL;
	return vmalloc_user(size);
}

void mymem_shim_free(void *memory)
{
	vfree(memory);
}

int mymem_shim_map(struct vm_area_struct *area, void *memory)
{
	return remap_vmalloc_range(area, memory, area->vm_pgoff);
}

/* A macro that makes the lock's class. */
void mymem_shim_lock_init(struct rw_semaphore *lock)
{
	init_rwsem(lock);
}

u64 mymem_shim_fetch_add(void *word, u64 operand)
{
	return atomic64_fetch_add(operand, (atomic64_t *)word);
}

u64 mymem_shim_compare_exchange(void *word, u64 expected, u64 desired)
{
	return atomic64_cmpxchg((atomic64_t *)word, expected, desired);
}

void mymem_shim_offer_cpu(void)
{
	cond_resched();
}

MODULE_VERSION(MEMWARDEN_VERSION);

/* Defined in exports.rs. */
EXPORT_SYMBOL_GPL(mymem_rust_read);
EXPORT_SYMBOL_GPL(mymem_rust_write);
EXPORT_SYMBOL_GPL(mymem_rust_fetch_add);
