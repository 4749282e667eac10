/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * A ring of records for each function and CPU.
 */
#ifndef COPYTRACE_RING_H
#define COPYTRACE_RING_H

#include <linux/irq_work.h>
#include <linux/mutex.h>
#include <linux/percpu.h>
#include <linux/types.h>
#include <linux/wait.h>
#include <asm/local.h>
#include <memwarden/copytrace.h>

/* The devices, in this order. */
enum function {
	FROM_USER,
	TO_USER,
	UNDERSCORE_FROM_USER,
	UNDERSCORE_TO_USER,
	FUNCTIONS,
};

/**
 * struct ring - records of one function's copies that ended on one CPU
 * @recorded: taken so far; the next one's number
 * @dropped: not taken
 * @started: copies are recorded
 * @claimed: a file has it; under rings_lock
 * @reader: mapped, with the records behind it: what stands there is only read
 * @records: behind it
 * @mask: one less than there are
 * @filled: tells whoever waits that a quarter is there
 * @waiting: who waits
 */
struct ring {
	local_t recorded;
	local_t dropped;
	bool started;
	bool claimed;
	struct copytrace_reader *reader;
	struct copytrace_record *records;
	unsigned long mask;
	struct irq_work filled;
	wait_queue_head_t waiting;
};

extern struct mutex rings_lock;

/* All rings, empty; 0 or an errno, with its line. */
int rings_alloc(void);
void rings_free(void);

struct ring *ring_of(enum function function, unsigned int cpu);
unsigned int ring_records(void);
size_t ring_bytes(void);

/* Nothing may be recording. */
void ring_clear(struct ring *ring);
/* Whether there is so much that a reader is woken. */
bool ring_is_worth_reading(const struct ring *ring);

DECLARE_PER_CPU(struct ring[FUNCTIONS], rings);

static __always_inline unsigned long ring_used(const struct ring *ring, unsigned long recorded)
{
	return recorded - (unsigned long)READ_ONCE(ring->reader->tail);
}

/*
 * A record of a copy that ended on this CPU, in whatever context; preemption is off until
 * it is committed. NULL: nobody wants it, or the ring is full. All of a traced copy's
 * time goes here, so it is no call.
 */
static __always_inline struct copytrace_record *ring_reserve(struct ring *ring, unsigned long *at)
{
	unsigned long now;

	if (!READ_ONCE(ring->started))
		return NULL;
	*at = local_read(&ring->recorded);
	for (;;) {
		/* Also what a tail that was never reached makes of it. */
		if (unlikely(ring_used(ring, *at) > ring->mask)) {
			local_inc(&ring->dropped);
			return NULL;
		}
		/* An interrupt that copies may come between. */
		now = local_cmpxchg(&ring->recorded, *at, *at + 1);
		if (likely(now == *at))
			return &ring->records[*at & ring->mask];
		*at = now;
	}
}

static __always_inline void ring_commit(struct ring *ring, struct copytrace_record *record,
					unsigned long at)
{
	/* A reader, which may be user space, reads it first. */
	smp_store_release(&record->sequence, at + 1);
	if (unlikely(ring_used(ring, at + 1) == ring->mask / 4 + 1))
		irq_work_queue(&ring->filled);
}

#endif /* COPYTRACE_RING_H */
