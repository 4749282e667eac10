// SPDX-License-Identifier: GPL-2.0-only
/*
 * Rings of records. A CPU writes to its own alone, and an interrupt of it may do so
 * between: a slot is reserved by one local operation, and is whole when its sequence
 * says so.
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

/* Over which file has a ring, and whether it records. */
DEFINE_MUTEX(rings_lock);

DEFINE_PER_CPU(struct ring[FUNCTIONS], rings);

struct ring *ring_of(enum function function, unsigned int cpu)
{
	return per_cpu_ptr(&rings[function], cpu);
}

unsigned int ring_records(void)
{
	return records;
}

size_t ring_bytes(void)
{
	return PAGE_SIZE + PAGE_ALIGN(records * sizeof(struct copytrace_record));
}

static void tell(struct irq_work *work)
{
	wake_up_interruptible(&container_of(work, struct ring, filled)->waiting);
}

int rings_init(void)
{
	unsigned int cpu, function;

	if (!is_power_of_2(records) || records < 64 || records > SZ_16M) {
		pr_err("records=%u: give a power of 2 from 64 to %u\n", records, SZ_16M);
		return -EINVAL;
	}
	for_each_possible_cpu(cpu) {
		for (function = 0; function < FUNCTIONS; function++) {
			struct ring *ring = ring_of(function, cpu);

			ring->quarter = records / 4;
			init_irq_work(&ring->filled, tell);
			init_waitqueue_head(&ring->waiting);
		}
	}
	return 0;
}

int ring_claim(struct ring *ring, bool addresses)
{
	lockdep_assert_held(&rings_lock);
	if (ring->reader)
		return -EBUSY;
	/* Taking what isn't there would have other programs killed first. */
	if (si_mem_available() < (long)(ring_bytes() >> PAGE_SHIFT))
		return -ENOMEM;
	ring->reader = vmalloc_user(ring_bytes());
	if (!ring->reader)
		return -ENOMEM;
	ring->records = (void *)ring->reader + PAGE_SIZE;
	ring->addresses = addresses ? ~0UL : 0;
	local_set(&ring->recorded, 0);
	local_set(&ring->dropped, 0);
	return 0;
}

void ring_release(struct ring *ring)
{
	lockdep_assert_held(&rings_lock);
	irq_work_sync(&ring->filled);
	vfree(ring->reader);
	ring->reader = NULL;
	ring->records = NULL;
}

void ring_open(struct ring *ring)
{
	/* Pairs with ring_reserve(). */
	smp_store_release(&ring->room, records);
}

void ring_close(struct ring *ring)
{
	WRITE_ONCE(ring->room, 0);
}

bool ring_is_worth_reading(const struct ring *ring)
{
	return ring_used(ring, local_read(&ring->recorded)) >= ring->quarter;
}
