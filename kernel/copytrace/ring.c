// SPDX-License-Identifier: GPL-2.0-only
/*
 * Rings of records. A CPU writes to its own rings only. An interrupt on that CPU may write
 * between: one local operation reserves a slot, and its sequence, written last, marks it whole.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt
#include <linux/cpumask.h>
#include <linux/kernel.h>
#include <linux/log2.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/percpu.h>
#include <linux/sizes.h>
#include <linux/vmalloc.h>

#include "ring.h"

static uint records = 65536;
module_param(records, uint, 0444);
MODULE_PARM_DESC(records, "records of each CPU's ring for each of the four functions, 64 bytes each (default 65536, a power of 2 from 64 on)");

/* Protects which file has a ring, and whether the ring records. */
DEFINE_MUTEX(copytrace_rings_lock);

DEFINE_PER_CPU(struct copytrace_ring[FUNCTIONS], copytrace_rings);

struct copytrace_ring *copytrace_ring_of(enum copytrace_function function, unsigned int cpu)
{
	return per_cpu_ptr(&copytrace_rings[function], cpu);
}

unsigned int copytrace_ring_records(void)
{
	return records;
}

size_t copytrace_ring_bytes(void)
{
	return PAGE_SIZE + PAGE_ALIGN(records * sizeof(struct copytrace_record));
}

static void wake_readers(struct irq_work *work)
{
	wake_up_interruptible(&container_of(work, struct copytrace_ring, filled)->waiting);
}

int copytrace_rings_init(void)
{
	unsigned int cpu, function;

	if (!is_power_of_2(records) || records < 64 || records > SZ_16M) {
		pr_err("records=%u: give a power of 2 from 64 to %u\n", records, SZ_16M);
		return -EINVAL;
	}
	for_each_possible_cpu(cpu) {
		for (function = 0; function < FUNCTIONS; function++) {
			struct copytrace_ring *ring = copytrace_ring_of(function, cpu);

			ring->function = function;
			ring->quarter = records / 4;
			init_irq_work(&ring->filled, wake_readers);
			init_waitqueue_head(&ring->waiting);
		}
	}
	return 0;
}

int copytrace_ring_claim(struct copytrace_ring *ring, bool addresses)
{
	lockdep_assert_held(&copytrace_rings_lock);
	if (ring->reader)
		return -EBUSY;
	/* Unchecked, the OOM killer would end other programs before the allocation fails. */
	if (si_mem_available() < (long)(copytrace_ring_bytes() >> PAGE_SHIFT))
		return -ENOMEM;
	ring->reader = vmalloc_user(copytrace_ring_bytes());
	if (!ring->reader)
		return -ENOMEM;
	ring->records = (void *)ring->reader + PAGE_SIZE;
	ring->addresses = addresses ? ~0UL : 0;
	local_set(&ring->recorded, 0);
	local_set(&ring->dropped, 0);
	ring->missed = 0;
	return 0;
}

void copytrace_ring_release(struct copytrace_ring *ring)
{
	lockdep_assert_held(&copytrace_rings_lock);
	irq_work_sync(&ring->filled);
	vfree(ring->reader);
	ring->reader = NULL;
	ring->records = NULL;
}

void copytrace_ring_open(struct copytrace_ring *ring)
{
	/* Pairs with copytrace_ring_reserve(). */
	smp_store_release(&ring->room, records);
}

void copytrace_ring_close(struct copytrace_ring *ring)
{
	WRITE_ONCE(ring->room, 0);
}

bool copytrace_ring_is_worth_reading(const struct copytrace_ring *ring)
{
	return copytrace_ring_used(ring, local_read(&ring->recorded)) >= ring->quarter;
}
